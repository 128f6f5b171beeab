"""The three modes: behind the wall, behind it with side effects blocked, and without it."""

import os
from pathlib import Path

import psutil
import pytest

from tests import kit

EFFECTS = """
from engine import tool

@tool(description="reads", effect="read")
def look() -> str:
    return "seen"

@tool(description="writes", effect="write")
def put(place: str) -> str:
    open(place, "w").write("written")
    return "done"

@tool(description="reaches out", effect="external")
def send(place: str) -> str:
    open(place, "w").write("sent")
    return "done"
"""
ORPHAN = """
import os, subprocess
from engine import tool

@tool(description="leaves a process behind", effect="read")
def leave() -> dict:
    made = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    return {"child": made.pid, "home": os.environ["HOME"], "names": sorted(os.environ)}
"""
NESTED = """
from engine import Context, tool

@tool(description="calls another", effect="read", nested_tools=["leave"])
def outer(ctx: Context) -> str:
    return str(ctx.call("leave", {}))
"""


class TestFixture:
    """The jailed worker, with side effects blocked."""

    @pytest.mark.parametrize("tool", ["put", "send"])
    async def test_a_tool_with_side_effects_is_refused_and_does_not_run(self, tmp_path: Path, tool: str) -> None:
        """Judged by the file it would have written; the control writes it."""
        place = tmp_path / "written"
        async with kit.clean_engine(tmp_path / "state", policy="fixture") as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", EFFECTS, tool, {"place": str(place)})
        assert outcome.reason == "refused.side_effect"
        assert (await outcome.concluded())["worker"]["started"] is False
        assert not place.exists()
        assert kit.bare(tmp_path / "bare", EFFECTS, tool, {"place": str(place)}).value == "done"
        assert place.exists()

    async def test_a_reading_tool_runs_behind_the_whole_wall(self, tmp_path: Path) -> None:
        """The receipt names the mode and the same protections as the required one."""
        async with kit.clean_engine(tmp_path / "state", policy="fixture") as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", EFFECTS, "look")
        assert (outcome.reason, outcome.value, (await outcome.concluded())["policy"]["mode"]) == ("ok.done", "seen", "fixture")
        assert (await outcome.concluded())["enforced"]["seccomp"] == 1


class TestHost:
    """A plain child process, on the operator's word."""

    async def test_the_receipt_says_that_there_was_no_wall(self, tmp_path: Path) -> None:
        """Mode, loosening and what was enforced: rlimits alone."""
        async with kit.clean_engine(tmp_path / "state", policy="host") as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", EFFECTS, "look")
        assert outcome.value == "seen"
        assert (await outcome.concluded())["policy"]["loosenings"] == ["host_mode_without_any_wall"]
        assert (await outcome.concluded())["worker"]["walls"] is False
        assert (await outcome.concluded())["enforced"] == {"rlimits": 1}

    async def test_what_the_tool_left_running_is_ended_with_the_call(self, tmp_path: Path) -> None:
        """A process in a session of its own, judged by its number; the environment is still built from nothing."""
        async with kit.clean_engine(tmp_path / "state", policy="host") as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", ORPHAN, "leave")
            assert outcome.reason == "ok.done"
            assert not psutil.pid_exists(outcome.value["child"])
        assert outcome.value["names"] == ["HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ"]
        assert not os.path.exists(outcome.value["home"])  # noqa: ASYNC240 - one look at a local folder

    async def test_it_is_refused_below_a_required_tool(self, tmp_path: Path) -> None:
        """A walled tool cannot reach the host by calling a tool without a wall; the walled one gets the reason."""
        async with kit.clean_engine(tmp_path / "state") as engine:
            await engine.load(kit.write(tmp_path / "inner", ORPHAN), policy="host", worker="native")
            outcome = await kit.jailed(engine, tmp_path / "outer", NESTED, "outer")
        assert outcome.reason == "tool_error.exception"
        assert "refused.host_mode" in outcome.lines[0]
