"""What about a value does not fit its schema, in lines a model can act on.

Its job: from one error of the validator to lines: the path, what stands against it, what the schema wants.
Not its job: finding the errors, and how much that may cost (``checking.py``).
Laws:
1. No line holds a value (tests/unit/test_checking.py).
2. An unknown key names itself and the keys there are, an enum names its values, a missing key is named (tests/unit/test_checking.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs

from engine.authoring.canonical import canonical
from engine.authoring.strict import listed, quoted, step
from engine.errors import one_line

_PATH = 200  # characters of a path worth reading
_ALTERNATIVES = 6  # of a union told in one line
_VALUES = 40  # of an enum told in one line
_NESTING = 3  # unions inside of unions that are looked into
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "minimum": ("must be at least {}", "limit"),
    "maximum": ("must be at most {}", "limit"),
    "exclusiveMinimum": ("must be more than {}", "limit"),
    "exclusiveMaximum": ("must be less than {}", "limit"),
    "multipleOf": ("must be a multiple of {}", "multiple_of"),
    "pattern": ("must match the pattern {}", "pattern"),
    "minLength": ("must have at least {} characters", "limit"),
    "maxLength": ("must have at most {} characters", "limit"),
    "minItems": ("must have at least {} items", "limit"),
    "maxItems": ("must have at most {} items", "limit"),
    "minProperties": ("must have at least {} keys", "limit"),
    "maxProperties": ("must have at most {} keys", "limit"),
    "format": ("must be a text of the format {}", "format"),
}
_FIXED: Mapping[str, str] = {
    "uniqueItems": "holds an item twice",
    "falseSchema": "nothing is allowed here: leave it out",
    "not": "is what the schema excludes",
    "contains": "lacks an item that the schema asks for",
    "minContains": "lacks an item that the schema asks for",
    "maxContains": "has too many of the items that the schema counts",
}


def lines(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> list[str]:
    """The lines for one error of a value against the schema, sanitised."""
    return [one_line(line) for line in _lines(error, schema, 0)]


def path_text(parts: Iterable[str | int]) -> str:
    """A path into a value: ``$.items[1].kind``, cut in its middle when it is long."""
    path = "$"
    for part in parts:
        path = f"{path}[{part}]" if isinstance(part, int) else step(path, part)
    return path if len(path) <= _PATH else path[: _PATH // 2] + "…" + path[-_PATH // 2 :]


def _lines(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any], nesting: int) -> list[str]:
    path = path_text(error.instance_path)
    details = error.kind.as_dict()
    keyword = error.kind.name
    if keyword in ("additionalProperties", "unevaluatedProperties"):
        keys = _keys(error, schema)
        return [f"{path}: unknown key {quoted(key)}: {keys}" for key in details["unexpected"]]
    if keyword == "required":
        return [f"{path}: missing key {quoted(details['property'])}: add it"]
    if keyword in ("anyOf", "oneOf"):
        return _union(path, len(error.instance_path), details["context"], schema, nesting)
    if keyword == "propertyNames":
        return [f"{path}: a key is not allowed: {line.removeprefix(f'{path}: ')}" for line in _lines(details["error"], schema, nesting)]
    return [f"{path}: {_wanted(keyword, details)}"]


def _wanted(keyword: str, details: Mapping[str, Any]) -> str:
    if keyword == "enum":
        return "must be one of " + _literals(details["options"])
    if keyword == "const":
        return "must be " + _literal(details["expected_value"])
    if keyword == "type":
        return "must be of type " + " or ".join(details["types"])
    if keyword in _BOUNDS:
        text, detail = _BOUNDS[keyword]
        return text.format(str(details[detail])[:200])
    return _FIXED.get(keyword, f"does not fit the schema's {keyword}")


def _literals(values: list[Any]) -> str:
    shown = ", ".join(_literal(value) for value in values[:_VALUES])
    return shown if len(values) <= _VALUES else f"{shown} and {len(values) - _VALUES} more"


def _literal(value: Any) -> str:
    text = canonical(value).decode("utf-8")
    return text if len(text) <= 80 else text[:79] + "…"


def _keys(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> str:
    """The keys that the object of an error takes; the schema's path leads to it, references resolved."""
    if error.kind.name == "unevaluatedProperties":
        return "leave it out"  # what it takes stands in several places
    node: Any = schema
    for part in list(error.schema_path)[:-1]:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return "leave it out"
    known = node.get("properties") if isinstance(node, Mapping) else None
    return f"it takes {listed(known)}" if known else "it takes no keys"


def _union(path: str, depth: int, context: list[list[jsonschema_rs.ValidationError]], schema: Mapping[str, Any], nesting: int) -> list[str]:
    """The nearest alternative's own lines when only one has the right type, else what each alternative wants."""
    if not context or any(not errors for errors in context):
        return [f"{path}: fits more than one alternative: say which by the keys only one of them has"]
    if nesting >= _NESTING:
        return [f"{path}: fits no alternative"]
    near = [errors for errors in context if not any(_other_type(error, depth) for error in errors)]
    meant = [errors for errors in near if not any(_other_tag(error, depth) for error in errors)]
    if len(meant) == 1 or len(near) == 1:
        return [line for error in (meant or near)[0] for line in _lines(error, schema, nesting + 1)]
    wants = [_lines(errors[0], schema, nesting + 1)[0].removeprefix(f"{path}: ") for errors in (meant or near or context)[:_ALTERNATIVES]]
    return [f"{path}: fits no alternative: " + ", or ".join(dict.fromkeys(wants))]


def _other_type(error: jsonschema_rs.ValidationError, depth: int) -> bool:
    """Whether the alternative is for another type of value."""
    return error.kind.name in ("type", "const", "enum") and len(error.instance_path) == depth


def _other_tag(error: jsonschema_rs.ValidationError, depth: int) -> bool:
    """Whether a key that has one value only, as tags of tagged unions have, has another one."""
    if len(error.instance_path) != depth + 1:
        return False
    return error.kind.name == "const" or (error.kind.name == "enum" and len(error.kind.as_dict()["options"]) == 1)
