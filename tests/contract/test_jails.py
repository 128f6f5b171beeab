"""A jail that is ended while others still use it, and a zygote whose word is not taken for more than it is."""

import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from engine.call import Request
from engine.errors import HostError
from engine.host import Engine
from engine.supervision import reaper
from engine.supervision.pool import Seat
from engine.worker import native
from engine.worker.base import End
from engine.worker.child import NativeChild, kill
from engine.worker.native import Jail
from tests import kit, moments
from tests.contract.test_lending import lease, use_up


@pytest.fixture
async def seat(engine: Engine, tmp_path: Path) -> AsyncIterator[Seat]:
    """A jail in nobody's way, with a child that waits; the engine answers another call afterwards, whatever was done with it."""
    await engine.load(kit.write(tmp_path / "source", moments.RUN))
    with trio.fail_after(60):
        made = await lease(engine, engine.prepare("echo", Request(arguments={})))
        assert made.spare is not None
        await made.spare.ready.wait()
        yield made
        await engine._pool.give_back(made, healthy=False)
        await moments.assert_works(engine)


def child_of(seat: Seat) -> NativeChild:
    """The child that waits in it."""
    assert seat.spare is not None
    assert seat.spare.child is not None
    return seat.spare.child


async def close_in_vain(jail: Jail, patch: pytest.MonkeyPatch, *, times: int = 1) -> list[str]:
    """End it so often at once, while nothing can be killed; it is gone all the same afterwards. What was raised."""
    told: list[str] = []

    async def close() -> None:
        try:
            await jail.close()
        except HostError as error:
            told.append(error.code)

    pidfds = [os.dup(pidfd) for pidfd in (jail._first, jail._monitor)]
    patch.setattr(native, "kill", lambda pidfd: None)
    patch.setattr(native, "_CLOSE_SECONDS", 0.0)
    async with trio.open_nursery() as nursery:
        for _ in range(times):
            nursery.start_soon(close)
    for pidfd in pidfds:
        kill(pidfd)
        await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
    jail._survived = False
    return told


