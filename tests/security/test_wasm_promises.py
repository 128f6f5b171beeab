"""What hostile tools can try in a WebAssembly worker alone, or must try in another way there: each attempt fails, and its control does not.

The promises themselves are every kind's (``tests/kinds.py``); this has the attempts for which that table names this file.
"""

# ruff: noqa: ASYNC240 - looking at the host's files while a jail runs is the test, and nobody else waits on this loop

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.host import Engine
from engine.outcome import Outcome
from tests import kinds, kit, machine, moments
from tests.attempts import given, said, source
from tests.security import test_promise_identity as identity
from tests.security.test_promise_identity import ROOT, facts, running

CANARY = "canary-of-the-host"
SENT = "from wit_world.imports import host\n"  # the two calls of the host, past the guest
TRAP = ("crashed.exit", "the process ended with exit code 134 and no answer")
LONG = ("violation.protocol", "the worker sent a frame longer than its bound")
WALL = ("limit_exceeded.wall", "no answer within 200 ms")
MIB = 1 << 20


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine whose tools run in WebAssembly workers."""
    kinds.require_image()
    with kit.default_kind("wasm", machine.IMAGE_DIR):
        async with kit.clean_engine(tmp_path / "state") as made:
            yield made


async def ended(engine: Engine, code: str, **options: Any) -> tuple[str, str | None]:
    """Reason and line of a text, after which the same engine answers another call."""
    with trio.fail_after(30):
        if "timeout_ms" in options:  # the time is the text's: its worker is ready before
            await engine.warm("run")
        outcome = await engine.call("run", {"code": code}, **options)
    await moments.assert_works(engine)
    (line,) = outcome.lines or (None,)
    return outcome.reason, line


async def all_ended(engine: Engine, folder: Path, codes: Mapping[str, Any], **options: Any) -> dict[str, tuple[str, str | None]]:
    """The same of many."""
    await engine.load(kit.write(folder, moments.RUN))
    return {code: await ended(engine, code, **options) for code in codes}


BRINGS = """
import os, sys
from engine import tool

@tool(effect="read", description="d", data=["extra.wasm", "extra.cwasm"], includes=["plain"])
def attempt() -> list[object]:
    load, found = vars(sys.modules["builtins"])["__imp" + "ort__"], [sorted(os.listdir("/bundle"))]
    for name in ("extra", "extra.wasm", "wasmtime", "_ctypes", "componentize_py", "plain"):
        try:
            load(name)
            found.append("done")
        except Exception as error:
            found.append(type(error).__name__)
    return found
