"""Between calls, when something is at fault: a child that works, a jail that will not end, one that holds too much, no descriptors."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from engine.call import Request
from engine.errors import HostError
from engine.host import Engine
from engine.supervision import reaper, spare
from engine.supervision.pool import Seat
from engine.supervision.upkeep import Upkeep, held_by
from engine.worker.native import Jail
from tests import kit, moments
from tests.contract.test_lending import lease, use_up
from tests.contract.test_pool import nothing
from tests.contract.test_upkeep import QUIET, idle_child, loaded, long_ago, often_called, settled

BURNING = QUIET.replace("    return\n", "    while True:\n        pass\n", 1)
FULL = """
import os, resource, sys
import trio
from engine.host import Engine
from engine.supervision.upkeep import Upkeep
from engine.supervision.memory import private_bytes
from tests import moments

async def main():
    async with Engine(state_dir=sys.argv[2]) as engine:
        await engine.load(sys.argv[1])
        await engine.warm("echo", jails=2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        upkeep, held = Upkeep(engine._pool, lambda: private_bytes(engine.launcher_pid)), []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            await upkeep.look()
        for descriptor in held:
            os.close(descriptor)
        await upkeep.look()
        await moments.assert_works(engine)
        print("worked", len(held) > 10, len(engine._pool.idle), engine._pool._unclean)

trio.run(main)
"""


async def test_a_child_that_works_while_it_waits_costs_its_jail(engine: Engine, tmp_path: Path) -> None:
    """Judged by its CPU time at the first look; no other is made, however often its key was called, until a call asks."""
    with trio.fail_after(60):
        child = await idle_child(engine, "wait_badly", BURNING, tmp_path / "source")
        (seat,) = engine._pool.idle
        assert seat.spare is not None
        before = (seat.spare.ready_at - seat.spare.born) * spare._CORES
        while (child.cpu_seconds() or 0.0) < before + 0.2:
            await trio.lowlevel.checkpoint()  # CPU time has no event
        often_called(engine, engine.prepare("wait_badly", Request(arguments={})))
        for _ in range(2):
            await Upkeep(engine._pool, nothing).look()
            await settled(engine)
            assert (engine._pool.living, seat.jail.dead(), moments.Tree(engine).firsts) == (0, True, [])
        assert (await engine.call("wait_badly", {})).value == "done"


async def test_one_that_waits_stays(engine: Engine, tmp_path: Path) -> None:
    """The control, looked at as often."""
    with trio.fail_after(60):
        child = await idle_child(engine, "wait_badly", QUIET, tmp_path / "source")
        for _ in range(3):
            await Upkeep(engine._pool, nothing).look()
        assert not child.gone()


async def test_the_one_that_holds_most_goes_first(engine: Engine, tmp_path: Path) -> None:
    """Four jails, one of them fat; the budget is kept when that one is gone, though it was used last."""
    prepared = await loaded(engine, tmp_path)
    with trio.fail_after(30):
        await engine.warm("echo", jails=4)
        await use_up(engine, await lease(engine, prepared))
        *others, fat = engine._pool.idle

        async def weigh() -> int:
            return sum([await weigh_one(seat) for seat in engine._pool.idle])

        async def weigh_one(seat: Seat) -> int:
            return (400 if seat is fat else 100) << 20

        await Upkeep(engine._pool, weigh, weigh_one).shrink()
    assert engine._pool.idle == others


@pytest.mark.parametrize(("held", "fat"), [("bytearray(64 << 20)", True), ("None", False)])
async def test_what_one_holds_is_seen(engine: Engine, tmp_path: Path, held: str, fat: bool) -> None:
    """As measured: a source that keeps 64 MiB, and one that does not."""
    await engine.load(kit.write(tmp_path, f"{moments.CALLED}{moments.RUN}\nHELD = {held} if CALLED else None\n"))
    with trio.fail_after(30):
        await engine.warm("echo")
        (seat,) = engine._pool.idle
        found = await held_by(seat)
    assert (found > 64 << 20) is fat
    assert found > 0


@pytest.fixture
def stubborn(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Have the end of each jail that is idle now raise, after the jail has ended all the same."""

    def arrange(error: Exception) -> None:
        close, those = Jail.close, [seat.jail for seat in engine._pool.idle]

        async def closing(jail: Jail) -> None:
            await close(jail)
            if jail in those:
                raise error

        monkeypatch.setattr(Jail, "close", closing)

    return arrange


SURVIVED = HostError("engine_failed.not_clean", "it outlived its SIGKILL")


class TestStubborn:
    """A jail that would not end: told when the engine closes, and nobody else's trouble."""

    @pytest.mark.parametrize(
        ("error", "line"), [(SURVIVED, "it outlived its SIGKILL"), (RuntimeError("a bug"), "RuntimeError while a worker was ended")]
    )
    async def test_a_look_goes_on(
        self, engine: Engine, tmp_path: Path, stubborn: Callable[[Exception], None], error: Exception, line: str
    ) -> None:
        """Two that are not wanted, neither of which ends well."""
        await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            long_ago(engine)
            engine._pool.growth.forget(lambda recipe: False)
            stubborn(error)
            await Upkeep(engine._pool, nothing).look()
        self.told(engine, line, line)

    async def test_a_load_goes_on(self, engine: Engine, tmp_path: Path, stubborn: Callable[[Exception], None]) -> None:
        """Its jails are no longer wanted; whoever unloads or loads is not told of them."""
        await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo", jails=2)
            stubborn(SURVIVED)
            await engine.unload("")
        self.told(engine, *SURVIVED.lines * 2)

    async def test_a_call_that_needs_its_room_goes_on(self, engine: Engine, tmp_path: Path, stubborn: Callable[[Exception], None]) -> None:
        """One in all, idle, of another tenant."""
        await loaded(engine, tmp_path, jails=1, total=1)
        with trio.fail_after(30):
            await engine.warm("echo", tenant="one")
            stubborn(SURVIVED)
            assert (await engine.call("echo", {"word": "x"}, tenant="two")).reason == "ok.done"
        self.told(engine, *SURVIVED.lines)

    async def test_one_that_is_found_dead(self, engine: Engine, tmp_path: Path, stubborn: Callable[[Exception], None]) -> None:
        """By the call that would have got it."""
        await loaded(engine, tmp_path)
        with trio.fail_after(30):
            await engine.warm("echo")
            engine._pool.idle[0].jail.kill()
            stubborn(RuntimeError("a bug"))
            assert (await engine.call("echo", {"word": "x"})).reason == "ok.done"
            await settled(engine)
        self.told(engine, "RuntimeError while a worker was ended")

    async def test_a_child_that_is_replaced(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A bug of ours in its end: the jail gets another one."""
        await loaded(engine, tmp_path)

        async def failing(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        with trio.fail_after(30):
            await engine.warm("echo")
            with monkeypatch.context() as patch:
                patch.setattr(reaper, "reap", failing)
                engine._pool.renew(engine._pool.idle[0])
                await settled(engine)
            await moments.assert_works(engine)
        self.told(engine, "RuntimeError while a waiting child was replaced")

    @staticmethod
    def told(engine: Engine, *lines: str) -> None:
        """These are what the pool's end will tell; forgotten now, for the engine's own end."""
        found, engine._pool._unclean = engine._pool._unclean, []
        assert found == list(lines)


def test_without_descriptors_it_goes_on(tmp_path: Path) -> None:
    """Our table of files is full while it looks round: nothing of it is an error, and calls work when there is room again."""
    source, state = kit.write(tmp_path / "source", moments.RUN), tmp_path / "state"
    command = [sys.executable, "-c", FULL, str(source), str(state)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("worked True 2 []\n", "")
