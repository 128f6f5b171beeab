"""Receipts: one for each call of a known tool however it ended, naming what ran by digests that change with just what they name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.authoring import canonical
from engine.errors import EngineError
from engine.host import Engine
from engine.limits import LIMIT_NAMES
from engine.outcome import Outcome
from engine.policy.model import LIMIT_KEYS
from tests import kit

CANARY = "canary-4711"
TOOLS = """
import time
from engine import Context, tool

@tool(effect="read", description="d")
def echo(word: str = "") -> str:
    print(word)
    return word

@tool(effect="read", description="d")
def fail(word: str = "") -> str:
    raise ValueError("failed")

@tool(effect="read", description="d", output={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
      "additionalProperties": False})
def misfit(word: str = ""):
    return {"n": word}

@tool(effect="read", description="d")
def sleepy(context: Context, word: str = "") -> str:
    context.emit("here")
    time.sleep(600)
    return word

@tool(effect="read", description="d", dangerous=True)
def risky(word: str = "") -> str:
    return word

@tool(effect="read", description="d", environment=["TOKEN_OF_MINE"])
def wanting(word: str = "") -> str:
    return word

@tool(effect="read", description="d")
def exits(word: str = "") -> str:
    import os
    os._exit(3)
"""
ENDS: list[tuple[str, Mapping[str, Any], str, bool]] = [
    ("echo", {}, "ok.done", True),
    ("fail", {}, "tool_error.exception", True),
    ("misfit", {}, "tool_error.result_schema", True),
    ("exits", {}, "crashed.exit", True),
    ("sleepy", {"timeout_ms": 300}, "limit_exceeded.wall", True),
    ("echo", {"limits": {"result": "1"}}, "limit_exceeded.result", True),
    ("echo", {"limits": {"log": "1"}}, "limit_exceeded.output", True),
    ("echo", {"timeout_ms": 0}, "refused.limits", False),
    ("risky", {}, "refused.approval", False),
    ("wanting", {}, "refused.not_granted", False),
]


def journal(folder: Path) -> list[dict[str, Any]]:
    """The receipts of calls in a state folder, oldest first; every line is JSON."""
    return kit.call_receipts(folder)


def everything(folder: Path) -> list[dict[str, Any]]:
    """The receipts of describing as well."""
    return [json.loads(line) for line in (folder / "journal" / "receipts.jsonl").read_bytes().splitlines()]


async def digests(outcome: Outcome) -> dict[str, Any]:
    """What the receipt says ran."""
    found: dict[str, Any] = (await outcome.concluded())["digests"]
    return found


async def changed(first: Outcome, second: Outcome) -> set[str]:
    """Which digests differ."""
    other = await digests(second)
    return {name for name, value in (await digests(first)).items() if value != other[name]}


class TestAlways:
    """However a call ended."""

    @pytest.mark.parametrize(("tool", "options", "reason", "started"), ENDS)
    async def test_each_end_is_on_a_receipt(
        self, engine: Engine, tmp_path: Path, tool: str, options: dict[str, Any], reason: str, started: bool
    ) -> None:
        """The caller's and the journal's are one; a result has a digest and nothing else has; no value stands on it."""
        await engine.load(kit.write(tmp_path / "source", TOOLS))
        outcome = await engine.call(tool, {"word": CANARY}, **options)
        receipt = await outcome.concluded()
        (written,) = journal(tmp_path / "state")
        assert written == dict(receipt)
        assert (outcome.reason, written["verdict"]["reason"], written["worker"]["started"]) == (reason, reason, started)
        assert written["verdict"]["lines"] == list(outcome.lines)
        assert written["digests"]["result"] == (canonical.digest(CANARY) if reason == "ok.done" else None)
        assert CANARY not in json.dumps(written)

    async def test_a_caller_that_gave_up_leaves_a_receipt(self, engine: Engine, tmp_path: Path) -> None:
        """Nobody waits for the outcome any more; the journal has it."""
        await engine.load(kit.write(tmp_path / "source", TOOLS))
        async with engine.stream("sleepy", {"word": CANARY}) as items:
            await anext(items)
        with trio.move_on_after(0.2):
            await engine.call("sleepy", {"word": CANARY})
        assert [one["verdict"]["reason"] for one in journal(tmp_path / "state")] == ["cancelled.caller", "cancelled.caller"]

    async def test_a_call_that_the_engines_end_cut_short_leaves_a_receipt(self, tmp_path: Path) -> None:
        """And the caller gets the outcome."""
        found: list[Outcome] = []

        async def call(engine: Engine) -> None:
            found.append(await engine.call("sleepy", {}))

        async with trio.open_nursery() as nursery, kit.clean_engine(tmp_path / "state") as engine:
            await engine.load(kit.write(tmp_path / "source", TOOLS))
            nursery.start_soon(call, engine)
            async with engine.stream("sleepy", {}) as items:
                await anext(items)
        assert [outcome.reason for outcome in found] == ["cancelled.shutdown"]
        assert sorted(one["verdict"]["reason"] for one in journal(tmp_path / "state")) == ["cancelled.caller", "cancelled.shutdown"]

    async def test_calls_at_once_have_one_line_each(self, engine: Engine, tmp_path: Path) -> None:
        """Forty, in any order, none lost and none mixed."""
        await engine.load(kit.write(tmp_path / "source", TOOLS))
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(engine.call, "echo", {"word": str(number)})
        await engine.concluded()
        written = journal(tmp_path / "state")
        assert sorted(one["digests"]["result"] for one in written) == sorted(canonical.digest(str(number)) for number in range(40))
        assert len({one["id"] for one in written}) == 40


class TestDigests:
    """Each changes with what it names, and with nothing else."""

    async def test_the_same_call_has_the_same_digests(self, engine: Engine, tmp_path: Path) -> None:
        """The source's place and the tenant are no part of them."""
        first = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo", {"word": "a"})
        again = await engine.call("echo", {"word": "a"}, tenant="other")
        assert await changed(first, again) == set()
        assert all(value.startswith("sha256:") for name, value in (await digests(first)).items() if name != "layers")

    async def test_another_result_changes_the_results(self, engine: Engine, tmp_path: Path) -> None:
        """The arguments are no part of any digest."""
        first = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo", {"word": "a"})
        assert await changed(first, await engine.call("echo", {"word": "b"})) == {"result"}

    async def test_another_byte_of_the_source_changes_the_sources(self, engine: Engine, tmp_path: Path) -> None:
        """A comment: the declaration is still the same."""
        first = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo", {"word": "a"})
        second = await kit.jailed(engine, tmp_path / "source", TOOLS + "# more\n", "echo", {"word": "a"})
        assert await changed(first, second) == {"source"}

    async def test_another_description_changes_the_declarations(self, engine: Engine, tmp_path: Path) -> None:
        """And the source it stands in."""
        first = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo", {"word": "a"})
        second = await kit.jailed(engine, tmp_path / "source", TOOLS.replace('"d"', '"e"', 1), "echo", {"word": "a"})
        assert await changed(first, second) == {"source", "declaration"}

    async def test_another_policy_or_limit_changes_the_policys(self, engine: Engine, tmp_path: Path) -> None:
        """What the call got, so a tightened limit as well."""
        place = kit.write(tmp_path / "source", TOOLS)
        await engine.load(place)
        first = await engine.call("echo", {"word": "a"})
        assert await changed(first, await engine.call("echo", {"word": "a"}, limits={"events": 5})) == {"policy"}
        await engine.load(place, policy="fixture")
        assert await changed(first, await engine.call("echo", {"word": "a"})) == {"policy"}

    async def test_another_engine_of_the_same_build_names_the_same_image(self, engine: Engine, tmp_path: Path) -> None:
        """The image is the build's and the interpreter's, not the engine's or the state folder's."""
        first = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo", {"word": "a"})
        async with kit.plain_engine(tmp_path / "other") as other:
            assert await changed(first, await kit.jailed(other, tmp_path / "source", TOOLS, "echo", {"word": "a"})) == set()