"""


class TestView:
    """What there is to see, and to change."""

    async def test_nothing_came_along_with_the_process(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No variable, argument or input but those that every call gets."""
        monkeypatch.setenv("CANARY", CANARY)
        body = "import sys\nreturn [dict(os.environ), sys.argv, sys.orig_argv, sys.stdin.read(), tried(lambda: os.read(0, 9).decode())]"
        outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", given())
        variables = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/nonexistent", "TZ": "UTC", "HOME": "/tmp", "TMPDIR": "/tmp"}
        assert outcome.value == [variables, [""], [], "", ["done", ""]]
        bare = kit.bare(tmp_path / "bare", source(body), "attempt", given(), input=CANARY.encode())
        assert (bare.value[0]["CANARY"], bare.value[3]) == (CANARY, CANARY)

    async def test_nothing_can_be_written(self, engine: Engine, tmp_path: Path) -> None:
        """By no call, at no place: neither the host's, nor the image's, nor where a native worker has its scratch folder."""
        outside = tmp_path / "outside"
        outside.mkdir(mode=0o777)
        body = """
        import logging, shutil, sqlite3, tempfile
        def wrote(path):
            with open(path, "w") as file:
                file.write("x")
        def database(path):
            sqlite3.connect(path).execute("create table t(a)")
        found = {}
        for folder in given["folders"]:
            place = folder + "/new"
            found[folder] = [tried(wrote, place), tried(write, place), tried(os.mkdir, place), tried(os.symlink, folder, place),
                tried(database, place), tried(logging.FileHandler, place), tried(lambda: tempfile.mkstemp(dir=folder)),
                tried(shutil.copy, given["own"], place)]
        return found
        """
        folders = [str(outside), "/", "/tmp", ".", "/bundle", "/packages", "/python/lib", "/usr/share/zoneinfo", "/dev", "/proc/self"]
        outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", given(folders=folders, own="/bundle/tools.py"))
        assert {folder: [how for how, _ in tries] for folder, tries in outcome.value.items()} == {
            folder: ["refused"] * 8 for folder in folders
        }
        assert list(outside.iterdir()) == []
        control = given(folders=[str(outside)], own=__file__)
        bare = kit.bare(tmp_path / "bare", source(body.replace("tried(os.mkdir, place), ", "")), "attempt", control).value
        assert (bare[str(outside)][0], len(list(outside.iterdir()))) == (["done", "None"], 2)

    async def test_no_process_no_thread_no_socket_no_signal(self, engine: Engine, tmp_path: Path) -> None:
        """There is no call for them, or it says so; the same attempts bare get through."""
        body = """
        import _socket, _thread, asyncio, signal, socket, subprocess
        call = lambda name, *arguments: getattr(os, name)(*arguments)
        return {"fork": tried(lambda: call("fork") or call("_exit", 0)), "system": tried(lambda: call("system", "true")),
            "spawn": tried(lambda: call("posix_spawn", "/bin/true", ["true"], {})), "run": tried(lambda: subprocess.run(["/bin/true"])),
            "kill": tried(lambda: call("kill", os.getpid(), 0)), "pipe": tried(lambda: call("pipe")), "dup": tried(lambda: call("dup", 1)),
            "thread": tried(_thread.start_new_thread, print, ()), "socket": tried(_socket.socket), "pair": tried(socket.socketpair),
            "listen": tried(lambda: socket.create_server(("127.0.0.1", 0))), "name": tried(socket.getaddrinfo, "localhost", 80),
            "loop": tried(lambda: asyncio.run(asyncio.open_connection("127.0.0.1", given["port"]))),
            "alarm": tried(lambda: signal.setitimer(signal.ITIMER_REAL, 1000))}
        """
        with trio.socket.socket() as listener:
            await listener.bind(("127.0.0.1", 0))
            listener.listen()
            told = given(port=listener.getsockname()[1])
            outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", told)
            assert {name: how for name, (how, _) in outcome.value.items() if how != "refused"} == {}
            bare = kit.bare(tmp_path / "bare", source(body), "attempt", told).value
        assert {name: how for name, (how, _) in bare.items() if how != "done"} == {}

    async def test_modules_that_a_source_brings_are_no_code_of_the_engines(self, engine: Engine, tmp_path: Path) -> None:
        """WebAssembly beside the source, compiled or not, is data: nothing loads it. The control is a module of Python beside it."""
        files = {"tools.py": BRINGS, "plain.py": "here = 1\n", "extra.wasm": "\0asm\1\0\0\0", "extra.cwasm": "\x7fno code\n"}
        outcome = await kit.jailed(engine, tmp_path / "jailed", files, "attempt")
        *refused, control = outcome.value
        assert refused == [["extra.cwasm", "extra.wasm", "plain.py", "tools.py"], *["ModuleNotFoundError"] * 5]
        assert control == "done"

    @pytest.mark.skipif(not ROOT, reason="unproven here: the kernel shows this of a process that forbids dumps to root alone")
    async def test_who_broke_out_would_hold_nothing(self, engine: Engine, tmp_path: Path) -> None:
        """Seen from outside: a child holds its null device, its outputs, its channel, and the compiled image, from which its guest's
        memory is mapped; that is the one file, to be read alone.
        """
        async with running(engine, tmp_path / "source") as (_, first, child):
            held = {pid: identity.held(pid) for pid in (first, child)}
            limits = {line[:25].strip(): line[26:].split()[:2] for line in Path(f"/proc/{child}/limits").read_text().splitlines()[1:]}
            assert facts(child)["Seccomp_filters"] == "2"
        files = {pid: [(Path(name).name, way) for name, way in held[pid] if name.startswith("/") and name != "/dev/null"] for pid in held}
        assert [*files.values()] == [[("code", "reads")]] * 2
        sleeping = {"anon_inode:[eventpoll]", "anon_inode:[eventfd]"}  # what its timer waits with
        assert {name for name, _ in held[child] if not name.startswith("/")} - sleeping == {"pipe:[*]", "socket:[*]"}
        fixed = {name: limits[name] for name in ("Max cpu time", "Max file size", "Max open files", "Max core file size")}
        assert fixed == {
            "Max cpu time": ["30", "31"],
            "Max file size": ["0", "0"],
            "Max open files": ["64", "64"],
            "Max core file size": ["0", "0"],
        }
        assert 256 * MIB < int(limits["Max data size"][0]) < 512 * MIB


