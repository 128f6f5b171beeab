"""Memory of a batch does not grow with the number of its lines."""

import gc
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.batch import ids
from engine.outcome import Outcome
from tests import batches
from tests.batches import FakeEngine, asked, write_calls

LINES, EARLY = 20_000, 4_000
CACHE_KIB = 256  # of ids, in place of more, so that most of so few go to the file
GROWTH_KIB = 8 << 10  # what an allocator leaves; memory that was free before hides some growth, so objects are counted as well
GROWTH_BLOCKS = 2000  # far fewer than one for each line between


class Forgetful(Counter[tuple[str, int]]):
    """Counts nothing, so that the engine of the test does not grow."""

    def __setitem__(self, key: tuple[str, int], value: int) -> None:
        """Not kept."""


def resident_kib() -> int:
    """Memory of this process now."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


def held() -> tuple[int, int]:
    """Memory of this process, and what Python has allocated in it."""
    gc.collect()
    return resident_kib(), sys.getallocatedblocks()


class Watching(FakeEngine):
    """Looks at the memory when so many calls were made, and keeps what it is told to."""

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.calls = Forgetful()
        self.made = 0
        self.early = (0, 0)
        self._keep, self._kept = keep, list[bytes]()

    async def call(self, name: str, arguments: object, **more: Any) -> Outcome:
        """As ever."""
        self.made += 1
        if self.made == EARLY:
            self.early = held()
        if self._keep:
            self._kept.append(bytes(self._keep))
        return await super().call(name, arguments, **more)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a batch of millions of lines."""
    small = tuple(line.replace(str(ids.CACHE_KIB), str(CACHE_KIB)) for line in ids._SET_UP)
    assert small != ids._SET_UP
    monkeypatch.setattr(ids, "_SET_UP", small)


@pytest.mark.slow
async def test_five_times_as_many_lines_take_no_more_memory(tmp_path: Path) -> None:
    """Ids, outcomes and times are all counted and none is held."""
    write_calls(tmp_path, (asked(f"call-{number}", number=number) for number in range(LINES)))
    engine = Watching(keep=0)
    batch = await batches.run(engine, tmp_path)
    assert (batch.total, batch.tally.outcomes(), engine.made) == (LINES, {"ok.done": LINES}, LINES)
    assert held()[0] < engine.early[0] + GROWTH_KIB
    assert held()[1] < engine.early[1] + GROWTH_BLOCKS


@pytest.mark.slow
async def test_a_batch_that_held_its_lines_would_be_seen(tmp_path: Path) -> None:
    """The control: eight kilobytes a line, kept, are more than both bounds on as many lines again."""
    write_calls(tmp_path, (asked(f"call-{number}") for number in range(2 * EARLY)))
    engine = Watching(keep=8192)
    await batches.run(engine, tmp_path)
    assert held()[0] >= engine.early[0] + GROWTH_KIB
    assert held()[1] >= engine.early[1] + GROWTH_BLOCKS
