"""The builders of schemas."""

from typing import Any

import pytest

from engine.authoring import schema
from engine.authoring.strict import schema_problems
from engine.errors import DeclarationError

TEXT = {"type": "string"}
CASES: list[tuple[Any, Any]] = [
    (schema.string(), {"type": "string"}),
    (
        schema.string(min_length=1, max_length=9, pattern="^a$", format="date", description="d", default="a"),
        {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a$", "format": "date", "description": "d", "default": "a"},
    ),
    (schema.integer(minimum=0, maximum=3, multiple_of=2), {"type": "integer", "minimum": 0, "maximum": 3, "multipleOf": 2}),
    (schema.number(exclusive_minimum=0, exclusive_maximum=1.5), {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1.5}),
    (schema.boolean(default=False), {"type": "boolean", "default": False}),
    (schema.null(), {"type": "null"}),
    (schema.array(), {"type": "array"}),
    (
        schema.array(TEXT, min_items=1, max_items=2, unique_items=True),
        {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2, "uniqueItems": True},
    ),
    (schema.enum("a", 1, None), {"enum": ["a", 1, None]}),
    (schema.const("a"), {"const": "a"}),
    (schema.any_of(TEXT, schema.integer()), {"anyOf": [TEXT, {"type": "integer"}]}),
    (schema.one_of(TEXT, schema.integer()), {"oneOf": [TEXT, {"type": "integer"}]}),
    (schema.any(), {}),
    (schema.any(default=None), {"default": None}),
    (schema.nullable(TEXT), {"type": ["string", "null"]}),
    (schema.nullable(schema.null()), {"type": "null"}),
    (schema.nullable(schema.enum("a")), {"enum": ["a", None]}),
    (schema.nullable(schema.enum("a", None)), {"enum": ["a", None]}),
    (schema.nullable({"$ref": "#/$defs/a"}), {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}),
    (schema.mapping(TEXT, max_properties=3), {"type": "object", "additionalProperties": TEXT, "maxProperties": 3}),
    (schema.object(), {"type": "object"}),
    (schema.object({}), {"type": "object", "properties": {}, "additionalProperties": False}),
    (
        schema.object({"a": TEXT, "b": TEXT}),
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "additionalProperties": False, "required": ["a", "b"]},
    ),
    (
        schema.object({"a": TEXT, "b": TEXT}, optional=["b"], description="d"),
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "additionalProperties": False, "required": ["a"], "description": "d"},
    ),
    (schema.object({"a": TEXT}, required=[]), {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}),
]


@pytest.mark.parametrize(("built", "plain"), CASES, ids=range(len(CASES)))
def test_builders_make_plain_json_schema(built: Any, plain: Any) -> None:
    """What is not given does not appear, snake case becomes JSON Schema's keywords."""
    assert built == plain


@pytest.mark.parametrize("built", [built for built, _ in CASES if "$ref" not in str(built)], ids=str)
def test_what_builders_make_obeys_the_rules(built: Any) -> None:
    """Every builder's schema may stand in a declaration."""
    assert schema_problems(built, "output") == []


@pytest.mark.parametrize(
    ("required", "optional", "line"),
    [
        (["b"], (), 'schema.object: "b" is not among the properties: declare it, or mend its spelling'),
        (None, ["b"], 'schema.object: "b" is not among the properties: declare it, or mend its spelling'),
        (["a"], ["a"], 'schema.object: "a" is both required and optional: keep one of them'),
    ],
)
def test_keys_that_contradict_each_other_refuse(required: Any, optional: Any, line: str) -> None:
    """A misspelt name in required or optional does not pass."""
    with pytest.raises(DeclarationError) as caught:
        schema.object({"a": TEXT}, required, optional)
    assert caught.value.lines == (line,)


def test_bounds_know_their_words() -> None:
    """An unknown bound refuses and lists those there are; a known one is spelled as JSON Schema does."""
    assert schema.Bounds(min_length=1).keywords == {"minLength": 1}
    with pytest.raises(DeclarationError) as caught:
        schema.Bounds(minlen=1)
    assert caught.value.lines[0].startswith('unknown bound "minlen": use one of title, description, default')
