"""Values on their way in and out: what travels keeps its meaning, what has none is refused by path and type, and never by value."""

import math
from pathlib import Path
from typing import Any

import pytest

from engine.events import LogRecord, PartialResult, Progress, ToolEvent, ToolOutput
from engine.host import Engine
from engine.outcome import Outcome
from tests import kit

MAKE = '''
import collections, dataclasses, datetime, decimal, enum, typing
from typing import Any
from engine import tool

class Dict(dict):
    def items(self):
        return [("forged", 1)]

class Text(str):
    def encode(self, *rest):
        raise ValueError("forged")

class Int(int):
    pass

class List(list):
    pass

@dataclasses.dataclass
class Point:
    x: int = 1
    y: list = dataclasses.field(default_factory=list)

class Color(enum.Enum):
    RED = "red"

class Number(enum.IntEnum):
    FIVE = 5

class Pair(typing.NamedTuple):
    left: int
    right: str

class Liar:
    @property
    def __class__(self):
        return dict

class Reduced:
    def __reduce__(self):
        return (print, ("unpickled",))

def nested(levels, value=0):
    for _ in range(levels):
        value = [value]
    return value

def loop():
    made = []
    made.append(made)
    return made

def doubled(levels):
    made = "x"
    for _ in range(levels):
        made = [made, made]
    return made

@tool(effect="read", description="d")
def make(code: str) -> Any:
    """The value of an expression."""
    return eval(code)
'''
SAME: list[tuple[str, Any]] = [
    ("None", None),
    ("True", True),
    ("0", 0),
    ("2**63 - 1", 2**63 - 1),
    ("-2**63", -(2**63)),
    ("2**53 + 1", 2**53 + 1),
    ("1.5", 1.5),
    ("5e-324", 5e-324),
    ("''", ""),
    ("'\\x00'", "\x00"),
    ("'\\u202e\\U0010ffff'", "\u202e\U0010ffff"),
    ("[]", []),
    ("{}", {}),
    ("{'__proto__': 1, '__class__': 2, '': 3}", {"__proto__": 1, "__class__": 2, "": 3}),
    ("{'b': 1, 'a': 2}", {"b": 1, "a": 2}),
    ("'ok.done'", "ok.done"),
    ("{'status': 'refused', 'reason': 'refused.arguments'}", {"status": "refused", "reason": "refused.arguments"}),
    # documented mappings
    ("(1, 'a')", [1, "a"]),
    ("Pair(1, 'a')", [1, "a"]),
    ("Point()", {"x": 1, "y": []}),
    ("Point(y=[Point()])", {"x": 1, "y": [{"x": 1, "y": []}]}),
    ("Color.RED", "red"),
    ("Number.FIVE", 5),
]  # fmt: skip - values side by side
NO_DATA = [
    ("b'x'", "$", "bytes"),
    ("bytearray(b'x')", "$", "bytearray"),
    ("memoryview(b'x')", "$", "memoryview"),
    ("{1, 2}", "$", "set"),
    ("frozenset()", "$", "frozenset"),
    ("1j", "$", "complex"),
    ("decimal.Decimal(1)", "$", "Decimal"),
    ("object()", "$", "object"),
    ("datetime.datetime(2020, 1, 1)", "$", "datetime"),
    ("range(3)", "$", "range"),
    ("(x for x in [1])", "$", "generator"),
    ("len", "$", "builtin_function_or_method"),
    ("Point", "$", "type"),
    ("decimal", "$", "module"),
    ("ValueError('x')", "$", "ValueError"),
    ("float('nan')", "$", "float that is not finite"),
    ("[float('inf')]", "$[0]", "float that is not finite"),
    ("{'a': -1e400}", "$.a", "float that is not finite"),
    ("2**63", "$", "int outside 64 bits"),
    ("2**70", "$", "int outside 64 bits"),
    ("-2**70", "$", "int outside 64 bits"),
    ("10**100000", "$", "int outside 64 bits"),
    ("'\\ud800'", "$", "str with a lone surrogate"),
    ("['a', 'b\\udfff']", "$[1]", "str with a lone surrogate"),
    ("{'\\ud800': 1}", "$", "str with a lone surrogate"),
    ("{1: 2}", "$", "a dict with a key of type int"),
    ("{None: 1}", "$", "a dict with a key of type NoneType"),
    ("{True: 1}", "$", "a dict with a key of type bool"),
    ("{(1, 2): 1}", "$", "a dict with a key of type tuple"),
    ("{Text('k'): 1}", "$", "a dict with a key of type Text"),
    ("Dict(a=1)", "$", "Dict"),
    ("Text('x')", "$", "Text"),
    ("Int(1)", "$", "Int"),
    ("List()", "$", "List"),
    ("collections.OrderedDict()", "$", "OrderedDict"),
    ("Liar()", "$", "Liar"),
    ("Reduced()", "$", "Reduced"),
    ("{'a': {'b': [0, {'c': b'canary'}]}}", "$.a.b[1].c", "bytes"),
    ("Point(x=b'canary')", "$.x", "bytes"),
]  # fmt: skip - values side by side
REMEDY = "return None, bool, int64, finite float, str, list or dict"
SCHEMAS = """
from typing import Any
from engine import tool

NUMBER = {"type": "object", "properties": {"n": {"type": "number", "maximum": 100}, "kind": {"enum": ["a", "b"]}},
          "required": ["n"], "additionalProperties": False}

@tool(effect="read", description="d", output=NUMBER)
def number(code: str):
    return eval(code)

@tool(effect="read", description="d", partial={"type": "integer"}, output={})
def stream(code: str):
    for value in eval(code):
        yield value
    return "the end"
"""
MISFITS = [
    ("{'n': 101}", "$.n: must be at most 100"),
    ("{'n': True}", "$.n: must be of type number"),
    ("{'n': 'canary'}", "$.n: must be of type number"),
    ("{'n': None}", "$.n: must be of type number"),
    ("{}", '$: missing key "n": add it'),
    ("'canary'", "$: must be of type object"),
    ("{'n': 1, 'kind': 'canary'}", '$.kind: must be one of "a", "b"'),
    ("{'n': 1, 'm': 'canary'}", '$: unknown key "m": it takes "n", "kind"'),
]  # fmt: skip - values side by side
HINTS = '''
from __future__ import annotations
import dataclasses, enum
from typing import Literal, NamedTuple, TypedDict
from engine import tool

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

class Options(TypedDict, total=False):
    deep: bool
    words: list[str]

@dataclasses.dataclass
class Point:
    x: int
    color: Color = Color.RED
    below: list[Point] = dataclasses.field(default_factory=list)

@tool(effect="read", description="d")
def shaped(point: Point, options: Options, kind: Literal["a", "b"] = "a", pair: tuple[int, str] = (0, "")) -> dict[str, bool]:
    """Whether each argument arrived as what its hint says."""
    return {
        "point": type(point) is Point and type(point.below[0]) is Point,
        "color": point.color is Color.BLUE,
        "options": type(options) is dict and options == {"deep": True, "words": ["w"]},
        "kind": kind == "b",
        "pair": pair == (1, "one"),
    }

@tool(effect="read", description="d")
def mirrored(point: Point) -> Point:
    return Point(-point.x, Color.BLUE, [point])
'''
KINDS = """
import asyncio
from typing import Any
from engine import Context, tool

@tool(effect="read", description="d")
def plain(n: int) -> int:
    return n

@tool(effect="read", description="d")
async def waiting(n: int) -> int:
    first, second = await asyncio.gather(asyncio.sleep(0, n), asyncio.to_thread(lambda: 1))
    return first + second - 1

@tool(effect="read", description="d", partial={"type": "integer"})
def steps(n: int):
    for one in range(n):
        yield one
    return n

@tool(effect="read", description="d", partial={"type": "integer"})
async def async_steps(n: int):
    for one in range(n):
        await asyncio.sleep(0)
        yield one

@tool(effect="read", description="d")
def talking(n: int, context: Context) -> bool:
    context.progress(n, 10, "part\\nway \\x1b[31mred")
    context.emit({"n": n})
    context.log.warning("m\\n2026-01-01 ERROR forged {0.__class__} %n", deep={"n": [n]})
    return context.cancelled
"""


