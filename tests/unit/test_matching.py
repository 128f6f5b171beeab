"""What the patterns of a schema can cost of one value."""

from typing import Any

import msgpack
import pytest

from engine.authoring.canonical import canonical
from engine.authoring.expansion import Expansion
from engine.checking import Checker
from engine.matching import Matching, pattern_states, texts

MANY = "^[ab]*a[ab]{1000}$"
DEPTH = 129


def matching(schema: dict[str, Any]) -> Matching:
    """That of a schema which has patterns."""
    made = Matching.of(schema, canonical(schema).decode())
    assert made is not None
    return made


def within(schema: dict[str, Any], states: int) -> int:
    """The bytes that go through so many states."""
    return matching(schema).bytes_within(states, DEPTH, Expansion(schema))


@pytest.mark.parametrize(
    "pattern", ["^[a-z_]+$", "^[A-Za-z0-9_-]{1,128}$", "^[0-9a-f]{8}-[0-9a-f]{4}$", "^data:[a-z]{1,9}", "x", "^.{1000}$", ""]
)
def test_a_usual_pattern_costs_the_least(pattern: str) -> None:
    """Its states fit into a table, or the place in the text says which copy it is."""
    assert pattern_states(pattern) == 4


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        (MANY, 1000),
        ("[ab]{1000}c", 1000),  # from anywhere
        ("^x?[ab]{1000}c", 1000),
        ("^*[ab]{1000}c", 1000),
        ("^x{1,2}[ab]{1000}c", 1000),
        ("^x{1,}[ab]{1000}c", 1000),
        ("^([ab]{1000})c", 1000),
        ("^y|[ab]{1000}c", 1000),
        ("x(?:[ab]{100}){10}", 1000),
        ("x(?<n>[ab]{100}){10}", 1000),
        ("x((ab|b){10}){100}", 3000),
        (r"x\[{1000}", 1000),
        (r"x[^\]]{1000}", 1000),
        ("x[]a]{1000}", 1000),
        (r"x\p{L}{30}", 1000),
        (r"x[\p{L}]{30}", 1000),
        ("x" + "[ab]?" * 50, 100),
    ],
)
def test_each_copy_counts(pattern: str, least: int) -> None:
    """Whatever stands around the repetition."""
    assert least <= pattern_states(pattern) <= 20 * least


@pytest.mark.parametrize("pattern", ["{", "x{,}", "x{a}", ")", "(", "(?", "[", "[^", "\\", r"\p", r"\p{", "(?<n", "**", "|", "x{0}", "{3}"])
def test_any_text_has_a_count(pattern: str) -> None:
    """Also what no engine compiles."""
    assert pattern_states(pattern) >= 1


def test_nested_counts_stay_small_numbers() -> None:
    """However often they multiply."""
    assert pattern_states("x" + "(" * 60 + "a" + "{1000})" * 60) < 1 << 50


def test_texts_and_keys_are_charged_by_depth() -> None:
    """A key at its object's depth and below it, a text at its own; other characters by their widest form."""
    assert texts("ab") == [18]
    assert texts("é") == [20]
    assert texts({"k": "ab", "l": 1}) == [34, 34 + 18]
    assert texts([["a"], {"b": []}]) == [0, 17, 17 + 17]
    assert texts(7) == [0]


def test_patterns_of_keys_and_values_are_charged() -> None:
    """And only where they apply."""
    by_key = {"type": "object", "patternProperties": {MANY: True}, "additionalProperties": False}
    by_name = {"type": "object", "propertyNames": {"pattern": MANY}}
    by_value = {"type": "object", "properties": {"a": {"pattern": MANY}, "b": {}}, "additionalProperties": False}
    for schema in (by_key, by_name, by_value):
        assert matching(schema).states({"a": "b" * 1000}) > 17 * 1000
    assert matching(by_value).states({"a": "b" * 1000}) > 1000 * 1000
    assert matching(by_key).states(["b" * 1000]) < 1000


def test_alternatives_add_up() -> None:
    """Each of them may be tried."""
    one, ten = matching({"pattern": MANY}), matching({"anyOf": [{"pattern": MANY}] * 10})
    assert ten.states("a" * 100) >= 10 * one.states("a" * 100) > 10 * 100 * 1000


