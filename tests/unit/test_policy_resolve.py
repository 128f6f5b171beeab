"""What a tool asks, what the operator grants, what the caller leaves."""

import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest

from engine.errors import EngineError
from engine.limits import KERNEL_HELD, LIMIT_NAMES, Limits
from engine.places import data_dir
from engine.policy.grants import EFFECTS, Grants
from engine.policy.load import describe_policy, load_policy
from engine.policy.model import LIMIT_KEYS, Freshness, Mode, Permission, Policy
from engine.policy.network import Place, Profile, Rule
from engine.policy.protections import NO_WALL
from engine.policy.resolve import Asked, Resolved, Tightening, resolve, resolve_describe

POLICIES = data_dir("policies")
REQUIRED = load_policy("required", POLICIES)
FIXTURE = load_policy("fixture", POLICIES)
HOST = load_policy("host", POLICIES)
DESCRIBE = describe_policy(POLICIES)
GRANTS = Grants(
    layers=frozenset({"numbers", "tables"}),
    credentials=frozenset({"anthropic", "openai"}),
    environment={"MYAPP_REGION": "eu", "MYAPP_STAGE": "test"},
    folders={"data": "/srv/data"},
    effects=frozenset(EFFECTS),
)
API = Place(host="api.example.com", port=443)
GRANTING = dataclasses.replace(REQUIRED, grants=GRANTS, network=Profile(name="own", rules=(Rule(place=API, upstream_port=443),)))
HARMLESS = Asked(name="look", effect="read", timeout_ms=30_000, dangerous=False)
NO_CHANGE = Tightening()


def asking(**fields: Any) -> Asked:
    """A harmless tool that asks for these as well."""
    return dataclasses.replace(HARMLESS, **fields)


def refusal(policy: Policy, asked: Asked, caller: Tightening = NO_CHANGE) -> tuple[str, tuple[str, ...]]:
    """Code and lines with which the call must be refused."""
    with pytest.raises(EngineError) as caught:
        resolve(policy, asked, caller)
    return caught.value.code, caught.value.lines


def test_a_tool_that_asks_for_nothing_gets_the_limits_and_folders_only() -> None:
    """What is not asked is not handed over, however much is granted."""
    assert resolve(GRANTING, HARMLESS, NO_CHANGE) == Resolved(
        policy="required",
        policy_digest=GRANTING.digest,
        mode=Mode.REQUIRED,
        permission=Permission.AUTO,
        limits=Limits(),
        layers=(),
        credentials=(),
        environment={},
        folders={"data": "/srv/data"},
        protections=REQUIRED.protections,
        loosenings=(),
        freshness=Freshness.FRESH,
        pool=REQUIRED.pool,
        denied=REQUIRED.denied,
    )


def test_what_is_asked_and_granted_is_given() -> None:
    """The control of all refusals below."""
    asked = asking(
        layers=frozenset({"tables", "numbers"}),
        credentials=frozenset({"openai"}),
        environment=frozenset({"MYAPP_REGION"}),
        limits={"threads": 2},
    )
    got = resolve(GRANTING, asked, NO_CHANGE)
    assert (got.layers, got.credentials, got.environment) == (("numbers", "tables"), ("openai",), {"MYAPP_REGION": "eu"})
    assert got.limits == Limits(threads=2)


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_limit_asked_above_the_granted_refuses_by_name(name: str) -> None:
    """More than granted is not silently cut to it."""
    granted = getattr(REQUIRED.limits, name)
    assert refusal(REQUIRED, asking(limits={name: granted + 1})) == (
        "refused.not_granted",
        (f"limit {name}: asked {granted + 1}, granted {granted}",),
    )


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_limit_asked_at_the_granted_is_given(name: str) -> None:
    """The control: the granted amount itself may be asked for."""
    assert resolve(REQUIRED, asking(limits={name: getattr(REQUIRED.limits, name)}), NO_CHANGE).limits == REQUIRED.limits


