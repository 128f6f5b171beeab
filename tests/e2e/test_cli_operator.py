"""What the operator is told, and nobody who only calls: places that are not granted, secrets that are not there."""

from pathlib import Path

import pytest

from tests import kit
from tests.e2e.commands import stockade
from tests.network import scoped

pytestmark = pytest.mark.slow

TOOL = """
from engine import tool


@tool(effect="read", network=["granted.example.test:443", "other.example.test:443", "more.example.test:80"])
def ask() -> int:
    "Nothing."
    return 1
"""


def test_explain_names_the_places_that_are_not_granted(tmp_path: Path) -> None:
    """Which they are, and the profile that lacks them; a call is told how many."""
    source, policy = str(kit.write(tmp_path / "source", TOOL)), scoped.policy(tmp_path, scoped.Rule("granted.example.test:443"))
    ended = stockade(tmp_path, "explain", source, "ask", "{}", "--policy", str(policy), "--json")
    (step,) = [step for step in ended.document["value"]["steps"] if step["name"] == "policy"]
    lines = ["network: 2 of the hosts asked for are not granted"]
    assert (ended.code, step["reason"], step["lines"]) == (3, "refused.not_granted", lines)
    assert step["facts"] == {
        "network": {"profile": "servers"},
        "not_granted": ["more.example.test:80", "other.example.test:443"],
    }
    called = stockade(tmp_path, "run", source, "ask", "{}", "--policy", str(policy), "--json")
    assert (called.code, called.document["lines"], "other.example" in str(called.document)) == (3, lines, False)


@pytest.mark.parametrize("command", [("doctor",), ("explain", "SOURCE", "ask", "{}")], ids=["doctor", "explain"])
def test_a_secret_that_is_not_there_is_the_operators_fault(tmp_path: Path, command: tuple[str, ...]) -> None:
    """And not the host's, whatever the host holds."""
    source, policy = str(kit.write(tmp_path / "source", TOOL)), tmp_path / "policy.toml"
    policy.write_text('extends = "required"\n[secrets]\nkey = { value = "env:STOCKADE_TEST_UNSET", reason = "a test" }\n')
    words = [source if word == "SOURCE" else word for word in command]
    ended = stockade(tmp_path, *words, "--policy", str(policy), "--json")
    lines = ["key: the variable that it is taken from is not set"]
    assert (ended.code, ended.document["reason"], ended.document["lines"]) == (3, "refused.secret", lines)
