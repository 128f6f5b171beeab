"""Tools that call tools: only those they declared, through the same checks, in the outer call's time and tenant, each with a receipt."""

from pathlib import Path
from typing import Any

import trio

from engine.host import Engine
from tests import kit

OUTER = """
from typing import Any
from engine import Context, tool

@tool(effect="external", description="d", nested_tools=["double", "fail", "slow", "put", "risky", "absent", "big"])
def outer(name: str, arguments: dict[str, Any], context: Context) -> Any:
    return context.call(name, arguments)

@tool(effect="external", description="d", nested_tools=["double"])
def catching(name: str, arguments: Any, context: Context) -> Any:
    try:
        return {"value": context.call(name, arguments)}
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error), "after": context.call("double", {"n": 4})}

@tool(effect="read", description="d", nested_tools=["put"])
def reader(context: Context) -> Any:
    return context.call("put", {})
"""
INNER = """
import time
from typing import Any
from engine import tool

@tool(effect="read", description="d")
def double(n: int) -> int:
    return n * 2

@tool(effect="read", description="d")
def fail() -> int:
    raise ValueError("inner canary")

@tool(effect="read", description="d")
def slow() -> int:
    time.sleep(600)
    return 1

@tool(effect="write", description="d")
def put() -> str:
    return "written"

@tool(effect="read", description="d", dangerous=True)
def risky() -> str:
    return "done"

@tool(effect="read", description="d")
def big(n: int) -> str:
    return "x" * n
"""
LOOP = """
from engine import Context, tool

@tool(effect="read", description="d", nested_tools=["{other}"])
def {name}(n: int, context: Context) -> int:
    try:
        return context.call("{other}", {{"n": n + 1}})
    except Exception as error:
        return n if "end at depth" in str(error) else -1
"""
MISUSE = """
from engine import Context, tool

@tool(effect="external", description="d", nested_tools=["double"])
def misuse(name: str, context: Context) -> dict:
    found = {}
    for label, act in {
        "no data": lambda: context.call("double", {"n": {1}}),
        "no name": lambda: context.call(5, {}),
        "no object": lambda: context.call("double", [1]),
    }.items():
        try:
            found[label] = act()
        except Exception as error:
            found[label] = type(error).__name__
    return found
"""


async def loaded(engine: Engine, folder: Path) -> None:
    """Both sources, the callers and the called."""
    await engine.load(kit.write(folder / "inner", INNER))
    await engine.load(kit.write(folder / "outer", OUTER))


async def journal(engine: Engine, folder: Path) -> list[dict[str, Any]]:
    """The receipts in a state folder, oldest first, when all are there."""
    await engine.concluded()
    return kit.call_receipts(folder)


class TestDeclared:
    """A declared nested tool."""

    async def test_it_answers_and_has_a_receipt_of_its_own(self, engine: Engine, tmp_path: Path) -> None:
        """Both receipts name their own tool and source and the same tenant."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("outer", {"name": "double", "arguments": {"n": 21}}, tenant="somebody")
        assert (outcome.reason, outcome.value) == ("ok.done", 42)
        first, second = sorted(await journal(engine, tmp_path / "state"), key=lambda made: str(made["tool"]))
        assert [(one["tool"], one["tenant"], one["verdict"]["reason"]) for one in (first, second)] == [
            ("double", "somebody", "ok.done"),
            ("outer", "somebody", "ok.done"),
        ]
        assert second == dict(await outcome.concluded())
        assert first["digests"]["source"] != second["digests"]["source"]
        assert first["worker"]["started"]

    async def test_its_arguments_are_checked_like_anybodys(self, engine: Engine, tmp_path: Path) -> None:
        """The tool gets the code and the lines, may catch them, and goes on."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("catching", {"name": "double", "arguments": {"n": "x"}})
        assert outcome.value == {"type": "HostCallError", "text": "refused.arguments: $.n: must be of type integer", "after": 8}

    async def test_its_failure_reaches_the_tool_as_a_reason(self, engine: Engine, tmp_path: Path) -> None:
        """And the caller, when the tool does not catch it, as the tool's exception."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("outer", {"name": "fail", "arguments": {}})
        assert outcome.reason == "tool_error.exception"
        assert outcome.lines == ("HostCallError: tool_error.exception: ValueError: inner canary",)
        assert [one["verdict"]["reason"] for one in await journal(engine, tmp_path / "state")] == ["tool_error.exception"] * 2

    async def test_a_large_value_comes_through(self, engine: Engine, tmp_path: Path) -> None:
        """A result at its bound fits into the reply; the outer tool returns it again."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("outer", {"name": "big", "arguments": {"n": (8 << 20) - 100}})
        assert (outcome.reason, len(outcome.value)) == ("ok.done", (8 << 20) - 100)

    async def test_what_cannot_be_sent_is_the_tools_own_exception(self, engine: Engine, tmp_path: Path) -> None:
        """Arguments that are no data, and no object: the tool can catch each, and the call ends well."""
        await engine.load(kit.write(tmp_path / "inner", INNER))
        outcome = await kit.jailed(engine, tmp_path / "misuse", MISUSE, "misuse", {"name": "x"})
        assert outcome.reason == "ok.done"
        assert outcome.value == {"no data": "NotData", "no name": "HostCallError", "no object": "TypeError"}


