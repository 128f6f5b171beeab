"""Under the freshness ``snapshot`` the tool is imported once a jail; what that import does wrong ends the jail, and says why."""

import re
from pathlib import Path

import pytest
import trio

from engine.errors import EngineError
from engine.host import Engine
from engine.outcome import Outcome
from engine.policy.model import Freshness
from tests import kit, levels, moments

ONE_IMPORT = moments.RUN + "\nprint('imported')\n"
AT_IMPORT = moments.CALLED + moments.RUN + "\nif CALLED:\n    os.write(1, b'imported')\n    ACT\n"


async def calls(engine: Engine, folder: Path, act: str, *, start: str = "2 s") -> Outcome:
    """The outcome of a call whose source acts at import, and that the same engine answers one whose source does not."""
    policy = levels.policy(folder / "policy", Freshness.SNAPSHOT, {"limits": {"start": start, "threads": 8}})
    await engine.load(kit.write(folder, AT_IMPORT.replace("ACT", act)), policy=policy)
    with trio.fail_after(60):
        outcome = await engine.call("echo", {"word": "x"})
        await outcome.concluded()
        if outcome.reason != "ok.done":
            assert engine._pool.idle == []  # the jail that could not import is gone
        await engine.load(kit.write(folder, AT_IMPORT.replace("ACT", "pass")), policy=policy)
        await moments.assert_works(engine)
    return outcome


async def test_it_is_imported_once_a_jail(engine: Engine, tmp_path: Path) -> None:
    """What that printed belongs to the jail's first call; each call has a process of its own all the same."""
    await engine.load(kit.write(tmp_path, ONE_IMPORT), policy=levels.policy(tmp_path / "policy", Freshness.SNAPSHOT))
    with trio.fail_after(60):
        found = [await engine.call("run", {"code": "value = os.getpid()\nprint(value)"}) for _ in range(3)]
        assert [one.stdout for one in found] == [f"imported\n{found[0].value}\n", *(f"{one.value}\n" for one in found[1:])]
        assert len({one.value for one in found}) == 3
        await found[-1].concluded()
        jail, _ = await levels.waiting(engine)
        again = await engine.call("run", {"code": "raise ValueError"})
        assert (again.reason, again.stdout, (await levels.waiting(engine))[0]) == ("tool_error.exception", "", jail)


@pytest.mark.parametrize(
    ("act", "reason", "line"),
    [
        ("raise ValueError('not today')", "tool_error.import", "ValueError: not today"),
        ("sys.exit('not today')", "tool_error.exit", "SystemExit: not today"),
        ("os._exit(0)", "crashed.worker", "the process that imports the tool for all calls ended while it did"),
        ("import ctypes\n    ctypes.string_at(0)", "crashed.worker", "the process that imports the tool for all calls ended while it did"),
        ("while True: pass", "limit_exceeded.start", "not ready within 1000 ms"),
        ("while True: print('words ' * 1000)", "limit_exceeded.output", "more than 262144 bytes on stdout"),
        ("held = bytearray(1 << 30)", "tool_error.import", "MemoryError:"),
        (
            "sys.modules['guest.describe'].digest = lambda tools: 'other'",
            "violation.declaration",
            "the worker's declarations are not those that were loaded",
        ),
    ],
)
async def test_an_import_that_goes_wrong_ends_the_jail(engine: Engine, tmp_path: Path, act: str, reason: str, line: str) -> None:
    """It is the outcome of the call that needed it, with what was printed; nothing was forked from such a process."""
    outcome = await calls(engine, tmp_path, act, start="1 s" if reason == "limit_exceeded.start" else "2 s")
    assert (outcome.reason, outcome.lines, outcome.stdout[:8]) == (reason, (line,), "imported")
    assert ("Traceback" in outcome.stderr) is (reason == "tool_error.import")