class TestHostCalls:
    """The two functions that a guest is given are any tool's to call."""

    FRAMES: Mapping[str, tuple[str, str | None]] = {
        "host.emit(3, 'garbage, and more of it')": LONG,
        "host.emit(3, '\\xff\\xff\\xff\\xff\\x91\\xc0')": LONG,
        "host.emit(3, '\\0\\0\\0\\0')": ("violation.protocol", "the worker sent a frame too short for any message"),
        "host.emit(3, frame(3, 'run', {}, '').decode('latin-1'))": (
            "violation.protocol",
            "the worker sent Call, which only the host sends",
        ),
        "host.emit(3, frame(16, None).decode('latin-1'))": ("violation.protocol", "the worker sent Ready while running"),
        "host.emit(3, frame(24, 'cancelled', 'X', 'y').decode('latin-1'))": (
            "violation.protocol",
            "the worker sent a Failure of kind cancelled, and nobody cancelled",
        ),
        "host.emit(3, frame(23, 'forged').decode('latin-1'))": ("ok.done", None),  # the control: what any tool may answer
        "host.emit(3, frame(23, 'whole').decode('latin-1')[:-1])": ("limit_exceeded.wall", "no answer within 1000 ms"),
        "while True: host.emit(3, frame(20, 'x' * 60000).decode('latin-1'))": (
            "limit_exceeded.events",
            "the worker sent more bytes of events than their bound",
        ),
        "while True: host.emit(1, 'x' * 60000)": ("limit_exceeded.output", "more than 262144 bytes on stdout"),
        "while True: host.emit(2, 'x' * 60000)": ("limit_exceeded.output", "more than 262144 bytes on stderr"),
    }
    WRONGLY: Mapping[str, tuple[str, str | None]] = {
        "host.emit(7, 'x')": TRAP,
        "host.emit(0, 'x')": TRAP,
        "host.emit(256, 'x')": TRAP,
        "host.emit(3, '\\u20ac')": TRAP,
        "host.call('what')": TRAP,
        "host.call('')": TRAP,
        "host.call('next' * (50 << 20))": TRAP,
        "host.emit(1, 'x' * (100 << 20))": ("crashed.signal", "the process died of signal 6"),  # no memory for the copy that it makes
        "import componentize_py_runtime as below\nbelow.call_import(1 << 20, [])": TRAP,
        "host.call('poll')": ("ok.done", None),  # the control
    }

    async def test_frames_past_the_guest_are_judged_like_any(self, engine: Engine, tmp_path: Path) -> None:
        """Noise, lengths that lie, messages that only the host sends, floods: the call ends for that reason, and a neighbour is served."""
        hang = "\nimport time\nwhile True: time.sleep(1000)"
        codes = {f"{SENT}{code}{hang}": expected for code, expected in self.FRAMES.items()}
        before = moments.resident_kib()
        late = {code for code, (reason, _) in codes.items() if reason == "limit_exceeded.wall"}
        ends = await all_ended(engine, tmp_path, {code: codes[code] for code in codes.keys() - late})
        assert {**ends, **await all_ended(engine, tmp_path, dict.fromkeys(late), timeout_ms=1000)} == codes
        assert moments.resident_kib() - before < 24 << 10

    async def test_calls_with_what_they_do_not_take_end_the_child(self, engine: Engine, tmp_path: Path) -> None:
        """An unknown kind or request, bytes that are none, more than there is memory for, an import that is not there."""
        codes = {SENT + code: expected for code, expected in self.WRONGLY.items()}
        assert await all_ended(engine, tmp_path, codes) == codes

    async def test_there_are_no_others(self, engine: Engine, tmp_path: Path) -> None:
        """Of the host's functions there are these two."""
        code = SENT + "import types, wit_world.imports as all\n"
        code += "value = [[name for name, one in vars(place).items() if isinstance(one, kind) and one.__module__.startswith('wit_world')"
        code += " if kind is types.FunctionType] if kind is types.FunctionType else [name for name, one in vars(place).items()"
        code += " if isinstance(one, kind)] for place, kind in ((host, types.FunctionType), (all, types.ModuleType))]"
        outcome = await moments.run(engine, tmp_path, code)
        assert outcome.value == [["emit", "call"], ["host"]]


