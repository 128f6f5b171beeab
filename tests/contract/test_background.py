"""What an engine does between calls and at its end: one thing that goes wrong there keeps nothing else from being done."""

from pathlib import Path

import pytest
import trio

from engine import host
from engine.errors import HostError
from engine.host import Engine
from engine.supervision.pool import Pool
from engine.supervision.upkeep import Upkeep
from engine.supervision.values import Values
from tests import kit, moments


async def test_looking_after_idle_workers_ends_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a descriptor to spare: looked after again and again, called as before, and whoever closes is told once."""
    looks: list[str] = []
    twice = trio.Event()

    async def without_descriptors(self: Upkeep) -> None:
        looks.append("jails")
        raise OSError(24, "Too many open files")

    async def counted(self: Values) -> None:
        looks.append("values")
        if len(looks) >= 4:
            twice.set()

    monkeypatch.setattr(host, "_TICK_SECONDS", 0.001)
    monkeypatch.setattr(Upkeep, "look", without_descriptors)
    monkeypatch.setattr(Values, "retire_idle", counted)
    with trio.fail_after(60), pytest.raises(HostError) as closing:  # noqa: PT012 - it is raised where the block is left
        async with kit.plain_engine(tmp_path / "state") as engine:
            await twice.wait()
            outcome = await moments.run(engine, tmp_path / "source", "value = 1")
    assert (outcome.value, looks[:4]) == (1, ["jails", "values"] * 2)
    assert closing.value.lines == ("OSError while idle workers were looked after",)


async def test_a_checking_process_is_locked_alike_without_a_launcher(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the launcher is being replaced there is none; the lock is of the host."""
    before = engine._checking_lock()
    with monkeypatch.context() as patch:
        patch.setattr(engine._launchers, "_running", {})
        assert engine._checking_lock() == before


async def test_what_would_not_end_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checking process and a jail that stay: both are told in one error, and every jail was ended."""
    close = Pool.close

    async def reluctant(self: Pool) -> None:
        await close(self)
        raise HostError("engine_failed.not_clean", "a jail stayed", "both said this")

    async def stays(self: Values) -> None:
        raise HostError("engine_failed.not_clean", "a process stayed", "both said this")

    monkeypatch.setattr(Pool, "close", reluctant)
    monkeypatch.setattr(Values, "close", stays)
    below = []
    with trio.fail_after(60), pytest.raises(HostError) as closing:  # noqa: PT012 - it is raised where the block is left
        async with kit.plain_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path / "source", "value = 1")
            below += moments.Tree(engine).all()
    assert closing.value.lines == ("a process stayed", "both said this", "a jail stayed")
    assert (len(below) > 1, moments.living(below)) == (True, [])
