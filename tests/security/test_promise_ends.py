"""Promise: every call ends once, within its deadline and a fixed grace, with nothing of it left alive, whoever dies around it.

Processes are killed and stopped from outside, by their pid as the host sees it, while a tool runs.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import TypeAlias

import psutil
import pytest
import trio

from engine.host import Engine
from engine.outcome import REASONS, Outcome
from enter import slots
from tests import kit, moments
from tests.security.test_promise_clean import cgroups_anywhere

HANG = "import time\nwhile True: time.sleep(1000)\n"
Program: TypeAlias = "subprocess.Popen[str]"
DEAD = "the worker around the tool died"


@pytest.mark.parametrize("role", ["launcher", "monitor", "first"])
async def test_a_killed_part_of_the_worker_ends_the_call(engine: Engine, tmp_path: Path, role: str) -> None:
    """Launcher, monitor and the jail's first process: each takes all below it along, the call says so, the next call works."""
    with trio.fail_after(30):
        async with moments.running(engine, tmp_path, HANG) as items:
            tree = moments.Tree(engine)
            {"launcher": tree.launcher, "monitor": tree.monitors[0], "first": tree.firsts[0]}[role].kill()
            outcome = await moments.last(items)
        assert (outcome.reason, outcome.lines) == ("crashed.worker", (DEAD,))
        await moments.wait_gone([*tree.monitors, *tree.firsts, *tree.children])
        await moments.assert_works(engine)


async def test_a_killed_child_ends_its_call_alone(engine: Engine, tmp_path: Path) -> None:
    """The process of the tool itself: its signal is named, and its launcher serves on."""
    with trio.fail_after(30):
        async with moments.running(engine, tmp_path, HANG) as items:
            tree = moments.Tree(engine)
            for child in tree.children:
                child.kill()
            outcome = await moments.last(items)
        assert (outcome.reason, outcome.lines) == ("crashed.signal", ("the process died of signal 9",))
        await moments.assert_works(engine)
    assert moments.Tree(engine).launcher == tree.launcher


@pytest.mark.parametrize("role", ["launcher", "monitor", "first", "child"])
async def test_a_stopped_part_of_the_worker_cannot_hold_a_call(engine: Engine, tmp_path: Path, role: str) -> None:
    """A stopped process neither forks, nor waits for its children, nor hands an answer on: the wall limit holds all the same."""
    with trio.fail_after(40):
        async with moments.running(engine, tmp_path, HANG, timeout_ms=1000) as items:
            tree = moments.Tree(engine)
            {"launcher": tree.launcher, "monitor": tree.monitors[0], "first": tree.firsts[0], "child": tree.children[0]}[role].suspend()
            outcome = await moments.last(items)
        assert (outcome.reason, outcome.lines) == ("limit_exceeded.wall", ("no answer within 1000 ms",))
        assert moments.living(tree.children) == []
        tree.launcher.resume()
        await moments.assert_works(engine)


async def test_a_stopped_zygote_does_not_lose_an_answer(engine: Engine, tmp_path: Path) -> None:
    """The answer comes from the child; that nobody can bury it costs the worker its life and the caller nothing but the grace."""
    blocked = "for _ in range(3000): context.emit('x' * 1000)\nvalue = 'kept'"  # more than fits between it and a caller that does not read
    with trio.fail_after(30):
        async with moments.running(engine, tmp_path, blocked) as items:
            tree = moments.Tree(engine)
            tree.firsts[0].suspend()
            outcome = await moments.last(items)
        assert (outcome.reason, outcome.value) == ("ok.done", "kept")
        await outcome.concluded()
        assert moments.living([*tree.firsts, *tree.children]) == []
        await moments.assert_works(engine)


async def test_an_idle_worker_that_died_is_not_given_out(engine: Engine, tmp_path: Path) -> None:
    """Between two calls its launcher is killed: the next call gets a new one."""
    outcome = await moments.run(engine, tmp_path, "value = 1")
    tree = moments.Tree(engine)
    tree.launcher.kill()
    await moments.wait_gone([*tree.monitors, *tree.firsts, *tree.children])
    await moments.assert_works(engine)
    assert (outcome.reason, moments.Tree(engine).launcher != tree.launcher) == ("ok.done", True)


async def test_a_waiting_child_that_was_killed_is_not_given_out(engine: Engine, tmp_path: Path) -> None:
    """What waits for the next call dies of something else: the call gets another one, in the same jail."""
    await (await moments.run(engine, tmp_path, "value = 1")).concluded()
    with trio.fail_after(30):
        (seat,) = engine._pool.idle
        assert seat.spare is not None
        await seat.spare.ready.wait()
        tree = moments.Tree(engine)
        tree.children[0].kill()
        await moments.wait_gone(tree.children)
        await moments.assert_works(engine)
    assert moments.Tree(engine).firsts == tree.firsts