async def made(engine: Engine, code: str, tool: str = "make") -> Outcome:
    """The outcome of a tool that returns the value of an expression."""
    return await engine.call(tool, {"code": code})


class TestResults:
    """What a tool returns."""

    async def test_data_and_documented_mappings_arrive_as_they_are(self, engine: Engine, tmp_path: Path) -> None:
        """Each value with its exact type; a text that looks like a code of ours is a text."""
        await engine.load(kit.write(tmp_path, MAKE))
        for code, value in SAME:
            outcome = await made(engine, code)
            assert (outcome.reason, outcome.value, type(outcome.value)) == ("ok.done", value, type(value)), code
        assert list((await made(engine, "{'b': 1, 'a': 2}")).value) == ["b", "a"]
        assert math.copysign(1, (await made(engine, "-0.0")).value) == -1

    async def test_what_is_no_data_is_refused_by_path_and_type(self, engine: Engine, tmp_path: Path) -> None:
        """One code, one line; the value itself is nowhere, and nothing is unpickled or printed here."""
        await engine.load(kit.write(tmp_path, MAKE))
        for code, path, kind in NO_DATA:
            outcome = await made(engine, code)
            assert (outcome.reason, outcome.value) == ("tool_error.result_not_data", None), code
            assert outcome.lines == (f"{path} is {kind}: {REMEDY}",), code
            assert "canary" not in repr(outcome)

    @pytest.mark.parametrize("code", ["nested(129)", "nested(10_000)", "nested(100_000)", "loop()"])
    async def test_depth_past_its_bound_is_refused(self, engine: Engine, tmp_path: Path, code: str) -> None:
        """Neither side runs out of stack; the line is one of bounded length. At the bound it travels."""
        await engine.load(kit.write(tmp_path, MAKE))
        outcome = await made(engine, code)
        assert outcome.reason == "tool_error.result_not_data"
        assert outcome.lines[0].endswith(f" is nested deeper than 128 levels, or holds itself: {REMEDY}")
        assert len(outcome.lines[0]) < 600
        assert (await made(engine, "nested(128)")).reason == "ok.done"

    async def test_a_value_that_multiplies_is_refused_before_it_fills_memory(self, engine: Engine, tmp_path: Path) -> None:
        """Forty lists that hold each other twice would be 2^40 values once written out."""
        await engine.load(kit.write(tmp_path, MAKE))
        outcome = await made(engine, "doubled(40)")
        assert outcome.reason == "tool_error.result_not_data"
        assert outcome.lines[0].endswith(f" is more than 1000000 values with what stands before it: {REMEDY}")
        assert (await made(engine, "len(str(doubled(3)))")).reason == "ok.done"

    async def test_a_result_past_its_size_is_ended(self, engine: Engine, tmp_path: Path) -> None:
        """By the policy's bound, and by the caller's tighter one; under it, it arrives whole."""
        await engine.load(kit.write(tmp_path, MAKE))
        assert (await made(engine, "'x' * (9 << 20)")).reason == "limit_exceeded.result"
        tight = await engine.call("make", {"code": "'x' * 2000"}, limits={"result": "1 KiB"})
        assert (tight.reason, tight.value) == ("limit_exceeded.result", None)
        assert (await engine.call("make", {"code": "'x' * 500"}, limits={"result": "1 KiB"})).value == "x" * 500

    async def test_a_result_against_its_schema_is_refused_by_path(self, engine: Engine, tmp_path: Path) -> None:
        """The line names where and what is wanted; no part of the value reaches the caller. A fitting one arrives."""
        await engine.load(kit.write(tmp_path, SCHEMAS))
        for code, line in MISFITS:
            outcome = await made(engine, code, "number")
            assert (outcome.reason, outcome.lines, outcome.value) == ("tool_error.result_schema", (line,), None), code
            assert "canary" not in repr(outcome)
        assert (await made(engine, "{'n': 100, 'kind': 'a'}", "number")).value == {"n": 100, "kind": "a"}

    @pytest.mark.parametrize("code", ["float('inf')", "float('-inf')", "float('nan')", "1e400"])
    async def test_no_number_slips_past_a_maximum(self, engine: Engine, tmp_path: Path, code: str) -> None:
        """What is not finite compares with nothing, so it never gets as far as the schema."""
        await engine.load(kit.write(tmp_path, SCHEMAS))
        outcome = await made(engine, f"{{'n': {code}}}", "number")
        assert (outcome.reason, outcome.lines) == ("tool_error.result_not_data", (f"$.n is float that is not finite: {REMEDY}",))

    async def test_all_problems_of_a_result_are_told(self, engine: Engine, tmp_path: Path) -> None:
        """One line each."""
        await engine.load(kit.write(tmp_path, SCHEMAS))
        outcome = await made(engine, "{'kind': 'c', 'm': 1, 'n': 'x'}", "number")
        assert sorted(outcome.lines) == [
            '$.kind: must be one of "a", "b"',
            "$.n: must be of type number",
            '$: unknown key "m": it takes "n", "kind"',
        ]


