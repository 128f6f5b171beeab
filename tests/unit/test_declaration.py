"""Declarations as received data."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.authoring import rules, schema
from engine.authoring.canonical import digest
from engine.authoring.tool import tool
from engine.declaration import Declaration, check, check_all
from engine.errors import DeclarationError, ToolError


@tool(effect="read", limits={"memory": "64 MiB"}, network=["a.example:443"], data=["d.txt"], guidelines=["Be brief."])
def sample(a: int, b: str = "x") -> dict[str, int]:
    """A sample."""
    return {b: a}


PATTERNED = {"type": "object", "properties": {"word": {"type": "string", "pattern": "a"}}, "additionalProperties": False}


def said(**changed: Any) -> dict[str, Any]:
    """The sample's declaration with other fields."""
    return {**sample.declaration, **changed}


def refusal(raw: object) -> tuple[str, ...]:
    """The lines with which checking refuses."""
    with pytest.raises(DeclarationError) as caught:
        check(raw)
    return caught.value.lines


def test_a_good_declaration_keeps_every_field() -> None:
    """The record holds each field, the data and its digest; lists are tuples, dicts are read-only."""
    made = check(said())
    assert (made.digest, made.data) == (digest(sample.declaration), sample.declaration)
    fields = {field.name for field in dataclasses.fields(Declaration)} - {"digest", "data", "data_files"}
    assert fields == set(rules.FIELDS) - {"data"}
    assert {name: getattr(made, name) for name in ("network", "data_files", "guidelines", "limits", "partial", "timeout_ms")} == {
        "network": ("a.example:443",),
        "data_files": ("d.txt",),
        "guidelines": ("Be brief.",),
        "limits": {"memory": "64 MiB"},
        "partial": None,
        "timeout_ms": 30_000,
    }
    with pytest.raises(TypeError):
        made.limits["memory"] = 1  # type: ignore[index]  # read-only is the point


def test_the_record_keeps_no_container_of_the_caller() -> None:
    """Data changed after the check does not change what the digest names."""
    raw = said(meta={"a": [1]})
    made = check(raw)
    raw["meta"]["a"].append(2)
    raw["name"] = "other"
    assert (made.meta, made.data["name"], made.digest) == ({"a": [1]}, "sample", digest(said(meta={"a": [1]})))


def test_fields_are_exactly_those_of_the_list() -> None:
    """A further field, a missing one, and data that is no object refuse."""
    assert refusal(said(sandbox=False))[0].startswith('tool sample: unknown field "sandbox": a declaration has "name", "description", ')
    short = said()
    del short["effect"], short["network"]
    assert refusal(short) == ("tool sample: the field effect is missing", "tool sample: the field network is missing")
    assert refusal([]) == ("a declaration is an object, not list",)
    assert refusal({}) == tuple(f"tool without a valid name: the field {name} is missing" for name in rules.FIELDS)


@pytest.mark.parametrize("field", rules.FIELDS)
@pytest.mark.parametrize("value", [3.5, [{"x": [None]}]], ids=str)
def test_a_field_of_another_type_refuses(field: str, value: Any) -> None:
    """Whatever a worker puts into a field, it is a line and no crash."""
    lines = refusal(said(**{field: value}))
    assert any(field in line for line in lines), lines


@given(
    st.sampled_from(tuple(rules.FIELDS)),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)),
)
def test_no_field_value_crashes_the_check(field: str, value: Any) -> None:
    """A check ends with a declaration or with a DeclarationError."""
    try:
        made = check(said(**{field: value}))
    except DeclarationError:
        return
    assert made.data[field] == value


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({**said(), "meta": {"a": b""}}, "the declaration is not plain data: $.meta.a is of type bytes, which is not plain data"),
        (said(name="cave_x"), "tool cave_x: name: names that begin with cave_ are reserved: choose another"),
        (said(name="x" * 129), f'tool without a valid name: name: "{"x" * 79}…" is no tool name: use {rules.NAME_REMEDY}'),
        (
            said(qualname="f.<locals>.g"),
            "tool sample: qualname: must be a dotted Python name without <locals>: declare a function at the top of a module",
        ),
        (said(streams=True), "tool sample: partial: a tool that yields has a schema for what it yields, another tool has none"),
        (
            said(output={"type": "object", "properties": {"a": {}}}),
            "tool sample: output: an object that declares keys must be closed: add additionalProperties: false",
        ),
        (said(input={**schema.object({"a-b": {}})}), 'tool sample: input: the key "a-b" cannot be a parameter of a function: rename it'),
        (said(context="a"), 'tool sample: input: "a" is the context, which no caller gives: leave it out of the input'),
        (said(output={"pattern": "("}), 'tool sample: output: schema.pattern: it is not a "regex": mend it'),
        (said(output={"pattern": r"[\p{L}]{900}"}), 'tool sample: output: schema.pattern: it is not a "regex": mend it'),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_worker_cannot_say_what_an_author_could_not(raw: Any, line: str) -> None:
    """The rules of the authoring side hold here too, and each pattern compiles on this host."""
    assert refusal(raw)[0] == line


def test_a_declaration_is_bounded() -> None:
    """Neither depth nor count of what a worker says is free."""
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert refusal(said(meta=deep)) == ("the declaration is not plain data: $: nested deeper than 128 levels: flatten it",)
    assert refusal(said(meta={"a": [0] * 60_000})) == ("the declaration is not plain data: $: holds more than 60000 values: send less",)


def test_all_of_a_source() -> None:
    """Control: several declarations come back in their order."""
    made = check_all([said(), said(name="second", effect="write", read_only=False, nested_tools=["sample", "elsewhere"])])
    assert [declaration.name for declaration in made] == ["sample", "second"]


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        ({}, ("declarations are a list, not dict",)),
        ([said()] * 513, ("the source declares 513 tools, at most 512 are allowed: split it",)),
        (
            [said(input={"type": "object", "properties": {"word": {"type": "string", "pattern": "a"}}, "additionalProperties": False})]
            * 257,
            ("the source's schemas hold 257 patterns, at most 256 are allowed: split it",),
        ),
        ([said(), said(qualname="other")], (f'tool sample: declared twice, in "{__name__}.sample" and "{__name__}.other": rename one',)),
        (
            [said(nested_tools=["w"]), said(name="w", effect="write", read_only=False)],
            ('tool sample: nested_tools: "w" has the effect write, but a read holds only reads: change the effect',),
        ),
        (
            [said(nested_tools=["b"]), said(name="b", nested_tools=["c"]), said(name="c")],
            ('tool sample: nested_tools: "b" has nested tools itself: name those directly',),
        ),
    ],
    ids=["type", "many", "patterns", "twice", "effect", "flat"],
)
def test_declarations_that_do_not_go_together_refuse(raw: Any, lines: tuple[str, ...]) -> None:
    """Duplicates, a read that holds a write, and nesting in nesting."""
    with pytest.raises(DeclarationError) as caught:
        check_all(raw)
    assert caught.value.lines == lines


def test_a_source_without_tools_has_its_own_code() -> None:
    """An empty list is not a broken declaration."""
    with pytest.raises(ToolError) as caught:
        check_all([])
    assert (caught.value.code, caught.value.lines) == (
        "refused.no_tools",
        ("the source declares no tool: decorate a function with @tool(...)",),
    )
