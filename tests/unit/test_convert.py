"""Plain data to what hints say, and back."""

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import types
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.authoring import hints as shapes
from engine.authoring import schema
from engine.authoring.canonical import canonical
from engine.authoring.convert import NotData, arguments_for, to_data
from engine.authoring.tool import Context, tool
from engine.checking import Checker, data_problem
from engine.errors import RequestError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=25)
ANYTHING = st.recursive(
    SCALARS | st.floats() | st.integers() | st.binary(max_size=3) | st.text(max_size=3) | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=15,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: float
    y: int = 0


@dataclasses.dataclass
class Shape:
    kind: Literal["circle"]
    at: Point
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Line:
    kind: Literal["line"]
    ends: tuple[Point, Point]


class Options(TypedDict):
    depth: int
    where: NotRequired[Point]


class Pair(NamedTuple):
    first: int
    second: str


class Model:
    """Builds and dumps itself as a pydantic model does."""

    def __init__(self, value: int) -> None:
        self.value = value

    @classmethod
    def model_json_schema(cls, mode: str) -> dict[str, Any]:
        """Its schema."""
        return {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> "Model":
        """Built from data."""
        if "value" not in value:
            raise ValueError("SECRET")
        return cls(value["value"])

    def model_dump(self, mode: str, by_alias: bool) -> dict[str, Any]:
        """Its data."""
        return {"value": self.value, "mode": mode, "by_alias": by_alias}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]  # compared by value only


@tool(effect="read")
def takes(
    a: int = 0,
    b: float = 0.0,
    colour: Colour = Colour.RED,
    literal: Literal["a", 1, Colour.BLUE] = "a",
    point: Point | None = None,
    either: Shape | Line | list[int | float] | None = None,
    options: Options | None = None,
    pair: Pair = Pair(1, "x"),  # noqa: B008  a tuple does not change
    fixed: tuple[int, Colour] | None = None,
    many: tuple[Colour, ...] = (),
    mapping: dict[str, list[Point]] | None = None,
    model: Model | None = None,
    bounded: Annotated[list[Colour], schema.Bounds(max_items=2)] = [],  # noqa: B006  never changed
    anything: Any = None,
    *,
    ctx: Context,
) -> None:
    """Takes all there is."""


@pytest.mark.parametrize(
    ("given_", "made"),
    [
        ({"a": 1.0, "b": 2}, {"a": 1, "b": 2.0}),
        ({"colour": "blue", "literal": "blue"}, {"colour": Colour.BLUE, "literal": Colour.BLUE}),
        ({"point": {"x": 1}}, {"point": Point(1.0, 0)}),
        ({"point": None}, {"point": None}),
        ({"either": {"kind": "circle", "at": {"x": 1.5}, "colour": "blue"}}, {"either": Shape("circle", Point(1.5), Colour.BLUE)}),
        ({"either": {"kind": "line", "ends": [{"x": 1}, {"x": 2}]}}, {"either": Line("line", (Point(1.0), Point(2.0)))}),
        ({"either": [1, 1.0, 2.5]}, {"either": [1, 1.0, 2.5]}),
        ({"options": {"depth": 1, "where": {"x": 1}}}, {"options": {"depth": 1, "where": Point(1.0)}}),
        ({"pair": [2, "y"]}, {"pair": Pair(2, "y")}),
        ({"fixed": [1, "red"]}, {"fixed": (1, Colour.RED)}),
        ({"many": ["red", "blue"]}, {"many": (Colour.RED, Colour.BLUE)}),
        ({"mapping": {"k": [{"x": 1, "y": 2}]}}, {"mapping": {"k": [Point(1.0, 2)]}}),
        ({"model": {"value": 3}}, {"model": Model(3)}),
        ({"bounded": ["red"]}, {"bounded": [Colour.RED]}),
        ({"anything": {"x": [1, None]}}, {"anything": {"x": [1, None]}}),
        ({}, {}),
    ],
    ids=str,
)
def test_data_becomes_what_the_hints_say(given_: Any, made: Any) -> None:
    """Nested records, enums, tuples and unions; defaults are the function's own."""
    assert Checker(takes.declaration["input"]).problems(given_) == ()
    found = arguments_for(takes, given_)
    assert found == made
    assert [type(value) for value in found.values()] == [type(value) for value in made.values()]


def test_numbers_keep_their_kind_where_both_may_be() -> None:
    """1.0 stays a float under int | float, and becomes 1 under int."""
    assert [type(item) for item in arguments_for(takes, {"either": [1, 1.0]})["either"]] == [int, float]


@tool(effect="read", input=schema.object({"point": {}, "day": {}}), output={})
def contradicts(point: Point, day: datetime.date) -> None:
    """Its input lets pass what its hints do not."""


@tool(effect="read", input={"type": "object"}, output={})
def takes_nothing() -> None:
    """An open input, and no parameters."""


def test_what_no_hint_knows_passes_as_it_is() -> None:
    """With an input of its own a tool may hint what we cannot build: it gets the data."""
    assert arguments_for(contradicts, {"point": {"x": 1}, "day": "2024-01-01"}) == {"point": Point(1.0), "day": "2024-01-01"}


@pytest.mark.parametrize("point", ["SECRET", {"x": "SECRET"}, {"y": 1}, {"x": 1, "SECRET": 1}, [1]], ids=str)
def test_data_that_does_not_fit_the_hint_refuses(point: Any) -> None:
    """The schema let it pass, so schema and hint contradict each other; the value is not told."""
    with pytest.raises(RequestError) as caught:
        arguments_for(contradicts, {"point": point})
    assert (caught.value.code, caught.value.lines[0].startswith('"point" does not fit the function\'s hint: it takes ')) == (
        "refused.arguments",
        True,
    )
    assert "SECRET" not in str(caught.value)


def test_a_models_complaint_is_not_told() -> None:
    """What a model says of a value holds the value."""
    with pytest.raises(RequestError) as caught:
        arguments_for(takes_model, {"model": {}})
    assert caught.value.lines == ('"model" does not fit the function\'s hint: it takes what Model takes',)


@tool(effect="read", input=schema.object({"model": {}}), output={})
def takes_model(model: Model) -> None:
    """Takes a model."""


def test_keys_of_an_open_input_are_left_out() -> None:
    """An empty object stays open; what no parameter takes does not reach the function."""
    assert arguments_for(takes_nothing, {"reason": "why"}) == {}


@pytest.mark.parametrize(
    ("kind", "row", "reader"),
    [
        (Point, {"x": 1.5, "y": 2}, "dataclass_fields"),
        (Options, {"depth": 1}, "typed_dict_fields"),
        (Pair, [1, "a"], "named_tuple_fields"),
    ],
)
def test_the_fields_of_a_class_are_read_once_for_all_its_records(monkeypatch: pytest.MonkeyPatch, kind: Any, row: Any, reader: str) -> None:
    """However many there are in one call; another call reads them again, since a name may be found by then."""
    read = getattr(shapes, reader)
    asked: list[Any] = []

    def counted(hint: Any, **more: Any) -> Any:
        asked.append(hint)
        return read(hint, **more)

    def many(rows: Any) -> None:
        """Take them all."""

    many.__annotations__["rows"] = list[kind]
    declared = types.SimpleNamespace(function=many, declaration={"input": {"properties": {"rows": {}}}})
    monkeypatch.setattr(shapes, reader, counted)
    for calls in (1, 2):
        assert len(arguments_for(declared, {"rows": [row] * 20})["rows"]) == 20
        assert asked == [kind] * calls


@given(DATA)
def test_plain_data_stays_as_it_is(value: Any) -> None:
    """Data goes through unchanged, key order included, in containers of its own."""
    made = to_data(value)
    assert json.dumps(made) == json.dumps(value)
    assert made is not value or type(value) not in (list, dict)


@given(ANYTHING)
def test_whatever_comes_out_is_data(value: Any) -> None:
    """The result of to_data passes the host's own walk and has a canonical spelling, or NotData says where it is not."""
    try:
        made = to_data(value)
    except NotData:
        return
    assert data_problem(made) is None
    assert canonical(made)
    assert to_data(made) == made


@given(DATA)
def test_arguments_survive_the_way_there_and_back(value: Any) -> None:
    """A parameter of any data gives back what it got."""
    assert to_data(arguments_for(takes, {"anything": value})) == {"anything": value}


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Point(1.5, 2), {"x": 1.5, "y": 2}),
        ({"a": [Shape("circle", Point(1.0))]}, {"a": [{"kind": "circle", "at": {"x": 1.0, "y": 0}, "colour": "red"}]}),
        (Level.LOW, 1),
        ((1, (2,)), [1, [2]]),
        (Pair(1, "x"), [1, "x"]),
        (Model(3), {"value": 3, "mode": "json", "by_alias": True}),
        (-0.0, -0.0),
        ((1 << 63) - 1, (1 << 63) - 1),
        (-(1 << 63), -(1 << 63)),
    ],
    ids=str,
)
def test_values_with_an_exact_mapping(value: Any, data: Any) -> None:
    """Dataclass to dict, Enum to its value, tuple and named tuple to list, a model by its dump."""
    made = to_data(value)
    assert (made, type(made), str(made)) == (data, type(data), str(data))


