"""``stockade explain``: seven steps, no call, names instead of values, and a static way that runs nothing at all."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engine.policy.network import EgressBounds
from tests import kinds, machine
from tests.e2e.commands import Ended, stockade, tools
from tests.network import scoped

pytestmark = pytest.mark.slow
NAMES = ["request", "declaration", "arguments", "policy", "bundle", "environment", "plan"]


def _steps(ended: Ended) -> dict[str, dict[str, Any]]:
    steps = ended.document["value"]["steps"]
    assert [step["name"] for step in steps] == NAMES
    return {step["name"]: step for step in steps}


def _states(ended: Ended) -> list[str]:
    return [step["state"] for step in _steps(ended).values()]


def _policy(tmp_path: Path, text: str) -> str:
    place = tmp_path / "policy.toml"
    place.write_text(f'extends = "required"\n{text}', encoding="utf-8")
    return str(place)


def test_a_call_that_would_run_has_seven_good_steps(tmp_path: Path) -> None:
    """The answer of each step is there: digests, files, limits with their means, the filters' sizes."""
    ended = stockade(tmp_path, "explain", tools(tmp_path), "double", '{"number": 1}', "--json", "--timeout", "500")
    steps = {name: step["facts"] for name, step in _steps(ended).items()}
    assert (ended.code, set(_states(ended))) == (0, {"ok"})
    assert list(steps["bundle"]["files"]) == ["tools.py"]
    assert steps["environment"]["names"] == ["LANG", "LC_ALL", "PATH", "TZ"]
    assert steps["plan"]["limits"]["wall"] == {"value": 500, "means": "supervisor"}
    assert steps["plan"]["limits"]["descriptors"] == {"value": 256, "means": "RLIMIT_NOFILE"}
    assert {"pid", "network", "mount"} <= set(steps["plan"]["namespaces"])
    assert {"/bundle", "/guest/engine/authoring"} <= {bind["to"] for bind in steps["plan"]["binds"]}
    assert min(steps["plan"]["filter_instructions"].values()) > 100


@pytest.mark.parametrize("asked", [["--worker", "native"], []])
def test_the_kind_of_worker_is_told_with_the_reason(tmp_path: Path, asked: list[str]) -> None:
    """What was asked for, or what kept the stronger kind from it: while staging, and on the plan."""
    ended = stockade(
        tmp_path, "explain", tools(tmp_path), "double", '{"number": 1}', "--json", "--image-dir", str(tmp_path / "none"), *asked
    )
    steps = _steps(ended)
    told = steps["bundle"]["facts"]["worker"]
    why = "asked for by the caller" if asked else "wasm, which is stronger, cannot serve: image python_wasm is not there"
    assert (ended.code, told["kind"], steps["plan"]["facts"]["kind"]) == (0, "native", "native")
    assert told["why"].startswith(why)
    assert told["why"] == steps["plan"]["facts"]["why"]


def test_no_tool_is_called_and_the_import_is_announced(tmp_path: Path) -> None:
    """The tool would end its process; explaining it does not. That the source is imported in a jail is said."""
    ended = stockade(tmp_path, "explain", tools(tmp_path), "leave")
    assert (ended.code, "imports the source once, in a jail" in ended.err) == (0, True)
    assert [line.split()[1] for line in ended.out.splitlines() if line[:1].isdigit()] == NAMES


def test_static_runs_nothing_of_the_source(tmp_path: Path) -> None:
    """A source that cannot be imported is explained as far as parsing goes; what only its import can tell is unknown."""
    place = tmp_path / "broken.py"
    place.write_text('from engine import tool\n\n@tool(effect="read", data=[])\ndef late() -> None:\n    """x"""\n\n1 / 0\n')
    static = stockade(tmp_path, "explain", str(place), "late", "--static", "--json")
    assert static.code == 0
    assert _states(static) == ["ok", "unknown", "unknown", "unknown", "ok", "unknown", "unknown"]
    assert _steps(static)["declaration"]["facts"]["functions_marked_as_tools"] == ["late"]
    control = stockade(tmp_path, "explain", str(place), "late", "--json")
    assert (control.code, control.document["reason"]) == (1, "tool_error.import")
    assert _states(control) == ["ok", "refused", "open", "open", "ok", "open", "open"]


def test_the_first_refusal_is_the_exit_code_and_later_steps_are_still_told(tmp_path: Path) -> None:
    """Arguments that do not fit do not hide what the policy would say."""
    ended = stockade(tmp_path, "explain", tools(tmp_path), "double", '{"number": "x"}', "--json")
    assert (ended.code, ended.document["reason"]) == (2, "refused.arguments")
    assert _states(ended) == ["ok", "ok", "refused", "ok", "ok", "ok", "ok"]


