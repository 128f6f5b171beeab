"""Which jail a call gets: the one that can serve it soonest, and no new one while another is nearer."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from engine.call import Request
from engine.errors import HostError
from engine.host import Engine
from engine.preparing import Prepared
from engine.supervision import reaper
from engine.supervision.pool import Seat
from engine.supervision.spare import Spare
from engine.worker.native import Jail
from tests import kit, moments
from tests.contract.test_pool import in_line


async def lease(engine: Engine, prepared: Prepared) -> Seat:
    """A jail, as a call gets it."""
    return await engine._pool.lease(prepared.recipe, prepared.resolved.pool)


async def answered(engine: Engine, seat: Seat) -> None:
    """Its call has its verdict and its child is gone; it was not given back yet."""
    spare, seat.spare = seat.spare, None
    assert spare is not None
    await spare.ready.wait()
    assert spare.child is not None
    spare.child.kill()
    engine._pool.refill(seat)
    await reaper.reap(seat.jail, spare.child)
    spare.child.close()


async def use_up(engine: Engine, seat: Seat) -> None:
    """The same, and it came back well."""
    await answered(engine, seat)
    await engine._pool.give_back(seat, healthy=True)


async def test_a_child_that_would_not_end_is_told(engine: Engine, tmp_path: Path) -> None:
    """One on its way, for whose sake the whole jail was ended in vain: its jail's end raises what nobody else was told."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    prepared = engine.prepare("echo", Request(arguments={}))
    with trio.fail_after(30):
        seat = await lease(engine, prepared)
        assert seat.spare is not None
        await seat.spare.ready.wait()
        seat.spare.verdict = ("engine_failed.not_clean", "it outlived its SIGKILL")
        with pytest.raises(HostError) as caught:
            await engine._pool.give_back(seat, healthy=False)
        assert (caught.value.code, caught.value.lines) == ("engine_failed.not_clean", ("it outlived its SIGKILL",))
        assert engine._pool.living == 0
        await moments.assert_works(engine)


class TestWhichJail:
    """Of several that could serve."""

    async def test_one_that_is_ready_before_one_that_is_not(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though the other was used last; then the one whose child is on its way, and no new one. Neither makes the call wait its turn."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        prepared = engine.prepare("echo", Request(arguments={}))
        go, prepare = trio.Event(), Spare.prepare

        async def held_up(spare: Spare) -> None:
            await go.wait()
            await prepare(spare)

        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            ready, used_last = engine._pool.idle
            with monkeypatch.context() as patched:
                patched.setattr(Spare, "prepare", held_up)
                assert await lease(engine, prepared) is used_last
                await use_up(engine, used_last)
                with trio.testing.assert_no_checkpoints():
                    assert await lease(engine, prepared) is ready
                    assert await lease(engine, prepared) is used_last
                assert engine._pool.living == 2
                go.set()
            for seat in (ready, used_last):
                await engine._pool.give_back(seat, healthy=True)
            await moments.assert_works(engine)

    async def test_one_that_comes_back_in_a_moment_before_a_new_one(self, engine: Engine, tmp_path: Path) -> None:
        """Its call has its verdict: the next call waits for it, and the one after that has a new one made."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        prepared = engine.prepare("echo", Request(arguments={}))
        got: list[Seat] = []

        async def take() -> None:
            got.append(await lease(engine, prepared))

        with trio.fail_after(30):
            seat = await lease(engine, prepared)
            async with trio.open_nursery() as nursery:
                await answered(engine, seat)
                nursery.start_soon(take)
                await in_line(engine, 1)
                assert engine._pool.living == 1
                nursery.start_soon(take)
                await in_line(engine, 2)
                assert engine._pool.living == 2
                await engine._pool.give_back(seat, healthy=True)
            assert (got[0], len(set(got))) == (seat, 2)
            for one in got:
                await engine._pool.give_back(one, healthy=True)

    async def test_one_that_does_not_come_back_well_is_made_anew(self, engine: Engine, tmp_path: Path) -> None:
        """Who waited for it gets another."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        prepared = engine.prepare("echo", Request(arguments={}))
        got: list[Seat] = []

        async def take() -> None:
            got.append(await lease(engine, prepared))

        with trio.fail_after(30):
            seat = await lease(engine, prepared)
            async with trio.open_nursery() as nursery:
                await answered(engine, seat)
                nursery.start_soon(take)
                await in_line(engine, 1)
                await engine._pool.give_back(seat, healthy=False)
            assert seat.jail.dead()
            assert seat not in got
            await engine._pool.give_back(got[0], healthy=True)

    async def test_whichever_comes_first(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A call for which one is being made takes one that is given back meanwhile; the new one waits for the next call."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        prepared = engine.prepare("echo", Request(arguments={}))
        go, start = trio.Event(), Jail.start

        async def held_up(*given: Any, **options: Any) -> Jail:
            await go.wait()
            return await start(*given, **options)

        got: list[Seat] = []

        async def take() -> None:
            got.append(await lease(engine, prepared))

        with trio.fail_after(30):
            seat = await lease(engine, prepared)
            monkeypatch.setattr(Jail, "start", held_up)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                await in_line(engine, 1)
                await use_up(engine, seat)
            assert (got, engine._pool.living) == ([seat], 2)
            go.set()
            while not engine._pool.idle:
                await trio.lowlevel.checkpoint()
            await engine._pool.give_back(seat, healthy=True)
