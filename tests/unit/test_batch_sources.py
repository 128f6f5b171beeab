"""Sources of a batch: loaded once, kept while they are used, let go of when there are too many."""

import pytest
import trio

from engine.batch.sources import Held, Sources
from engine.errors import EngineError
from tests.batches import EFFECTS, FakeEngine


async def test_lines_that_come_together_load_a_source_once() -> None:
    """And those that come later find it."""
    engine = FakeEngine()
    sources = Sources(engine, "auto")
    found: list[Held] = []

    async def use() -> None:
        async with sources.hold("a.py") as held:
            found.append(held)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(use)
    await use()
    assert (found, engine.loads) == ([Held(bundle="a", effects=EFFECTS)] * 4, ["a.py"])


async def test_the_source_that_was_not_used_for_longest_is_let_go_of() -> None:
    """Only so many are kept; one that was let go of is loaded again."""
    engine = FakeEngine()
    sources = Sources(engine, "auto", keep=2)
    for source in ("a", "b", "a", "c", "b"):
        async with sources.hold(source):
            pass
    assert (engine.loads, engine.unloaded) == (["a", "b", "c", "b"], ["b", "a"])


async def test_a_source_in_use_is_never_let_go_of() -> None:
    """However many others there are; when it is free it goes like any other."""
    engine = FakeEngine()
    sources = Sources(engine, "auto", keep=1)
    async with sources.hold("a"):
        for source in ("b", "c"):
            async with sources.hold(source):
                pass
        assert engine.unloaded == ["b"]
    async with sources.hold("d"):
        pass
    assert engine.unloaded == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("reason", "loads"),
    [
        ("refused.source_missing", 1),
        ("refused.source_syntax", 1),
        ("refused.not_granted", 1),
        ("refused.worker_kind", 1),
        ("refused.busy", 3),
        ("refused.source_changed", 3),
        ("refused.start_failed", 3),
    ],
)
async def test_what_another_try_would_not_change_is_remembered(reason: str, loads: int) -> None:
    """Each use of such a source is told the same, and the host's own troubles are tried again."""
    engine = FakeEngine()
    sources = Sources(engine, "auto")
    for _ in range(3):
        with pytest.raises(EngineError) as caught:
            async with sources.hold(reason):
                pass
        assert (caught.value.code, caught.value.lines) == (reason, ("on purpose",))
    assert len(engine.loads) == loads