def test_a_layer_that_is_not_granted_refuses_by_name() -> None:
    """The operator learns which layer to grant."""
    assert refusal(GRANTING, asking(layers=frozenset({"numbers", "plots"}))) == (
        "refused.not_granted",
        ("layer plots: asked, but not granted",),
    )


def test_all_that_is_not_granted_is_said_at_once() -> None:
    """One line per problem."""
    asked = asking(
        layers=frozenset({"plots"}),
        limits={"threads": 65},
        environment=frozenset({"X"}),
        network=frozenset({Place(host="hunter2.com", port=443)}),
    )
    assert refusal(GRANTING, asked) == (
        "refused.not_granted",
        (
            "limit threads: asked 65, granted 64",
            "layer plots: asked, but not granted",
            "environment: 1 of the names asked for are not granted",
            "network: 1 of the hosts asked for are not granted",
        ),
    )


@pytest.mark.parametrize(
    "name", ["hunter2", "PATH", "LANG", "MYAPP_REGION ", "myapp_region", "MYAPP_REGION\0", "MYAPP_REGION=x", "MYAPP_RЕGION"]
)
def test_a_variable_that_is_not_granted_refuses_without_its_name(name: str) -> None:
    """Exact names only; the text never repeats what was asked."""
    assert refusal(GRANTING, asking(environment=frozenset({name}))) == (
        "refused.not_granted",
        ("environment: 1 of the names asked for are not granted",),
    )


@pytest.mark.parametrize("name", ["hunter2", "OPENAI", "openai ", "OPENAI_API_KEY", "google"])
def test_a_capability_that_is_not_listed_refuses_without_its_name(name: str) -> None:
    """A capability is one exact word that the policy lists."""
    assert refusal(GRANTING, asking(credentials=frozenset({name}))) == (
        "refused.credential_not_listed",
        ("the tool asks for a credential capability that required does not list",),
    )


def test_two_capabilities_are_ambiguous() -> None:
    """One provider family per worker, even when both are granted."""
    assert refusal(GRANTING, asking(credentials=frozenset({"openai", "anthropic"}))) == (
        "refused.credential_ambiguous",
        ("the tool asks for more than one credential capability",),
    )


def test_an_unbounded_network_refuses() -> None:
    """True is granted to nobody."""
    assert refusal(GRANTING, asking(network_unbounded=True))[0] == "refused.network_unbounded"


def test_an_unbounded_network_refuses_before_a_host_that_is_not_granted() -> None:
    """The reason that is told is the greater wish."""
    asked = asking(network_unbounded=True, network=frozenset({Place(host="b.com", port=1)}))
    assert refusal(GRANTING, asked)[0] == "refused.network_unbounded"


@pytest.mark.parametrize("effect", ["write", "external"])
def test_fixture_blocks_side_effects(effect: str) -> None:
    """A trusted test never performs them."""
    assert refusal(FIXTURE, asking(effect=effect))[0] == "refused.side_effect"


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_fixture_runs_what_changes_nothing(effect: str) -> None:
    """The control."""
    assert resolve(FIXTURE, asking(effect=effect), NO_CHANGE).mode is Mode.FIXTURE


def test_fixture_blocks_side_effects_even_when_granted() -> None:
    """The mode is stronger than a grant."""
    policy = dataclasses.replace(FIXTURE, grants=Grants(effects=frozenset(EFFECTS)))
    assert refusal(policy, asking(effect="write"))[0] == "refused.side_effect"


def test_an_effect_that_is_not_granted_refuses() -> None:
    """Absent means denied for effects too."""
    policy = dataclasses.replace(REQUIRED, grants=Grants(effects=frozenset({"read"})))
    line = "tool look has the effect write, which policy required does not grant"
    assert refusal(policy, asking(effect="write")) == ("refused.not_granted", (line,))


def test_host_refuses_below_a_required_caller() -> None:
    """A nested call cannot leave the wall."""
    assert refusal(HOST, HARMLESS, Tightening(ancestor_required=True))[0] == "refused.host_mode"


