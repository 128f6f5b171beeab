"""Between calls: which jails are made ahead of need, which end, and that those beside a faulty one stay."""

from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.call import Request
from engine.errors import HostError
from engine.host import Engine
from engine.outcome import Outcome
from engine.preparing import Prepared
from engine.supervision import stock
from engine.supervision.demand import Demand
from engine.supervision.memory import private_bytes
from engine.supervision.pool import Seat
from engine.supervision.upkeep import Upkeep
from engine.worker.child import NativeChild
from engine.worker.native import Jail
from tests import kit, moments
from tests.contract.test_lending import lease, use_up
from tests.contract.test_pool import hold_with, nothing


async def loaded(engine: Engine, folder: Path, **pool: object) -> Prepared:
    """The tools of ``moments`` under a policy with this pool; what a call of one needs."""
    policy = moments.policy(folder, {"pool": pool} if pool else {})
    await engine.load(kit.write(folder / "source", moments.RUN), policy=policy)
    return engine.prepare("echo", Request(arguments={}))


async def settled(engine: Engine) -> None:
    """Until no jail is being made, mended or ended."""
    while engine._pool.living != len(engine._pool.idle):
        await trio.lowlevel.checkpoint()


def often_called(engine: Engine, prepared: Prepared) -> None:
    """Let the engine have seen that this key's calls come faster than its jails come back."""
    custom = engine._pool.growth._customs[prepared.recipe.key]
    custom.demand = Demand(arrivals=100, last=trio.current_time(), interval=0.001, away=0.1)


def long_ago(engine: Engine) -> None:
    """Let every idle jail have been used last long ago."""
    for seat in engine._pool.idle:
        seat.idle_since -= 1e6


