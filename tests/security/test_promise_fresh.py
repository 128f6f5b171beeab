"""A call finds nothing of an earlier one: not in the interpreter, the process, scratch, or what the kernel keeps of either."""

# ruff: noqa: ASYNC240 - looking at the host's files while a jail runs is the test, and nobody else waits on this loop

import ctypes
import os
import stat
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.host import Engine
from tests import kit, moments
from tests.attempts import given, source

LEAVE_AND_LOOK = """
import asyncio, atexit, builtins, decimal, fcntl, gc, json, locale, math, random, resource, signal, sys, threading, time, warnings
import attempt as beside
slot = os.path.dirname(os.environ["HOME"])
def look():
    found = {
        "global": globals().get("LEFT", "nothing"), "attribute": hasattr(json, "left"), "beside": hasattr(beside, "left"),
        "builtin": hasattr(builtins, "left"), "octal": oct(8), "module": "left_module" in sys.modules, "path": "/left" in sys.path,
        "variable": os.environ.get("LEFT", "nothing"), "folder": len(os.listdir(".")), "below": os.getcwd() == os.environ["HOME"],
        "mask": os.umask(0o022), "handler": signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL,
            "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "alarm": signal.getitimer(signal.ITIMER_REAL)[0] > 0, "threads": threading.active_count(), "precision": decimal.getcontext().prec,
        "recursion": sys.getrecursionlimit(), "filters": any("left" in str(f) for f in warnings.filters), "trace": sys.gettrace() is None,
        "hook": sys.excepthook is sys.__excepthook__, "display": sys.displayhook is sys.__displayhook__,
            "switch": sys.getswitchinterval() < 1,
        "collector": gc.isenabled(), "stdin": fcntl.fcntl(0, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND),
        "stdout": fcntl.fcntl(1, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_APPEND),
            "held": [n for n in range(4, 200) if tried(os.fstat, n)[0] == "done"],
        "niceness": math.floor(os.times().user * 0), "digits": sys.get_int_max_str_digits(), "loops": asyncio._get_running_loop() is None,
        "mode": os.stat(slot).st_mode & 0o7777, "times": [int(os.stat(slot).st_atime) == 4711, int(os.stat(slot).st_mtime) == 4712],
        "others": [tried(os.listdir, place)[0] for place in (slot, "/tmp")],
    }
    return {"slot": slot, "found": found}
if given["leave"]:
    global LEFT
    LEFT = "left"
    json.left = beside.left = builtins.left = 1
    builtins.oct = lambda number: "left"
    sys.modules["left_module"] = sys
    sys.path.append("/left")
    os.environ["LEFT"] = "left"
    for name in ("a", "b/c/d", "e\\nf", "-rf", "..."):
        os.makedirs(os.path.dirname("./" + name), exist_ok=True)
        open(name, "w").close()
    os.chdir("b")
    os.umask(0o077)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.setitimer(signal.ITIMER_REAL, 1000)
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    decimal.getcontext().prec = 5
    sys.setrecursionlimit(4000)
    warnings.filterwarnings("ignore", message="left")
    sys.settrace(lambda *_: None)
    sys.excepthook = sys.displayhook = print
    sys.setswitchinterval(5)
    gc.disable()
    for number in (0, 1):
        tried(fcntl.fcntl, number, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)
    kept = [os.dup(0) for _ in range(5)]
    sys.set_int_max_str_digits(700)
    os.utime(slot, (4711, 4712))
    os.chmod(slot, 0o751)
    atexit.register(print, "left at exit")
return look()
"""
CLEAN: dict[str, Any] = {
    "global": "nothing",
    "attribute": False,
    "beside": False,
    "builtin": False,
    "octal": "0o10",
    "module": False,
    "path": False,
    "variable": "nothing",
    "folder": 0,
    "below": True,
    "mask": 0o022,
    "handler": True,
    "blocked": 0,
    "alarm": False,
    "threads": 1,
    "precision": 28,
    "recursion": 1000,
    "filters": False,
    "trace": True,
    "hook": True,
    "display": True,
    "switch": True,
    "collector": True,
    "stdin": 0,
    "stdout": 0,
    "held": [],
    "niceness": 0,
    "digits": 4300,
    "loops": True,
    "mode": 0o700,
    "times": [False, False],
    "others": ["done", "refused"],
}  # fmt: skip  the table reads as one