class TestFacts:
    """What else stands on a receipt."""

    async def test_limits_and_what_held_each_are_complete(self, engine: Engine, tmp_path: Path) -> None:
        """Every limit by its field with its amount, every limit by its name with its means, every protection with its level."""
        outcome = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo")
        assert set((await outcome.concluded())["limits"]) == set(LIMIT_NAMES) == {field for field, _ in LIMIT_KEYS.values()}
        assert set((await outcome.concluded())["means"]) == set(LIMIT_KEYS)
        assert "nothing" not in (await outcome.concluded())["means"].values()
        needed = {
            "user_namespace_or_root",
            "private_root",
            "no_new_privileges",
            "capabilities",
            "seccomp",
            "rlimits",
            "peer_pidfd",
            "landlock",
        }
        needed |= {f"{kind}_namespace" for kind in ("pid", "mount", "network", "ipc", "uts", "cgroup")}
        assert needed <= set((await outcome.concluded())["enforced"])
        assert (await outcome.concluded())["enforced"]["landlock"] >= 6
        assert (await outcome.concluded())["worker"]["freshness"] == "fresh"
        assert (await outcome.concluded())["policy"]["loosenings"] == []

    async def test_loosenings_are_listed_by_name(self, tmp_path: Path) -> None:
        """Those of the policy the call ran under."""
        async with kit.clean_engine(tmp_path / "state", policy="host") as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo")
        assert (await outcome.concluded())["policy"]["loosenings"] == ["host_mode_without_any_wall"]
        assert (await outcome.concluded())["means"]["threads"] == "nothing"

    async def test_usage_is_measured(self, engine: Engine, tmp_path: Path) -> None:
        """Times, memory and bytes of a call that ran; nothing of one that did not."""
        outcome = await kit.jailed(engine, tmp_path / "source", TOOLS, "echo", {"word": "x" * 1000})
        usage = (await outcome.concluded())["usage"]
        assert usage["wall_ms"] > 0 < usage["cpu_ms"]
        assert usage["peak_rss_bytes"] > 1 << 20
        assert (usage["stdout_bytes"], usage["stderr_bytes"]) == (1001, 0)
        assert usage["request_bytes"] > 1000 < usage["result_bytes"]
        refused = (await (await engine.call("echo", {"word": 5})).concluded())["usage"]
        assert (refused["cpu_ms"], refused["peak_rss_bytes"], refused["request_bytes"]) == (None, None, 0)

    async def test_a_durable_journal_says_so(self, engine: Engine, tmp_path: Path) -> None:
        """In a state folder that stays; what an ephemeral one says is shown where the home is missing."""
        assert (await (await kit.jailed(engine, tmp_path / "source", TOOLS, "echo")).concluded())["journal"] == "durable"

    async def test_a_credential_stands_on_no_receipt(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The tool gets it; journal, result and state folder do not hold it."""
        monkeypatch.setenv("OPENAI_API_KEY", CANARY)
        source = TOOLS + "\n@tool(effect='read', description='d', credentials=['openai'])\ndef length() -> int:\n"
        source += "    import os\n    return len(os.environ['OPENAI_API_KEY'])\n"
        place = tmp_path / "policy.toml"
        place.write_text('extends = "required"\n[grants]\ncredentials = { value = ["openai"], reason = "a test" }\n')
        async with kit.clean_engine(tmp_path / "state", policy=place) as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", source, "length")
        assert outcome.value == len(CANARY)
        for file in (tmp_path / "state").rglob("*"):
            assert not file.is_file() or CANARY.encode() not in file.read_bytes()


class TestDescribing:
    """Reading what a source declares runs its import, so it has a receipt too."""

    async def test_a_load_leaves_one_with_its_own_policy(self, engine: Engine, tmp_path: Path) -> None:
        """It names the source, no tool and no declaration; a second load of the same bytes runs nothing and leaves none."""
        source = "from engine import tool\n@tool(effect='read', description='d')\ndef f() -> int:\n    return 1\n"
        for _ in range(2):
            await engine.load(kit.write(tmp_path / "source", source))
        (made,) = everything(tmp_path / "state")
        assert (made["kind"], made["tool"], made["digests"]["declaration"], made["policy"]["name"]) == ("describe", None, None, "describe")
        assert (made["verdict"]["reason"], made["enforced"]["seccomp"]) == ("ok.done", 1)
        assert engine.loaded("f").loaded.described == made

    async def test_one_that_fails_leaves_one_with_the_reason(self, engine: Engine, tmp_path: Path) -> None:
        """Whatever the import did."""
        with pytest.raises(EngineError):
            await engine.load(kit.write(tmp_path / "source", "import os\nos._exit(3)\n"))
        (made,) = everything(tmp_path / "state")
        assert (made["kind"], made["verdict"]["reason"]) == ("describe", "crashed.exit")