def test_host_runs_without_a_required_caller_and_says_so() -> None:
    """The control: the loosening stands in the result."""
    got = resolve(HOST, HARMLESS, NO_CHANGE)
    assert (got.mode, got.loosenings, got.protections) == (Mode.HOST, ("host_mode_without_any_wall",), NO_WALL)


def test_required_runs_below_a_required_caller() -> None:
    """The control of the other side."""
    assert resolve(REQUIRED, HARMLESS, Tightening(ancestor_required=True)).mode is Mode.REQUIRED


@pytest.mark.parametrize("permission", list(Permission))
def test_a_dangerous_tool_needs_approval(permission: Permission) -> None:
    """No permission mode spares the question."""
    policy = dataclasses.replace(REQUIRED, permission=permission)
    asked = asking(dangerous=True, read_only=True)
    assert refusal(policy, asked)[0] == "refused.approval"
    assert resolve(policy, asked, Tightening(approved=True)).permission is permission


def test_readonly_runs_read_only_tools_and_no_other() -> None:
    """An approval does not lift it."""
    policy = dataclasses.replace(REQUIRED, permission=Permission.READONLY)
    assert refusal(policy, HARMLESS, Tightening(approved=True))[0] == "refused.readonly"
    assert resolve(policy, asking(read_only=True), NO_CHANGE).permission is Permission.READONLY


def test_the_tools_timeout_lowers_the_wall() -> None:
    """The author's own expectation bounds the call."""
    assert resolve(REQUIRED, asking(timeout_ms=10), NO_CHANGE).limits == Limits(wall_ms=10)


def test_the_tools_timeout_does_not_raise_the_wall() -> None:
    """A default of the declaration above a small policy is no fault: it is lowered."""
    policy = dataclasses.replace(REQUIRED, limits=Limits(wall_ms=20))
    assert resolve(policy, HARMLESS, NO_CHANGE).limits == Limits(wall_ms=20)


@pytest.mark.parametrize(
    ("caller", "line"),
    [
        (Tightening(timeout_ms=30_001), "limit wall_ms: 30001 is above the 30000 that is granted"),
        (Tightening(timeout_ms=0), "timeout_ms: want a whole number of milliseconds from 1"),
        (Tightening(timeout_ms=-1), "timeout_ms: want a whole number of milliseconds from 1"),
        (Tightening(timeout_ms=True), "timeout_ms: want a whole number of milliseconds from 1"),
        (Tightening(timeout_ms=float("nan")), "timeout_ms: want a whole number of milliseconds from 1"),  # type: ignore[arg-type] # wrong on purpose
        (Tightening(timeout_ms=1e308), "timeout_ms: want a whole number of milliseconds from 1"),  # type: ignore[arg-type] # wrong on purpose
        (Tightening(timeout_ms="1"), "timeout_ms: want a whole number of milliseconds from 1"),  # type: ignore[arg-type] # wrong on purpose
        (Tightening(limits={"wall": "31 s"}), "limit wall_ms: 31000 is above the 30000 that is granted"),
        (Tightening(limits={"memory": "257 MiB"}), "limit memory_bytes: 269484032 is above the 268435456 that is granted"),
        (Tightening(limits={"memory": 0}), "limits.memory: limit memory_bytes must be a whole number from 1 to 2^53, not 0"),
        (Tightening(limits={"events": None}), "limits.events: None is not a whole number"),
        (Tightening(limits={"evnts": 1}), f"limits.evnts: unknown limit; allowed: {', '.join(LIMIT_KEYS)}"),
    ],
)
def test_a_caller_may_only_tighten(caller: Tightening, line: str) -> None:
    """Anything else refuses; nothing means "no limit"."""
    assert refusal(REQUIRED, HARMLESS, caller) == ("refused.limits", (line,))


def test_a_caller_may_tighten_to_the_granted_amount() -> None:
    """The control: the boundary itself passes, and the smallest of all holds."""
    caller = Tightening(timeout_ms=30_000, limits={"memory": "256 MiB", "wall": "3 s", "events": 1})
    assert resolve(REQUIRED, asking(timeout_ms=5000), caller).limits == Limits(wall_ms=3000, events=1)