class TestBounds:
    """Memory, stack and time."""

    MEMORY = (
        "held = []\nwhile True: held.append(bytearray(1 << 20))",
        "held = []\nwhile True: held = [held, [0] * 100_000]",
        "held = {}\nwhile True: held[len(held)] = str(len(held)) * 100",
        "text = 'x'\nwhile True: text += text",
        "1 << (1 << 33)",
        "import zlib\nzlib.decompress(zlib.compress(bytes(100 << 20), 9), bufsize=1 << 30)",
        "import array\narray.array('q', [0]) * (1 << 28)",
        "import io\nfile = io.BytesIO()\nfile.seek(1 << 30)\nfile.write(b'x')",
        "import re\nre.compile('x' * (1 << 28))",
    )
    DEEP: Mapping[str, tuple[str, str | None]] = {
        "def f(): return f()\nf()": ("tool_error.exception", "RecursionError: maximum recursion depth exceeded"),
        "sys.setrecursionlimit(10**8)\ndef f(): return f()\nf()": TRAP,
        "os.abort()": TRAP,
        "value = 1": ("ok.done", None),
    }
    CAUGHT = (
        "import json\njson.loads('[' * 10**6)",
        "class A:\n    def __getattr__(self, name): return getattr(self, name + 'x')\nA().x",
        "compile('(' * 10**5, 'x', 'eval')",
        "import ast\nast.literal_eval('-' * 10**5 + '1')",
        "held = []\nfor _ in range(10**5): held = [held]\nrepr(held)",
    )

    async def test_memory_ends_where_it_may(self, engine: Engine, tmp_path: Path) -> None:
        """By bytes, objects, texts, numbers and archives: a MemoryError, the tool's own, and the process stays within its bound."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        for code in self.MEMORY:
            outcome = await engine.call("run", {"code": code}, limits={"memory": "64 MiB"})
            assert (outcome.reason, outcome.lines) == ("tool_error.exception", ("MemoryError:",)), code
            assert (await outcome.concluded())["usage"]["peak_rss_bytes"] < 320 * MIB
        await moments.assert_works(engine)
        # the control: as much again is there for who is granted it
        held = {"code": "held = [bytearray(1 << 20) for _ in range(100)]\nvalue = len(held)"}
        tight, wide = [await engine.call("run", held, limits={"memory": memory}) for memory in ("64 MiB", "192 MiB")]
        assert (tight.lines, wide.reason, wide.value) == (("MemoryError:",), "ok.done", 100)

    async def test_depth_ends_in_an_error_or_a_trap(self, engine: Engine, tmp_path: Path) -> None:
        """A stack that is used up takes its own child along and nobody else; where the interpreter counts, it is an exception."""
        codes = {**self.DEEP, **{f"sys.setrecursionlimit(10**6)\n{code}": "caught" for code in self.CAUGHT}}
        found = await all_ended(engine, tmp_path, codes)
        assert {code: how for code, how in found.items() if code in self.DEEP} == self.DEEP
        caught = {how[1].partition(":")[0] for code, how in found.items() if code not in self.DEEP and how[1] is not None}
        assert caught == {"RecursionError", "MemoryError"}

    LATE = (
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
        "pow(3, 10**9)",
        "sum(range(10**15))",
        "import time\ntime.sleep(1000)",
        "import asyncio\nasyncio.run(asyncio.sleep(1000))",
        SENT + "host.call('next')",
        "import hashlib\nwhile True: hashlib.sha256(bytes(1 << 24))",
    )

    async def test_a_short_deadline_ends_whatever_runs(self, engine: Engine, tmp_path: Path) -> None:
        """Loops, patterns, numbers, sleeps and a wait for the host, in a child that was ready: the next call is served after each."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        await moments.assert_works(engine)
        for code in self.LATE:
            assert await ended(engine, code, timeout_ms=200) == WALL, code
        # the control: what takes longer than that ends by itself where it has the time
        for code in ("import time\ntime.sleep(0.3)", "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass"):
            assert await ended(engine, f"{code}\nvalue = 1", timeout_ms=20_000) == ("ok.done", None), code

    async def test_the_receipt_says_what_held_each(self, engine: Engine, tmp_path: Path) -> None:
        """Other means than a native worker has."""
        receipt = await (await moments.run(engine, tmp_path, "value = 1")).concluded()
        means = receipt["means"]
        assert means["memory"].startswith("guest's memory + RLIMIT_DATA")
        assert (means["scratch"], means["scratch_inodes"], means["threads"]) == ("no files", "no files", "no threads")
        assert (receipt["worker"]["kind"], receipt["worker"]["freshness"], receipt["worker"]["walls"]) == ("wasm", "fresh", True)


