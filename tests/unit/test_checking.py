"""Values against schemas, and arguments from JSON text."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checking import Checker, data_problem, parse_arguments
from engine.errors import DeclarationError, RequestError

SECRET = "sk-live-0123456789"
ITEM = {
    "type": "object",
    "properties": {"kind": {"enum": ["file", "dir", "link"]}, "size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind"],
    "additionalProperties": False,
}
FORM = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 3},
        "name": {"type": "string", "minLength": 2, "maxLength": 5, "pattern": "^[a-z]+$"},
        "day": {"type": "string", "format": "date"},
        "fixed": {"const": "on"},
        "ratio": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "multipleOf": 0.25},
        "pick": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/item"}]},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
        "set": {"type": "array", "uniqueItems": True},
        "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "propertyNames": {"maxLength": 3}},
        "maybe": {"type": ["string", "null"]},
        "not": {"not": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"item": ITEM},
}
KEYS = '"items", "name", "day", "fixed", "ratio", "pick", "pair", "set", "map", "maybe", "not"'


def lines(value: Any, schema: Any = FORM) -> tuple[str, ...]:
    """What does not fit."""
    return Checker(schema).problems(value)


def test_what_fits_has_no_lines() -> None:
    """Control: a value of every kind."""
    assert lines({"name": "abc", "items": [{"kind": "dir", "size": 1.0}], "ratio": 0.5, "pick": {"kind": "file"}, "map": {"a": True}}) == ()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({}, ('$: missing key "name": add it',)),
        (
            {"name": "abc", "read_only": True, "x y": 1},
            (f'$: unknown key "read_only": it takes {KEYS}', f'$: unknown key "x y": it takes {KEYS}'),
        ),
        ({"name": "abc", "items": [{"kind": "dir"}, {"kind": "socket"}]}, ('$.items[1].kind: must be one of "file", "dir", "link"',)),
        (
            {"name": "abc", "items": [{"knd": "dir"}]},
            ('$.items[0]: unknown key "knd": it takes "kind", "size"', '$.items[0]: missing key "kind": add it'),
        ),
        ({"name": "abc", "items": [{"kind": "dir", "size": -1}]}, ("$.items[0].size: must be at least 0",)),
        ({"name": "abc", "items": [{"kind": "dir", "size": 10}]}, ("$.items[0].size: must be at most 9",)),
        ({"name": "abc", "items": [{"kind": "dir", "size": "1"}]}, ("$.items[0].size: must be of type integer",)),
        ({"name": "abc", "items": [{"kind": "dir", "size": True}]}, ("$.items[0].size: must be of type integer",)),
        ({"name": "abc", "items": [{"kind": "dir"}] * 4}, ("$.items: must have at most 3 items",)),
        ({"name": "a"}, ("$.name: must have at least 2 characters",)),
        ({"name": "abcdef"}, ("$.name: must have at most 5 characters",)),
        ({"name": "ab9"}, ("$.name: must match the pattern ^[a-z]+$",)),
        ({"name": None}, ("$.name: must be of type string",)),
        ({"name": "abc", "day": "tomorrow"}, ("$.day: must be a text of the format date",)),
        ({"name": "abc", "fixed": "off"}, ('$.fixed: must be "on"',)),
        ({"name": "abc", "ratio": 0}, ("$.ratio: must be more than 0",)),
        ({"name": "abc", "ratio": 1}, ("$.ratio: must be less than 1",)),
        ({"name": "abc", "ratio": 0.3}, ("$.ratio: must be a multiple of 0.25",)),
        ({"name": "abc", "pick": {"kind": "x"}}, ('$.pick.kind: must be one of "file", "dir", "link"',)),
        ({"name": "abc", "pick": "x"}, ("$.pick: fits no alternative: must be of type integer, or must be of type object",)),
        ({"name": "abc", "pair": [1, 2]}, ("$.pair[1]: nothing is allowed here: leave it out",)),
        ({"name": "abc", "set": [1, 1]}, ("$.set: holds an item twice",)),
        ({"name": "abc", "map": {"a": 1}}, ("$.map.a: must be of type boolean",)),
        ({"name": "abc", "map": {"abcd": True}}, ("$.map: a key is not allowed: must have at most 3 characters",)),
        ({"name": "abc", "maybe": 1}, ("$.maybe: must be of type null or string",)),
        ({"name": "abc", "not": "x"}, ("$.not: is what the schema excludes",)),
        ([], ("$: must be of type object",)),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict | list) else "",
)
def test_lines_say_path_and_wish(value: Any, told: tuple[str, ...]) -> None:
    """Each line is one a model can act on."""
    assert lines(value) == told


@given(
    st.recursive(
        st.just(SECRET) | st.just(7777777) | st.just(0.125125),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(tuple(FORM["properties"])), inner, max_size=4),  # type: ignore[arg-type]  # it is a dict
        max_leaves=12,
    )
)
def test_no_line_holds_a_value(value: Any) -> None:
    """Whatever is sent where, the text and the numbers of it never come back."""
    told = " ".join(lines(value))
    assert SECRET not in told
    assert "7777777" not in told
    assert "0.125125" not in told


def test_the_tag_says_which_alternative_was_meant() -> None:
    """Of a tagged union the lines of the alternative with the right tag are told; without one, the tags."""
    schema = {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"enum": [kind]}, key: {"type": "integer"}},
                "required": ["kind"],
                "additionalProperties": False,
            }
            for kind, key in (("circle", "radius"), ("line", "length"))
        ]
    }
    assert lines({"kind": "line", "length": "x"}, schema) == ("$.length: must be of type integer",)
    assert lines({"kind": "line", "radius": 1}, schema) == ('$: unknown key "radius": it takes "kind", "length"',)
    assert lines({"kind": "dot"}, schema) == ('$: fits no alternative: $.kind: must be one of "circle", or $.kind: must be one of "line"',)


def test_lines_are_sanitised() -> None:
    """Keys are foreign text: no escape or separator of theirs reaches a terminal, and a long one is cut."""
    told = lines({"name": "abc", "\x1b[31m\u202ered\n": 1, "k" * 5000: 1})
    assert told[0].startswith('$: unknown key " red ": it takes ')
    assert told[1].startswith(f'$: unknown key "{"k" * 79}…": it takes ')
    deep = lines(
        {"map": {f"\n{'k' * 5000}": 1}},
        {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "null"}}},
    )
    assert (len(deep[0]) < 300, "\n" in deep[0]) == (True, False)


def test_the_number_of_lines_is_bounded() -> None:
    """Twenty lines at most, the last one says that there are more."""
    told = lines([1] * 100, {"type": "array", "items": {"type": "string"}})
    assert (len(told), told[0], told[-1]) == (20, "$[0]: must be of type string", "$: there are further problems: mend these first")


def test_a_large_value_names_its_first_problem() -> None:
    """Past the budget for all errors the first one is told, when no alternatives stand in the way."""
    rows = [{"a": 1}] * 100_000 + [{"a": "x"}] * 100_000
    schema = {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}}
    assert lines(rows, schema) == ("$[100000].a: must be of type integer", "$: there may be further problems: mend this first")
    assert lines([1] * 200_000, {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}) == (
        "$: does not fit the schema, and is too large to say where",
    )


NODE = {
    "$defs": {
        "n": {
            "anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/n"}},
                {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 5},
                {"const": 1},
            ]
        }
    },
    "$ref": "#/$defs/n",
}
TREE = {
    "$defs": {
        "n": {
            "anyOf": [
                {"type": "object", "properties": {"k": {"const": k}, "l": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
                for k in "abcd"
            ]
            + [{"type": "integer"}]
        }
    },
    "$ref": "#/$defs/n",
}


def problems(schema: Any, value: Any) -> tuple[str, ...]:
    """What does not fit. Where a bound is missing that keeps the work small, this does not come back at all."""
    return Checker(schema).problems(value)


def wrap(value: Any, levels: int, key: str | None = None) -> Any:
    """The value inside of that many lists or objects."""
    for _ in range(levels):
        value = [value] if key is None else {"k": "d", key: value}
    return value


def test_overlapping_alternatives_do_not_hold_the_host() -> None:
    """A recursive union whose alternatives both go down doubles at each level: neither the answer nor its telling may."""
    assert problems(NODE, wrap(1, 126)) == ()
    assert problems(NODE, wrap(2, 126)) == ("$: does not fit the schema, and is too large to say where",)
    assert problems(TREE, wrap(3, 126, "l")) == ()
    assert problems(TREE, wrap("x", 126, "l")) == ("$: does not fit the schema, and is too large to say where",)


def test_a_small_value_of_such_a_schema_is_told_in_full() -> None:
    """Control: where it is cheap the place is named."""
    assert problems(NODE, [[2]]) != ("$: does not fit the schema, and is too large to say where",)
    assert problems(TREE, {"k": "z"}) == (
        '$: fits no alternative: $.k: must be "a", or $.k: must be "b", or $.k: must be "c", or $.k: must be "d"',
    )


def test_a_chain_of_definitions_that_doubles_refuses() -> None:
    """Without recursion nothing is remembered, so each level of the value would double the work."""
    chain: dict[str, Any] = {"d40": {"const": 1}}
    for i in range(40):
        below = {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}}
        chain[f"d{i}"] = {"anyOf": [below, {**below, "maxItems": 5}]}
    schema = {"$defs": chain, "$ref": "#/$defs/d0"}
    assert problems(schema, wrap(2, 40)) == ("$: too large or too deep for a schema whose alternatives overlap: send less",)
    assert problems(schema, wrap(2, 3)) != ()


def test_distinct_keys_do_not_multiply() -> None:
    """Control: a binary tree goes down twice, but never twice into one value."""
    node = {"type": "object", "properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
    value: Any = {}
    for _ in range(12):
        value = {"l": value, "r": value}
    assert problems({"$defs": {"n": node}, "$ref": "#/$defs/n"}, value) == ()


def test_an_enum_of_objects_costs_what_it_compares() -> None:
    """Thousands of objects to compare with, for each of a hundred thousand values, is refused before it begins."""
    schema = {"items": {"enum": [{"a": i} for i in range(2000)]}}
    assert problems(schema, [{"a": 1}] * 100_000) == ("$: too large or too deep for a schema whose alternatives overlap: send less",)
    assert problems(schema, [{"a": 1}] * 1000) == ()


def test_keys_that_nothing_evaluated_are_named() -> None:
    """The keys of an object closed as a whole stand in several places, so they are not listed."""
    schema = {"type": "object", "properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}], "unevaluatedProperties": False}
    assert lines({"a": 1, "b": 2}, schema) == ()
    assert lines({"a": 1, "c": 2}, schema) == ('$: unknown key "c": leave it out',)


def test_depth_never_reaches_the_validator() -> None:
    """A value of a hundred thousand levels is a line: the validator alone would end the process."""
    schema = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    assert lines(wrap([], 127), schema) == ()
    assert lines(wrap([], 128), schema) == ("$: nested deeper than 128 levels: flatten it",)
    assert lines(wrap([], 100_000), schema) == ("$: nested deeper than 128 levels: flatten it",)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, True, "5", None, 1 << 70])
def test_odd_numbers_do_not_slip_past_a_maximum(value: Any) -> None:
    """Infinity once passed as a number below its maximum."""
    assert lines(value, {"type": "number", "maximum": 100}) != ()


@pytest.mark.parametrize(
    "value",
    [b"x", (1,), {1}, object(), {1: 2}, ["\ud800"], {"\ud800": 1}, [[1 << 63]], {"a": math.nan}],
    ids=repr,
)
def test_what_is_no_data_never_fits(value: Any) -> None:
    """The empty schema accepts any data, and only data."""
    assert len(lines(value, {})) == 1


def test_patterns_run_in_linear_time() -> None:
    """The pattern that hangs a backtracking engine is answered."""
    assert problems({"type": "string", "pattern": "^(a+)+$"}, "a" * 50_000 + "!") == ("$: must match the pattern ^(a+)+$",)


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"$ref": "file:///etc/passwd"}, "schema.$ref: must name a definition of this schema, such as #/$defs/node: nothing is fetched"),
        ({"tpye": "x"}, 'schema: unknown keyword "tpye": use one of JSON Schema 2020-12, or put it into description or meta'),
        ({"pattern": "("}, 'schema.pattern: it is not a "regex": mend it'),
    ],
)
def test_a_schema_that_breaks_the_rules_has_no_checker(schema: Any, line: str) -> None:
    """Whoever makes a checker gets the rules with it."""
    with pytest.raises(DeclarationError) as caught:
        Checker(schema)
    assert caught.value.lines == (line,)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ([1, {"a": b""}], "$[1].a is of type bytes, which is not plain data"),
        ({"a": (1,)}, "$.a is of type tuple, which is not plain data"),
        ({"a": {2: 1}}, "$.a is an object with a key of type int, which is not plain data"),
        ({"a": ["\ud800"]}, "$.a[0] is a text with a lone surrogate, which is not plain data"),
        ([{"\ud800": 1}], "$[0] is an object with a lone surrogate in a key, which is not plain data"),
        ([1, -(1 << 63) - 1], "$[1] is an int outside 64 bits, which is not plain data"),
        ({"x y": math.inf}, '$["x y"] is a float that is not finite, which is not plain data'),
    ],
)
def test_the_walk_names_path_and_type(value: Any, line: str) -> None:
    """Never the value."""
    assert data_problem(value) == line


def test_the_walk_is_bounded() -> None:
    """Depth and count, each with the last that passes; a value that holds itself ends too."""
    assert (data_problem(wrap(1, 3), depth=3), data_problem(wrap([], 2), depth=3)) == (None, None)
    assert data_problem(wrap([], 3), depth=3) == "$: nested deeper than 3 levels: flatten it"
    assert data_problem([0] * 9, nodes=10) is None
    assert data_problem([0] * 10, nodes=10) == "$: holds more than 10 values: send less"
    loop: list[Any] = []
    loop += [loop, loop]
    assert data_problem(loop) == "$: holds more than 1000000 values: send less"


def test_arguments_are_one_object() -> None:
    """Control: text and bytes, up to the limit of bytes."""
    assert parse_arguments('{"a": [1, 2.5, null, "ä"]}', 100) == {"a": [1, 2.5, None, "ä"]}
    assert parse_arguments('{"a":"ä"}'.encode(), 10) == {"a": "ä"}


@pytest.mark.parametrize("text", ['{"a":"ä"}', '{"a":"ä"}'.encode(), '{"a":1} ' + " " * 100])
def test_arguments_above_the_limit_refuse(text: str | bytes) -> None:
    """The limit counts bytes, not characters."""
    with pytest.raises(RequestError) as caught:
        parse_arguments(text, 9)
    assert (caught.value.code, caught.value.lines) == ("refused.request_size", ("the arguments have more than 9 bytes: send less",))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "the arguments are not JSON: Expecting value at line 1, column 1"),
        (f'{{"a": {SECRET}}}', "the arguments are not JSON: Expecting value at line 1, column 7"),
        (b"\xff", "the arguments are not UTF-8"),
        ("[1]", 'the arguments must be one JSON object, such as {"key": "value"}'),
        ("null", 'the arguments must be one JSON object, such as {"key": "value"}'),
        ('{"a": 1, "a": 2}', 'the key "a" stands twice in one object: keep one'),
        ('{"x": {"b": 1, "c": 1, "b": 1}}', 'the key "b" stands twice in one object: keep one'),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": -Infinity}', "-Infinity is no JSON number"),
        ('{"a": 1e999}', "a number too large for a double: send it as text"),
        ('{"a": 9223372036854775808}', "a whole number outside 64 bits: send it as text"),
        ('{"a": ' + "9" * 100_000 + "}", "a whole number outside 64 bits: send it as text"),
        ('{"a": "\\ud800"}', "$.a is a text with a lone surrogate, which is not plain data"),
        ('{"a":' + "[" * 100_000, "the arguments are nested deeper than 128 levels: flatten them"),
        ('{"a":' * 128 + "{}" + "}" * 128, "the arguments are nested deeper than 128 levels: flatten them"),
        ("\ufeff{}", "the arguments are not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig) at line 1, column 1"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_that_two_readers_could_read_differently_refuse(text: str | bytes, line: str) -> None:
    """Duplicate keys, odd numbers, depth, and what is no JSON; the value is not told."""
    with pytest.raises(RequestError) as caught:
        parse_arguments(text, 1 << 20)
    assert (caught.value.code, caught.value.lines) == ("refused.request", (line,))


def test_brackets_inside_of_texts_are_no_depth() -> None:
    """Control: what only looks deep passes."""
    text = json.dumps({"a": '[{"\\' * 1000})
    assert parse_arguments(text, 1 << 20) == json.loads(text)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.characters(exclude_categories=["Cs"])), st.lists),
    )
)
def test_arguments_are_read_as_json_does(value: dict[str, Any]) -> None:
    """Any object within bounds is what the standard library reads."""
    assert parse_arguments(json.dumps(value), 1 << 20) == value
