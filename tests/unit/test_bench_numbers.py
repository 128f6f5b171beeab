"""The bench's statistics: quantiles, the rank test, Holm's rule, the range of a ratio."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.numbers import Summary, beyond_chance, quantile, rank_test, ratio_range, summary

VALUES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40)


def test_a_summary_of_a_known_series() -> None:
    """Ends are the ends, what lies between is on a straight line."""
    assert summary([50.0, 10.0, 30.0, 20.0, 40.0]) == Summary(count=5, min=10, median=30, p90=46, p99=49.6, max=50)


@given(VALUES, st.floats(0, 1))
def test_a_quantile_lies_between_the_ends(values: list[float], share: float) -> None:
    """Whatever the series and the share."""
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, share) <= ordered[-1] * (1 + 1e-12)


@given(VALUES)
def test_quantiles_do_not_fall(values: list[float]) -> None:
    """A larger share never has a smaller value, beyond rounding."""
    ordered = sorted(values)
    found = [quantile(ordered, step / 20) for step in range(21)]
    assert all(one <= other * (1 + 1e-12) for one, other in itertools.pairwise(found))


def _by_counting(first: list[float], second: list[float]) -> float:
    """The share of all arrangements of the pooled values that are at least as far from the middle."""
    pooled = [*first, *second]

    def far(chosen: tuple[int, ...]) -> float:
        ours = [pooled[place] for place in chosen]
        rest = [pooled[place] for place in range(len(pooled)) if place not in chosen]
        return abs(sum((one > other) for one in ours for other in rest) - len(ours) * len(rest) / 2)

    seen = far(tuple(range(len(first))))
    ways = list(itertools.combinations(range(len(pooled)), len(first)))
    return sum(far(way) >= seen - 1e-9 for way in ways) / len(ways)


@given(st.lists(st.integers(0, 10**6), min_size=4, max_size=9, unique=True), st.integers(1, 8))
def test_the_rank_test_agrees_with_counting(values: list[int], cut: int) -> None:
    """The exact p value of small samples is the share of arrangements."""
    cut = min(cut, len(values) - 1)
    first, second = [float(value) for value in values[:cut]], [float(value) for value in values[cut:]]
    assert rank_test(first, second) == pytest.approx(_by_counting(first, second))


def test_the_rank_test_with_ties_and_large_samples() -> None:
    """The approximation: equal samples say nothing, samples apart say much, and it is the same the other way round."""
    same = [1.0, 2.0, 2.0, 3.0] * 10
    assert rank_test(same, same) == pytest.approx(1.0)
    assert rank_test([1.0] * 5, [1.0] * 5) == 1.0
    apart = rank_test([1.0, 1.0, 2.0] * 10, [3.0, 4.0, 4.0] * 10)
    assert apart < 1e-9
    assert apart == rank_test([3.0, 4.0, 4.0] * 10, [1.0, 1.0, 2.0] * 10)


def test_the_approximation_is_near_the_exact_value() -> None:
    """The control for the formula: the same order, once counted and once (for being larger) approximated, are of one size."""
    first, second = [float(2 * number) for number in range(20)], [float(2 * number + 13) for number in range(20)]
    exact = rank_test(first, second)
    near = rank_test([*first, 40.0], [*second, 53.0])
    assert 0.5 < exact / near < 2


def test_holms_rule_holds_fewer_than_each_alone() -> None:
    """Of many looked at together the smallest must be smaller; the first that fails ends it."""
    assert beyond_chance({"a": 0.01, "b": 0.02, "c": 0.9}) == {"a", "b"}
    assert beyond_chance({"a": 0.03, "b": 0.04, "c": 0.9}) == frozenset()
    assert beyond_chance({"a": 0.04}) == {"a"}


def test_the_range_of_a_ratio() -> None:
    """It is the same each time, and holds the ratio of what moved by a half."""
    base = [10.0, 11.0, 9.0, 10.5, 9.5, 10.0, 10.2, 9.8]
    low, high = ratio_range(base, [value * 1.5 for value in base])
    assert (low, high) == ratio_range(base, [value * 1.5 for value in base])
    assert 1.3 < low <= 1.5 <= high < 1.7