class TestDenied:
    """What a tool may not call."""

    async def test_a_tool_that_is_not_declared_is_refused_and_does_not_run(self, engine: Engine, tmp_path: Path) -> None:
        """The reason can be caught; the only receipts are the caller's and the control's."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("catching", {"name": "put", "arguments": {}})
        assert outcome.value == {"type": "HostCallError", "text": "catching does not declare the nested tool it called", "after": 8}
        assert sorted(one["tool"] for one in await journal(engine, tmp_path / "state")) == ["catching", "double"]

    async def test_a_declared_tool_that_is_not_loaded_is_unknown(self, engine: Engine, tmp_path: Path) -> None:
        """As it is to any caller."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("outer", {"name": "absent", "arguments": {}})
        assert outcome.lines[0].startswith("HostCallError: refused.unknown_tool: there is no tool 'absent'")

    async def test_an_approval_is_not_inherited(self, engine: Engine, tmp_path: Path) -> None:
        """A dangerous tool below an approved call is refused; called with an approval of its own it runs."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("outer", {"name": "risky", "arguments": {}}, approved=True)
        assert outcome.lines[0].startswith("HostCallError: refused.approval: ")
        assert (await engine.call("risky", {}, approved=True)).value == "done"

    async def test_a_read_cannot_write_by_way_of_another_source(self, engine: Engine, tmp_path: Path) -> None:
        """Nesting across sources is judged when it happens; a caller with an effect may write."""
        await loaded(engine, tmp_path)
        outcome = await engine.call("reader", {})
        assert outcome.lines == ("HostCallError: put has the effect write, and reader, a read, holds only reads",)
        assert [one["tool"] for one in await journal(engine, tmp_path / "state")] == ["reader"]
        assert (await engine.call("outer", {"name": "put", "arguments": {}})).value == "written"

    async def test_calls_that_go_round_in_a_circle_end(self, engine: Engine, tmp_path: Path) -> None:
        """Two sources that call each other: the depth is bounded, nothing hangs, and the innermost is told why."""
        for name, other in (("ping", "pong"), ("pong", "ping")):
            await engine.load(kit.write(tmp_path / name, LOOP.format(name=name, other=other)))
        with trio.fail_after(60):
            outcome = await engine.call("ping", {"n": 0})
        assert (outcome.reason, outcome.value) == ("ok.done", 7)
        assert sorted(one["tool"] for one in await journal(engine, tmp_path / "state")) == ["ping"] * 4 + ["pong"] * 4


class TestTime:
    """One deadline covers it all."""

    async def test_the_outer_deadline_ends_the_inner_call(self, engine: Engine, tmp_path: Path) -> None:
        """Within the outer call's time; both have a receipt and the engine serves on."""
        await loaded(engine, tmp_path)
        await engine.call("outer", {"name": "double", "arguments": {"n": 1}})
        await engine.concluded()
        with trio.fail_after(20):
            outcome = await engine.call("outer", {"name": "slow", "arguments": {}}, timeout_ms=1000)
        assert (outcome.reason, outcome.lines) == ("limit_exceeded.wall", ("no answer within 1000 ms",))
        ends = {one["tool"]: one["verdict"]["reason"] for one in (await journal(engine, tmp_path / "state"))[2:]}
        assert ends == {"slow": "cancelled.caller", "outer": "limit_exceeded.wall"}
        assert (await engine.call("double", {"n": 2})).value == 4


CROWD = """
from engine import Context, tool

@tool(description="calls another", effect="read", nested_tools=["inner"])
def outer(number: int, ctx: Context) -> int:
    return ctx.call("inner", {"number": number})

@tool(description="is called", effect="read")
def inner(number: int) -> int:
    return number * 2
"""


async def test_a_crowd_of_composites_does_not_wait_for_itself(engine: Engine, tmp_path: Path) -> None:
    """Twenty calls of a tool that calls another, on four jails: each holds one and needs one more, and all are answered."""
    await engine.load(kit.write(tmp_path / "source", CROWD))
    found: dict[int, object] = {}

    async def call(number: int) -> None:
        outcome = await engine.call("outer", {"number": number})
        found[number] = outcome.value if outcome.reason == "ok.done" else outcome.lines

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(call, number)
    assert found == {number: number * 2 for number in range(20)}
