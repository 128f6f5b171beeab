"""A call that its caller gives up ends at once, wherever it is, and a call that nobody gave up is never touched by that."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from engine.host import Engine
from engine.outcome import Outcome
from tests import kit, moments

HANG = "import time\nwhile True: time.sleep(1000)\n"


def reasons(state: Path) -> list[str]:
    """The reasons on the receipts, in order."""
    return [made["verdict"]["reason"] for made in kit.call_receipts(state)]


@pytest.mark.parametrize("code", [HANG, moments.FOREVER, "import signal\nsignal.raise_signal(signal.SIGSTOP)"])
async def test_a_running_tool_is_ended(engine: Engine, tmp_path: Path, code: str) -> None:
    """Waiting, busy or stopped: cancelled from outside, its process is gone when the cancelled block is left."""
    tree = None
    with trio.fail_after(30):
        with trio.CancelScope() as scope:
            async with moments.running(engine, tmp_path, code) as items:
                tree = moments.Tree(engine)
                scope.cancel()
                await moments.last(items)
        assert scope.cancelled_caught
        assert tree is not None
        assert moments.living(tree.children) == []
        await moments.assert_works(engine)
    assert reasons(tmp_path / "state") == ["cancelled.caller", "ok.done"]


async def test_a_call_that_is_cancelled_before_it_starts(engine: Engine, tmp_path: Path) -> None:
    """It has a receipt that says that no worker was asked for its sake, or that it was given up."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.CancelScope() as scope:
        scope.cancel()
        await engine.call("echo", {"word": "x"})
    assert (scope.cancelled_caught, reasons(tmp_path / "state")) == (True, ["cancelled.caller"])
    await moments.assert_works(engine)


async def test_a_call_that_is_cancelled_while_its_jail_starts(engine: Engine, tmp_path: Path) -> None:
    """At each of the first steps of a first call: nothing is left of any of them, and the next call works."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    caught = 0
    with trio.fail_after(60):
        for steps in range(1, 60, 2):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_after, scope, steps)
                    await engine.call("echo", {"word": "x"}, tenant=str(steps))
                    nursery.cancel_scope.cancel()
            caught += scope.cancelled_caught
        await moments.assert_works(engine)
    assert caught > 0
    assert reasons(tmp_path / "state").count("cancelled.caller") == caught


async def cancel_after(scope: trio.CancelScope, steps: int) -> None:
    """Cancel after that many turns of the loop."""
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_call_that_is_cancelled_while_its_source_is_imported(engine: Engine, tmp_path: Path) -> None:
    """The child is on its way and will never be ready; it is gone with the call."""
    source = moments.CALLED + moments.RUN + "\nif CALLED:\n    while True: pass\n"
    await engine.load(kit.write(tmp_path, source))
    with trio.fail_after(30):
        with trio.move_on_after(0.3) as scope:
            await engine.call("echo", {"word": "x"})
        assert scope.cancelled_caught
        assert reasons(tmp_path / "state") == ["cancelled.caller"]
        outcome = await engine.call("echo", {"word": "x"}, timeout_ms=300)
    line = "the worker was still starting after 300 ms: give the call more time, or have one wait for it with engine.warm"
    assert (outcome.reason, outcome.lines) == ("limit_exceeded.wall", (line,))


async def test_a_source_is_loaded_again_while_its_next_child_is_on_its_way(engine: Engine, tmp_path: Path) -> None:
    """The worker of the old source is ended at whatever point its spare is."""
    with trio.fail_after(60):
        for number in range(10):
            await engine.load(kit.write(tmp_path, f"{moments.RUN}\nNUMBER = {number}\n"))
            for _ in range(number):
                await trio.lowlevel.checkpoint()
            await moments.assert_works(engine)


async def test_the_others_go_on(engine: Engine, tmp_path: Path) -> None:
    """Three calls at once, the middle one is cancelled: both others give their own answer."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    got: dict[str, Outcome] = {}

    async def call(word: str, scope: trio.CancelScope) -> None:
        with scope:
            async with engine.stream("run", {"code": f"context.emit('here')\nos.write(1, b'{word}')\nvalue = '{word}'"}) as items:
                await anext(items)
                if word == "middle":
                    scope.cancel()
                got[word] = await moments.last(items)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for word in ("first", "middle", "last"):
                nursery.start_soon(call, word, trio.CancelScope())
    assert {word: (one.reason, one.value, one.stdout) for word, one in got.items()} == {
        word: ("ok.done", word, word) for word in ("first", "last")
    }


