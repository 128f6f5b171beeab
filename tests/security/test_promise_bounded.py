"""Promise: memory, CPU time, processes, files and output are bounded on every call: just below passes, just above ends with its reason."""

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.host import Engine
from engine.worker.native import Jail
from tests import kit, moments

MIB = 1 << 20


async def bounded(
    engine: Engine, folder: Path, code: str, limits: dict[str, object], *, timeout_ms: int = 20_000
) -> tuple[str, tuple[str, ...], Any]:
    """Reason, lines and value of a text under these limits, after which the engine still works."""
    with trio.fail_after(40):
        outcome = await moments.run(engine, folder, code, limits=limits, timeout_ms=timeout_ms)
    await moments.assert_works(engine)
    return outcome.reason, outcome.lines, outcome.value


def spins(ms: int) -> str:
    """A text that uses that much CPU time, by its own clock."""
    return f"import time\nend = time.process_time() + {ms / 1000}\nwhile time.process_time() < end: pass\nvalue = 'done'"


DONE = ("ok.done", (), "done")
OUT_OF_CPU = ("limit_exceeded.cpu", ("more than 1 s of CPU time",), None)
BURN = "import threading\ndef burn():\n    while True: pass\nfor _ in range({}): threading.Thread(target=burn).start()\n"


def raises(line: str) -> tuple[str, tuple[str, ...], None]:
    """What a text comes to that raises."""
    return "tool_error.exception", (line,), None


OUT_OF_MEMORY = raises("MemoryError:")
NO_THREAD = raises("RuntimeError: can't start new thread")
TOO_MANY_FILES = "OSError: [Errno 24] Too many open files"
NO_SPACE = "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (spins(300), DONE),
        (spins(5000), OUT_OF_CPU),
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + spins(5000), OUT_OF_CPU),
        (BURN.format(3) + "burn()", OUT_OF_CPU),
        ("import signal\nsignal.raise_signal(signal.SIGXCPU)", ("crashed.signal", ("the process died of signal 24",), None)),
    ],
    ids=["under", "over", "deaf to the warning", "by threads", "feigned"],
)
async def test_cpu_time(engine: Engine, tmp_path: Path, worker_kind: str, code: str, expected: object) -> None:
    """The kernel counts it over all threads; the signal it warns with can be ignored, and sending it to oneself feigns nothing."""
    if worker_kind == "wasm" and "raise_signal" in code:
        expected = ("crashed.exit", ("the process ended with exit code 134 and no answer",), None)  # a signal is a trap there
    assert await bounded(engine, tmp_path, code, {"cpu": "1 s"}) == expected


@pytest.mark.parametrize(
    ("timeout_ms", "expected"), [(10_000, DONE), (300, ("limit_exceeded.wall", ("no answer within 300 ms",), None))], ids=["under", "over"]
)
async def test_wall_time(engine: Engine, tmp_path: Path, timeout_ms: int, expected: object) -> None:
    """A tool that sleeps for a second, with more and with less time than that."""
    assert await bounded(engine, tmp_path, "import time\ntime.sleep(1)\nvalue = 'done'", {}, timeout_ms=timeout_ms) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("held = b'x' * (48 << 20)\nvalue = 'done'", DONE),
        ("held = b'x' * (80 << 20)", OUT_OF_MEMORY),
        ("held = []\nwhile True: held.append(bytearray(1 << 20))", OUT_OF_MEMORY),
        ("b'x' * (sys.maxsize - 100)", OUT_OF_MEMORY),
        ("list(range(sys.maxsize))", OUT_OF_MEMORY),
        ("import mmap\nheld = [mmap.mmap(-1, 1 << 20) for _ in range(100)]", raises("OSError: [Errno 12] Cannot allocate memory")),
        ("try:\n    b'x' * (1 << 30)\nexcept MemoryError:\n    value = 'done'", DONE),
        ("raise MemoryError", OUT_OF_MEMORY),
    ],
    ids=["under", "over", "by steps", "at once", "as a list", "by mappings", "caught", "by hand"],
)
async def test_memory(engine: Engine, tmp_path: Path, code: str, expected: object) -> None:
    """Address space is refused inside, where the tool may catch it: so a MemoryError is the tool's own, feigned or not."""
    assert await bounded(engine, tmp_path, code, {"memory": "64 MiB"}) == expected


def memory_cgroup_usable() -> bool:
    """Whether this user may bound memory by a cgroup here."""
    return os.geteuid() == 0 and os.path.isdir("/sys/fs/cgroup/memory")


