"""Laws of resolving over any policy, tool and caller: nothing is exceeded, nothing is remembered, less asked is never more."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.limits import LIMIT_NAMES, Limits
from engine.places import data_dir
from engine.policy.grants import EFFECTS, Grants
from engine.policy.load import load_policy
from engine.policy.model import LIMIT_KEYS, Mode, Permission, Policy
from engine.policy.network import Place, Profile, Rule
from engine.policy.resolve import Asked, Resolved, Tightening, resolve

POLICIES = data_dir("policies")
REQUIRED = load_policy("required", POLICIES)
FIXTURE = load_policy("fixture", POLICIES)
HOST = load_policy("host", POLICIES)
NO_CHANGE = Tightening()

AMOUNTS = st.integers(1, 1 << 20)
SOME_LIMITS = st.dictionaries(st.sampled_from(LIMIT_NAMES), AMOUNTS)
WRITTEN = st.fixed_dictionaries(
    {}, optional={key: AMOUNTS.map(lambda n: f"{n} ms") if field.endswith("_ms") else AMOUNTS for key, (field, _) in LIMIT_KEYS.items()}
)
LAYERS = st.frozensets(st.sampled_from(["a", "b", "c"]))
CAPABILITIES = st.frozensets(st.sampled_from(["anthropic", "google", "openai"]))
NAMES = st.frozensets(st.sampled_from(["MYAPP_A", "MYAPP_B", "MYAPP_C"]))
PLACES = st.builds(Place, host=st.sampled_from(["a.com", "x.a.com", "y.x.a.com", "10.0.0.1"]), port=st.sampled_from([1, 2]))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any rules over a few places: exact ones, wildcards, such with private networks; also none."""
    private = st.sampled_from([(), ("10.0.0.0/8",)])
    rules = [
        Rule(place=place, wildcard=draw(st.booleans()) and not place.literal, upstream_port=place.port, private=draw(private))
        for place in sorted(draw(st.frozensets(PLACES)))
    ]
    return Profile(name="own", rules=tuple(rules))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any valid grant and any limits, in each mode."""
    base = draw(st.sampled_from([REQUIRED, FIXTURE, HOST]))
    grants = Grants(
        layers=draw(LAYERS),
        credentials=draw(CAPABILITIES),
        environment={name: name.lower() for name in draw(NAMES)},
        effects=draw(st.frozensets(st.sampled_from(EFFECTS), min_size=3)),
    )
    network = draw(profiles())
    return dataclasses.replace(
        base,
        grants=grants,
        limits=Limits(**draw(SOME_LIMITS)),
        permission=draw(st.sampled_from(list(Permission))),
        network=network,
        loosenings=(*base.loosenings, *network.loosenings),
    )


@st.composite
def asks(draw: st.DrawFn) -> Asked:
    """Any tool's wishes."""
    return Asked(
        name="t",
        effect=draw(st.sampled_from(EFFECTS)),
        timeout_ms=draw(AMOUNTS),
        dangerous=draw(st.booleans()),
        read_only=draw(st.booleans()),
        layers=draw(LAYERS),
        credentials=draw(CAPABILITIES),
        environment=draw(NAMES),
        network=draw(st.frozensets(PLACES, max_size=2)),
        network_unbounded=draw(st.sampled_from([False, False, False, True])),
        limits=draw(st.just({}) | SOME_LIMITS),
    )


CALLERS = st.builds(
    Tightening,
    timeout_ms=st.none() | AMOUNTS,
    limits=st.just({}) | WRITTEN,
    approved=st.booleans(),
    ancestor_required=st.booleans(),
)


def resolved_or_none(policy: Policy, asked: Asked, caller: Tightening) -> Resolved | None:
    """What resolve gives, or None for a refusal; any other exception fails the test."""
    try:
        return resolve(policy, asked, caller)
    except EngineError:
        return None