class TestEnded:
    """A jail that is ended under those who use it."""

    async def test_who_waits_for_its_child_is_told_that_it_is_gone(self, seat: Seat) -> None:
        """And so is who looks, reads or writes afterwards."""
        child = child_of(seat)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.wait)
            await trio.testing.wait_all_tasks_blocked()
            await seat.jail.close()
        await child.wait()
        assert (child.ready(), child.read(), child.read_output("stdout")) == (["gone"], b"", b"")
        with pytest.raises(BrokenPipeError):
            await child.write(b"more")

    async def test_who_writes_to_its_child_is_told(self, seat: Seat) -> None:
        """It stopped reading, so that the writer waits."""
        child, told = child_of(seat), []

        async def write() -> None:
            with pytest.raises(BrokenPipeError):
                await child.write(b"\0" * (8 << 20))
            told.append(True)

        seat.jail.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await seat.jail.close()
        assert told == [True]

    async def test_while_its_next_child_is_made(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """That child did not come up, for this reason and no other, and the engine goes on."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        meeting, meet = trio.Event(), NativeChild.meet

        async def never(child: NativeChild, seconds: float | None, step: str = "lock the child") -> None:
            child.channel.recv(1)  # its first byte, so that there is nothing to wait for but its jail's end
            meeting.set()
            await meet(child, seconds, step)

        async def ready(child: NativeChild, seconds: float | None, step: str = "lock the child") -> None:
            await trio.lowlevel.wait_readable(child.channel)
            await never(child, seconds, step)

        with trio.fail_after(30):
            with monkeypatch.context() as patch:
                patch.setattr(NativeChild, "meet", ready)
                seat = await lease(engine, engine.prepare("echo", Request(arguments={})))
                assert seat.spare is not None
                await meeting.wait()
                await trio.testing.wait_all_tasks_blocked()
                await close_in_vain(seat.jail, patch)
                await seat.spare.ready.wait()
            assert seat.spare.verdict == ("refused.start_failed", "step 'lock the child' failed: its jail was ended meanwhile")
            await engine._pool.give_back(seat, healthy=True)
            assert engine._pool.living == 0
            await moments.assert_works(engine)

    async def test_by_several_at_once(self, seat: Seat) -> None:
        """Each returns when it is gone."""
        dead: list[bool] = []

        async def close() -> None:
            await seat.jail.close()
            dead.append(seat.jail.dead())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(close)
        assert dead == [True] * 3

    async def test_by_several_in_vain(self, seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each of them is told."""
        with monkeypatch.context() as patch:
            assert await close_in_vain(seat.jail, patch, times=2) == ["engine_failed.not_clean"] * 2

    async def test_when_it_was_killed_it_serves_nobody_again(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Though the kernel does not say yet that it is gone; one that was not killed is given back as ever."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        prepared = engine.prepare("echo", Request(arguments={}))
        monkeypatch.setattr(Jail, "dead", lambda jail: False)
        with trio.fail_after(30):
            seat = await lease(engine, prepared)
            await use_up(engine, seat)
            assert engine._pool.idle == [seat]
            seat.jail.kill()
            assert await lease(engine, prepared) is not seat


class TestWords:
    """What a zygote writes of its children."""

    async def test_a_record_ends_nobody(self, seat: Seat) -> None:
        """It says that a process ended which goes on: that one is not buried before the kernel says so, and is ended."""
        child = child_of(seat)
        child.end = End(status=0)
        assert await seat.jail.bury(child, 0.0) is None
        assert not child.gone()
        end = await reaper.reap(seat.jail, child, leave_seconds=0.01)
        assert (end.forced, child.gone()) == (True, True)

    @pytest.mark.parametrize(
        ("records", "believed"),
        [
            (lambda number: [(number, 7)], True),
            (lambda number: [(number, 7), (number, 0)], False),
            (lambda number: [(number + 1000, 7)] * 50, False),
        ],
    )
    async def test_one_that_it_never_writes(
        self, seat: Seat, records: Callable[[int], list[tuple[int, int]]], believed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A second one, or one of no child, ends the jail at once, and what it wrote after that is not read."""
        child = child_of(seat)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with ours, theirs:
            sent = [native._ENDED.pack(b"X", number, status, 1, 1, 1) for number, status in records(child.number)]
            for record in sent:
                theirs.send(record)
            with monkeypatch.context() as patch:
                patch.setattr(seat.jail, "_control", ours)
                assert seat.jail._records() is believed
            left = 0
            while select.select([ours], [], [], 0)[0]:
                left += bool(ours.recv(1000))
        assert (seat.jail.doomed, left) == (not believed, max(0, len(sent) - 2) and len(sent) - 1)
        assert child.end is None if len(sent) > 2 else child.end == End(status=7, user_us=1, system_us=1, peak_rss_kib=1)

    async def test_whoever_listens_reads(self, seat: Seat) -> None:
        """A second burial begins when the first one's record is there: it is not taken from under it."""
        first, second = child_of(seat), await seat.jail.fork()
        ends: list[End | None] = []

        async def bury() -> None:
            ends.append(await seat.jail.bury(first, 60.0))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bury)
                await trio.testing.wait_all_tasks_blocked()
                first.kill()
                assert select.select([seat.jail._control], [], [], 10)[0]
                assert await seat.jail.bury(second, 0.1) is None
        assert [end is not None and end.status for end in ends] == [9]
        await reaper.reap(seat.jail, second)
        second.close()

    async def test_there_are_two_slots(self, seat: Seat) -> None:
        """A third child is refused."""
        second = await seat.jail.fork()
        with pytest.raises(HostError) as caught:
            await seat.jail.fork()
        assert caught.value.code == "refused.start_failed"
        await reaper.reap(seat.jail, second)
        second.close()
        third = await seat.jail.fork()
        await reaper.reap(seat.jail, third)
        third.close()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), trio.ClosedResourceError("another")])
async def test_a_bug_in_the_making_of_one_child(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """It is the outcome of the call that gets it, and nobody else's."""
    await engine.load(kit.write(tmp_path, moments.RUN))

    async def failing(*_: object, **__: object) -> NativeChild:
        raise error

    with trio.fail_after(30):
        with monkeypatch.context() as patch:
            patch.setattr(Jail, "fork", failing)
            outcome = await engine.call("echo", {"word": "x"})
        assert (outcome.reason, outcome.lines) == ("engine_failed.bug", (f"{type(error).__name__} while a child was made ready",))
        await moments.assert_works(engine)