@pytest.mark.skipif(
    not memory_cgroup_usable(), reason="unproven here: no memory cgroup can be made; address space and tmpfs hold the bound alone"
)
async def test_memory_beyond_what_address_space_counts(engine: Engine, tmp_path: Path) -> None:
    """The cgroup counts what no address space does; lowered from outside below what the tool may hold, its kill is told from others."""
    code = "held = b'x' * (200 << 20)\nvalue = 'done'"
    blocked = "for _ in range(3000): context.emit('x' * 1000)\n"
    with trio.fail_after(40):
        async with moments.running(engine, tmp_path, blocked + code) as items:
            tree = moments.Tree(engine)
            launcher, first = tree.launcher.pid, tree.firsts[0].pid
            (place,) = [place for place in kit.cgroups_of(launcher) if "/memory/" in place and first in kit.members(place)]
            limit = trio.Path(place, "memory.limit_in_bytes")
            await limit.write_text(str(64 * MIB))
            outcome = await moments.last(items)
    assert (outcome.reason, outcome.lines) == ("limit_exceeded.memory", ("the kernel killed it at the worker's memory limit",))
    await limit.write_text(str(1 << 30))
    assert (await moments.run(engine, tmp_path, code)).value == "done"  # in the same worker
    assert place in kit.cgroups_of(launcher)


DELETED = "file = open('gone', 'wb')\nos.unlink('gone')\nfile.write(bytes(3 << 20))\n"


def fills(mib: float) -> str:
    """A text that writes that much to its scratch folder, as several files."""
    return f"for n in range(4):\n    with open(f'file{{n}}', 'wb') as file: file.write(bytes({int(mib * MIB / 4)}))\nvalue = 'done'"


@pytest.mark.parametrize(
    ("code", "limits", "expected"),
    [
        (fills(3.5), {"scratch": "4 MiB"}, DONE),
        (fills(4.5), {"scratch": "4 MiB"}, raises(NO_SPACE)),
        (DELETED + "open('next', 'wb').write(bytes(2 << 20))", {"scratch": "4 MiB"}, raises(NO_SPACE)),
        ("for n in range(60): open(f'f{n}', 'w').close()\nvalue = 'done'", {"scratch_inodes": 64}, DONE),
        ("for n in range(65): open(f'f{n}', 'w').close()", {"scratch_inodes": 64}, raises(f"{NO_SPACE}: 'f64'")),
        ("for n in range(65): os.mkdir(f'f{n}')", {"scratch_inodes": 64}, raises(f"{NO_SPACE}: 'f64'")),
        ("with open('sparse', 'wb') as file: file.truncate(3 << 20)\nvalue = 'done'", {"scratch": "4 MiB"}, DONE),
        ("with open('sparse', 'wb') as file: file.truncate(1 << 40)", {"scratch": "4 MiB"}, raises("OSError: [Errno 27] File too large")),
    ],
    ids=["bytes under", "bytes over", "deleted but open", "inodes under", "inodes over", "folders", "sparse under", "sparse over"],
)
async def test_files(engine: Engine, tmp_path: Path, code: str, limits: dict[str, object], expected: object) -> None:
    """Bytes, inodes and the size of one file, sparse or not: an error inside, which the tool may catch."""
    assert await bounded(engine, tmp_path, code, limits) == expected


def starts(threads: int) -> str:
    """A text that starts that many threads, which wait together."""
    waits = "threading.Thread(target=gate.wait, daemon=True).start()"
    return f"import threading\ngate = threading.Event()\nfor _ in range({threads}): {waits}\nvalue = 'done'"


@pytest.mark.parametrize(
    ("code", "limits", "expected"),
    [
        (starts(64), {}, DONE),
        (starts(80), {}, NO_THREAD),
        (starts(8), {"threads": 8}, DONE),
        (starts(16), {"threads": 8}, NO_THREAD),
        ("held = [os.open('/dev/null', 0) for _ in range(250)]\nvalue = 'done'", {}, DONE),
        ("held = [os.open('/dev/null', 0) for _ in range(256)]", {}, raises(f"{TOO_MANY_FILES}: '/dev/null'")),
        ("held = [os.pipe() for _ in range(20)]", {"descriptors": 32}, raises(TOO_MANY_FILES)),
    ],
    ids=["threads under", "threads over", "few threads under", "few threads over", "descriptors under", "descriptors over", "pipes"],
)
async def test_threads_and_descriptors(engine: Engine, tmp_path: Path, code: str, limits: dict[str, object], expected: object) -> None:
    """The default and a tighter limit, each from both sides."""
    assert await bounded(engine, tmp_path, code, limits) == expected


DENIED = "PermissionError: [Errno 1] Operation not permitted"


