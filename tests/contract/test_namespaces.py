"""Namespaces: sources whose tools have the same names, side by side in one engine, apart from each other."""

from pathlib import Path

import pytest

from engine.call import Request
from engine.errors import EngineError
from engine.host import Engine
from engine.outcome import Outcome
from tests import kit

FIRST = """
from typing import Any
from engine import Context, tool

@tool(effect="external", description="d", nested_tools=["other", "name"])
def ask(who: str, context: Context) -> Any:
    return context.call(who, {})

@tool(effect="read", description="d")
def name() -> str:
    return "first"
"""
SECOND = """
from engine import tool

@tool(effect="read", description="d")
def name() -> str:
    return "second"

@tool(effect="read", description="d")
def other() -> str:
    return "other"
"""


async def both(engine: Engine, folder: Path) -> None:
    """Two sources, each in a namespace of its own."""
    for namespace, source in (("a", FIRST), ("b", SECOND)):
        await engine.load(kit.write(folder / namespace, source), namespace=namespace)


async def test_tools_of_one_name_live_side_by_side(engine: Engine, tmp_path: Path) -> None:
    """Each namespace has its own, and outside of them there is none."""
    await both(engine, tmp_path)
    found = [await engine.call("name", {}, namespace=namespace) for namespace in ("a", "b", "")]
    assert [(outcome.reason, outcome.value) for outcome in found] == [
        ("ok.done", "first"),
        ("ok.done", "second"),
        ("refused.unknown_tool", None),
    ]
    assert found[2].lines == ("there is no tool 'name'; loaded: none",)


async def test_a_stream_and_a_plan_name_one_too(engine: Engine, tmp_path: Path) -> None:
    """As a call does: the tool of that namespace, and outside of them there is none."""
    await both(engine, tmp_path)
    values = []
    for namespace in ("a", "b"):
        async with engine.stream("name", {}, namespace=namespace) as stream:
            values += [item.value async for item in stream if isinstance(item, Outcome)]
    assert values == ["first", "second"]
    keys = {engine.prepare("name", Request(arguments={}, namespace=namespace)).recipe.key for namespace in ("a", "b")}
    assert len(keys) == 2
    with pytest.raises(EngineError, match="there is no tool 'name'; loaded: none"):
        engine.prepare("name", Request(arguments={}))


async def test_in_one_namespace_they_still_clash(engine: Engine, tmp_path: Path) -> None:
    """The control: the second source is refused, and the first stays."""
    await engine.load(kit.write(tmp_path / "a", FIRST), namespace="n")
    with pytest.raises(EngineError, match="tool name is loaded already"):
        await engine.load(kit.write(tmp_path / "b", SECOND), namespace="n")
    assert (await engine.call("name", {}, namespace="n")).value == "first"


async def test_no_tool_calls_out_of_its_namespace(engine: Engine, tmp_path: Path) -> None:
    """What it declares is looked for beside it alone; its control is a tool that lies there."""
    await both(engine, tmp_path)
    found = [await engine.call("ask", {"who": who}, namespace="a") for who in ("name", "other")]
    assert [(outcome.reason, outcome.value) for outcome in found] == [("ok.done", "first"), ("tool_error.exception", None)]
    assert "refused.unknown_tool" in found[1].lines[0]


async def test_a_namespace_is_forgotten_and_the_others_stay(engine: Engine, tmp_path: Path) -> None:
    """It can be loaded again."""
    await both(engine, tmp_path)
    await engine.unload("a")
    assert [(await engine.call("name", {}, namespace=space)).reason for space in ("a", "b")] == ["refused.unknown_tool", "ok.done"]
    await engine.load(kit.write(tmp_path / "a", FIRST), namespace="a")
    assert (await engine.call("name", {}, namespace="a")).value == "first"
