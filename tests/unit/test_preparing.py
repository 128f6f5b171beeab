"""What stands before a worker: pure, refused by name, and a key that is the same only for calls that may share a worker."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import engine.preparing
from engine.call import Request
from engine.errors import EngineError
from engine.limits import KERNEL_HELD, LIMIT_NAMES, Limits
from engine.outcome import error_for
from engine.policy.model import Freshness, Mode, Policy, loosenings_of
from engine.policy.protections import NEEDED
from engine.policy.resolve import Tightening, resolve_describe
from engine.preparing import LoadedTool, Preparation, Prepared, bounds_of
from engine.supervision.warm import CALLS
from engine.wire.framing import LONGEST
from tests import hosts

REQUEST = Request(arguments={})


def variables(families: Mapping[str, tuple[str, ...]], capabilities: tuple[str, ...]) -> Mapping[str, str]:
    """Those of a capability, as this process has them."""
    found = {name: os.environ[name] for capability in capabilities for name in families[capability] if name in os.environ}
    if capabilities and not found:
        raise error_for("refused.credential_missing", "there is none")
    return found


def preparation() -> Preparation:
    """On a host that is only described: no folder of it exists."""
    return Preparation(hosts.FACTS, hosts.PLACES, variables)


def prepared(tool: LoadedTool | None = None, **request: Any) -> Prepared:
    """All that stands before the worker of such a call."""
    return preparation().prepare(tool or hosts.loaded_tool(), dataclasses.replace(REQUEST, **request))


def refused(tool: LoadedTool | None = None, **request: Any) -> tuple[str, tuple[str, ...]]:
    """Code and lines that a call is refused with."""
    with pytest.raises(EngineError) as caught:
        prepared(tool, **request)
    return caught.value.code, caught.value.lines


def key(tool: LoadedTool | None = None, **request: Any) -> str:
    """The key of the worker for such a call."""
    return prepared(tool, **request).recipe.key


def granting(**grants: Any) -> Policy:
    """The default policy with these grants."""
    return hosts.policy(grants=dataclasses.replace(hosts.policy().grants, **grants))


def kept(level: Freshness) -> Policy:
    """The default policy at that level of freshness."""
    return hosts.policy(freshness=level, loosenings=loosenings_of(Mode.REQUIRED, level, NEEDED))


class TestKey:
    """Which calls may share a worker."""

    def test_the_same_call_has_the_same_key_everywhere(self) -> None:
        """Made anew from the same parts."""
        assert key() == key()

    def test_what_the_host_holds_does_not_part_calls(self) -> None:
        """Arguments, an approval, and limits that no kernel holds."""
        assert key(arguments={"word": "x"}, approved=True, timeout_ms=5, limits={"result": "1 KiB", "events": 1, "log": "1 KiB"}) == key()

    @pytest.mark.parametrize(
        "limits",
        [{"cpu": "1 s"}, {"memory": "1 MiB"}, {"scratch": "1 MiB"}, {"scratch_inodes": 9}, {"threads": 1}, {"descriptors": 9}],
        ids=str,
    )
    def test_what_the_kernel_holds_parts_them(self, limits: dict[str, object]) -> None:
        """Each limit that is set when a worker starts."""
        assert key(limits=limits) != key()

    def test_every_limit_of_the_kernel_is_tried_above(self) -> None:
        """Six of them."""
        assert len(KERNEL_HELD) == 6

    def test_tenants_never_share_a_worker(self) -> None:
        """Nor does one share with nobody in particular."""
        assert len({key(), key(tenant="a"), key(tenant="b"), key(tenant="null"), key(tenant="None")}) == 5

    def test_another_source_image_or_layer_is_another_worker(self) -> None:
        """Each by its digest alone."""
        numbers = granting(layers=frozenset({"numbers"}))

        def with_layer(digest: str) -> LoadedTool:
            return hosts.loaded_tool(source=hosts.loaded(numbers, layers=(hosts.layer("numbers", digest),)), layers=["numbers"])

        tools = [
            hosts.loaded_tool(numbers),
            hosts.loaded_tool(source=hosts.loaded(numbers, digest="cd" * 32)),
            hosts.loaded_tool(source=hosts.loaded(numbers, image="sha256:other")),
            with_layer("01" * 32),
            with_layer("02" * 32),
        ]
        assert len({key(tool) for tool in tools}) == len(tools)

    def test_another_policy_is_another_worker(self) -> None:
        """Even one that differs in nothing this tool gets."""
        assert key(hosts.loaded_tool(hosts.policy("fixture"))) != key()
        assert key(hosts.loaded_tool(dataclasses.replace(hosts.policy(), name="other"))) != key()

    def test_a_rotated_secret_is_another_worker_and_stands_nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The key changes with the value; neither key nor record shows it."""
        tool = hosts.loaded_tool(granting(credentials=frozenset({"openai"})), credentials=["openai"])
        keys = []
        for value in ("canary-one", "canary-two", "canary-one"):
            monkeypatch.setenv("OPENAI_API_KEY", value)
            made = prepared(tool)
            keys.append(made.recipe.key)
            assert made.recipe.init.environment["OPENAI_API_KEY"] == value
            assert "canary" not in repr((made.recipe.key, made.resolved, made.policy, made.worker, made.recipe.plan))
        assert keys[0] == keys[2] != keys[1]

    @pytest.mark.parametrize("level", Freshness)
    def test_each_freshness_has_workers_of_its_own(self, level: Freshness) -> None:
        """The recipe has the policy's level and what it means for a child, the receipt says it, and no other level shares the worker."""
        made = prepared(hosts.loaded_tool(kept(level)))
        calls = {Freshness.FRESH: 1, Freshness.SNAPSHOT: 2, Freshness.WARM: CALLS}
        assert (made.recipe.freshness, made.recipe.init.bounds["calls"], made.worker["freshness"]) == (level, calls[level], str(level))
        others = [prepared(hosts.loaded_tool(kept(other))).recipe.key for other in Freshness if other is not level]
        assert made.recipe.key not in others
        assert prepared(hosts.loaded_tool(kept(level)), tenant="another").recipe.key not in (made.recipe.key, *others)

    @pytest.mark.parametrize("level", Freshness)
    def test_a_source_is_described_fresh(self, level: Freshness) -> None:
        """Whatever its calls will keep."""
        policy = kept(level)
        resolved = resolve_describe(hosts.policy("describe"), policy, (), Tightening())
        recipe = preparation().prepared(resolved, hosts.loaded(policy), tenant=None, describing=True).recipe
        assert (recipe.freshness, recipe.init.bounds["calls"]) == (Freshness.FRESH, 1)

    def test_describing_never_shares_with_calls(self) -> None:
        """A worker that was asked what a source declares serves no call."""
        resolved = hosts.resolved()
        both = [preparation().prepared(resolved, hosts.loaded(), tenant=None, describing=flag).recipe for flag in (True, False)]
        assert both[0].key != both[1].key
        assert [recipe.declarations for recipe in both] == [None, "sha256:declared"]