@pytest.mark.parametrize(
    "act",
    [
        "os.fork()",
        "os.forkpty()",
        "import ctypes\nif ctypes.CDLL(None).fork() < 0: raise PermissionError(1, 'Operation not permitted')",
        "import _posixsubprocess, subprocess\nsubprocess.run(['/bin/true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
    ],
)
async def test_processes(engine: Engine, tmp_path: Path, act: str) -> None:
    """No way of making a process works, and outside the same act does."""
    reason, lines, value = await bounded(engine, tmp_path / "jailed", act, {})
    assert (reason, value) == ("tool_error.exception", None)
    assert lines[0].startswith((DENIED, "OSError: out of pty devices", "FileNotFoundError")), lines
    assert kit.bare(tmp_path / "bare", FORKS.replace("ACT", repr(act)), "attempt").value == "forked"


FORKS = """
from engine import tool
import os

@tool(effect="read")
def attempt() -> str:
    \"\"\"Do it in a child of ours, so that what it forks is buried with it.\"\"\"
    pid = os.fork()
    if pid == 0:
        try:
            exec(ACT, {"os": os})
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return "forked"
"""


async def test_request_size(engine: Engine, tmp_path: Path) -> None:
    """The arguments' canonical JSON: exactly at the limit passes, one byte more is refused before any worker is asked for."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    frame = len('{"word":""}')
    fits = await engine.call("echo", {"word": "x" * (MIB - frame)})
    over = await engine.call("echo", {"word": "x" * (MIB - frame + 1)})
    assert (fits.reason, len(fits.value)) == ("ok.done", MIB - frame)
    assert (over.reason, over.lines) == ("refused.request_size", ("the arguments are larger than 1048576 bytes",))
    assert (await over.concluded())["worker"]["started"] is False


@pytest.mark.parametrize(
    ("length", "limit", "expected"),
    [
        (8 * MIB - 5, "8 MiB", ("ok.done", ())),
        (8 * MIB - 4, "8 MiB", ("limit_exceeded.result", ("the result is longer than its bound",))),
        (98, "100", ("ok.done", ())),
        (99, "100", ("limit_exceeded.result", ("the result is longer than its bound",))),
    ],
)
async def test_result_size(engine: Engine, tmp_path: Path, length: int, limit: str, expected: object) -> None:
    """A text as encoded, its head of one to five bytes included: at the limit it passes, one byte more ends the call."""
    reason, lines, value = await bounded(engine, tmp_path, f"value = 'x' * {length}", {"result": limit})
    assert ((reason, lines), len(value or "")) == (expected, length if reason == "ok.done" else 0)


ONE_OF_EACH = "context.emit(n); context.progress(n); context.log.info('x'); context.log.error('x')"
TOO_MANY_EVENTS = ("limit_exceeded.events", ("the worker sent more events than its bound",), None)
TOO_MUCH_OF_EVENTS = ("limit_exceeded.events", ("the worker sent more bytes of events than their bound",), None)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("for n in range(10_000): context.emit(n)\nvalue = 'done'", DONE),
        ("for n in range(10_001): context.emit(n)", TOO_MANY_EVENTS),
        (f"for n in range(2500): {ONE_OF_EACH}\nvalue = 'done'", DONE),
        (f"for n in range(2501): {ONE_OF_EACH}", TOO_MANY_EVENTS),
        ("for n in range(15): context.emit('x' * (1 << 20))\nvalue = 'done'", DONE),
        ("for n in range(16): context.emit('x' * (1 << 20))", TOO_MUCH_OF_EVENTS),
        ("context.emit('x' * (17 << 20))", TOO_MUCH_OF_EVENTS),
    ],
    ids=["count under", "count over", "all kinds under", "all kinds over", "bytes under", "bytes over", "one too large"],
)
async def test_events(engine: Engine, tmp_path: Path, code: str, expected: object) -> None:
    """Events, progress and log records count together, by number and by bytes."""
    assert await bounded(engine, tmp_path, code, {}) == expected


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("code", "reason", "kept"),
    [
        ("'x' * 1000", "ok.done", "x" * 1000),
        ("'x' * 1001", "limit_exceeded.output", "x" * 1000),
        ("'x' * 998 + '\u20ac'", "limit_exceeded.output", "x" * 998),
        ("'x' * 997 + '\u20ac'", "ok.done", "x" * 997 + "\u20ac"),
        ("'x' * 10**8", "limit_exceeded.output", "x" * 1000),
    ],
    ids=["at the cap", "one more", "a character across the cap", "a character before the cap", "a flood in one line"],
)
async def test_output(engine: Engine, tmp_path: Path, stream: str, code: str, reason: str, kept: str) -> None:
    """What is kept ends with a whole character, and what is over ends the call, even when the answer follows at once."""
    with trio.fail_after(40):
        outcome = await moments.run(engine, tmp_path, f"sys.{stream}.write({code})\nvalue = 1", limits={"log": "1000"})
    assert (outcome.reason, getattr(outcome, stream)) == (reason, kept)


@pytest.mark.parametrize(
    ("code", "shown"),
    [(r"b'\xff\xfe'", "\ufffd\ufffd"), (r"b'\0'", "\0"), (r"b'\x1b]0;title\x07'", "\x1b]0;title\x07"), (r"b'\xe2\x82'", "\ufffd")],
)
async def test_output_that_is_no_text(engine: Engine, tmp_path: Path, code: str, shown: str) -> None:
    """It is decoded with replacement and handed over as the tool's own words; no line of the engine's holds any of it."""
    outcome = await moments.run(engine, tmp_path, f"os.write(1, {code})\nvalue = 1")
    assert (outcome.reason, outcome.stdout, outcome.lines) == ("ok.done", shown, ())


async def test_a_flood_costs_the_host_no_memory(engine: Engine, tmp_path: Path) -> None:
    """A gigabyte on stdout, on stderr, as one result and as one length that lies: this process stays as it was."""
    await bounded(engine, tmp_path, "value = 'x' * (4 << 20)", {})
    before = moments.resident_kib()
    flood = "while True: os.write({}, b'x' * 65536)"
    for code, reason in (
        (flood.format(1), "limit_exceeded.output"),
        (flood.format(2), "limit_exceeded.output"),
        (r"forge(b'\x3f\xff\xff\xff\x92\x17\xdb\x3f\xff\xff\xf9')" + f"\n{flood.format(3)}", "limit_exceeded.result"),
        (r"forge(b'\x3f\xff\xff\xff\x92\x14\xdb\x3f\xff\xff\xf9')" + f"\n{flood.format(3)}", "limit_exceeded.events"),
        (flood.format(3), "violation.protocol"),
    ):
        outcome = await moments.run(engine, tmp_path, code)
        assert outcome.reason == reason
    assert moments.resident_kib() - before < 24 << 10


@pytest.mark.parametrize("wrong", [0, -1, "0", "-1 MiB", "1e9", None, True, float("nan"), float("inf"), 1e308, [1], "", "256 GiB"])
async def test_a_limit_that_is_none_is_refused(engine: Engine, tmp_path: Path, wrong: object) -> None:
    """No value comes to mean "no bound", and nothing above what is granted passes."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    outcome = await engine.call("echo", {"word": "x"}, limits={"memory": wrong})
    assert (outcome.reason, (await outcome.concluded())["worker"]["started"]) == ("refused.limits", False)


