"""The worker's variables, built from nothing."""

import dataclasses
from typing import Any

import pytest

from engine.errors import EngineError
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.model import BASELINE, Policy
from engine.policy.resolve import Asked, Resolved, Tightening, resolve
from engine.staging.environ import Environ, build, read_real

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


def refusal(given: Resolved, real: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Code and lines with which building must refuse."""
    with pytest.raises(EngineError) as caught:
        build(given, real)
    return caught.value.code, caught.value.lines


def test_nothing_asked_is_the_baseline() -> None:
    """Four names with fixed values, whatever the engine has."""
    made = build(resolved(), {"PATH": "/usr/bin", "LANG": "de_DE", "HOME": "/root", "OPENAI_API_KEY": CANARY})
    assert made == Environ(
        variables={"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/nonexistent", "TZ": "UTC"}, secret_names=frozenset()
    )


def test_a_fixed_value_comes_from_the_policy_alone() -> None:
    """The engine's own value of the same name does not count."""
    made = build(resolved(environment=frozenset({"MYAPP_REGION"})), {"MYAPP_REGION": "us", "MYAPP_STAGE": "prod"})
    assert made.variables == {**BASELINE, "MYAPP_REGION": "eu"}


@pytest.mark.parametrize(
    ("capability", "real", "names"),
    [
        ("anthropic", {"ANTHROPIC_API_KEY": CANARY}, {"ANTHROPIC_API_KEY"}),
        ("openai", {"OPENAI_API_KEY": CANARY}, {"OPENAI_API_KEY"}),
        ("google", {"GEMINI_API_KEY": CANARY}, {"GEMINI_API_KEY"}),
        ("google", {"GOOGLE_API_KEY": CANARY, "GEMINI_API_KEY": ""}, {"GOOGLE_API_KEY"}),
        ("google", {"GOOGLE_API_KEY": CANARY, "GEMINI_API_KEY": CANARY}, {"GEMINI_API_KEY", "GOOGLE_API_KEY"}),
    ],
)
def test_a_capability_gives_its_own_names(capability: str, real: dict[str, str], names: set[str]) -> None:
    """And no other provider's, though the engine has those too."""
    others = {"ANTHROPIC_API_KEY": "x", "OPENAI_API_KEY": "x", "OPENAI_ORG_ID": "x"}
    made = build(resolved(frozenset({capability})), {**others, **real})
    assert made == Environ(variables={**BASELINE, **dict.fromkeys(names, CANARY)}, secret_names=frozenset(names))


@pytest.mark.parametrize(
    "real", [{}, {"OPENAI_API_KEY": ""}, {"OPENAI_API_KEY": "  "}, {"openai_api_key": CANARY}, {"OPENAI_API_KEY_2": CANARY}]
)
def test_a_credential_without_a_value_refuses(real: dict[str, str]) -> None:
    """A tool is not started to fail later; no neighbouring name serves instead."""
    expected = ("refused.credential_missing", ("the engine was given no value for the granted credential capability",))
    assert refusal(resolved(frozenset({"openai"})), real) == expected


@pytest.mark.parametrize("value", ["a\nb", "a\0b", "\udcff", "a\x1b[1m"])
def test_a_credential_that_is_no_line_of_text_refuses(value: str) -> None:
    """What could not be found again in a result is not handed over, and not repeated."""
    code, lines = refusal(resolved(frozenset({"openai"})), {"OPENAI_API_KEY": value})
    assert (code, value in lines[0]) == ("refused.credential_missing", False)


def test_two_different_values_for_one_capability_are_ambiguous() -> None:
    """Nobody could say which account was used."""
    real = {"GEMINI_API_KEY": CANARY, "GOOGLE_API_KEY": CANARY + "2"}
    assert refusal(resolved(frozenset({"google"})), real) == (
        "refused.credential_ambiguous",
        ("the granted credential capability has two different values",),
    )


def test_two_capabilities_are_ambiguous_here_as_well() -> None:
    """A record made by hand passes no second family."""
    given = dataclasses.replace(resolved(), credentials=("anthropic", "openai"))
    assert refusal(given, {"ANTHROPIC_API_KEY": CANARY, "OPENAI_API_KEY": CANARY})[0] == "refused.credential_ambiguous"


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "", "OPENAI_API_KEY"])
def test_an_unknown_capability_is_never_read_as_a_variable(name: str) -> None:
    """A record made by hand cannot name a variable of the engine, and the text does not repeat it."""
    given = dataclasses.replace(resolved(), credentials=(name,))
    assert refusal(given, {name: CANARY}) == (
        "refused.credential_not_listed",
        ("the credential capability is not one that the engine knows",),
    )


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


def test_the_real_environment_is_read_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes afterwards does not reach a call that was prepared before."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    real = read_real()
    monkeypatch.delenv("OPENAI_API_KEY")
    assert real["OPENAI_API_KEY"] == CANARY