def test_a_policy_that_refuses_is_told_at_its_step(tmp_path: Path) -> None:
    """A dangerous tool is not approved on the command line: step four, and nothing after it."""
    ended = stockade(tmp_path, "explain", tools(tmp_path), "erase", "--json")
    assert (ended.code, ended.document["reason"]) == (3, "refused.approval")
    assert _states(ended) == ["ok", "ok", "ok", "refused", "ok", "open", "open"]


def test_a_source_that_cannot_be_staged_is_told_at_its_step(tmp_path: Path) -> None:
    """An import that is nowhere to be found."""
    (tmp_path / "open.py").write_text("import nowhere_to_be_found\n")
    ended = stockade(tmp_path, "explain", str(tmp_path / "open.py"), "x", "--json")
    assert (ended.code, ended.document["reason"]) == (3, "refused.source_import")
    assert _states(ended) == ["ok", "open", "open", "open", "refused", "open", "open"]


def test_values_of_variables_are_not_shown(tmp_path: Path) -> None:
    """Names of granted variables and their number of secrets, never a value."""
    place = tmp_path / "asks.py"
    place.write_text(
        'from engine import tool\n\n@tool(effect="read", environment=["SHOP_REGION"], credentials=["openai"])\n'
        'def ask() -> None:\n    """x"""\n'
    )
    policy = _policy(
        tmp_path,
        '[grants]\ncredentials = { value = ["openai"], reason = "test" }\n'
        '[grants.environment]\nSHOP_REGION = { value = "region-of-the-shop", reason = "test" }\n',
    )
    given = {"OPENAI_API_KEY": "sk-key-of-the-shop-0123456789"}
    for form in ([], ["--json"]):
        ended = stockade(tmp_path, "explain", str(place), "ask", "--policy", policy, *form, variables=given)
        assert ended.code == 0
        assert "SHOP_REGION" in ended.out
        assert "of-the-shop" not in ended.out + ended.err


def test_loosenings_are_named(tmp_path: Path) -> None:
    """A policy without a wall is explained with the frightening name that it carries."""
    ended = stockade(tmp_path, "explain", tools(tmp_path), "double", '{"number": 1}', "--policy", "host", "--json")
    assert _steps(ended)["policy"]["facts"]["loosenings"] == ["host_mode_without_any_wall"]
    assert json.dumps(_steps(ended)["plan"]["facts"]["namespaces"]) == "[]"


@pytest.mark.parametrize(("level", "loosening"), [("snapshot", "state_kept_in_snapshot"), ("warm", "state_kept_warm")])
def test_the_freshness_of_a_call_is_told(tmp_path: Path, level: str, loosening: str) -> None:
    """What a call may find of earlier ones, with the loosening's name; without running anything as well."""
    entry = '{ value = true, reason = "test" }'
    policy = _policy(tmp_path, f'freshness = {{ value = "{level}", reason = "test" }}\n[loosenings]\n{loosening} = {entry}\n')
    for static in ([], ["--static"]):
        ended = stockade(tmp_path, "explain", tools(tmp_path), "double", '{"number": 1}', "--policy", policy, *static, "--json")
        facts = _steps(ended)["policy"]["facts"]
        assert (ended.code, facts["freshness"], facts["loosenings"]) == (0, level, [loosening])
        assert static or _steps(ended)["plan"]["facts"]["freshness"] == level


def test_the_pool_that_calls_share_is_told(tmp_path: Path) -> None:
    """The policy's own bounds and the inherited ones, for people and for programs; without running anything as well."""
    policy = _policy(tmp_path, '[pool]\njails = { value = 2, reason = "test" }\nidle = { value = "5 s", reason = "test" }\n')
    call = ("explain", tools(tmp_path), "double", '{"number": 1}', "--policy", policy)
    for static in ([], ["--static"]):
        ended = stockade(tmp_path, *call, *static, "--json")
        assert (ended.code, _steps(ended)["policy"]["facts"]["pool"]) == (
            0,
            {"jails": 2, "total": 16, "ready": 4, "queued": 64, "idle_ms": 5000, "memory_bytes": 512 << 20},
        )
    assert "    pool:\n      jails: 2\n" in stockade(tmp_path, *call).out


ASKS = """
from engine import tool

@tool(effect="read", network=["prices.example.com:443", "orders.example.com:80"])
def ask() -> None:
    'x'

@tool(effect="read")
def stay() -> None:
    'x'

@tool(effect="read", network=["240.0.0.1:443"])
def far() -> None:
    'x'
"""
CANARY = "canary-8d2f60b71c4e95a3"


