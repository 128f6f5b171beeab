"""Memory of a batch does not grow with the number of its lines."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.outcome import Outcome
from tests import batches
from tests.batches import FakeEngine, asked, write_calls

LINES, EARLY = 200_000, 20_000
GROWTH_KIB = 16 << 10  # 8 MiB of pages that the ids may keep, and what an allocator leaves


class Forgetful(Counter[tuple[str, int]]):
    """Counts nothing, so that the engine of the test does not grow."""

    def __setitem__(self, key: tuple[str, int], value: int) -> None:
        """Not kept."""


def resident_kib() -> int:
    """Memory of this process now."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1])


class Watching(FakeEngine):
    """Looks at the memory when so many calls were made, and keeps what it is told to."""

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.calls = Forgetful()
        self.made = 0
        self.early = 0
        self._keep, self._kept = keep, list[bytes]()

    async def call(self, name: str, arguments: object, **more: Any) -> Outcome:
        """As ever."""
        self.made += 1
        if self.made == EARLY:
            self.early = resident_kib()
        if self._keep:
            self._kept.append(bytes(self._keep))
        return await super().call(name, arguments, **more)


@pytest.mark.slow
async def test_two_hundred_thousand_lines_take_the_memory_of_twenty_thousand(tmp_path: Path) -> None:
    """Ids, outcomes and times are all counted and none is held."""
    write_calls(tmp_path, (asked(f"call-{number}", number=number) for number in range(LINES)))
    engine = Watching(keep=0)
    batch = await batches.run(engine, tmp_path)
    assert (batch.total, batch.tally.outcomes(), engine.made) == (LINES, {"ok.done": LINES}, LINES)
    assert resident_kib() - engine.early < GROWTH_KIB


@pytest.mark.slow
async def test_a_batch_that_held_its_lines_would_be_seen(tmp_path: Path) -> None:
    """The control: a kilobyte a line, kept, is more than the bound on a tenth as many lines again."""
    write_calls(tmp_path, (asked(f"call-{number}") for number in range(2 * EARLY)))
    engine = Watching(keep=1024)
    await batches.run(engine, tmp_path)
    assert resident_kib() - engine.early >= GROWTH_KIB
