"""Builders of JSON Schemas for the input, output and partial results of a tool.

Its job: plain dicts of JSON Schema 2020-12 that obey the strict rules: closed objects, all keys required unless said otherwise.
Not its job: checking a schema (``strict.py``), schemas from type hints (``derive.py``).
Laws:
1. What a builder returns is plain JSON Schema, which may as well be written by hand (tests/unit/test_schema.py).
2. A bound that is not given does not appear (tests/unit/test_schema.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from engine.authoring.strict import quoted
from engine.errors import DeclarationError

Schema = dict[str, Any]

UNSET: Any = object()  # tells "no default" from "the default is None"

KEYWORDS: Mapping[str, str] = {
    "title": "title",
    "description": "description",
    "default": "default",
    "examples": "examples",
    "format": "format",
    "pattern": "pattern",
    "min_length": "minLength",
    "max_length": "maxLength",
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusive_minimum": "exclusiveMinimum",
    "exclusive_maximum": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "min_items": "minItems",
    "max_items": "maxItems",
    "unique_items": "uniqueItems",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
}


class Bounds:
    """Bounds of a hint, in snake case: ``Annotated[int, Bounds(minimum=1)]``. Raises DeclarationError for a word it does not know."""

    __slots__ = ("keywords",)

    def __init__(self, **bounds: Any) -> None:
        self.keywords = keywords(bounds)


def keywords(bounds: Mapping[str, Any]) -> Schema:
    """Snake-case bounds as keywords of JSON Schema. Raises DeclarationError for a word that is none."""
    for word in bounds:
        if word not in KEYWORDS:
            raise DeclarationError(f"unknown bound {quoted(word)}: use one of {', '.join(KEYWORDS)}")
    return {KEYWORDS[word]: value for word, value in bounds.items()}


def _node(base: Schema, **bounds: Any) -> Schema:
    default = bounds.pop("default", UNSET)
    given = keywords({word: value for word, value in bounds.items() if value is not None})
    return {**base, **given} if default is UNSET else {**base, **given, "default": default}


def object(
    properties: Mapping[str, Schema] | None = None,
    required: Iterable[str] | None = None,
    optional: Iterable[str] = (),
    *,
    description: str | None = None,
    default: Any = UNSET,
) -> Schema:
    """A closed object. All its keys are required unless ``required`` or ``optional`` say otherwise; without properties it is open."""
    if properties is None:
        return _node({"type": "object"}, description=description, default=default)
    left_out = [optional] if isinstance(optional, str) else list(optional)
    wanted = [key for key in properties if key not in left_out] if required is None else list(required)
    for key in (*wanted, *left_out):
        if key not in properties:
            raise DeclarationError(f"schema.object: {quoted(key)} is not among the properties: declare it, or mend its spelling")
    for key in left_out:
        if key in wanted:
            raise DeclarationError(f"schema.object: {quoted(key)} is both required and optional: keep one of them")
    closed: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if wanted:
        closed["required"] = wanted
    return _node(closed, description=description, default=default)


def mapping(
    values: Schema,
    *,
    min_properties: int | None = None,
    max_properties: int | None = None,
    description: str | None = None,
    default: Any = UNSET,
) -> Schema:
    """An object with any keys whose values all fit one schema."""
    base: Schema = {"type": "object", "additionalProperties": values}
    return _node(base, min_properties=min_properties, max_properties=max_properties, description=description, default=default)


def string(
    *,
    min_length: int | None = None,
    max_length: int | None = None,
    pattern: str | None = None,
    format: str | None = None,
    description: str | None = None,
    default: Any = UNSET,
) -> Schema:
    """A text; lengths in characters. The pattern is searched for: anchor it with ^ and $ to match the whole."""
    bounds = {"min_length": min_length, "max_length": max_length, "pattern": pattern, "format": format}
    return _node({"type": "string"}, **bounds, description=description, default=default)


def integer(
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    exclusive_minimum: int | None = None,
    exclusive_maximum: int | None = None,
    multiple_of: int | None = None,
    description: str | None = None,
    default: Any = UNSET,
) -> Schema:
    """A whole number (``1.0`` is one too in JSON Schema; a tool that hints ``int`` gets ``1``)."""
    bounds = {"minimum": minimum, "maximum": maximum, "exclusive_minimum": exclusive_minimum, "exclusive_maximum": exclusive_maximum}
    return _node({"type": "integer"}, **bounds, multiple_of=multiple_of, description=description, default=default)


def number(
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    exclusive_minimum: float | None = None,
    exclusive_maximum: float | None = None,
    multiple_of: float | None = None,
    description: str | None = None,
    default: Any = UNSET,
) -> Schema:
    """A finite number."""
    bounds = {"minimum": minimum, "maximum": maximum, "exclusive_minimum": exclusive_minimum, "exclusive_maximum": exclusive_maximum}
    return _node({"type": "number"}, **bounds, multiple_of=multiple_of, description=description, default=default)


def boolean(*, description: str | None = None, default: Any = UNSET) -> Schema:
    """True or false; never 0 or 1."""
    return _node({"type": "boolean"}, description=description, default=default)


def null(*, description: str | None = None) -> Schema:
    """Nothing but null."""
    return _node({"type": "null"}, description=description)


def array(
    items: Schema | None = None,
    *,
    min_items: int | None = None,
    max_items: int | None = None,
    unique_items: bool | None = None,
    description: str | None = None,
    default: Any = UNSET,
) -> Schema:
    """A list whose items all fit one schema, or any list."""
    base: Schema = {"type": "array"} if items is None else {"type": "array", "items": items}
    return _node(base, min_items=min_items, max_items=max_items, unique_items=unique_items, description=description, default=default)


def enum(*values: Any, description: str | None = None, default: Any = UNSET) -> Schema:
    """One of the values named."""
    return _node({"enum": list(values)}, description=description, default=default)


def const(value: Any, *, description: str | None = None) -> Schema:
    """Exactly one value."""
    return _node({"const": value}, description=description)


def any_of(*alternatives: Schema, description: str | None = None, default: Any = UNSET) -> Schema:
    """At least one of the schemas. For literals use ``enum``."""
    return _node({"anyOf": list(alternatives)}, description=description, default=default)


def one_of(*alternatives: Schema, description: str | None = None, default: Any = UNSET) -> Schema:
    """Exactly one of the schemas. For literals use ``enum``."""
    return _node({"oneOf": list(alternatives)}, description=description, default=default)


def nullable(schema: Schema) -> Schema:
    """The schema, or null, in its shortest form."""
    if "enum" in schema and "type" not in schema:
        return schema if None in schema["enum"] else {**schema, "enum": [*schema["enum"], None]}
    kinds = schema.get("type")
    if isinstance(kinds, str) and not {"enum", "const", "$ref", "anyOf", "oneOf", "allOf", "not"} & set(schema):
        return schema if kinds == "null" else {**schema, "type": [kinds, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def any(*, description: str | None = None, default: Any = UNSET) -> Schema:
    """Any plain data."""
    return _node({}, description=description, default=default)
