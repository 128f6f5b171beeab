"""How many jails a key should have: bounds, direction, and the cases that people have in mind."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.policy.model import Pool
from engine.supervision.demand import Demand, Scene, keeps, longest_pause, starts, wanted

SECONDS = st.floats(0, 1e5)
COUNTS = st.integers(1, 100)
POOLS = st.builds(lambda jails, more, ready: Pool(jails=jails, total=jails + more, ready=ready), COUNTS, st.integers(0, 100), COUNTS)
DEMANDS = st.builds(Demand, arrivals=st.integers(0, 1 << 40), last=SECONDS, interval=SECONDS, away=SECONDS)
WIDE = Pool(jails=64, total=64, ready=64)


def called(times: int, every: float, away: float, bounds: Pool = WIDE) -> tuple[Demand, float]:
    """What is known after so many calls at a pace, and when the last came."""
    demand, now = Demand(), 1000.0
    for number in range(times):
        now = 1000.0 + number * every
        demand = demand.arrived(now, longest_pause(bounds)).was_away(away)
    return demand, now


@given(demand=DEMANDS, bounds=POOLS, later=SECONDS, lent=st.integers(0, 200))
def test_it_is_within_the_bounds(demand: Demand, bounds: Pool, later: float, lent: int) -> None:
    """Whatever was seen: not below none, not above what the policy has for a key, in all, or ready."""
    assert 0 <= wanted(demand, bounds, now=demand.last + later, lent=lent) <= max(1, min(bounds.jails, bounds.total, lent + bounds.ready))


@given(bounds=POOLS, now=SECONDS, lent=COUNTS)
def test_a_key_that_was_never_used_wants_none(bounds: Pool, now: float, lent: int) -> None:
    """At any time, under any policy."""
    assert wanted(Demand(), bounds, now=now, lent=lent) == 0


@given(demand=DEMANDS, bounds=POOLS, lent=COUNTS, factor=st.floats(0, 1))
def test_more_calls_never_want_fewer(demand: Demand, bounds: Pool, lent: int, factor: float) -> None:
    """While they come: a shorter time between two, and a longer absence, want as many or more."""
    wish = wanted(demand, bounds, now=demand.last, lent=lent)
    faster = dataclasses.replace(demand, interval=demand.interval * factor)
    briefer = dataclasses.replace(demand, away=demand.away * factor)
    assert wanted(briefer, bounds, now=demand.last, lent=lent) <= wish <= wanted(faster, bounds, now=demand.last, lent=lent)


@given(times=st.integers(0, 100), every=SECONDS, away=SECONDS, bounds=POOLS)
def test_the_means_stay_within_what_was_seen(times: int, every: float, away: float, bounds: Pool) -> None:
    """Of calls at one pace the mean is that pace, or the longest pause that counts."""
    demand, _ = called(times, every, away, bounds)
    expected = min(every, longest_pause(bounds)) if times > 1 else 0.0
    assert demand.interval == pytest.approx(expected, rel=1e-6)
    assert demand.away == pytest.approx(away if times else 0.0)


@pytest.mark.parametrize(
    ("every", "away", "wish"),
    [
        (60.0, 0.005, 1),  # a call a minute
        (60.0, 2.0, 1),  # a slow one
        (0.1, 0.004, 1),
        (0.02, 0.004, 2),  # every fifth would find the only one away
        (0.004, 0.004, 4),  # one after the other: one is away, and the calls may bunch
        (0.001, 0.004, 8),
        (0.0, 0.004, 64),  # all at once
    ],
)
def test_calls_at_a_pace(every: float, away: float, wish: int) -> None:
    """A hundred calls, each of which keeps its jail away as long."""
    demand, now = called(100, every, away)
    assert wanted(demand, WIDE, now=now, lent=0) == wish


def test_a_few_calls_are_no_demand() -> None:
    """Fifteen calls, however quick, want one jail; the sixteenth makes them believed."""
    assert [wanted(called(times, 0.0, 1.0)[0], WIDE, now=1000.0, lent=0) for times in (1, 15, 16)] == [1, 1, 64]


def test_a_pause_lowers_it_while_it_lasts() -> None:
    """After a rush it falls by itself, to none when the policy's time is over."""
    demand, now = called(100, 0.001, 0.004)
    assert [wanted(demand, WIDE, now=now + pause, lent=0) for pause in (0.0, 0.02, 1.0, 59.0, 61.0)] == [8, 2, 1, 1, 0]


def test_a_key_that_comes_back_seldom_but_steadily_keeps_one() -> None:
    """Calls every fifty seconds: one is kept for a hundred, past the policy's minute; every hour: no longer than four times that."""
    demand, now = called(20, 50.0, 0.004)
    assert [wanted(demand, WIDE, now=now + pause, lent=0) for pause in (100.0, 101.0)] == [1, 0]
    demand, now = called(20, 3600.0, 0.004)
    assert [wanted(demand, WIDE, now=now + pause, lent=0) for pause in (240.0, 241.0)] == [1, 0]


SCENE = Scene(jails=1, waiting=1, running=0, cores=2, room=True, affordable=True)


@pytest.mark.parametrize(
    ("change", "late", "expected"),
    [
        ({}, False, True),
        ({"jails": 3}, False, False),
        ({"waiting": 4}, False, False),
        ({"running": 2}, False, False),
        ({"running": 2}, True, True),  # it has stood a while
        ({"room": False}, True, False),
        ({"affordable": False}, True, False),
    ],
)
def test_one_more_is_started(change: dict[str, Any], late: bool, expected: bool) -> None:
    """When there are fewer than wanted, with room, memory and a core for it."""
    assert starts(3, Pool(), dataclasses.replace(SCENE, **change), late=late) is expected


def test_unused_ones_that_are_kept() -> None:
    """What is wanted beyond those that are lent, and not more than the policy keeps ready."""
    assert [keeps(wish, Pool(ready=2), lent=lent) for wish, lent in ((0, 0), (1, 0), (1, 1), (3, 1), (4, 1), (0, 3))] == [0, 1, 0, 2, 2, 0]