async def test_a_call_finds_nothing_that_another_left(engine: Engine, tmp_path: Path) -> None:
    """Globals, modules, built-ins, variables, folder, mask, signals, threads, contexts, hooks, descriptors' flags and the slot's own
    mode and times are new.
    """
    left = await kit.jailed(engine, tmp_path / "source", source(LEAVE_AND_LOOK), "attempt", given(leave=True))
    assert left.reason == "ok.done"
    changed = ("global", "builtin", "handler", "precision", "collector", "mode", "times")
    assert [name for name in changed if left.value["found"][name] == CLEAN[name]] == []
    seen = []
    for _ in range(2):
        found = await engine.call("attempt", given(leave=False))
        assert {name: value for name, value in found.value["found"].items() if value != CLEAN[name]} == {}
        assert (found.value["found"].keys(), found.stdout) == (CLEAN.keys(), "")
        seen.append(found.value["slot"])
    assert left.value["slot"] in seen  # else its mode and times were another's
    assert (await found.concluded())["worker"]["freshness"] == "fresh"


RANDOM = """
import random, secrets, uuid
at_import = [random.random(), hash("a text"), id(object())]
return [random.random(), random.getrandbits(60), secrets.token_hex(8), os.urandom(8).hex(), uuid.uuid4().hex, str(AT_IMPORT)]
"""


async def test_chance_is_not_shared(engine: Engine, tmp_path: Path) -> None:
    """What two calls draw, at import and later, from the module and from the kernel, differs, though one process forked both."""
    await engine.load(kit.write(tmp_path / "source", source(RANDOM, "import random\nAT_IMPORT = random.random()")))
    first, second = [(await engine.call("attempt", given())).value for _ in range(2)]
    assert [one for one, two in zip(first, second, strict=True) if one == two] == []


AFTERWARDS = """
import threading, time
def later():
    while True:
        time.sleep(0.001)
        tried(os.write, 3, b"\\0\\0\\0\\1\\xc0")
        tried(write, os.path.dirname(os.environ["HOME"]) + "/left")
if given["leave"]:
    threading.Thread(target=later, daemon=True).start()
    return os.getpid()
return sorted(os.listdir("."))
"""


async def test_a_thread_does_not_outlive_its_call(engine: Engine, tmp_path: Path) -> None:
    """A thread that keeps writing frames and files ends with its process: the next call is another one, its channel and folder are
    clean.
    """
    await engine.load(kit.write(tmp_path / "source", source(AFTERWARDS)))
    with trio.fail_after(60):
        await engine.warm("attempt")
        (writer,) = moments.Tree(engine).children  # as the host knows it: each jail counts its own from the start again
        number = number_within(writer)
        first = await engine.call("attempt", given(leave=True))
        await first.concluded()
        # it may break the protocol before its own call's end is read, which is that call's fault alone
        assert (first.reason, first.value) in (("ok.done", number), ("violation.protocol", None))
        assert moments.living([writer]) == []
        for _ in range(3):
            second = await engine.call("attempt", given(leave=False))
            assert (second.reason, second.value, (await second.concluded()).get("violations", [])) == ("ok.done", [], [])


def number_within(process: psutil.Process) -> int:
    """The process id that it has in its own namespace, which two processes of different jails may share."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])


UNTIDY = {
    "a tree 3000 levels deep": """
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
open("leaf", "w").close()
""",
    "folders that nobody may read or enter": """