def _scoped(tmp_path: Path) -> tuple[str, str]:
    """A source that asks for places, and the policy that grants them."""
    attach = 'attach = [{ secret = "orders_key", header = "Authorization", form = "Bearer {}" }]'
    policy = scoped.policy(
        tmp_path,
        scoped.Rule("prices.example.com:443", private=()),
        scoped.Rule("orders.example.com:80", "upgrade", more=attach),
        scoped.Rule("240.0.0.1:443", private=()),
        scoped.Rule("never-asked.example.com:443", private=()),
        bounds={"total": 32},
        head={"on_secret": "refuse"},
        secrets={"orders_key": "env:SHOP_ORDERS"},
    )
    place = tmp_path / "asks.py"
    place.write_text(ASKS, encoding="utf-8")
    return str(place), str(policy)


def test_a_scoped_network_is_told(tmp_path: Path) -> None:
    """The places of that tool alone, how each is carried, the secret's id; in the plan each listener and where it leads."""
    source, policy = _scoped(tmp_path)
    call = ("explain", source, "ask", "--policy", policy, "--worker", "native")
    ended = stockade(tmp_path, *call, "--json", variables={"SHOP_ORDERS": CANARY})
    told, plan = (_steps(ended)[name]["facts"] for name in ("policy", "plan"))
    assert (ended.code, told["on_secret"], told["secrets"]) == (0, "refuse", ["orders_key"])
    assert told["network"] == {
        "profile": "servers",
        "places": {
            "orders.example.com:80": {
                "transport": "upgrade",
                "upstream_port": 443,
                "attach": ["orders_key"],
                "private": ["127.0.0.1/32"],
            },
            "prices.example.com:443": {"transport": "tls", "upstream_port": 443, "attach": [], "private": []},
        },
        "trust": "the system's",
        "bounds": {**dataclasses.asdict(EgressBounds()), "total": 32},
        "loosenings": ["network_private_destinations"],
    }
    assert plan["listeners"] == {"127.1.0.1:80": "orders.example.com:80", "127.1.0.2:443": "prices.example.com:443"}
    assert plan["filter"] == "the scoped one"
    text = stockade(tmp_path, *call, variables={"SHOP_ORDERS": CANARY})
    assert "        orders.example.com:80:\n          transport: upgrade\n" in text.out
    for said in (ended.out, ended.err, text.out, text.err):
        assert CANARY not in said
        assert "SHOP_ORDERS" not in said


def test_a_tool_that_asks_for_no_place_has_none(tmp_path: Path) -> None:
    """Under the same policy: no listener, and the filter without a network. Without running anything the profile's name is told."""
    source, policy = _scoped(tmp_path)
    call = ("explain", source, "stay", "--policy", policy, "--json")
    ended = stockade(tmp_path, *call, variables={"SHOP_ORDERS": CANARY})
    told, plan = (_steps(ended)[name]["facts"] for name in ("policy", "plan"))
    assert (ended.code, told["network"]) == (0, {"profile": "servers"})
    assert (plan["listeners"], plan["filter"]) == ({}, "without a network")
    static = stockade(tmp_path, *call, "--static", variables={"SHOP_ORDERS": CANARY})
    facts = _steps(static)["policy"]["facts"]
    assert (facts["network"], facts["on_secret"], facts["secrets"]) == ({"profile": "servers"}, "refuse", ["orders_key"])
    assert CANARY not in static.out + static.err


def test_a_network_that_cannot_be_held_is_told_at_the_plan(tmp_path: Path) -> None:
    """Why, and the code; the scope itself is told at the step before."""
    source, policy = _scoped(tmp_path)
    ended = stockade(tmp_path, "explain", source, "far", "--policy", policy, "--json", variables={"SHOP_ORDERS": CANARY})
    assert (ended.code, ended.document["reason"]) == (5, "refused.network_scoped")
    assert ended.document["lines"] == ["1 of the places are addresses that a loopback device cannot have: IPv6, or no host's"]
    assert _states(ended) == ["ok", "ok", "ok", "ok", "ok", "ok", "refused"]
    assert list(_steps(ended)["policy"]["facts"]["network"]["places"]) == ["240.0.0.1:443"]


def test_the_other_kind_of_worker_has_the_engine_for_its_way_out(tmp_path: Path) -> None:
    """No listener in its jail: the same places by ``engine.http``."""
    kinds.require_image()
    source, policy = _scoped(tmp_path)
    Path(source).write_text(ASKS.replace("import tool", "import http, tool"), encoding="utf-8")
    given = {"SHOP_ORDERS": CANARY, "XDG_CACHE_HOME": str(machine.IMAGE_DIR.parent)}
    ended = stockade(tmp_path, "explain", source, "ask", "--policy", policy, "--worker", "wasm", "--json", variables=given)
    plan = _steps(ended)["plan"]["facts"]
    assert (ended.code, plan["listeners"]) == (0, {"engine.http": "orders.example.com:80, prices.example.com:443"}), ended
    assert plan["filter"] == "without a network"
