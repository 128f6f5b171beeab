"""Whose turn it is: order within a tenant, turns between tenants, who gives way when the line is full."""

from collections import Counter
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.policy.model import Pool
from engine.supervision.line import Line, Place, gives_way
from engine.supervision.spare import Recipe
from engine.supervision.stock import Claim

NO_RECIPE = cast(Recipe, None)  # a line looks at claims alone


def place(tenant: str | None, key: str = "k", depth: int = 0) -> Place:
    """A call of a tenant that waits."""
    return Place(Claim(f"{key} of {tenant}", depth, tenant), Pool(), NO_RECIPE)


def joined(line: Line, *tenants: str | None, **options: Any) -> list[Place]:
    """One call of each, in that order."""
    places = [place(tenant, **options) for tenant in tenants]
    for one in places:
        line.join(one)
    return places


def all_served(line: Line) -> list[Place]:
    """Everybody in the order of their turns, when one at a time is served."""
    served = []
    while len(line):
        first = line.turns()[0][0]
        line.leave(first)
        line.served(first.claim.tenant)
        served.append(first)
    return served


def nothing_comes(claim: Claim) -> int:
    """For no claim a jail is on its way."""
    return 0


def test_one_tenant_is_served_in_order() -> None:
    """Of several tools, as they came."""
    line = Line()
    places = [*joined(line, "a", "a"), *joined(line, "a", key="other"), *joined(line, "a")]
    assert all_served(line) == places


def test_tenants_take_turns() -> None:
    """Three calls of one that came before a single call of another and of nobody: they wait for one of them."""
    line = Line()
    first, second, third, other, nobody = joined(line, "flood", "flood", "flood", "other", None)
    assert all_served(line) == [first, other, nobody, second, third]


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30))
def test_nobody_is_passed_twice(tenants: list[str | None]) -> None:
    """Between two turns of one tenant each other that waited has one; within a tenant the order is that of arrival."""
    line = Line()
    places = joined(line, *tenants)
    served = all_served(line)
    assert sorted(one.number for one in served) == [one.number for one in places]
    left = Counter(tenants)
    rounds: list[set[str | None]] = [set()]
    for one in served:
        tenant = one.claim.tenant
        if tenant in rounds[-1]:
            assert {other for other, count in left.items() if count} <= rounds[-1]
            rounds.append(set())
        rounds[-1].add(tenant)
        left[tenant] -= 1
    for tenant in set(tenants):
        own = [one.number for one in served if one.claim.tenant == tenant]
        assert own == sorted(own)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(0, 1)), max_size=40))
def test_what_left_leaves_nothing(steps: list[tuple[bool, str, int]]) -> None:
    """Whoever joins and leaves: the length is the number of those who stand there, and an empty line has no turns."""
    line, there = Line(), list[Place]()
    for joins, tenant, depth in steps:
        if joins or not there:
            there += joined(line, tenant, depth=depth)
        else:
            gone = there.pop(0)
            line.leave(gone)
            line.leave(gone)
        assert len(line) == len(there)
        assert {first for firsts in line.turns() for first in firsts} <= set(there)
    for one in there:
        line.leave(one)
    assert (len(line), line.turns(), line.uncovered(0, nothing_comes)) == (0, [], {})


def test_those_for_whom_a_jail_is_on_its_way_are_not_counted() -> None:
    """The first of a claim, as many as come; and only those of the same depth."""
    line = Line()
    first, second, third = joined(line, "a", "a", "a")
    (deep,) = joined(line, "a", depth=1)
    assert line.uncovered(0, lambda claim: 2) == {"a": [third]}
    assert line.uncovered(0, nothing_comes) == {"a": [first, second, third]}
    assert line.uncovered(1, nothing_comes) == {"a": [deep]}


def test_the_newest_of_the_largest_holder_gives_way() -> None:
    """To a tenant that holds fewer places."""
    line = Line()
    *_, newest, own = joined(line, "flood", "flood", "flood", "other")
    assert gives_way(line.uncovered(0, nothing_comes), own) is newest


def test_who_holds_as_many_is_refused() -> None:
    """The newcomer of the largest holder itself, and of a tenant that would then hold as many: nobody's place goes back and forth."""
    line = Line()
    *_, own = joined(line, "other", "flood", "flood")
    assert gives_way(line.uncovered(0, nothing_comes), own) is own
    line = Line()
    *_, own = joined(line, "a", "b")
    assert gives_way(line.uncovered(0, nothing_comes), own) is own