class TestRefusals:
    """Before any process."""

    def test_a_host_that_cannot_hold_the_wall_refuses(self) -> None:
        """As the plan says."""
        weak = Preparation(dataclasses.replace(hosts.FACTS, landlock=0), hosts.PLACES, variables)
        with pytest.raises(EngineError) as caught:
            weak.prepare(hosts.loaded_tool(), REQUEST)
        assert caught.value.code == "refused.cannot_enforce"

    def test_a_missing_credential_refuses_without_its_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither capability nor variable."""
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        tool = hosts.loaded_tool(granting(credentials=frozenset({"openai"})), credentials=["openai"])
        code, lines = refused(tool)
        assert code == "refused.credential_missing"
        assert "openai" not in str(lines).lower()

    @pytest.mark.parametrize("tenant", [0, "", "\n", "\ud800", "x" * 257, ["a"]], ids=ascii)
    def test_a_tenant_that_is_no_line_refuses_and_is_not_written_down(self, tenant: Any) -> None:
        """The receipt of that call names no tenant."""
        assert refused(tenant=tenant)[0] == "refused.request"
        assert hosts.loaded_tool().setting(tenant).tenant is None
        assert hosts.loaded_tool().setting("named").tenant == "named"

    def test_what_cannot_be_plain_arguments_refuses(self) -> None:
        """By the policy's own bound, which counts them as they are sent; at the bound they pass."""
        tool = hosts.loaded_tool(hosts.policy(limits=hosts.small_limits(request_bytes=16)))
        assert tool.checked_arguments({"word": "x" * 9}).data == b"\x81\xa4word\xa9" + b"x" * 9
        for arguments in ({"word": "x" * 10}, '{"word": "' + "x" * 9 + '"}'):
            with pytest.raises(EngineError) as caught:
                tool.checked_arguments(arguments)
            assert caught.value.code == "refused.request_size"

    def test_values_of_a_schema_with_patterns_go_aside_from_fewer_bytes_on(self) -> None:
        """By the pattern that costs most; the control has none."""
        many: dict[str, Any] = {"type": "string", "pattern": "^[ab]*a[ab]{1000}$"}
        assert prepared(hosts.loaded_tool(output=many)).recipe.bounds.aside_bytes < 1000
        assert prepared(hosts.loaded_tool(streams=True, partial=many)).recipe.bounds.aside_bytes < 1000
        assert prepared().recipe.bounds.aside_bytes == LONGEST


