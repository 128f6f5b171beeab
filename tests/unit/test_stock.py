"""The books of the pool: whatever is done with jails, bounds hold and nothing is counted twice or for ever."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.policy.model import Pool
from engine.supervision import stock as stocks
from engine.supervision.stock import Claim, Seat, Stock


class _Recipe:
    def __init__(self, key: str) -> None:
        self.key = key


def seat(claim: Claim, bounds: Pool) -> Seat:
    """A jail that nothing runs in."""
    made = Seat.__new__(Seat)
    made.jail, made.recipe, made.bounds, made.claim = cast(Any, None), cast(Any, _Recipe(claim.key)), bounds, claim
    made.spare, made.returning, made.unwanted = None, False, False
    return made


CLAIMS = st.builds(
    lambda tool, depth, tenant: Claim(f"{tool} of {tenant}", depth, tenant),
    st.sampled_from("xy"),
    st.integers(0, 1),
    st.sampled_from(["a", "b", None]),
)
STEPS = st.lists(st.tuples(st.sampled_from(["use", "return", "back", "end", "ended", "evict"]), CLAIMS), max_size=60)


@given(bounds=st.builds(lambda jails, more: Pool(jails=jails, total=jails + more), st.integers(1, 3), st.integers(0, 3)), steps=STEPS)
def test_no_more_than_the_bounds(bounds: Pool, steps: list[tuple[str, Claim]]) -> None:
    """At each depth: those in use are never more than the bounds, and none is begun when the idle ones and the others reach them."""
    stock = Stock()
    for step, claim in steps:
        act(stock, step, claim, bounds)
        for depth in (0, 1):
            used = [one.claim.key for one in stock.lent if one.claim.depth == depth]
            assert len(used) <= bounds.total
            assert all(used.count(key) <= bounds.jails for key in used)
        assert stock.living == len(stock.idle) + len(stock.lent) + len(stock.ending)


@given(steps=STEPS)
def test_no_count_is_left(steps: list[tuple[str, Claim]]) -> None:
    """When all have come back and were ended, the books are those of a new pool."""
    stock, bounds = Stock(), Pool(jails=2, total=4)
    for step, claim in steps:
        act(stock, step, claim, bounds)
    for one in [*stock.lent, *stock.idle]:
        stock.end(one)
    for one in list(stock.ending):
        stock.ended(one)
    new = Stock()
    new._tenants = stock._tenants
    assert vars(stock) == vars(new)


def act(stock: Stock, step: str, claim: Claim, bounds: Pool) -> None:
    """One thing that a pool does, if it may."""
    lent = next((one for one in stock.lent if one.claim == claim), None)
    if step == "use" and stock.may_use(claim, bounds):
        stock.meet(claim.tenant)
        idle = stock.idle_of(claim.key)
        if idle:
            stock.lend(idle[-1], claim)
        elif stock.room(claim, bounds):
            stock.start(claim)
            stock.started(claim)
            stock.lend(seat(claim, bounds), claim)
            there = [one.claim for one in (*stock.lent, *stock.ending) if one.claim.depth == claim.depth]
            assert len(stock.idle) + len(there) <= bounds.total
            assert [one.key for one in there].count(claim.key) <= bounds.jails  # none of them is idle, or it would have been taken
    elif step == "return" and lent is not None:
        stock.returns(lent)
    elif step == "back" and lent is not None:
        stock.back(lent)
    elif step == "end" and lent is not None:
        assert stock.end(lent)
        assert not stock.end(lent)
    elif step == "ended" and stock.ending:
        stock.ended(next(iter(stock.ending)))
    elif step == "evict" and (victim := stock.victim()) is not None:
        stock.end(victim)


def used(stock: Stock, bounds: Pool, *tenants: str | None) -> None:
    """A jail in use for each of these."""
    for tenant in tenants:
        stock.meet(tenant)
        stock.lend(seat(Claim("k", 0, tenant), bounds), Claim("k", 0, tenant))


def test_the_last_one_is_kept_for_who_has_none() -> None:
    """Of three, with two in use by one tenant: not for it once there was another, but for any other."""
    bounds = Pool(jails=3, total=3)
    alone, beside = Stock(), Stock()
    used(alone, bounds, "flood", "flood")
    used(beside, bounds, "flood", "flood")
    beside.meet("other")
    flood, other = Claim("k", 0, "flood"), Claim("k", 0, "other")
    assert [one.may_use(flood, bounds) for one in (alone, beside)] == [True, False]
    assert beside.may_use(other, bounds)
    assert beside.may_use(Claim("k", 1, "flood"), bounds)  # a tool's own call is counted elsewhere


def test_the_only_one_serves_whoever_comes() -> None:
    """One worker in all: a tenant without any takes it."""
    stock, bounds = Stock(), Pool(jails=1, total=1)
    stock.meet("a")
    stock.meet("b")
    assert stock.may_use(Claim("k", 0, "a"), bounds)


def test_who_was_used_last_goes_last() -> None:
    """In order of use, whatever the key; one that was only looked after keeps the first place."""
    stock, bounds = Stock(), Pool()
    first, second, third = (seat(Claim(key, 0, None), bounds) for key in ("x", "y", "x"))
    for one in (first, second, third):
        stock.back(one)
    assert (list(stock.idle), stock.idle_of("x")) == ([first, second, third], [first, third])
    stock.lend(first, first.claim)
    stock.back(first)
    stock.lend(third, third.claim)
    stock.back(third, first=True)
    assert (list(stock.idle), stock.idle_of("x"), stock.victim()) == ([third, second, first], [third, first], third)


def test_a_claim_knows_what_comes_for_it() -> None:
    """One that is made, and one whose call was answered; neither afterwards."""
    stock, bounds, claim = Stock(), Pool(), Claim("k", 0, None)
    stock.start(claim)
    one = seat(claim, bounds)
    stock.lend(one, claim)
    stock.returns(one)
    stock.returns(one)
    assert (stock.coming(claim), stock.running, stock.of("k")) == (2, 0, 2)
    stock.started(claim)
    stock.back(one)
    assert (stock.coming(claim), stock.of("k")) == (0, 1)
    assert stocks.Claim("k", 1, None) != claim
