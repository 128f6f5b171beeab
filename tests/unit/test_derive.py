"""Schemas from type hints."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pathlib
import typing
import uuid
from collections import abc
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, NotRequired, Required, TypedDict

import pytest
import typing_extensions

from engine.authoring import derive, schema
from engine.authoring.strict import schema_problems
from engine.errors import DeclarationError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"
    ROUGE = "red"  # noqa: PIE796  an alias, which a schema must not name twice


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5
    tags: list[str] = dataclasses.field(default_factory=list)
    kind: ClassVar[str] = "p"
    length: float = dataclasses.field(default=0.0, init=False)


@dataclasses.dataclass
class Node:
    value: int
    below: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Left:
    right: Right | None


@dataclasses.dataclass
class Right:
    left: Left | None


class Options(TypedDict):
    a: int
    b: NotRequired[str]


class Loose(Options, total=False):
    c: Required[bool]
    d: Annotated[int, {"minimum": 0}]


class Extended(typing_extensions.TypedDict, total=False):
    a: typing_extensions.Required[int]
    b: typing_extensions.ReadOnly[str]


class Pair(NamedTuple):
    first: int
    second: str | None = None


Bare = collections.namedtuple("Bare", "a b")
UserId = NewType("UserId", int)
Json = typing_extensions.TypeAliasType("Json", "bool | float | str | list[Json] | dict[str, Json] | None")


class Ge:
    """Like the bound of annotated-types."""

    def __init__(self, ge: float) -> None:
        self.ge = ge


class MinLen:
    """Like the bound of annotated-types."""

    def __init__(self, min_length: int) -> None:
        self.min_length = min_length


class Model:
    """Describes itself as a pydantic model does."""

    @classmethod
    def model_json_schema(cls, mode: str) -> dict[str, Any]:
        """What pydantic 2 says of a model with a nested one, a union of literals and a discriminated union."""
        inner = {"title": "Node", "type": "object", "properties": {"title": {"title": "Title", "type": "string"}}, "required": ["title"]}
        return {
            "title": "Model",
            "type": "object",
            "$defs": {"Node": inner},
            "properties": {
                "node": {"$ref": "#/$defs/Node"},
                "mode": {"anyOf": [{"const": "a", "type": "string"}, {"enum": ["b", "c"], "type": "string"}], "title": "Mode"},
                "maybe": {"anyOf": [{"const": "a"}, {"type": "null"}]},
                "mixed": {"oneOf": [{"const": "a"}, {"type": "integer"}, {"const": "b"}, {"type": "null"}]},
                "pick": {
                    "discriminator": {"propertyName": "k"},
                    "anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}],
                    "default": {"title": "x"},
                },
            },
            "required": ["node", (mode == "validation" and "mode") or "pick"],
        }

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        """Never called here."""
        raise NotImplementedError


class OpenModel(Model):
    @classmethod
    def model_json_schema(cls, mode: str) -> dict[str, Any]:
        """A model that allows further keys."""
        return {"type": "object", "properties": {"a": {}}, "additionalProperties": True}


class Opaque:
    """Has no JSON form."""


def derived(hint: Any) -> Any:
    """The input schema of one parameter with the hint."""

    def function(a: Any) -> None:
        """Takes a."""

    lines: list[str] = []
    hints = {"a": derive.hints_of(holder_of(hint))["a"], "return": None}
    made = derive.schemas_of(function, hints, None, {"input": None, "output": {}, "partial": None}, lines)
    if lines:
        raise DeclarationError(*lines)
    properties = made["input"].pop("properties")["a"]
    assert schema_problems({**properties, **({"$defs": made["input"]["$defs"]} if "$defs" in made["input"] else {})}, "a") == []
    return properties if "$defs" not in made["input"] else (properties, made["input"]["$defs"])


def holder_of(hint: Any) -> Any:
    """A function of this module whose parameter has the hint."""

    def holder(a: Any) -> None:
        """Holds."""

    holder.__annotations__ = {"a": hint}
    return holder


POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer"},
        "y": {"type": "number", "default": 0.5},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "additionalProperties": False,
    "required": ["x"],
}
OPTIONS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "additionalProperties": False,
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("hint", "made"),
    [
        ("str", {"type": "string"}),
        ("int", {"type": "integer"}),
        ("float", {"type": "number"}),
        ("bool", {"type": "boolean"}),
        ("None", {"type": "null"}),
        ("Any", {}),
        ("object", {}),
        ("list", {"type": "array"}),
        ("typing.List[int]", {"type": "array", "items": {"type": "integer"}}),
        ("abc.Sequence[str]", {"type": "array", "items": {"type": "string"}}),
        ("dict", {"type": "object"}),
        ("dict[str, int]", {"type": "object", "additionalProperties": {"type": "integer"}}),
        ("typing.Mapping[str, Any]", {"type": "object", "additionalProperties": {}}),
        ("tuple", {"type": "array"}),
        ("typing.Tuple", {"type": "array"}),
        ("tuple[()]", {"type": "array", "maxItems": 0}),
        ("tuple[int, ...]", {"type": "array", "items": {"type": "integer"}}),
        (
            "tuple[int, str]",
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2, "maxItems": 2},
        ),
        ("Literal['a', 1, None]", {"enum": ["a", 1, None]}),
        ("Literal[1, True]", {"enum": [1, True]}),
        ("Literal[Colour.RED]", {"enum": ["red"]}),
        ("Colour", {"enum": ["red", "blue"]}),
        ("Level", {"enum": [1, 2]}),
        ("typing.Optional[str]", {"type": ["string", "null"]}),
        ("int | str | None", {"type": ["integer", "string", "null"]}),
        ("typing.Union[Literal['a'], Literal['b'], None]", {"enum": ["a", "b", None]}),
        ("Colour | None", {"enum": ["red", "blue", None]}),
        ("Literal['a'] | int", {"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}),
        ("Literal['a'] | Literal['a', 'b']", {"enum": ["a", "b"]}),
        ("int | Any", {}),
        ("list[int] | None", {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}),
        ("UserId", {"type": "integer"}),
        ("Point", POINT),
        ("Options", OPTIONS),
        (
            "Loose",
            {
                "type": "object",
                "properties": {**OPTIONS["properties"], "c": {"type": "boolean"}, "d": {"type": "integer", "minimum": 0}},  # type: ignore[dict-item]  # plain data
                "additionalProperties": False,
                "required": ["a", "c"],
            },
        ),
        ("Extended", OPTIONS),
        (
            "Pair",
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": ["string", "null"]}],
                "items": False,
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        ("Bare", {"type": "array", "prefixItems": [{}, {}], "items": False, "minItems": 2, "maxItems": 2}),
        ("Annotated[int, schema.Bounds(minimum=1)]", {"type": "integer", "minimum": 1}),
        ("Annotated[str, {'pattern': '^a$'}, 'what it is']", {"type": "string", "pattern": "^a$", "description": "what it is"}),
        ("Annotated[int, Ge(3)]", {"type": "integer", "minimum": 3}),
        ("Annotated[list[int], MinLen(1)]", {"type": "array", "items": {"type": "integer"}, "minItems": 1}),
        ("Annotated[str, MinLen(1)]", {"type": "string", "minLength": 1}),
    ],
)
def test_hints_and_their_schemas(hint: str, made: Any) -> None:
    """Each hint's schema is the shortest closed one, and obeys the strict rules."""
    assert derived(hint) == made