LEAVE_AND_LOOK = """
import asyncio, atexit, builtins, decimal, gc, json, logging, random, re, sqlite3, sys, warnings
import attempt as beside
host, main = sys.modules["wit_world.imports.host"], sys.modules["guest.main"]
def look():
    return {
        "global": globals().get("LEFT", "nothing"), "attribute": hasattr(json, "left"), "beside": hasattr(beside, "left"),
        "builtin": oct(8), "module": "left_module" in sys.modules, "path": "/left" in sys.path, "variable": os.environ.get("LEFT"),
        "precision": decimal.getcontext().prec, "recursion": sys.getrecursionlimit(), "trace": sys.gettrace() is None,
        "filters": any("left" in str(one) for one in warnings.filters), "hook": sys.excepthook is sys.__excepthook__,
        "collector": gc.isenabled(), "digits": sys.get_int_max_str_digits(), "loop": asyncio._get_running_loop() is None,
        "logger": logging.getLogger("left").level, "pattern": len(re._cache) > 500, "stream": type(sys.stdout).__name__,
        "host": host.emit.__module__, "guest": main.LAST_WORDS == b"left", "source": sorted(os.listdir("/bundle")),
        "memory": len(given.get("held", "")), "interned": hasattr(builtins, "left")}
if given["leave"]:
    global LEFT
    LEFT = "left"
    json.left = beside.left = builtins.left = bytearray(50 << 20)
    builtins.oct = lambda number: "left"
    sys.modules["left_module"] = sys
    sys.path.append("/left")
    os.environ["LEFT"] = "left"
    decimal.getcontext().prec = 5
    sys.setrecursionlimit(4000)
    warnings.filterwarnings("ignore", message="left")
    sys.settrace(lambda *_: None)
    sys.excepthook = print
    gc.disable()
    sys.set_int_max_str_digits(700)
    logging.getLogger("left").setLevel(10)
    for number in range(600):
        re.compile(f"left{number}")
    main.LAST_WORDS = b"left"
    main.serve_over = main._answer = host.call = print
    vars(sys.modules["python_wasm.files"])["_FOLDERS"]["/bundle"].append("left.py")
    atexit.register(print, "left at exit")
    random.seed(1)
    for number in range(3):
        tried(os.close, number)
return look()
"""


async def test_a_call_finds_nothing_that_another_left(engine: Engine, tmp_path: Path) -> None:
    """Interpreter, modules, the guest's own program and its files, the host's functions, memory: the next call has them as they were."""
    place = kit.write(
        tmp_path / "source",
        source(LEAVE_AND_LOOK.replace("import wit_world.imports.host as host\n", 'host = sys.modules["wit_world.imports.host"]\n')),
    )
    await engine.load(place)
    clean = await engine.call("attempt", given(leave=False))
    left = await engine.call("attempt", given(leave=True))
    assert (clean.reason, left.reason) == ("ok.done", "ok.done"), left.lines
    same = [name for name, value in left.value.items() if value == clean.value[name]]
    assert set(same) <= {"stream", "host", "memory", "hook", "loop"}, same  # the control: the rest was changed
    for _ in range(2):
        again = await engine.call("attempt", given(leave=False))
        assert (again.value, again.stdout) == (clean.value, "")
        assert (await again.concluded())["usage"]["peak_rss_bytes"] < (await left.concluded())["usage"]["peak_rss_bytes"]


async def test_nothing_of_a_crashed_call_is_anybody_elses(engine: Engine, tmp_path: Path) -> None:
    """One writes half a frame and traps, another one is killed at its deadline with a word half said: the next ones are whole."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    outcomes: list[Outcome] = []
    for code in ("os.write(1, b'canary of one')\nforge(b'\\0\\0\\0')\nos.abort()", "forge(frame(23, 'canary')[:-2])\nwhile True: pass"):
        await engine.warm("run")
        outcomes.append(await engine.call("run", {"code": code}, timeout_ms=500 if "while True" in code else 20_000))
        again = await engine.call("echo", {"word": "clean"})
        assert (again.reason, again.value, again.stdout, again.stderr) == ("ok.done", "clean", "", "")
        assert "canary" not in await said(again)
    assert [one.reason for one in outcomes] == ["crashed.exit", "limit_exceeded.wall"]
