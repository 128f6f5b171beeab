"""A deadline that passes before the tool runs: whoever called learns whether its worker was being made, or all of them were in use."""

from pathlib import Path
from typing import Any

import pytest
import trio

from engine.call import Request
from engine.host import Engine
from engine.outcome import Outcome
from engine.worker.native import Jail
from tests import kit, moments

STARTING = "the worker was still starting after 50 ms: give the call more time, or have one wait for it with engine.warm"
BUSY = "no worker became free within 50 ms"


def hold(monkeypatch: pytest.MonkeyPatch, go: trio.Event) -> None:
    """No jail starts before ``go`` is set."""
    start = Jail.start

    async def held(*arguments: Any, **options: Any) -> Jail:
        await go.wait()
        return await start(*arguments, **options)

    monkeypatch.setattr(Jail, "start", held)


async def answers(engine: Engine, count: int) -> list[tuple[str, tuple[str, ...]]]:
    """What so many calls of a hurry get, sorted."""
    outcomes: list[Outcome] = []

    async def call() -> None:
        outcomes.append(await engine.call("echo", {"word": "x"}, timeout_ms=50))

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(call)
    return sorted((outcome.reason, outcome.lines) for outcome in outcomes)


@pytest.mark.parametrize("count", [1, 3])
async def test_one_for_whom_a_worker_is_made_is_not_told_that_all_are_busy(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Beyond the bound of one worker the others are: they stood in line for it. The next call is served by it."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    with trio.fail_after(60):
        await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
        await engine._pool.drain(lambda recipe: False)
        go = trio.Event()
        hold(monkeypatch, go)
        assert await answers(engine, count) == [("limit_exceeded.wall", (STARTING,)), *[("refused.busy", (BUSY,))] * (count - 1)]
        go.set()
        await moments.assert_works(engine)


async def test_nor_one_whose_child_is_not_ready(engine: Engine, tmp_path: Path) -> None:
    """The jail is there, and its child imports the tool without an end."""
    source = moments.CALLED + moments.RUN + "\nif CALLED:\n    while True: pass\n"
    with trio.fail_after(60):
        await engine.load(kit.write(tmp_path, source))
        prepared = engine.prepare("echo", Request(arguments={}))
        seat = await engine._pool.lease(prepared.recipe, prepared.resolved.pool)
        engine._pool._put_back(seat)
        assert await answers(engine, 1) == [("limit_exceeded.wall", (STARTING,))]