class TestPure:
    """Nothing is started, made or kept."""

    def test_nothing_is_looked_for_on_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No process and no folder: the host of these tests does not exist."""
        tool = hosts.loaded_tool()
        for name in ("subprocess.Popen", "os.fork", "os.mkdir", "os.open"):
            monkeypatch.setattr(name, None)
        assert prepared(tool).recipe.plan.root == "/bundle"
        assert not Path("/state").exists()

    def test_plans_are_kept_within_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same key gets the same plan; more keys than are kept do not stay."""
        monkeypatch.setattr(engine.preparing, "_KEPT", 16)
        preparing = preparation()
        first = preparing.prepare(hosts.loaded_tool(), REQUEST).recipe.plan
        assert preparing.prepare(hosts.loaded_tool(), REQUEST).recipe.plan is first
        for number in range(20):
            preparing.prepare(hosts.loaded_tool(), dataclasses.replace(REQUEST, tenant=str(number)))
        assert len(preparing._plans) == 16
        assert preparing.prepare(hosts.loaded_tool(), REQUEST).recipe.plan == first

    def test_the_recipe_holds_what_the_call_gets(self) -> None:
        """Source, entry, a baseline of variables, and the tightened limits."""
        recipe = prepared(timeout_ms=7000, limits={"cpu": "3 s", "log": "1 KiB", "start": "1 s"}).recipe
        assert (recipe.init.bundle, recipe.init.root, recipe.init.entry, recipe.init.layers) == (
            f"sha256:{hosts.HEX}",
            "/bundle",
            "tools",
            [],
        )
        assert sorted(recipe.init.environment) == ["LANG", "LC_ALL", "PATH", "TZ"]
        assert (recipe.cpu_s, recipe.log_bytes, recipe.start_ms, recipe.declarations) == (3, 1024, 1000, "sha256:declared")

    def test_frames_are_bounded_by_the_largest_amount(self) -> None:
        """A result, a request or an event at its bound fits into one frame."""
        bounds = bounds_of(Limits(result_bytes=10, request_bytes=20, event_bytes=30))
        assert (bounds.result_bytes, bounds.event_bytes, bounds.events, bounds.frame_bytes) == (10, 30, 10_000, 30 + (64 << 10))
        assert len(LIMIT_NAMES) == 13
