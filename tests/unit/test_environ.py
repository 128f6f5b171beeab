"""The worker's variables, built from nothing."""

import dataclasses
from typing import Any

import pytest

from engine.errors import EngineError
from engine.places import data_dir
from engine.policy.grants import BASELINE
from engine.policy.load import load_policy
from engine.policy.model import Policy
from engine.policy.resolve import Asked, Resolved, Tightening, resolve
from engine.staging.environ import Environ, build

REQUIRED = load_policy("required", data_dir("policies"))
CANARY = "canary-4f1d9c"


def resolved(credentials: frozenset[str] = frozenset(), environment: frozenset[str] = frozenset()) -> Resolved:
    """What a tool gets that asks for these under a policy that grants them."""
    grants = dataclasses.replace(
        REQUIRED.grants, credentials=frozenset({"anthropic", "google", "openai"}), environment={"MYAPP_REGION": "eu", "MYAPP_STAGE": "test"}
    )
    policy: Policy = dataclasses.replace(REQUIRED, grants=grants)
    asked = Asked(name="t", effect="read", timeout_ms=1000, dangerous=False, credentials=credentials, environment=environment)
    return resolve(policy, asked, Tightening())


def refusal(given: Resolved, secrets: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Code and lines with which building must refuse."""
    with pytest.raises(EngineError) as caught:
        build(given, secrets)
    return caught.value.code, caught.value.lines


def test_nothing_asked_is_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four names with fixed values, whatever the engine has."""
    for name, value in {"PATH": "/usr/bin", "LANG": "de_DE", "HOME": "/root", "OPENAI_API_KEY": CANARY}.items():
        monkeypatch.setenv(name, value)
    made = build(resolved(), {})
    assert made == Environ(
        variables={"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/nonexistent", "TZ": "UTC"}, secret_names=frozenset()
    )


def test_a_fixed_value_comes_from_the_policy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own value of the same name does not count."""
    monkeypatch.setenv("MYAPP_REGION", "us")
    monkeypatch.setenv("MYAPP_STAGE", "prod")
    made = build(resolved(environment=frozenset({"MYAPP_REGION"})), {})
    assert made.variables == {**BASELINE, "MYAPP_REGION": "eu"}


def test_a_credential_comes_under_its_own_names() -> None:
    """Beside the baseline; which names they are is told, so that their values can be watched for."""
    made = build(resolved(frozenset({"google"})), {"GEMINI_API_KEY": CANARY})
    assert made == Environ(variables={**BASELINE, "GEMINI_API_KEY": CANARY}, secret_names=frozenset({"GEMINI_API_KEY"}))


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "LD_PRELOAD", "PATH", "MYAPP_REGION"])
def test_a_name_outside_the_granted_family_never_comes_as_a_credential(name: str) -> None:
    """Whoever picked it, it starts nothing."""
    assert refusal(resolved(frozenset({"google"})), {name: CANARY})[0] == "engine_failed.bug"


def test_a_worker_that_may_connect_finds_whom_to_trust() -> None:
    """Two names for one file, and no other worker has them."""
    trusting = build(resolved(), {}, certificates=True).variables
    assert trusting == {**BASELINE, "REQUESTS_CA_BUNDLE": "/etc/ssl/cert.pem", "SSL_CERT_FILE": "/etc/ssl/cert.pem"}
    assert build(resolved(), {}).variables == BASELINE


@pytest.mark.parametrize(
    "fields", [{"LD_PRELOAD": "/x.so"}, {"PYTHONPATH": "/x"}, {"PATH": "/usr/bin"}, {"TZ": "x"}, {"A=B": "x"}, {"MY_TOKEN": "x"}]
)
def test_the_last_look_stops_what_a_later_merge_brought_back(fields: dict[str, str]) -> None:
    """A record whose variables were changed after resolving starts nothing."""
    assert refusal(dataclasses.replace(resolved(), environment=fields), {})[0] == "engine_failed.bug"


def test_no_value_stands_in_a_repr() -> None:
    """The record ends in logs and traces."""
    made = build(resolved(frozenset({"openai"}), frozenset({"MYAPP_REGION"})), {"OPENAI_API_KEY": CANARY})
    assert (
        repr(made) == "Environ(names=['LANG', 'LC_ALL', 'MYAPP_REGION', 'OPENAI_API_KEY', 'PATH', 'TZ'], secret_names=['OPENAI_API_KEY'])"
    )


def test_the_result_cannot_be_added_to() -> None:
    """The last look is the last step."""
    variables: Any = build(resolved(), {}).variables
    with pytest.raises(TypeError):
        variables["LD_PRELOAD"] = "/x.so"