def test_what_is_unevaluated_is_tried_again() -> None:
    """Each such keyword counts its neighbours once more."""
    schema = {"type": "object", "patternProperties": {MANY: True}}
    assert matching({**schema, "unevaluatedProperties": False}).states({"a": 1}) == 2 * matching(schema).states({"a": 1})


def test_a_schema_without_patterns_has_none() -> None:
    """Not even when a key has the name."""
    for schema in ({}, {"type": "object", "properties": {"pattern": {"type": "string"}}, "additionalProperties": False}):
        assert Matching.of(schema, canonical(schema).decode()) is None


def test_the_bytes_within_are_the_bytes_of_the_heaviest_place() -> None:
    """Wherever in the value the pattern stands; more bytes for a lighter one."""
    deep: dict[str, Any] = {"pattern": MANY}
    for _ in range(9):
        deep = {"type": "array", "items": deep}
    assert within(deep, 4_000_000) == within({"pattern": MANY}, 4_000_000) < 200
    assert within({"pattern": "^[a-z]+$"}, 4_000_000) > 16 << 10


def test_no_bytes_are_sure_when_a_schema_is_too_large_to_look_through() -> None:
    """A recursive one is looked at on each level; the control is small."""
    node = {"type": "array", "items": {"$ref": "#/$defs/n"}}
    large, small = (
        within({"$ref": "#/$defs/n", "$defs": {"n": {**node, "prefixItems": [{"pattern": "^a+$"}] * many}}}, 4_000_000) for many in (300, 1)
    )
    assert (large, small > 1) == (1, True)


@pytest.mark.parametrize("value", ["", "a", "é", "語" * 9, {"": ""}, {"a": 1, "b": 2}, [""] * 50, {"k": {"k": ["x"]}}])
def test_a_byte_is_charged_no_more_than_assumed(value: Any) -> None:
    """Else a value could be kept on the event loop and refused there for its cost."""
    schema = {"type": "object", "additionalProperties": {"$ref": "#/$defs/n"}, "propertyNames": {"pattern": MANY}}
    schema = {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"anyOf": [schema, {"type": "array", "items": {"$ref": "#/$defs/n"}}, {"pattern": MANY}]}},
    }
    states = matching(schema).states(value)
    assert within(schema, states - 1) <= len(msgpack.packb([23, value]))


# -- what a checker refuses for it

MANY_STATES = {"type": "string", "pattern": "^[ab]*a[ab]{1000}c$"}
COSTLY = ("$: too large for a schema with such patterns: send less",)
UNTOLD = ("$: does not fit the schema, and is too large to say where",)


def test_a_text_that_costs_much_by_its_pattern_is_taken_aside_only() -> None:
    """Refused on the event loop, answered in the other process, refused there past its own budget; the control has no such pattern."""
    checker, control = Checker(MANY_STATES), Checker({"type": "string", "pattern": "^[ab]*c$"})
    assert checker.problems_of_data("ab" * 5000) == COSTLY
    assert checker.problems("ab" * 5000) == COSTLY
    assert checker.problems_of_data("ab" * 5000, aside=True) == UNTOLD
    assert checker.problems_of_data("ab" * 500_000, aside=True) == COSTLY
    assert control.problems_of_data("ab" * 5000) == ("$: must match the pattern ^[ab]*c$",)


def test_a_short_text_is_told_in_full_whatever_its_pattern() -> None:
    """The same on both ways."""
    checker = Checker(MANY_STATES)
    told = ("$: must match the pattern ^[ab]*a[ab]{1000}c$",)
    assert checker.problems_of_data("abc") == checker.problems_of_data("abc", aside=True) == told


def test_what_is_below_the_bytes_for_aside_is_never_too_costly() -> None:
    """So that no result is refused on the event loop that the other process would take; without a pattern there is no such bound."""
    checker = Checker({"type": "array", "items": MANY_STATES})
    below = checker.aside_bytes()
    assert below is not None
    for value in (["a" * (below - 9)], [""] * (below - 4), ["é" * (below // 2 - 4)]):
        assert checker.problems_of_data(value) != COSTLY
    assert Checker({"type": "array", "items": {"type": "string"}}).aside_bytes() is None
