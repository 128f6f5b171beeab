"""The statistics of the bench: small, exact where that is cheap, the same everywhere.

Its job: quantiles, ratios, the test that tells two commits apart.
Not its job: where the numbers come from, how they are printed.
Laws:
1. A quantile lies between neighbours and the ends are the ends (tests/unit/test_bench_numbers.py).
2. The rank test agrees with counting every arrangement (tests/unit/test_bench_numbers.py).
"""

import dataclasses
import functools
import math
import random
import statistics
from collections.abc import Mapping, Sequence

_EXACT = 400  # products of sample sizes up to here are counted exactly when no two values tie


LEVEL = 0.05  # the chance of a false alarm that is put up with


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a series comes to."""

    count: int
    min: float
    median: float
    p90: float
    p99: float
    max: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of an ordered series lies, between neighbours by a straight line."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Sequence[float]) -> Summary:
    """The summary of a series that is not empty."""
    ordered = sorted(values)
    return Summary(
        count=len(ordered),
        min=ordered[0],
        median=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        p99=quantile(ordered, 0.99),
        max=ordered[-1],
    )


def rank_test(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p value of Mann and Whitney: how likely such an order is if both come from the same source.

    Exact for small samples without ties, else by the normal approximation with the correction for ties.
    """
    pooled = [*first, *second]
    ranks = _ranks(pooled)
    m, n = len(first), len(second)
    u = sum(ranks[:m]) - m * (m + 1) / 2
    if len(set(pooled)) == len(pooled) and m * n <= _EXACT:
        low = int(min(u, m * n - u))
        below = sum(_arrangements(m, n, value) for value in range(low + 1))
        return min(1.0, 2 * below / math.comb(m + n, m))
    total = m + n
    ties = sum(count**3 - count for count in _counts(pooled).values())
    variance = m * n / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - m * n / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def _counts(values: Sequence[float]) -> dict[float, int]:
    found: dict[float, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; ties share the middle of their ranks."""
    middle, passed = {}, 0
    for value, count in sorted(_counts(values).items()):
        middle[value] = passed + (count + 1) / 2
        passed += count
    return [middle[value] for value in values]


@functools.cache
def _arrangements(m: int, n: int, u: int) -> int:
    """How many orders of m and n values have exactly that U."""
    if u < 0:
        return 0
    if m == 0 or n == 0:
        return int(u == 0)
    return _arrangements(m - 1, n, u - n) + _arrangements(m, n - 1, u)


def ratio_range(base: Sequence[float], now: Sequence[float], *, seed: int = 1, draws: int = 2000) -> tuple[float, float]:
    """The middle 95 % of now's median over base's, rounds drawn again (bootstrap): the same ones for both, as they ran side by side."""
    chance = random.Random(seed)
    rounds = range(min(len(base), len(now)))
    found = []
    for _ in range(draws):
        drawn = [chance.choice(rounds) for _ in rounds]
        found.append(statistics.median(now[one] for one in drawn) / statistics.median(base[one] for one in drawn))
    found.sort()
    return quantile(found, 0.025), quantile(found, 0.975)


def beyond_chance(values: Mapping[str, float], level: float = LEVEL) -> frozenset[str]:
    """Which p values hold when all are looked at together, by Holm's rule: the chance of one false alarm in all stays below the level."""
    held = set()
    for place, (name, p) in enumerate(sorted(values.items(), key=lambda pair: pair[1])):
        if p > level / (len(values) - place):
            break
        held.add(name)
    return frozenset(held)
