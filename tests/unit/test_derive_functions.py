"""What is derived of whole functions: outputs, streams, and hints that are missing."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections import abc
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import pytest

from engine.authoring import derive, schema
from engine.authoring.tool import Context, tool
from engine.errors import DeclarationError

if TYPE_CHECKING:
    from somewhere import Absent  # type: ignore[import-not-found]  # stands for what exists for type checkers only


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Opaque:
    """Has no JSON form."""


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5
    length: float = dataclasses.field(default=0.0, init=False)


class Options(TypedDict):
    a: int
    b: NotRequired[str]


def output_of(hint: Any) -> Any:
    """The output schema of a function with the return hint."""

    def function() -> None:
        """Returns."""

    return derive.schemas_of(function, {"return": hint}, None, {"input": {}, "output": None, "partial": None}, [])["output"]


def test_what_goes_out_has_every_field() -> None:
    """A dataclass that is returned has all its fields, those with defaults and those its constructor does not take as well."""
    assert output_of(Point)["required"] == ["x", "y", "length"]
    assert output_of(Options)["required"] == ["a"]


@pytest.mark.parametrize(
    ("hint", "partial", "output"),
    [
        (typing.Iterator[int], {"type": "integer"}, {"type": "null"}),
        (abc.Iterable[int], {"type": "integer"}, {"type": "null"}),
        (typing.Generator[int, None, str], {"type": "integer"}, {"type": "string"}),
        (abc.Generator[int, None, None], {"type": "integer"}, {"type": "null"}),
        (abc.AsyncIterator[str], {"type": "string"}, {"type": "null"}),
        (abc.AsyncGenerator[str, None], {"type": "string"}, {"type": "null"}),
        (typing.Iterator, {}, {"type": "null"}),
        (Any, {}, {}),
    ],
    ids=str,
)
def test_what_a_generator_yields_and_returns(hint: Any, partial: Any, output: Any) -> None:
    """The first argument is the partial schema, the third of Generator the output, else null."""

    def function() -> Any:
        """Yields."""
        yield 1

    lines: list[str] = []
    made = derive.schemas_of(function, {"return": hint}, None, {"input": {}, "output": None, "partial": None}, lines)
    assert (lines, made["partial"], made["output"]) == ([], partial, output)


def test_a_generator_with_another_hint_refuses() -> None:
    """A function that yields does not return a list."""

    def function() -> Any:
        """Yields."""
        yield 1

    lines: list[str] = []
    derive.schemas_of(function, {"return": list[int]}, None, {"input": {}, "output": None, "partial": None}, lines)
    assert lines == ["the return value: a function that yields is annotated Iterator[...], Generator[...] or their async forms"]


def hinted(a: int, b: Absent, ctx: Context) -> str:
    """Has a hint that nobody can resolve."""
    return ""


def unhinted(a, b: int = 1):  # type: ignore[no-untyped-def]  # without hints on purpose
    """Has none."""


def test_one_hint_that_cannot_be_found_does_not_spoil_the_others() -> None:
    """With an input of its own, a tool may name what exists for type checkers only, and still has its context."""
    given = schema.object({"a": schema.integer(), "b": {}})
    declaration = tool(effect="read", input=given)(hinted).declaration
    assert (declaration["context"], declaration["output"]) == ("ctx", {"type": "string"})


def test_a_parameter_without_a_hint_refuses() -> None:
    """Nothing is guessed; without a return hint the output may be anything."""
    with pytest.raises(DeclarationError) as caught:
        tool(effect="read")(unhinted)
    assert caught.value.lines == ('tool unhinted: the parameter "a" has no type hint: add one, or give input=',)
    given = schema.object({"a": {}, "b": {}}, optional=["b"])
    assert tool(effect="read", input=given)(unhinted).declaration["output"] == {}


def test_a_default_that_is_no_data_is_left_out() -> None:
    """The schema tells only defaults that a caller could send."""

    def function(a: Any = Opaque(), b: Colour = Colour.BLUE, c: tuple[int, ...] = (1,)) -> None:  # noqa: B008  the default is the point
        """Takes."""

    made = derive.schemas_of(function, derive.hints_of(function), None, {"input": None, "output": {}, "partial": None}, [])["input"]
    assert made["properties"] == {
        "a": {},
        "b": {"enum": ["red", "blue"], "default": "blue"},
        "c": {"type": "array", "items": {"type": "integer"}, "default": [1]},
    }