class Shout(str):
    """A text that is not only a text."""

    __slots__ = ()


class Whole(int):
    """A number that is not only a number."""


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        (b"x", "$", "bytes"),
        ({"a": [1, {2}]}, "$.a[1]", "set"),
        ({"a b": decimal.Decimal(1)}, '$["a b"]', "Decimal"),
        ([complex(1)], "$[0]", "complex"),
        (datetime.date(2024, 1, 1), "$", "date"),
        (collections.OrderedDict(a=1), "$", "OrderedDict"),
        (Shout("x"), "$", "Shout"),
        (Whole(1), "$", "Whole"),
        ({"a": {1: 2}}, "$.a", "a dict with a key of type int"),
        ({True: 2}, "$", "a dict with a key of type bool"),
        ({Shout("a"): 2}, "$", "a dict with a key of type Shout"),
        (1 << 63, "$", "int outside 64 bits"),
        ([-(1 << 63) - 1], "$[0]", "int outside 64 bits"),
        (math.inf, "$", "float that is not finite"),
        ({"x": math.nan}, "$.x", "float that is not finite"),
        (["a\ud800"], "$[0]", "str with a lone surrogate"),
        ({"\ud800": 1}, "$", "str with a lone surrogate"),
        (Point, "$", "type"),
        (iter(()), "$", "tuple_iterator"),
        (Point(math.nan), "$.x", "float that is not finite"),
    ],
    ids=repr,
)
def test_what_has_no_exact_mapping_refuses(value: Any, path: str, type_name: str) -> None:
    """Path and type are named, the value is not."""
    with pytest.raises(NotData) as caught:
        to_data(value)
    assert (caught.value.code, caught.value.path, caught.value.type_name) == ("tool_error.result_not_data", path, type_name)


def levels(count: int) -> Any:
    """A list inside of a list, that many in all."""
    value: Any = []
    for _ in range(count - 1):
        value = [value]
    return value


def test_depth_is_bounded_and_costs_no_stack() -> None:
    """128 containers pass; 129, a hundred thousand and a value that holds itself refuse."""
    assert to_data(levels(128)) == levels(128)
    assert data_problem(to_data(levels(128))) is None
    loop: list[Any] = []
    loop.append({"again": loop})
    for value in (levels(129), levels(100_000), loop):
        with pytest.raises(NotData) as caught:
            to_data(value)
        assert caught.value.type_name == "nested deeper than 128 levels, or holds itself"
        assert len(caught.value.path) <= 401


def test_one_value_in_two_places_is_no_loop() -> None:
    """Control: sharing is allowed and is copied."""
    shared = [1]
    made = to_data({"a": shared, "b": shared})
    made["a"].append(2)
    assert (made, shared) == ({"a": [1, 2], "b": [1]}, [1])