THREAD = "import threading\n    stop = threading.Event()\n    thread = threading.Thread(target=stop.wait)\n    thread.start()\n    "
THREAD_LEFT = (
    "the import left a thread running, and a process with threads is not forked: start it in the call, or have the freshness fresh"
)
OPEN = "import tempfile\n    file = open(tempfile.gettempdir() + '/kept', 'w')\n    "
CLOSE = "RuntimeError: the import left {}, which calls cannot share: close {} in the import, or have the freshness fresh"
UNSHAREABLE = {
    "a thread": (THREAD, THREAD + "stop.set(), thread.join()", THREAD_LEFT),
    "a thread that makes way for a fork": (
        THREAD,
        THREAD + "os.register_at_fork(before=lambda: (stop.set(), thread.join()))",
        THREAD_LEFT,
    ),
    "a process": (
        "os.fork() or __import__('time').sleep(1000)",
        "os.fork() or os._exit(0)\n    os.wait()",
        "RuntimeError: the import left a process, which calls cannot share: have it ended in the import, or have the freshness fresh",
    ),
    "an open file": (OPEN, OPEN + "file.close()", CLOSE.format("an open descriptor (N)", "it")),
    "more of them": (OPEN + "more = os.dup(file.fileno())\n", OPEN + "file.close()", CLOSE.format("2 open descriptors (N, N)", "them")),
}


@pytest.mark.parametrize("what", UNSHAREABLE)
async def test_what_a_fork_would_break_is_refused(engine: Engine, tmp_path: Path, what: str) -> None:
    """Threads, processes and open files that the import leaves; the control has them, and ends them before it is forked."""
    leaves, ends, line = UNSHAREABLE[what]
    outcome = await calls(engine, tmp_path, leaves)
    assert (outcome.reason, [re.sub(r"\b\d+(?=[,)])", "N", told) for told in outcome.lines]) == ("tool_error.import", [line])
    outcome = await calls(engine, tmp_path, ends)
    assert (outcome.reason, outcome.value) == ("ok.done", "x")


async def test_a_call_that_is_given_up_while_it_is_imported(engine: Engine, tmp_path: Path) -> None:
    """By its own deadline: the jail is gone, with what it was importing."""
    policy = levels.policy(tmp_path / "policy", Freshness.SNAPSHOT, {"limits": {"start": "20 s"}})
    await engine.load(kit.write(tmp_path, AT_IMPORT.replace("ACT", "while True: pass")), policy=policy)
    with trio.fail_after(60):
        outcome = await engine.call("echo", {"word": "x"}, timeout_ms=1500)
        assert (outcome.reason, engine._pool.idle, moments.Tree(engine).firsts) == ("limit_exceeded.wall", [], [])


async def test_a_jail_made_ahead_has_imported(engine: Engine, tmp_path: Path) -> None:
    """``warm`` waits for the import, and tells what went wrong with it."""
    policy = levels.policy(tmp_path / "policy", Freshness.SNAPSHOT)
    await engine.load(kit.write(tmp_path, ONE_IMPORT), policy=policy)
    with trio.fail_after(60):
        await engine.warm("echo")
        assert (await levels.waiting(engine))[0].holds_tool
        assert (await engine.call("echo", {"word": "x"})).stdout == "imported\n"
        await engine.load(kit.write(tmp_path, AT_IMPORT.replace("ACT", "raise ValueError('not today')")), policy=policy)
        with pytest.raises(EngineError) as caught:
            await engine.warm("echo")
    assert (caught.value.code, caught.value.lines) == ("tool_error.import", ("ValueError: not today",))


async def test_variables_that_import_sets_stay(engine: Engine, tmp_path: Path) -> None:
    """But each call has a scratch folder of its own, whatever the import did with its own."""
    body = "os.environ['SET'] = 'by import'\n    os.mkdir('below')\n    os.chdir('below')\n    open('left', 'w').close()"
    await engine.load(kit.write(tmp_path, AT_IMPORT.replace("ACT", body)), policy=levels.policy(tmp_path / "policy", Freshness.SNAPSHOT))
    own = "os.getcwd() == os.environ['HOME'] == os.environ['TMPDIR']"
    code = f"value = [os.environ['SET'], os.environ['LANG'], {own}, os.listdir(), len(os.listdir('..'))]"
    with trio.fail_after(60):
        for _ in range(3):
            assert (await engine.call("run", {"code": code})).value == ["by import", "C.UTF-8", True, [], 1]