class TestStreams:
    """Items of a stream are checked one by one."""

    async def seen(self, engine: Engine, code: str) -> tuple[list[ToolOutput], Outcome]:
        """What came before the outcome, and the outcome."""
        items: list[ToolOutput | Outcome] = []
        async with engine.stream("stream", {"code": code}) as stream:
            items = [item async for item in stream]
        *before, outcome = items
        assert isinstance(outcome, Outcome)
        return [item for item in before if not isinstance(item, Outcome)], outcome

    async def test_items_that_fit_arrive_in_order(self, engine: Engine, tmp_path: Path) -> None:
        """And then what the generator returned."""
        await engine.load(kit.write(tmp_path, SCHEMAS))
        before, outcome = await self.seen(engine, "range(3)")
        assert before == [PartialResult(value=value) for value in range(3)]
        assert (outcome.reason, outcome.value) == ("ok.done", "the end")

    @pytest.mark.parametrize(("bad", "code"), [("'canary'", "tool_error.partial_schema"), ("b'canary'", "tool_error.result_not_data")])
    async def test_one_bad_item_ends_the_stream(self, engine: Engine, tmp_path: Path, bad: str, code: str) -> None:
        """The ten good ones before it stand, nothing after it comes, and the outcome says that the stream is void."""
        await engine.load(kit.write(tmp_path, SCHEMAS))
        before, outcome = await self.seen(engine, f"[*range(10), {bad}, 11]")
        assert before == [PartialResult(value=value) for value in range(10)]
        assert (outcome.reason, outcome.value, len(outcome.lines)) == (code, None, 1)
        assert "canary" not in repr(outcome)