async def test_a_storm_of_kills(engine: Engine, tmp_path: Path) -> None:
    """Sixty calls while any process below the engine may be killed at any moment: each ends once, and who is answered is answered right."""
    chance = random.Random(7)
    await engine.load(kit.write(tmp_path, moments.RUN))
    outcomes: dict[int, Outcome] = {}
    killed: list[psutil.Process] = []

    async def call(number: int) -> None:
        outcomes[number] = await engine.call("run", {"code": f"value = {number}"}, tenant=str(number % 2))

    async def kill() -> None:
        while True:
            for _ in range(chance.randrange(100, 400)):
                await trio.lowlevel.checkpoint()
            with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it died by itself; there is no launcher now
                tree = moments.Tree(engine)
                among = chance.choice(
                    [tree.monitors, tree.firsts, tree.children, tree.monitors, tree.firsts, tree.children, [tree.launcher]]
                )
                if moments.living(among):
                    killed.append(chance.choice(among))
                    killed[-1].kill()

    with trio.fail_after(60):
        async with trio.open_nursery() as killing:
            killing.start_soon(kill)
            for first in range(0, 60, 10):
                async with trio.open_nursery() as nursery:
                    for number in range(first, first + 10):
                        nursery.start_soon(call, number)
            killing.cancel_scope.cancel()
        await moments.wait_gone(killed)
    assert {one.reason for one in outcomes.values()} <= {"ok.done", "crashed.worker", "crashed.signal", "refused.start_failed"}
    assert all(one.value == number for number, one in outcomes.items() if one.reason == "ok.done")
    assert (len(outcomes), len(killed) > 3) == (60, True)
    await moments.assert_works(engine)


FLOOD = """
import os
from engine import tool

COSTLY = {"anyOf": [*({"type": "integer", "minimum": least} for least in range(1000, 1200)), {"type": "integer"}]}


@tool(description="Yields what takes long to check, faster than it is checked.", effect="read", partial={"type": "array", "items": COSTLY})
def flood():
    while True:
        yield [0] * 20_000


@tool(description="Asks for a tool that it did not declare, faster than it is refused.", effect="read")
def ask() -> None:
    import threading

    def drain():
        while os.read(3, 1 << 18):
            pass

    threading.Thread(target=drain).start()
    payloads = [b"\\x94\\x16\\xce" + number.to_bytes(4, "big") + b"\\xa1x\\x80" for number in range(4000)]
    frames = b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)
    while True:
        os.write(3, frames)
"""