async def test_a_scope_around_many_calls(engine: Engine, tmp_path: Path) -> None:
    """Twelve calls over four jails, running and in line: one cancellation ends them all, and the line is empty."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def hang(running: Callable[[], None]) -> None:
                async with engine.stream("run", {"code": moments.HERE + HANG}) as items:
                    await anext(items)
                    running()
                    await moments.last(items)

            four = trio.Semaphore(0)
            for _ in range(12):
                nursery.start_soon(hang, four.release)
            for _ in range(4):
                await four.acquire()
            tree = moments.Tree(engine)
            nursery.cancel_scope.cancel()
        assert (len(tree.firsts), moments.living(tree.children)) == (4, [])
        await moments.assert_works(engine)
    assert reasons(tmp_path / "state") == ["cancelled.caller"] * 12 + ["ok.done"]


async def test_the_first_in_line_gives_up_and_the_second_is_served(engine: Engine, tmp_path: Path) -> None:
    """Whoever is woken for a jail and no longer wants it wakes the next."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            holding = await nursery.start(hold_until_told, engine)
            scopes = [await nursery.start(echo_in_scope, engine) for _ in range(2)]
            await in_line(engine, 2)
            holding.set()
            scopes[0].cancel()
    await engine.concluded()
    assert sorted(reasons(tmp_path / "state")) == ["cancelled.caller", "cancelled.caller", "ok.done"]


async def hold_until_told(engine: Engine, task_status: trio.TaskStatus[trio.Event]) -> None:
    """Keep a jail busy until the event is set."""
    told = trio.Event()
    async with engine.stream("run", {"code": moments.HERE + HANG}) as items:
        await anext(items)
        task_status.started(told)
        await told.wait()


async def echo_in_scope(engine: Engine, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """One short call, in a scope of its own."""
    with trio.CancelScope() as scope:
        task_status.started(scope)
        outcome = await engine.call("echo", {"word": "served"})
        assert outcome.value == "served"


async def in_line(engine: Engine, calls: int) -> None:
    """Until that many calls wait for a jail."""
    while len(engine._pool._line) != calls:
        await trio.lowlevel.checkpoint()


async def test_cancelled_after_the_answer(engine: Engine, tmp_path: Path) -> None:
    """An answer that is there stays the outcome; the cancellation finds its place after it."""
    with trio.fail_after(30):
        with trio.CancelScope() as scope:
            async with moments.running(engine, tmp_path, "value = 'kept'") as items:
                outcome = await moments.last(items)
                scope.cancel()
        assert (outcome.reason, outcome.value) == ("ok.done", "kept")
    await engine.concluded()
    assert reasons(tmp_path / "state") == ["ok.done"]


async def test_a_storm_of_cancellations(engine: Engine, tmp_path: Path) -> None:
    """Two hundred short calls, a third of them cancelled at any moment: who is answered is answered with its own word."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    chance = random.Random(20)
    answered: dict[int, object] = {}
    caught: set[int] = set()

    async def call(number: int, steps: int | None) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if steps is not None:
                    nursery.start_soon(cancel_after, scope, steps)
                answered[number] = (await engine.call("echo", {"word": f"word {number}"})).value
                nursery.cancel_scope.cancel()
        if scope.cancelled_caught and number not in answered:
            caught.add(number)

    with trio.fail_after(120):
        for first in range(0, 200, 20):
            async with trio.open_nursery() as nursery:
                for number in range(first, first + 20):
                    nursery.start_soon(call, number, chance.randrange(1, 400) if chance.random() < 1 / 3 else None)
        await moments.assert_works(engine)
    assert answered == {number: f"word {number}" for number in range(200) if number not in caught}
    assert len(caught) > 10
    await engine.concluded()
    found = reasons(tmp_path / "state")
    assert (found.count("cancelled.caller"), set(found)) == (len(caught), {"ok.done", "cancelled.caller"})


async def test_closing_the_engine_ends_calls_in_flight(tmp_path: Path) -> None:
    """Each of them gets an outcome that says so, running or in line; a call that comes later is refused the same way."""
    got: list[Outcome] = []
    policy = moments.policy(tmp_path, {"pool": {"jails": 2, "total": 2}})

    async def hang(engine: Engine) -> None:
        got.append(await engine.call("run", {"code": HANG}))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with kit.clean_engine(tmp_path / "state") as engine:
                await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
                for _ in range(5):
                    nursery.start_soon(hang, engine)
                await in_line(engine, 3)
            got.append(await engine.call("echo", {"word": "late"}))
    assert [one.reason for one in got] == ["cancelled.shutdown"] * 6
    assert reasons(tmp_path / "state") == ["cancelled.shutdown"] * 5