class TestAhead:
    """Jails that are made before they are needed."""

    async def test_one_more_when_a_call_was_answered(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not when it asks; and one at a time: while one is made no other is begun."""
        prepared = await loaded(engine, tmp_path)
        start, go = Jail.start, trio.Event()

        async def held(*order: Any, **more: Any) -> Jail:
            await go.wait()
            return await start(*order, **more)

        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            first, second = await lease(engine, prepared), await lease(engine, prepared)
            monkeypatch.setattr(Jail, "start", held)
            often_called(engine, prepared)
            counts = [engine._pool.living]
            await use_up(engine, first)
            counts.append(engine._pool.living)
            await use_up(engine, second)
            counts.append(engine._pool.living)
            go.set()
            await settled(engine)
        assert (counts, len(engine._pool.idle)) == ([2, 3, 3], 3)

    async def test_none_for_a_key_that_is_seldom_called(self, engine: Engine, tmp_path: Path) -> None:
        """The control: after a few calls there is the one that served them."""
        prepared = await loaded(engine, tmp_path)
        with trio.fail_after(30):
            for _ in range(3):
                await use_up(engine, await lease(engine, prepared))
            await Upkeep(engine._pool, nothing).look()
        assert engine._pool.living == 1

    async def test_calls_without_a_pause_get_more_than_one(self, engine: Engine, tmp_path: Path) -> None:
        """One after the other, until a second jail was made for them."""
        await loaded(engine, tmp_path)
        with trio.fail_after(60):
            while engine._pool.living < 2:
                await moments.assert_works(engine)

    async def test_not_while_every_core_is_busy_unless_it_lasts(
        self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With as many calls running as there are cores it waits for the next look round."""
        prepared = await loaded(engine, tmp_path)
        monkeypatch.setattr(engine._pool.growth, "_cores", 1)
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            running, other = await lease(engine, prepared), await lease(engine, prepared)
            often_called(engine, prepared)
            await use_up(engine, other)
            counts = [engine._pool.living]
            await Upkeep(engine._pool, nothing).look()
            counts.append(engine._pool.living)
            await use_up(engine, running)
        assert counts == [2, 3]

    @pytest.mark.parametrize("pool", [{"jails": 2}, {"ready": 2}, {"memory": "1 KiB"}])
    async def test_not_beyond_the_bounds(self, engine: Engine, tmp_path: Path, pool: dict[str, object]) -> None:
        """Two of a key at most, or two ready, or no memory for another."""
        prepared = await loaded(engine, tmp_path, **pool)
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            await use_up(engine, await lease(engine, prepared))
            often_called(engine, prepared)
            engine._pool.growth.look()
        assert engine._pool.of(prepared.recipe.key) == (2, 0)

    async def test_one_that_fails_is_nobodys_error(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not tried again before the next look round, and calls go on."""
        prepared = await loaded(engine, tmp_path)
        tried = 0

        async def failing(*_: object, **__: object) -> Jail:
            nonlocal tried
            tried += 1
            raise HostError("refused.start_failed", "no more")

        with trio.fail_after(30):
            seat = await lease(engine, prepared)
            often_called(engine, prepared)
            monkeypatch.setattr(Jail, "start", failing)
            await use_up(engine, seat)
            for _ in range(2):
                await settled(engine)
                often_called(engine, prepared)
                await use_up(engine, await lease(engine, prepared))
            before = tried
            engine._pool.growth.look()
            await settled(engine)
            await moments.assert_works(engine)
        assert (before, tried) == (1, 2)


class TestUnused:
    """Jails that nobody needs any more."""

    async def test_a_burst_leaves_one(self, engine: Engine, tmp_path: Path) -> None:
        """Eight calls at once have eight; when their time is over, one stays for a key that is still called, and then none."""
        prepared = await loaded(engine, tmp_path, jails=8)
        upkeep, counts = Upkeep(engine._pool, nothing), []
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    (await nursery.start(hold_with(engine))).told.set()
                counts.append(engine._pool.living)
            await settled(engine)
            last = engine._pool.idle[-1]
            await upkeep.retire_unused()  # not yet
            counts.append(engine._pool.living)
            long_ago(engine)
            await upkeep.retire_unused()
            counts.append(engine._pool.living)
            assert engine._pool.idle == [last]
            custom = engine._pool.growth._customs[prepared.recipe.key]
            custom.demand = Demand(arrivals=8, last=trio.current_time() - 1e6, interval=0.01, away=0.01)
            await upkeep.look()
            counts.append(engine._pool.living)
        assert counts[1:] == [counts[0], 1, 0]
        assert 1 < counts[0] <= 8
        assert engine._pool.growth._customs == {}

    async def test_a_source_that_is_not_wanted_ends_with_its_call(self, engine: Engine, tmp_path: Path) -> None:
        """Loaded again with another text while a call runs: its jail does not serve again."""
        with trio.fail_after(30):
            await loaded(engine, tmp_path)
            async with trio.open_nursery() as nursery:
                held = await nursery.start(hold_with(engine))
                await engine.load(kit.write(tmp_path / "source", moments.RUN + "\nNEW = 1\n"))
                held.told.set()
            assert held.outcome is not None
            await held.outcome.concluded()
        assert (held.outcome.reason, engine._pool.living) == ("ok.done", 0)

    async def test_one_that_was_taken_meanwhile_stays(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """While another is being ended, a call takes the one that would have been next: it is not ended under the call."""
        prepared = await loaded(engine, tmp_path)
        ending, end, close = trio.Event(), trio.Event(), Jail.close

        async def held_up(jail: Jail) -> None:
            ending.set()
            await end.wait()
            await close(jail)

        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            long_ago(engine)
            engine._pool.growth.forget(lambda recipe: False)
            async with trio.open_nursery() as nursery:
                with monkeypatch.context() as patched:
                    patched.setattr(Jail, "close", held_up)
                    nursery.start_soon(Upkeep(engine._pool, nothing).retire_unused)
                    await ending.wait()
                    seat = await lease(engine, prepared)
                    end.set()
            assert (seat.jail.dead(), engine._pool.living) == (False, 1)
            await use_up(engine, seat)


class TestMemory:
    """The budget of all jails."""

    @pytest.mark.parametrize(("each", "left"), [(100, 4), (150, 3), (200, 2), (600, 0)])
    async def test_the_least_recently_used_go(self, engine: Engine, tmp_path: Path, each: int, left: int) -> None:
        """Four jails of so many MiB within half a gibibyte: those used last stay, down to none, though they hold a little more."""
        prepared = await loaded(engine, tmp_path)

        async def weigh() -> int:
            return (engine._pool.living * each) << 20

        with trio.fail_after(30):
            await engine.warm("echo", jails=4)
            await use_up(engine, await lease(engine, prepared))
            order = engine._pool.idle

            async def weigh_one(seat: Seat) -> int:
                return (8 << 20) - 2 + order.index(seat)

            await Upkeep(engine._pool, weigh, weigh_one).shrink()
        assert engine._pool.idle == order[4 - left :]

    async def test_jails_in_use_stay(self, engine: Engine, tmp_path: Path) -> None:
        """As measured, with a budget that any jail exceeds: the idle ones end, and the call is answered."""
        await loaded(engine, tmp_path, memory="1 KiB")
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            async with trio.open_nursery() as nursery:
                held = await nursery.start(hold_with(engine))
                before = engine._pool.of(engine.prepare("echo", Request(arguments={})).recipe.key)
                await Upkeep(engine._pool, lambda: private_bytes(engine.launcher_pid)).shrink()
                assert (before, engine._pool.idle, engine._pool.living) == ((1, 1), [], 1)
                held.told.set()
        assert held.outcome is not None
        assert held.outcome.reason == "ok.done"

    async def test_within_the_budget_all_stay(self, engine: Engine, tmp_path: Path) -> None:
        """The control, as measured: jails hold something, and less than the default budget."""
        await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            await Upkeep(engine._pool, lambda: private_bytes(engine.launcher_pid)).shrink()
        assert len(engine._pool.idle) == 2
        assert 0 < engine._pool.growth.measured.bytes < 512 << 20


class TestNeighbours:
    """A jail that is at fault goes, and those beside it stay."""

    @pytest.mark.parametrize("code", ["os.abort()", "forge(b'garbage, and more')"])
    async def test_after_a_crash_or_a_violation(self, engine: Engine, tmp_path: Path, code: str) -> None:
        """Of three jails the one that the call had is ended."""
        await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=3)
            before = moments.Tree(engine).firsts
            outcome: Outcome = await engine.call("run", {"code": code})
            await outcome.concluded()
            left = moments.Tree(engine).firsts
        assert outcome.status in ("crashed", "violation")
        assert (len(left), set(left) <= set(before)) == (2, True)

    async def test_a_jail_that_died(self, engine: Engine, tmp_path: Path) -> None:
        """It is taken away by the next look round, and is not given out before."""
        await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=3)
            firsts = moments.Tree(engine).firsts
            firsts[0].kill()
            await moments.wait_gone(firsts[:1])
            await moments.assert_works(engine)
            await Upkeep(engine._pool, nothing).look()
            await settled(engine)
            assert moments.Tree(engine).firsts == firsts[1:]

    async def test_a_child_that_was_ended(self, engine: Engine, tmp_path: Path) -> None:
        """Its jail makes another; the others keep theirs."""
        await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=3)
            tree = moments.Tree(engine)
            tree.children[0].kill()
            await moments.wait_gone(tree.children[:1])
            await Upkeep(engine._pool, nothing).renew()
            await settled(engine)
            await engine.warm("echo", jails=3)
            after = moments.Tree(engine)
        assert (after.firsts, children_beside(tree.children[1:], after.children)) == (tree.firsts, 1)

    async def test_a_jail_that_does_not_fork(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """When its zygote fails at the next child, it goes, and no call is told of it."""
        prepared = await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            seat = await lease(engine, prepared)

            async def failing(*_: object, **__: object) -> NativeChild:
                raise HostError("refused.start_failed", "no child")

            with monkeypatch.context() as patched:
                patched.setattr(Jail, "fork", failing)
                await use_up(engine, seat)
                assert seat.spare is not None
                await seat.spare.ready.wait()
            await moments.assert_works(engine)
            await Upkeep(engine._pool, nothing).look()
            await settled(engine)
        assert seat not in engine._pool.idle
        assert len(engine._pool.idle) == 1

    async def test_an_import_that_failed_beside_one_that_did_not(self, engine: Engine, tmp_path: Path) -> None:
        """The one whose child did not come up goes; alone it would stay, for the next call to be told why."""
        prepared = await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            failed, well = engine._pool.idle
            assert failed.spare is not None
            failed.spare.verdict = ("tool_error.import", "not today")
            await Upkeep(engine._pool, nothing).look()
            assert engine._pool.idle == [well]
            assert well.spare is not None
            well.spare.verdict = ("tool_error.import", "not today")
            await Upkeep(engine._pool, nothing).look()
            assert engine._pool.idle == [well]
            assert (await engine.call("echo", {"word": "x"})).reason == "tool_error.import"
        assert prepared.recipe.key == well.recipe.key


def children_beside(kept: list[psutil.Process], now: list[psutil.Process]) -> int:
    """How many there are now beside those that were kept, all of which must be there."""
    assert set(kept) <= set(now)
    return len(now) - len(kept)


QUIET = """
import threading
from engine import tool

def burn():
    return

threading.Thread(target=burn, daemon=True).start()

@tool(description="waits badly", effect="read")
def wait_badly() -> str:
    return "done"
"""


async def idle_child(engine: Engine, tool: str, source: str, folder: Path) -> NativeChild:
    """The child that waits for the next call, after one was answered."""
    outcome = await kit.jailed(engine, folder, source, tool)
    assert outcome.reason == "ok.done"
    await outcome.concluded()
    (seat,) = engine._pool.idle
    assert seat.spare is not None
    await seat.spare.ready.wait()
    assert seat.spare.child is not None
    return seat.spare.child


async def renewed(engine: Engine) -> None:
    """Look at those that wait, once, and see replaced what is to be."""
    await Upkeep(engine._pool, nothing).renew()
    while engine._pool._stock.lent:
        await trio.lowlevel.checkpoint()


class TestIdle:
    """Children that wait for a call."""

    async def test_one_that_waits_quietly_stays(self, engine: Engine, tmp_path: Path) -> None:
        """The control: looked at as often, it is not replaced."""
        with trio.fail_after(60):
            child = await idle_child(engine, "wait_badly", QUIET, tmp_path / "source")
            for _ in range(3):
                await renewed(engine)
            assert not child.gone()

    async def test_one_that_is_too_old_is_replaced(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before a call sees it."""
        with trio.fail_after(60):
            child = await idle_child(engine, "wait_badly", QUIET, tmp_path / "source")
            monkeypatch.setattr(stock, "_SPARE_SECONDS", -1.0)
            await renewed(engine)
            assert child.pidfd < 0