def test_types_that_hold_themselves_become_definitions() -> None:
    """A dataclass, two that hold each other, and an alias."""
    node = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "below": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "additionalProperties": False,
        "required": ["value"],
    }
    assert derived("Node") == ({"$ref": "#/$defs/Node"}, {"Node": node})
    right = {
        "type": "object",
        "properties": {"left": {"anyOf": [{"$ref": "#/$defs/Left"}, {"type": "null"}]}},
        "additionalProperties": False,
        "required": ["left"],
    }
    left = {**right, "properties": {"right": {"anyOf": [right, {"type": "null"}]}}, "required": ["right"]}
    assert derived("Left") == ({"$ref": "#/$defs/Left"}, {"Left": left})


def test_an_alias_that_holds_itself_becomes_a_definition() -> None:
    """The alias is looked through, once."""
    made = derived("Json")
    scalars = [{"type": kind} for kind in ("boolean", "number", "string")]
    below = [{"type": "array", "items": {"$ref": "#/$defs/Json"}}, {"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}}]
    assert made == ({"$ref": "#/$defs/Json"}, {"Json": {"anyOf": [*scalars, *below, {"type": "null"}]}})


@pytest.mark.parametrize(
    ("hint", "line"),
    [
        ("bytes", 'the parameter "a": the hint "bytes" has no JSON form: use str, with base64 for binary data'),
        ("set[int]", 'the parameter "a": the hint "set" has no JSON form: use list'),
        (
            "list[datetime.datetime]",
            "the parameter \"a\"[]: the hint \"datetime\" has no JSON form: use Annotated[str, {'format': 'date-time'}]",
        ),
        ("decimal.Decimal", 'the parameter "a": the hint "Decimal" has no JSON form: use str'),
        ("pathlib.Path", 'the parameter "a": the hint "Path" has no JSON form: use str'),
        ("uuid.UUID", "the parameter \"a\": the hint \"UUID\" has no JSON form: use Annotated[str, {'format': 'uuid'}]"),
        ("Opaque", 'the parameter "a": the hint "Opaque" has no JSON form: use plain types, or give input='),
        ("Rights", 'the parameter "a": the hint "Rights" has no JSON form: flags combine: use a list of an Enum'),
        ("dict[int, str]", 'the parameter "a": the hint "dict" has no JSON form: keys of JSON objects are texts: use dict[str, ...]'),
        (
            "Literal[b'x']",
            'the parameter "a": the hint "Literal" has no JSON form: its values must be texts, whole numbers, true, false or null',
        ),
        ("Annotated[int, Opaque()]", 'the parameter "a": the marker "Opaque" is not known: use schema.Bounds(...)'),
        ("Annotated[int, {'min': 1}]", 'unknown bound "min": use one of title'),
        (
            "Absent",
            'the parameter "a": the hint "Absent (name \'Absent\' is not defined)" cannot be found: define it at the top of the module',
        ),
        ("abc.Callable[[], int]", 'the parameter "a": the hint "Callable" has no JSON form: use plain types, or give input='),
    ],
)
def test_hints_without_a_json_form_refuse(hint: str, line: str) -> None:
    """The parameter, the hint and the remedy are named."""
    with pytest.raises(DeclarationError) as caught:
        derived(hint)
    assert caught.value.lines[0].startswith(line)


def test_the_place_inside_of_a_record_is_named() -> None:
    """A field of a field is found by its path."""

    @dataclasses.dataclass
    class Outer:
        inner: list[bytes]

    with pytest.raises(DeclarationError) as caught:
        derived(Outer)
    assert caught.value.lines == ('the parameter "a".inner[]: the hint "bytes" has no JSON form: use str, with base64 for binary data',)


def test_hints_that_expand_without_end_refuse() -> None:
    """Records that each hold two of the next double at each level; the number of schemas is bounded."""
    hint: Any = int
    for number in range(20):
        hint = dataclasses.make_dataclass(f"D{number}", [("a", hint), ("b", hint)])
    with pytest.raises(DeclarationError, match="expand to more than 10000 schemas"):
        derived(hint)


def test_a_model_is_made_strict() -> None:
    """Objects closed, literals folded, titles and OpenAPI's words dropped, definitions hung in ours; data stays as it is."""
    made, definitions = derived("Model")
    assert made == {
        "type": "object",
        "properties": {
            "node": {"$ref": "#/$defs/Node"},
            "mode": {"enum": ["a", "b", "c"]},
            "maybe": {"enum": ["a", None]},
            "mixed": {"oneOf": [{"enum": ["a", "b", None]}, {"type": "integer"}]},
            "pick": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": {"title": "x"}},
        },
        "required": ["node", "mode"],
        "additionalProperties": False,
    }
    assert definitions == {
        "Node": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"], "additionalProperties": False}
    }


def test_definitions_of_one_name_stay_apart() -> None:
    """Our own Node and the model's Node both keep their shape."""

    def function(a: Node, b: Model) -> None:
        """Takes both."""

    lines: list[str] = []
    made = derive.schemas_of(function, derive.hints_of(function), None, {"input": None, "output": {}, "partial": None}, lines)["input"]
    assert (lines, sorted(made["$defs"]), made["properties"]["b"]["properties"]["node"]) == (
        [],
        ["Node", "Node_2"],
        {"$ref": "#/$defs/Node_2"},
    )
    assert schema_problems(made, "input") == []


def test_a_model_open_on_purpose_refuses() -> None:
    """What the author opened is not closed behind their back, and so breaks the rule."""

    def function(a: OpenModel) -> None:
        """Takes it."""

    made = derive.schemas_of(function, derive.hints_of(function), None, {"input": None, "output": {}, "partial": None}, [])["input"]
    assert schema_problems(made, "input") == ["input.a: an object that declares keys must be closed: add additionalProperties: false"]


# what only hints name, so that the names above can be found by their text
FOUND = (abc, datetime, decimal, pathlib, schema, typing, uuid, Literal, Ge, MinLen, Bare)