def test_a_caller_above_the_tools_own_limit_gets_the_tools() -> None:
    """The caller's amount is a ceiling, not a wish."""
    assert resolve(REQUIRED, asking(timeout_ms=10), Tightening(timeout_ms=20)).limits.wall_ms == 10


def test_describe_has_its_own_limits_and_the_wall_of_the_policy() -> None:
    """Reading declarations happens behind the wall the tool will run under, with nothing but layers."""
    old_kernel = dataclasses.replace(
        GRANTING,
        protections={**REQUIRED.protections, "landlock": 4},
        freshness=Freshness.WARM,
        loosenings=("landlock_below_6", "state_kept_warm"),
    )
    got = resolve_describe(DESCRIBE, old_kernel, ["numbers"], NO_CHANGE)
    assert (got.policy, got.limits, got.permission, got.freshness) == ("describe", DESCRIBE.limits, Permission.READONLY, Freshness.FRESH)
    assert (got.layers, got.credentials, got.environment, got.network, got.folders) == (("numbers",), (), {}, (), {})
    assert got.scope is None
    assert (got.protections, got.loosenings) == (old_kernel.protections, ("landlock_below_6",))


def test_describe_refuses_a_layer_that_is_not_granted() -> None:
    """Import runs the layer's code, so it needs the same grant."""
    with pytest.raises(EngineError) as caught:
        resolve_describe(DESCRIBE, REQUIRED, ["numbers"], NO_CHANGE)
    assert (caught.value.code, caught.value.lines) == ("refused.not_granted", ("layer numbers: asked, but not granted",))


def test_describe_refuses_the_host_below_a_required_caller() -> None:
    """Loading a source is no way around the wall."""
    with pytest.raises(EngineError) as caught:
        resolve_describe(DESCRIBE, HOST, [], Tightening(ancestor_required=True))
    assert caught.value.code == "refused.host_mode"


def test_no_repr_holds_a_value_or_an_asked_name() -> None:
    """Records end in logs."""
    asked = asking(environment=frozenset({"MYAPP_STAGE"}), credentials=frozenset({"openai"}))
    text = repr(asked) + repr(resolve(GRANTING, dataclasses.replace(asked, credentials=frozenset()), NO_CHANGE)) + repr(GRANTING)
    assert [word for word in ("MYAPP_STAGE", "'test'", "'eu'") if word in text] == []


def test_host_held_limits_do_not_move_the_worker() -> None:
    """Two calls that differ in time and output only may use one worker, one after the other."""
    plain = resolve(REQUIRED, HARMLESS, NO_CHANGE)
    shorter = resolve(REQUIRED, HARMLESS, Tightening(timeout_ms=1, limits={"events": 1, "log": 1}))
    assert (shorter.worker_digest, shorter.digest != plain.digest) == (plain.worker_digest, True)


@pytest.mark.parametrize("name", sorted(KERNEL_HELD))
def test_kernel_held_limits_move_the_worker(name: str) -> None:
    """What was set once when a jail started cannot serve a call with another amount."""
    plain = resolve(REQUIRED, HARMLESS, NO_CHANGE)
    assert resolve(REQUIRED, asking(limits={name: 1}), NO_CHANGE).worker_digest != plain.worker_digest


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process() -> None:
    """Sets of texts have another order in each process; the digest does not."""
    code = (
        "from engine.places import data_dir; from engine.policy.load import load_policy;"
        "from engine.policy.resolve import *;"
        "a = Asked(name='t', effect='read', timeout_ms=1, dangerous=False);"
        "print(resolve(load_policy('required', data_dir('policies')), a, Tightening()).digest)"
    )
    root = str(POLICIES.parent)
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=root, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert seen == {resolve(REQUIRED, asking(name="t", timeout_ms=1), NO_CHANGE).digest + "\n"}
