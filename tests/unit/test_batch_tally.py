"""Counts and quantiles of a batch."""

import random

import pytest

from engine.batch.tally import Tally, quantiles


def test_quantiles_are_close_to_the_exact_ones() -> None:
    """Within half a percent, over six orders of magnitude; the ends are exact."""
    chance = random.Random(5)
    series = sorted(10 ** chance.uniform(-2, 4) for _ in range(5001))
    tally = Tally()
    for wall in series:
        tally.add("ok.done", wall)
    told = tally.wall_ms()
    assert told is not None
    exact = {"min": series[0], "median": series[2500], "p90": series[4500], "p99": series[4950], "max": series[-1]}
    assert told.keys() == exact.keys()
    assert told == {name: pytest.approx(value, rel=0.006, abs=0.001) for name, value in exact.items()}
    assert (told["min"], told["max"]) == (round(series[0], 3), round(series[-1], 3))


def test_one_call_is_all_of_its_quantiles() -> None:
    """And a call that took no time at all is no fault."""
    tally = Tally()
    tally.add("ok.done", 0.0)
    assert tally.wall_ms() == {"min": 0.001, "median": 0.001, "p90": None, "p99": None, "max": 0.001}


@pytest.mark.parametrize(("count", "told"), [(9, set()), (10, {"p90"}), (99, {"p90"}), (100, {"p90", "p99"})])
def test_percentiles_of_too_few_values_are_left_out(count: int, told: set[str]) -> None:
    """They would be the maximum under another name; counted or held, the two ways agree on it."""
    tally, series = Tally(), [float(number) for number in range(1, count + 1)]
    for wall in series:
        tally.add("ok.done", wall)
    for found in (tally.wall_ms(), quantiles(series)):
        assert found is not None
        assert {name for name, value in found.items() if value is not None} == {"min", "median", "max"} | told


def test_quantiles_are_values_of_the_series() -> None:
    """Nearest rank: of 1 to 100 the 90th is 90."""
    assert quantiles([float(number) for number in range(100, 0, -1)]) == {"min": 1, "median": 50, "p90": 90, "p99": 99, "max": 100}


def test_calls_that_no_worker_ran_have_no_time() -> None:
    """They are counted by reason alone."""
    tally = Tally()
    tally.add("refused.request", None)
    assert (tally.wall_ms(), tally.lines, tally.failed) == (None, 1, 1)


def test_the_reason_is_the_most_frequent_with_the_highest_exit_code() -> None:
    """One violation weighs more than a hundred tools that failed; a batch of nothing is ok."""
    tally = Tally()
    told = [tally.reason()]
    for reason in ["ok.done", "ok.done", "tool_error.exit", "tool_error.exception", "tool_error.exception", "crashed.exit"]:
        tally.add(reason, None)
        told.append(tally.reason())
    assert told == ["ok.done"] * 3 + ["tool_error.exit"] * 2 + ["tool_error.exception", "crashed.exit"]


def test_a_batch_in_two_runs_is_summed_up_as_one() -> None:
    """What was counted again from outcomes on the disk is what was counted when they came."""
    parts = [("ok.done", 3.2), ("tool_error.exit", 0.4), ("refused.busy", None)]
    first, second = Tally(), Tally()
    for part in parts:
        first.add(*part)
    for part in reversed(parts):
        second.add(*part)
    assert (first.outcomes(), first.wall_ms(), first.reason()) == (second.outcomes(), second.wall_ms(), second.reason())
