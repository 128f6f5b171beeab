"""Network profiles: which places a rule is about, and what a call gets of them."""

import dataclasses
from typing import Any

import pytest

from engine.errors import PolicyError
from engine.policy.network import NO_NETWORK, Destination, EgressBounds, Place, Profile, Rule, Scope, Transport, place_of

A = Place(host="a.com", port=443)


def rule(to: str, *, wildcard: bool = False, **fields: Any) -> Rule:
    """A rule about that place."""
    place = place_of(to)
    return Rule(place=place, wildcard=wildcard, upstream_port=place.port, **fields)


@pytest.mark.parametrize("place", ["x.example.com:443", "y.x.example.com:443"])
def test_a_wildcard_covers_names_below_its_own(place: str) -> None:
    """One label or more."""
    assert rule("example.com:443", wildcard=True).covers(place_of(place))


@pytest.mark.parametrize(
    "place", ["example.com:443", "xexample.com:443", "x.example.com:80", "example.com.evil.org:443", "x.example.org:443"]
)
def test_a_wildcard_covers_nothing_else(place: str) -> None:
    """Not its own name, not half a label, no other port, no name that only begins so."""
    assert not rule("example.com:443", wildcard=True).covers(place_of(place))


@pytest.mark.parametrize(("place", "expected"), [("a.com:443", True), ("a.com:80", False), ("x.a.com:443", False), ("aa.com:443", False)])
def test_an_exact_rule_is_about_its_place_alone(place: str, expected: bool) -> None:
    """Equality, never an ending."""
    assert rule("a.com:443").covers(place_of(place)) is expected


def test_the_nearest_rule_counts() -> None:
    """An exact rule before a wildcard, a longer wildcard before a shorter one, in whatever order they stand."""
    wide, near, exact = rule("a.com:1", wildcard=True), rule("b.a.com:1", wildcard=True), rule("x.b.a.com:1", transport=Transport.HTTP)
    for rules in ((wide, near, exact), (exact, near, wide)):
        profile = Profile(name="own", rules=rules)
        found = [profile.rule_for(place_of(text)) for text in ("x.b.a.com:1", "y.b.a.com:1", "y.a.com:1", "a.com:1")]
        assert found == [exact, near, wide, None]


def test_a_scope_is_what_was_asked_in_order() -> None:
    """Each place once, with its rule; bounds and certificates are the profile's."""
    rules = (rule("a.com:443"), rule("b.com:1", wildcard=True), rule("c.com:1"))
    bounds = EgressBounds(total=3)
    profile = Profile(name="own", rules=rules, bounds=bounds, trust="/ca.pem", trust_digest="sha256:0")
    x, a = place_of("x.b.com:1"), place_of("a.com:443")
    assert profile.scope([x, a, x]) == Scope(
        profile="own",
        destinations=(Destination(place=a, rule=rules[0]), Destination(place=x, rule=rules[1])),
        bounds=bounds,
        trust="/ca.pem",
        trust_digest="sha256:0",
    )


def test_nothing_asked_is_no_scope() -> None:
    """And the profile without rules gives none to anybody."""
    assert (Profile(name="own", rules=(rule("a.com:443"),)).scope([]), NO_NETWORK.scope([A]), NO_NETWORK.rule_for(A)) == (None, None, None)


def test_a_scope_finds_its_destination_by_place() -> None:
    """A place outside it has none."""
    scope = Profile(name="own", rules=(rule("a.com:443"),)).scope([A])
    assert scope is not None
    assert (scope.of(A), scope.of(place_of("a.com:80"))) == (scope.destinations[0], None)


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ((), set()),
        ((rule("a.com:1"),), set()),
        ((rule("a.com:1"), rule("b.com:1", wildcard=True)), {"network_wildcards"}),
        ((rule("a.com:1", private=("10.0.0.0/8",)),), {"network_private_destinations"}),
    ],
)
def test_a_profile_amounts_to_the_loosenings_of_its_rules(rules: tuple[Rule, ...], names: set[str]) -> None:
    """Neither more nor fewer."""
    profile = Profile(name="own", rules=rules)
    scope = profile.scope(place_of(f"x.{one.place}" if one.wildcard else str(one.place)) for one in rules)
    assert [profile.loosenings, frozenset() if scope is None else scope.loosenings] == [names, names]


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EgressBounds)])
@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, float("inf"), 1 << 60])
def test_a_bound_is_a_whole_number_within_reason(name: str, value: Any) -> None:
    """No value means "no bound"."""
    with pytest.raises(PolicyError) as caught:
        EgressBounds(**{name: value})
    assert caught.value.lines[0].startswith(f"bounds.{name}: want a whole number from 1 to ")