@pytest.mark.parametrize("name", ["flood", "ask"])
async def test_a_flood_of_messages_holds_neither_deadlines_nor_anybody_else(engine: Engine, tmp_path: Path, name: str) -> None:
    """A tool that is never slower than the engine takes turns with everybody else, so its deadline comes when it should."""
    await engine.load(kit.write(tmp_path, FLOOD))
    turns: list[float] = []

    async def take_turns() -> None:
        while True:
            turns.append(trio.current_time())
            await trio.sleep(0.05)

    await engine.warm(name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        outcome = await engine.call(name, {}, timeout_ms=1500)
        nursery.cancel_scope.cancel()
    assert (outcome.reason, outcome.lines) == ("limit_exceeded.wall", ("no answer within 1500 ms",))
    assert len(turns) > 3  # some 20; one or two where nobody else has a turn


@pytest.mark.parametrize("code", [code for code in REASONS if code.startswith(("limit_exceeded", "violation", "cancelled", "crashed"))])
async def test_a_tool_cannot_name_its_own_reason(engine: Engine, tmp_path: Path, code: str) -> None:
    """An exception named and worded like one of the engine's endings is the tool's exception, shown as data."""
    text = f"raise type({code!r}, (Exception,), {{}})({code + ': killed by the engine'!r})"
    outcome = await moments.run(engine, tmp_path, text)
    assert (outcome.reason, outcome.lines) == ("tool_error.exception", (f"{code}: {code}: killed by the engine",))


ENGINE_SCRIPT = """
import os, sys
sys.path.insert(0, {project!r})
import psutil, trio
from pathlib import Path
from engine.host import Engine
from tests import kit, moments

async def main():
    folder = Path({folder!r})
    async with Engine(state_dir=folder / "state", {options}) as engine:
        async with moments.running(engine, folder / "source", {code!r}) as items:
            await moments.made_ahead(moments.Tree(engine).launcher.pid)
            below = [(one.pid, one.create_time()) for one in psutil.Process().children(recursive=True)]
            print(below, flush=True)
            sys.stdin.readline()
            {then}

try:
    trio.run(main)
except KeyboardInterrupt:
    left = moments.living(psutil.Process().children(recursive=True))
    print("interrupted", [one.pid for one in left], flush=True)
"""


@contextlib.contextmanager
def started(folder: Path, *, code: str = HANG, then: str = "await moments.last(items)") -> Iterator[tuple[Program, list[psutil.Process]]]:
    """A program with an engine whose tool runs, and all processes below it; a line on its stdin lets it go on."""
    script = ENGINE_SCRIPT.format(project=str(kit.PROJECT), folder=str(folder), code=code, then=then, options=kit.engine_text())
    with subprocess.Popen([sys.executable, "-c", script], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        line = program.stdout.readline()
        assert line.startswith("["), program.stderr.read()
        below = [psutil.Process(pid) for pid, _ in eval(line)]
        assert [(one.pid, one.create_time()) for one in below] == eval(line)
        yield program, below
        program.kill()


def test_everything_dies_with_a_killed_supervisor(tmp_path: Path, worker_kind: str) -> None:
    """SIGKILL in mid-call: launchers, monitor, first process, child, and the two of the jail that waits, though each has another parent and
    another user.
    """
    with started(tmp_path) as (program, below):
        assert len(below) == (7 if worker_kind == "wasm" else 6)
        program.kill()
        moments.wait_gone_sync(below)


@pytest.mark.parametrize(
    "code",
    [
        "import ctypes\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n" + HANG,
        "import signal\nfor n in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(n, signal.SIG_IGN)\n" + moments.FOREVER,
        "import signal\nsignal.raise_signal(signal.SIGSTOP)",
    ],
)
def test_a_tool_cannot_outlive_a_killed_supervisor(tmp_path: Path, code: str) -> None:
    """It forgets its death signal, ignores every other, or is stopped: the namespace of its first process ends it."""
    with started(tmp_path, code=code) as (program, below):
        program.kill()
        moments.wait_gone_sync(below)


def test_an_interrupt_ends_the_call_and_the_program(tmp_path: Path) -> None:
    """Ctrl-C in mid-call: KeyboardInterrupt reaches the program after everything below it is gone."""
    with started(tmp_path, then="print('waiting', flush=True); await moments.last(items)") as (program, below):
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    assert (out, err, moments.living(below)) == ("interrupted []\n", "", [])


def test_a_supervisor_that_ends_its_call_leaves_in_order(tmp_path: Path) -> None:
    """The control: the block is left early, the call is cancelled, the program ends by itself."""
    with started(tmp_path, then="pass") as (program, below):
        out, err = program.communicate("\n", timeout=30)
    assert (out, err, program.returncode, moments.living(below)) == ("", "", 0, [])


PID_1_SCRIPT = """
import os, sys
sys.path.insert(0, {project!r})
import psutil, trio
from pathlib import Path
from engine.host import Engine
from tests import kit, moments

async def main():
    folder = Path({folder!r})
    assert os.getpid() == 1
    async with Engine(state_dir=folder / "state", {options}) as engine:
        reasons = []
        for code in ("value = 1", "os.abort()", "os._exit(3)", "os.close(3)"):
            reasons.append((await moments.run(engine, folder / "source", code)).reason)
        await moments.assert_works(engine)
        print(reasons, [one.status() for one in psutil.Process().children(recursive=True)].count("zombie"))
    print(psutil.pids())

trio.run(main)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="unproven here: making a pid namespace needs root")
def test_a_supervisor_that_is_the_first_process_of_its_container(tmp_path: Path, worker_kind: str) -> None:
    """Workers start though their parent's number is 1, and are buried: no zombie, no process stays."""
    script = PID_1_SCRIPT.format(project=str(kit.PROJECT), folder=str(tmp_path), options=kit.engine_text())
    unshare = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    done = subprocess.run([*unshare, sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    reasons = ["ok.done", "crashed.signal", "crashed.exit", "crashed.exit"]
    if worker_kind == "wasm":  # an abort is a trap, and its channel is no descriptor that it could close
        reasons = ["ok.done", "crashed.exit", "crashed.exit", "tool_error.exception"]
    assert (done.stdout, done.stderr) == (f"{reasons} 0\n[1]\n", "")


def test_what_a_killed_supervisor_left_is_swept_by_the_next(tmp_path: Path) -> None:
    """Cgroups outlive the processes in them; the next engine on this host removes those whose owner is dead."""
    with started(tmp_path) as (program, below):
        mine = [place for place in cgroups_anywhere() if any(f"-{one.pid}-" in place for one in below)]
        program.kill()
        moments.wait_gone_sync(below)

    async def start_another() -> None:
        async with kit.clean_engine(tmp_path / "another"):
            pass

    trio.run(start_another)
    assert [place for place in mine if os.path.exists(place)] == []
    assert bool(mine) == bool(usable_cgroups())


def usable_cgroups() -> dict[str, str]:
    """The control: where this user may make cgroups, an engine makes some."""
    return slots.find_cgroups()