os.makedirs("a/b/c")
open("a/b/c/file", "w").close()
for place, mode in (("a/b/c/file", 0), ("a/b/c", 0), ("a/b", 0o100), ("a", 0)):
    os.chmod(place, mode)
""",
    "names made to confuse": """
names = ["a\\nb", "-rf", "--", " ", "*", "$(reboot)", "\\x1b[2J", "'", '"', "\\\\", "x" * 255, "\\udcff", "...", "~", ".hidden", "CON",
    "%s%n"]
for name in names:
    os.makedirs("in" + name[:200] + "/" + name, exist_ok=True)
    open(name, "w").close()
""",
    "as many files as there is room for": """
made = 0
try:
    while True:
        open(f"f{made}", "w").close()
        made += 1
except OSError:
    pass
return made
""",
    "the folder itself taken away and the slot closed": """
here = os.getcwd()
os.chdir("..")
os.rmdir(here)
open("beside", "w").close()
os.makedirs("closed/within")
os.chmod("closed/within", 0)
os.chmod("closed", 0)
os.chmod(".", 0)
""",
    "many folders with many within": """
for outer in range(40):
    for inner in range(40):
        os.makedirs(f"{outer}/{inner}/x")
        os.chmod(f"{outer}/{inner}", 0)
    os.chmod(str(outer), 0)
""",
    "open, mapped, locked and removed files": """
import fcntl, mmap
held = []
for number in range(50):
    file = open(f"f{number}", "w+b")
    file.truncate(8192)
    fcntl.lockf(file, fcntl.LOCK_EX)
    held += [file, mmap.mmap(file.fileno(), 8192)]
    os.unlink(f"f{number}")
""",
}
LOOK_AROUND = """
space = os.statvfs(".")
return {"slot": len(os.listdir("..")), "own": os.listdir("."), "used": space.f_blocks - space.f_bfree,
    "inodes": space.f_files - space.f_ffree}
