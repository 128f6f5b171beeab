"""What a batch came to: how its lines ended, and how long calls took, in a memory that does not grow.

Its job: counts by reason, quantiles of wall time, the summary as data, the reason a command ends with.
Not its job: how it is shown (``faces/batch.py``).
Laws:
1. A resumed batch is summed up as one that ran in one go (tests/unit/test_batch_tally.py).
2. Quantiles are within half a percent of the exact ones, from counts alone (tests/unit/test_batch_tally.py).
3. A percentile of too few values is None (tests/unit/test_batch_tally.py).
"""

import math
from collections import Counter
from collections.abc import Sequence

from engine.outcome import REASONS

_STEP = math.log(1.01)  # neighbouring counts are one percent apart
_LOWEST_MS = 0.001
QUANTILES = {"min": 0.0, "median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_LEAST = {"p90": 10, "p99": 100}  # values; of fewer the percentile is the maximum under another name


def tells(name: str, count: int) -> bool:
    """Whether so many values are enough for the quantile of that name."""
    return count >= _LEAST.get(name, 1)


def quantiles(series: Sequence[float]) -> dict[str, float | None]:
    """The quantiles of a series that is not empty, each the value that so great a share does not exceed (nearest rank)."""
    ordered, count = sorted(series), len(series)
    found = {name: ordered[max(0, math.ceil(share * count) - 1)] for name, share in QUANTILES.items()}
    return {name: round(value, 3) if tells(name, count) else None for name, value in found.items()}


class Tally:
    """Counts the outcomes of a batch."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self._steps: Counter[int] = Counter()
        self._least, self._most = math.inf, 0.0

    def add(self, reason: str, wall_ms: float | None) -> None:
        """Count one outcome; ``wall_ms`` is None when no worker ran."""
        self.reasons[reason] += 1
        if wall_ms is not None:
            wall = max(float(wall_ms), _LOWEST_MS)
            self._steps[round(math.log(wall) / _STEP)] += 1
            self._least, self._most = min(self._least, wall), max(self._most, wall)

    @property
    def lines(self) -> int:
        """How many outcomes there are."""
        return self.reasons.total()

    @property
    def failed(self) -> int:
        """How many of them are not ok."""
        return self.lines - self.reasons["ok.done"]

    def reason(self) -> str:
        """What a command ends with: ``ok.done``, or of the reasons with the highest exit code the most frequent."""
        return max(self.reasons, key=lambda reason: (REASONS[reason].exit_code, self.reasons[reason], reason), default="ok.done")

    def outcomes(self) -> dict[str, int]:
        """The counts by reason, most frequent first."""
        return dict(self.reasons.most_common())

    def wall_ms(self) -> dict[str, float | None] | None:
        """Quantiles of the wall time of the calls that a worker ran; None when none did."""
        count = self._steps.total()
        if not count:
            return None
        inner = {name: self._quantile(share) for name, share in QUANTILES.items()}
        found = {**inner, "min": self._least, "max": self._most}
        return {name: round(value, 3) if tells(name, count) else None for name, value in found.items()}

    def _quantile(self, share: float) -> float:
        wanted, seen = math.ceil(share * self._steps.total()), 0
        for step in sorted(self._steps):
            seen += self._steps[step]
            if seen >= wanted:
                break
        return min(max(math.exp(step * _STEP), self._least), self._most)
