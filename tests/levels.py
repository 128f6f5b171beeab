"""What tests of the freshness levels share: a policy for each, and the processes that serve its calls."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.host import Engine
from engine.policy.model import Freshness
from engine.worker.child import NativeChild
from engine.worker.native import Jail
from tests import moments

LOOSENINGS = {Freshness.SNAPSHOT: "state_kept_in_snapshot", Freshness.WARM: "state_kept_warm"}


def policy(folder: Path, level: Freshness, tables: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """A policy file: the default one at that level, with these entries instead of its own."""
    named = {"loosenings": {LOOSENINGS[level]: True}} if level in LOOSENINGS else {}
    place = moments.policy(folder, {**named, **(tables or {})})
    extends, rest = place.read_text(encoding="utf-8").split("\n", 1)
    entry = f'freshness = {{ value = "{level}", reason = "a test needs it so" }}'
    place.write_text(f"{extends}\n{entry}\n{rest}", encoding="utf-8")
    return place


async def waiting(engine: Engine) -> tuple[Jail, NativeChild]:
    """The only idle jail, and its child once that is ready."""
    (seat,) = engine._pool.idle
    assert seat.spare is not None
    await seat.spare.ready.wait()
    assert seat.spare.child is not None
    return seat.jail, seat.spare.child