@given(policies(), asks(), CALLERS)
def test_the_result_exceeds_neither_asked_nor_granted_nor_caller(policy: Policy, asked: Asked, caller: Tightening) -> None:
    """In every limit and every set, for every combination of the three."""
    got = resolved_or_none(policy, asked, caller)
    if got is None:
        return
    ceilings = [{name: getattr(policy.limits, name) for name in LIMIT_NAMES}, asked.limits, {"wall_ms": asked.timeout_ms}]
    ceilings.append({LIMIT_KEYS[key][0]: LIMIT_KEYS[key][1](amount) for key, amount in caller.limits.items()})
    ceilings.append({"wall_ms": caller.timeout_ms} if caller.timeout_ms is not None else {})
    assert [name for ceiling in ceilings for name, most in ceiling.items() if getattr(got.limits, name) > most] == []
    assert set(got.layers) <= asked.layers & policy.grants.layers
    assert set(got.credentials) <= asked.credentials & policy.grants.credentials
    assert len(got.credentials) <= 1
    assert got.environment.items() <= policy.grants.environment.items()
    assert got.environment.keys() <= asked.environment
    assert not asked.network_unbounded
    assert (got.protections, got.mode) == (policy.protections, policy.mode)
    assert {*got.loosenings} <= {*policy.loosenings}
    assert {*policy.loosenings} - {*got.loosenings} <= policy.network.loosenings
    assert not (policy.mode is Mode.HOST and caller.ancestor_required)
    assert caller.approved or not asked.dangerous


@given(policies(), asks(), CALLERS)
def test_the_scope_is_what_was_asked_by_rules_of_the_profile(policy: Policy, asked: Asked, caller: Tightening) -> None:
    """Each place that was asked for and no other one, each by a rule that covers it; without a place there is no scope."""
    got = resolved_or_none(policy, asked, caller)
    if got is None:
        return
    destinations = () if got.scope is None else got.scope.destinations
    assert [one.place for one in destinations] == sorted(asked.network)
    assert (got.scope is None) == (not asked.network)
    assert all(one.rule in policy.network.rules and one.rule.covers(one.place) for one in destinations)
    exact = {rule.place for rule in policy.network.rules if not rule.wildcard}
    assert all(not one.rule.wildcard for one in destinations if one.place in exact)
    opened = {rule for rule in (one.rule for one in destinations) if rule.wildcard or rule.private}
    assert bool({*got.loosenings} & policy.network.loosenings) == bool(opened)


@given(profiles(), PLACES)
def test_a_place_without_a_rule_is_granted_to_nobody(profile: Profile, place: Place) -> None:
    """Granted means: the very place, or a name with whole labels before the one below which all are granted; and the very port."""
    by_hand = [
        rule
        for rule in profile.rules
        if rule.place.port == place.port
        and (
            (
                rule.wildcard
                and place.host.split(".")[::-1][: rule.place.host.count(".") + 1] == rule.place.host.split(".")[::-1]
                and place.host != rule.place.host
            )
            or (not rule.wildcard and place.host == rule.place.host)
        )
    ]
    assert (profile.rule_for(place) is not None) == bool(by_hand)


@given(policies(), asks(), CALLERS)
def test_equal_inputs_give_equal_results(policy: Policy, asked: Asked, caller: Tightening) -> None:
    """The function has no memory, and the digest is of the content."""
    first, second = resolved_or_none(policy, asked, caller), resolved_or_none(dataclasses.replace(policy), asked, caller)
    assert first == second
    assert first is None or second is None or (first.digest, first.worker_digest) == (second.digest, second.worker_digest)


@given(policies(), asks(), st.integers(1, 1 << 20))
def test_less_time_from_the_caller_is_never_more_of_anything(policy: Policy, asked: Asked, timeout_ms: int) -> None:
    """Tightening changes no dimension but the one it names."""
    free, tight = resolved_or_none(policy, asked, NO_CHANGE), resolved_or_none(policy, asked, Tightening(timeout_ms=timeout_ms))
    if free is None or tight is None:
        return
    assert dataclasses.replace(tight, limits=dataclasses.replace(tight.limits, wall_ms=free.limits.wall_ms)) == free