@pytest.mark.parametrize("wrong", [0, -1, 30_001, 1 << 70, True, 0.5, float("nan"), float("inf"), "1000"])
async def test_a_timeout_that_is_none_is_refused(engine: Engine, tmp_path: Path, wrong: Any) -> None:
    """The same for time: above the policy's wall, or no whole number of milliseconds."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    outcome = await engine.call("echo", {"word": "x"}, timeout_ms=wrong)
    assert (outcome.reason, (await outcome.concluded())["worker"]["started"]) == ("refused.limits", False)


async def test_a_neighbour_is_served_while_others_burn(engine: Engine, tmp_path: Path, worker_kind: str) -> None:
    """Three jails with busy threads in each, as many as it can have; a fourth call is answered."""
    threads = 0 if worker_kind == "wasm" else 16
    burn = BURN.format(threads) + moments.HERE + "burn()"
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def burning(task_status: trio.TaskStatus[None]) -> None:
                async with engine.stream("run", {"code": burn}) as items:
                    await anext(items)
                    task_status.started()
                    await moments.last(items)

            for _ in range(3):
                await nursery.start(burning)
            assert sum(one.num_threads() for one in moments.Tree(engine).children) > 3 * threads
            await moments.assert_works(engine)
            nursery.cancel_scope.cancel()


async def test_a_jail_counts_until_it_is_gone(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at most: while the jail of a call that crashed is still being ended, the next call waits in line, and no second jail is made."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    ending, end, close = trio.Event(), trio.Event(), Jail.close

    async def held_up(jail: Jail) -> None:
        ending.set()
        await end.wait()
        await close(jail)

    got: list[str] = []

    async def call(code: str) -> None:
        got.append((await engine.call("run", {"code": code})).reason)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            monkeypatch.setattr(Jail, "close", held_up)
            nursery.start_soon(call, "os._exit(0)")
            await ending.wait()
            nursery.start_soon(call, "value = 1")
            while not engine._pool._line:
                await trio.lowlevel.checkpoint()
            jails = len(moments.Tree(engine).monitors)
            end.set()
    assert (got, jails) == (["crashed.exit", "ok.done"], 1)