"""


@pytest.mark.parametrize("what", UNTIDY)
async def test_scratch_is_empty_again(engine: Engine, tmp_path: Path, what: str) -> None:
    """Whatever a call leaves, the same jail serves the next one with an empty slot and all of its room."""
    body = f"if given['leave']:\n{''.join(f'    {line}{chr(10)}' for line in UNTIDY[what].splitlines())}    return 'left'\n{LOOK_AROUND}"
    await engine.load(kit.write(tmp_path / "source", source(body)))
    clean = await engine.call("attempt", given(leave=False))
    left = await engine.call("attempt", given(leave=True))
    assert left.reason == "ok.done"
    seats = [id(seat.jail) for seat in engine._pool.idle]
    found = await engine.call("attempt", given(leave=False))
    assert found.value == clean.value == {"slot": 1, "own": [], "used": 0, "inodes": 2}
    # not because another jail served it; emptying the deepest takes a busy machine longer than a jail is waited for
    assert "3000" in what or [id(seat.jail) for seat in engine._pool.idle] == seats


async def test_what_crashed_or_ran_over_leaves_nothing_either(engine: Engine, tmp_path: Path) -> None:
    """After a death by signal, an exit without an answer, a protocol violation and a timeout, the next call finds the same clean place."""
    body = f"""
    open("left", "w").close()
    os.makedirs("a/b")
    os.chmod("a", 0)
    if given["how"] == "signal":
        ctypes.string_at(0)
    if given["how"] == "exit":
        os._exit(0)
    if given["how"] == "frame":
        os.write(3, b"half a frame")
        os._exit(0)
    if given["how"] == "time":
        import time
        time.sleep(60)
    os.chmod("a", 0o700)
    os.rmdir("a/b"); os.rmdir("a"); os.unlink("left")
    {LOOK_AROUND.strip().replace(chr(10), chr(10) + "    ")}
    """
    await engine.load(kit.write(tmp_path / "source", source(body)))
    ends = {}
    for how in ("signal", "exit", "frame", "time"):
        await engine.warm("attempt")
        outcome = await engine.call("attempt", given(how=how), timeout_ms=1500 if how == "time" else None)
        ends[how] = outcome.reason
        again = await engine.call("attempt", given(how="look"))
        assert (again.reason, again.value) == ("ok.done", {"slot": 1, "own": [], "used": 0, "inodes": 2})
    assert ends == {"signal": "crashed.signal", "exit": "crashed.exit", "frame": ends["frame"], "time": "limit_exceeded.wall"}
    assert ends["frame"].startswith(("violation.", "crashed."))


CHANNELS = """
import fcntl, mmap, socket
name = given["name"]
def lock():
    with open("/bundle/tools.py", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
tries = {"shared memory": tried(os.open, "/dev/shm/" + name, os.O_CREAT | os.O_RDWR),
    "abstract": tried(lambda: socket.socket(socket.AF_UNIX).bind("\\0" + name)),
         "queue": tried(raw, 240 if os.uname().machine == "x86_64" else 180, name.encode(), 0o102, 0o600, 0),
         "segment": tried(raw, 29 if os.uname().machine == "x86_64" else 194, 4711, 4096, 0o1600), "lock": tried(lock),
         "key": tried(raw, 248 if os.uname().machine == "x86_64" else 217, b"user", name.encode(), b"x", 1, -3),
         "lease": tried(fcntl.fcntl, os.open("/bundle/tools.py", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK),
         "watch": tried(raw, 294 if os.uname().machine == "x86_64" else 26, 0), "attribute": tried(os.setxattr, "/bundle/tools.py",
             "user.x", b"1"),
         "device time": tried(os.utime, "/dev/null")}
return tries
"""


async def test_no_way_of_talking_to_a_parallel_call(engine: Engine, tmp_path: Path) -> None:
    """Shared memory, queues, keys, abstract names, locks and leases on the shared source, watches, attributes and device times are
    refused.
    """
    name = f"stockade-{os.getpid()}"
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(CHANNELS), "attempt", given(name=name))
    refused = ["refused", "EPERM"]
    expected = dict.fromkeys(outcome.value, refused)
    expected |= {"shared memory": ["refused", "ENOENT"], "abstract": ["refused", "EACCES"], "device time": ["refused", "EROFS"]}
    assert outcome.value == expected
    bare = kit.bare(
        tmp_path / "bare", source(CHANNELS.replace("/bundle/tools.py", str(tmp_path / "bare" / "tools.py"))), "attempt", given(name=name)
    )
    Path("/dev/shm", name).unlink()
    done = {way for way, how in bare.value.items() if how[0] == "done"}
    assert done >= {"shared memory", "abstract", "segment", "lock", "lease", "watch", "device time"}
    libc = ctypes.CDLL(None)
    assert (libc.mq_unlink(f"/{name}".encode()), libc.shmctl(bare.value["segment"][1], 0, None)) == (0, 0)


async def test_a_staged_file_stays_as_it_was(engine: Engine, tmp_path: Path) -> None:
    """After calls that try to change their own source, the published files have the same bytes, modes and number of names."""
    body = """
    for place in ("/bundle/tools.py", "/bundle"):
        for change, rest in ((os.chmod, [0o777]), (os.utime, [(1, 1)]), (os.truncate, [0]), (os.rename, [place + "x"]), (os.unlink, [])):
            tried(change, place, *rest)
    return 1
    """
    await engine.load(kit.write(tmp_path / "source", source(body)))
    stage = tmp_path / "state" / "stage"
    before = {file: (file.read_bytes(), file.stat().st_mode, file.stat().st_mtime, file.stat().st_nlink) for file in stage.rglob("*.py")}
    outcome = await engine.call("attempt", given())
    after = {file: (file.read_bytes(), file.stat().st_mode, file.stat().st_mtime, file.stat().st_nlink) for file in stage.rglob("*.py")}
    assert (outcome.reason, before) == ("ok.done", after)
    assert {stat.S_IMODE(mode) for _, mode, _, _ in after.values()} == {0o444}