class TestShapes:
    """Arguments and results as a tool's hints and its kind of function say."""

    async def test_arguments_arrive_as_their_hints_say(self, engine: Engine, tmp_path: Path) -> None:
        """Dataclass in a dataclass, enum, typed dict, literal and tuple, from plain data."""
        await engine.load(kit.write(tmp_path, HINTS))
        point = {"x": 1, "color": "blue", "below": [{"x": 2}]}
        arguments = {"point": point, "options": {"deep": True, "words": ["w"]}, "kind": "b", "pair": [1, "one"]}
        outcome = await engine.call("shaped", arguments)
        assert (outcome.reason, outcome.lines) == ("ok.done", ())
        assert outcome.value == {"point": True, "color": True, "options": True, "kind": True, "pair": True}

    async def test_a_dataclass_with_an_enum_comes_back_as_data(self, engine: Engine, tmp_path: Path) -> None:
        """And fits the schema that was derived from the hint."""
        await engine.load(kit.write(tmp_path, HINTS))
        outcome = await engine.call("mirrored", {"point": {"x": 1}})
        assert outcome.value == {"x": -1, "color": "blue", "below": [{"x": 1, "color": "red", "below": []}]}

    @pytest.mark.parametrize(
        ("tool", "value", "partials"),
        [
            ("plain", 3, []),
            ("waiting", 3, []),
            ("steps", 3, [0, 1, 2]),
            ("async_steps", None, [0, 1, 2]),
        ],
    )  # fmt: skip - one kind a cell
    async def test_every_kind_of_function_is_a_tool(
        self, engine: Engine, tmp_path: Path, tool: str, value: object, partials: list[int]
    ) -> None:
        """Function, coroutine with threads, generator, async generator."""
        await engine.load(kit.write(tmp_path, KINDS))
        async with engine.stream(tool, {"n": 3}) as stream:
            *before, outcome = [item async for item in stream]
        assert before == [PartialResult(value=one) for one in partials]
        assert isinstance(outcome, Outcome)
        assert (outcome.reason, outcome.value) == ("ok.done", value)

    async def test_what_a_tool_says_on_its_way_is_data_and_one_line(self, engine: Engine, tmp_path: Path) -> None:
        """Progress, event and log record; their words can neither forge a line nor drive a terminal."""
        await engine.load(kit.write(tmp_path, KINDS))
        async with engine.stream("talking", {"n": 3}) as stream:
            *before, outcome = [item async for item in stream]
        assert before == [
            Progress(done=3, total=10, message="part way red"),
            ToolEvent(value={"n": 3}),
            LogRecord(level="warning", message="m 2026-01-01 ERROR forged {0.__class__} %n", data={"deep": {"n": [3]}}),
        ]
        assert isinstance(outcome, Outcome)
        assert outcome.value is False
