"""What a call may reach: the places that its tool asked for, by the rules of its policy's profile."""

import dataclasses
from typing import Any

import pytest

from engine.errors import EngineError
from engine.places import data_dir
from engine.policy.grants import EFFECTS, Grants
from engine.policy.load import load_policy
from engine.policy.model import OnSecret, Policy
from engine.policy.network import Place, Profile, Rule
from engine.policy.resolve import Asked, Tightening, resolve
from engine.policy.secrets import CAPABILITIES

REQUIRED = load_policy("required", data_dir("policies"))
NO_CHANGE = Tightening()
API, DATA, BELOW = (Place(host=host, port=443) for host in ("api.example.com", "10.1.2.3", "a.example.org"))
RULES = (
    Rule(place=API, upstream_port=443),
    Rule(place=DATA, upstream_port=443, private=("10.1.2.0/24",)),
    Rule(place=Place(host="example.org", port=443), wildcard=True, upstream_port=443),
)
GRANTING = dataclasses.replace(
    REQUIRED,
    network=Profile(name="own", rules=RULES, trust="/etc/ca.pem", trust_digest="sha256:1"),
    loosenings=("network_private_destinations", "network_wildcards"),
)


def asking(**fields: Any) -> Asked:
    """A harmless tool that asks for these as well."""
    return Asked(name="look", effect="read", timeout_ms=30_000, dangerous=False, **fields)


def refusal(policy: Policy, asked: Asked) -> tuple[str, tuple[str, ...]]:
    """Code and lines with which the call must be refused."""
    with pytest.raises(EngineError) as caught:
        resolve(policy, asked, NO_CHANGE)
    return caught.value.code, caught.value.lines


def test_a_host_that_is_granted_is_the_scope_of_the_call() -> None:
    """What was asked and nothing else of the profile, with its bounds and its certificates."""
    scope = resolve(GRANTING, asking(network=frozenset({API})), NO_CHANGE).scope
    assert scope is not None
    assert [(one.place, one.rule) for one in scope.destinations] == [(API, RULES[0])]
    assert (scope.profile, scope.bounds, scope.trust, scope.trust_digest) == ("own", GRANTING.network.bounds, "/etc/ca.pem", "sha256:1")


@pytest.mark.parametrize(
    ("places", "loosenings"),
    [
        ([], ()),
        ([API], ()),
        ([DATA], ("network_private_destinations",)),
        ([API, BELOW], ("network_wildcards",)),
        ([API, BELOW, DATA], ("network_private_destinations", "network_wildcards")),
    ],
)
def test_a_call_carries_the_loosenings_of_its_own_places(places: list[Place], loosenings: tuple[str, ...]) -> None:
    """A call that uses no opened rule has no alarm on its receipt."""
    got = resolve(GRANTING, asking(network=frozenset(places)), NO_CHANGE)
    assert (got.network, got.loosenings) == (tuple(sorted(str(place) for place in places)), loosenings)


@pytest.mark.parametrize(
    "place", [Place(host="api.example.com", port=80), Place(host="example.org", port=443), Place(host="x.com", port=443)]
)
def test_a_host_that_is_not_granted_is_not_granted(place: Place) -> None:
    """Another port, the name above a wildcard, another name; and a policy without a profile grants none at all."""
    line = "network: 1 of the hosts asked for are not granted"
    assert refusal(GRANTING, asking(network=frozenset({place, API}))) == ("refused.not_granted", (line,))
    assert refusal(REQUIRED, asking(network=frozenset({place}))) == ("refused.not_granted", (line,))


def test_what_becomes_of_a_secret_comes_from_the_policy() -> None:
    """So do the families of credentials."""
    families = {**CAPABILITIES, "acme": ("ACME_API_KEY",)}
    policy = dataclasses.replace(
        REQUIRED, on_secret=OnSecret.REFUSE, families=families, grants=Grants(credentials=frozenset({"acme"}), effects=frozenset(EFFECTS))
    )
    got = resolve(policy, asking(credentials=frozenset({"acme"})), NO_CHANGE)
    assert (got.on_secret, got.families, got.credentials) == (OnSecret.REFUSE, families, ("acme",))


def test_another_scope_is_another_worker() -> None:
    """A jail that listens for one place serves no call that may reach another."""
    digests = {
        resolve(GRANTING, asking(network=frozenset(places)), NO_CHANGE).worker_digest for places in ([], [API], [BELOW], [API, BELOW])
    }
    assert len(digests) == 4
