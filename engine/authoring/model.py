"""The schema of a pydantic model, made strict.

Its job: take what the model says of itself, close its objects, fold its literals, drop what says nothing, and hang its definitions in ours.
Not its job: pydantic (it comes with the tool's own layers; nothing is imported here).
Laws:
1. An object that the model leaves open on purpose stays open, and so refuses (tests/unit/test_derive.py).
2. Definitions of different models under one name stay apart (tests/unit/test_derive.py).
"""

from collections.abc import Collection
from typing import Any

Schema = dict[str, Any]
_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_DATA = ("enum", "const", "default", "examples")
_DROPPED = ("discriminator",)  # OpenAPI's, not JSON Schema's: the alternatives say the same


def schema_of(kind: Any, definitions: Schema, *, taken: Collection[str], incoming: bool) -> Schema:
    """The model's strict schema; its definitions are added to ``definitions`` under names that are free there and not ``taken``."""
    raw = kind.model_json_schema(mode="validation" if incoming else "serialization")
    own = raw.pop("$defs", {})
    names: dict[str, str] = {}
    for name in own:
        free, number = name, 2
        while free in taken or (free in definitions and definitions[free] != _strict(own[name], {name: name for name in own})):
            free, number = f"{name}_{number}", number + 1
        names[name] = free
    for name, sub in own.items():
        definitions[names[name]] = _strict(sub, names)
    made: Schema = _strict(raw, names)
    return made


def _strict(node: Any, names: dict[str, str]) -> Any:
    if isinstance(node, list):
        return [_strict(item, names) for item in node]
    if not isinstance(node, dict):
        return node
    made: Schema = {}
    for keyword, value in node.items():
        if keyword in _DROPPED or (keyword == "title" and isinstance(value, str)):
            continue
        if keyword in _MAPS and isinstance(value, dict):
            made[keyword] = {name: _strict(sub, names) for name, sub in value.items()}
        elif keyword == "$ref" and isinstance(value, str) and value.removeprefix("#/$defs/") in names:
            made[keyword] = "#/$defs/" + names[value.removeprefix("#/$defs/")]
        else:
            made[keyword] = value if keyword in _DATA else _strict(value, names)
    if made.get("properties"):
        made.setdefault("type", "object")
        made.setdefault("additionalProperties", False)
    return _folded(made)


def _folded(node: Schema) -> Schema:
    """The node with the literals of a union written as one enum, null among them when it is an alternative."""
    for keyword in ("anyOf", "oneOf"):
        alternatives = node.get(keyword)
        literals = [one for one in alternatives or () if _is_literal(one)]
        if not alternatives or len(literals) + ({"type": "null"} in alternatives) < 2 or not literals:
            continue
        others = [one for one in alternatives if not _is_literal(one) and one != {"type": "null"}]
        values = [value for one in literals for value in (one["enum"] if "enum" in one else [one["const"]])]
        enum = {"enum": [*values, *([None] if {"type": "null"} in alternatives and None not in values else [])]}
        rest = {name: value for name, value in node.items() if name != keyword}
        return {**rest, keyword: [enum, *others]} if others else {**rest, **enum}
    return node


def _is_literal(node: Any) -> bool:
    return isinstance(node, dict) and set(node) <= {"const", "enum", "type"} and bool({"const", "enum"} & set(node))
