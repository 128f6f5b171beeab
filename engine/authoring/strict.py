"""Which JSON Schemas a declaration may hold: draft 2020-12, closed objects, enums for literals, known keywords, local references.

Its job: say every problem of a schema with its path and the remedy, the same in a guest and on the host.
Not its job: the other fields of a declaration (``rules.py``), values (``checking.py``).
Laws:
1. An object that declares keys is closed; an empty one may stay open (tests/unit/test_strict.py).
2. An unknown keyword refuses, so that a misspelt bound is not a missing bound (tests/unit/test_strict.py).
3. No reference leaves the schema (tests/unit/test_strict.py).
4. Depth, size and in-place expansion are bounded before anybody compiles it (tests/unit/test_strict.py).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engine.authoring.canonical import canonical
from engine.authoring.expansion import LISTS_HERE, ONE_HERE, Expansion
from engine.authoring.patterns import pattern_problem

DEPTH = 48  # levels of sub-schemas; the validator's own recursion takes about 250
NODES = 10_000  # sub-schemas in one schema
_DATA_DEPTH = 120  # containers around anything in a schema (a level of sub-schemas costs two); the wire takes 128
_BYTES = 256 << 10  # as canonical JSON; a model reads all of it
_DEFINITIONS = 256
_PATTERNS = 64
_HERE_AT_MOST = 4096  # sub-schemas applied to one value in one place
_LINES = 20  # problems told at once; nobody mends more in one go
_UNEVALUATED = 8  # each makes a validator apply its neighbours once more

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = frozenset(
    "date date-time time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference "
    "uuid uri-template json-pointer relative-json-pointer regex".split()
)  # those the host's validator checks; it refuses others
_DRAFT = "https://json-schema.org/draft/2020-12/schema"

Check = Callable[[Any], str | None]


def schema_problems(schema: object, where: str) -> list[str]:
    """One line for each problem of a schema, with its path below ``where``; empty when it may be used."""
    try:
        size = len(canonical(schema))
    except ValueError as error:  # UnicodeEncodeError, for lone surrogates, is one
        return [f"{where}: the schema is not plain JSON data ({error}): use dict, list, str, int, float, bool and None"]
    if type(schema) is not dict:
        return [f"{where}: a schema is a dict such as {{'type': 'object'}}, not {type(schema).__name__}"]
    if size > _BYTES:
        return [f"{where}: the schema has {size} bytes, at most {_BYTES} are allowed: describe less"]
    if _deeper(schema, _DATA_DEPTH):
        return [f"{where}: nested deeper than {_DATA_DEPTH} containers: flatten it"]
    walk = _Walk(schema, where)
    problems = list(_first(walk.problems(), _LINES))
    if problems:
        return problems
    expansion = Expansion(schema)
    if expansion.leads_back:
        return [f"{where}: a $ref leads back to itself without going into the value: put it below items or properties"]
    if expansion.largest() > _HERE_AT_MOST:
        return [f"{where}: more than {_HERE_AT_MOST} sub-schemas would apply to one value: use fewer alternatives"]
    return []


def quoted(name: object) -> str:
    """A foreign name between quotes and cut to a length that leaves room for the remedy."""
    text = str(name)
    return '"' + (text if len(text) <= 80 else text[:79] + "…") + '"'


def listed(names: Any) -> str:
    """Foreign names in one enumeration of at most thirty."""
    names = [quoted(name) for name in names]
    return ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")


def step(path: str, name: str) -> str:
    """The path of a member below a path."""
    return f"{path}.{name}" if name.isascii() and name.replace("_", "a").isalnum() else f"{path}[{quoted(name)}]"


def _first(lines: Iterator[str], count: int) -> Iterator[str]:
    for _, line in zip(range(count), lines, strict=False):
        yield line


def _deeper(value: object, bound: int) -> bool:
    level = [value]
    for _ in range(bound):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container if isinstance(container, list | tuple) else ())
            if isinstance(item, dict | list | tuple)
        ]
        if not level:
            return False
    return True


# -- what each keyword's value must be: the remedy when it is not


def _count(value: Any) -> str | None:
    return None if type(value) is int and 0 <= value < 1 << 53 else "must be a whole number from 0 to 2^53"


def _number(value: Any) -> str | None:
    return None if type(value) in (int, float) and abs(value) < 1 << 63 else "must be a number within 64 bits"


def _positive(value: Any) -> str | None:
    return "must be a number above 0" if _number(value) or value <= 0 else None


def _flag(value: Any) -> str | None:
    return None if type(value) is bool else "must be true or false"


def _text(value: Any) -> str | None:
    return None if type(value) is str else "must be a text"


def _names(value: Any) -> str | None:
    good = type(value) is list and all(type(name) is str for name in value) and len(set(value)) == len(value)
    return None if good else "must be a list of different names"


def _type(value: Any) -> str | None:
    kinds = value if type(value) is list else [value]
    good = bool(kinds) and all(kind in TYPES for kind in kinds) and len({str(kind) for kind in kinds}) == len(kinds)
    return None if good else "must be one of, or a list of different ones of: " + ", ".join(TYPES)


def _enum(value: Any) -> str | None:
    if type(value) is not list or not value:
        return "must be a list of at least one value"
    return None if len({canonical(item) for item in value}) == len(value) else "names a value twice"


def _format(value: Any) -> str | None:
    return None if type(value) is str and value in FORMATS else "must be one of: " + ", ".join(sorted(FORMATS))


def _pattern(value: Any) -> str | None:
    return pattern_problem(value) if type(value) is str else "must be a text"


def _reference(value: Any) -> str | None:
    good = type(value) is str and value.isascii() and value.startswith("#/$defs/")
    good = good and value[8:].replace("_", "a").replace("-", "a").isalnum()
    return None if good else "must name a definition of this schema, such as #/$defs/node: nothing is fetched"


def _draft(value: Any) -> str | None:
    return None if value == _DRAFT else f"must be {_DRAFT}"


def _depends(value: Any) -> str | None:
    good = type(value) is dict and all(_names(names) is None for names in value.values())
    return None if good else "must map keys to lists of names"


def _anything(value: Any) -> str | None:
    return None


_PLAIN: Mapping[str, Check] = {
    "$schema": _draft,
    "$comment": _text,
    "$ref": _reference,
    "type": _type,
    "enum": _enum,
    "const": _anything,
    "format": _format,
    "multipleOf": _positive,
    "maximum": _number,
    "exclusiveMaximum": _number,
    "minimum": _number,
    "exclusiveMinimum": _number,
    "maxLength": _count,
    "minLength": _count,
    "pattern": _pattern,
    "maxItems": _count,
    "minItems": _count,
    "uniqueItems": _flag,
    "maxContains": _count,
    "minContains": _count,
    "maxProperties": _count,
    "minProperties": _count,
    "required": _names,
    "dependentRequired": _depends,
    "title": _text,
    "description": _text,
    "default": _anything,
    "examples": _anything,
    "deprecated": _flag,
    "readOnly": _flag,
    "writeOnly": _flag,
    "contentEncoding": _text,
    "contentMediaType": _text,
}
_MAPS = ("properties", "patternProperties", "$defs", "dependentSchemas")
_LISTS = (*LISTS_HERE, "prefixItems")
_ONES = (*ONE_HERE, "items", "contains", "additionalProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
KEYWORDS = frozenset((*_PLAIN, *_MAPS, *_LISTS, *_ONES))
_IN_PLACE = frozenset((*LISTS_HERE, *ONE_HERE, "dependentSchemas"))


class _Walk:
    """One pass over the sub-schemas of a schema, without recursion."""

    def __init__(self, schema: dict[str, Any], where: str) -> None:
        self.root = schema
        self.where = where
        self.nodes = 0
        self.patterns = 0
        self.unevaluated = 0

    def problems(self) -> Iterator[str]:
        # a sub-schema, its path, its depth, and whether a schema around it already closes the same value
        todo: list[tuple[Any, str, int, bool]] = [(self.root, self.where, 0, False)]
        while todo:
            node, path, depth, closed = todo.pop()
            self.nodes += 1
            # security: a validator compiles and applies by recursion; past these bounds it ends the process, not the call
            if self.nodes > NODES or depth > DEPTH:
                yield f"{path}: more than {NODES} sub-schemas or {DEPTH} levels: split the tool, or describe less"
                return
            if type(node) is bool:
                continue
            if type(node) is not dict:
                yield f"{path}: a schema is an object, true or false, not {type(node).__name__}"
                continue
            yield from self._keywords(node, path)
            yield from _closed(node, path, closed)
            yield from _literals(node, path)
            todo.extend(reversed(list(_children(node, path, depth + 1, closed or _closes(node)))))

    def _keywords(self, node: dict[str, Any], path: str) -> Iterator[str]:
        for keyword, value in node.items():
            if keyword not in KEYWORDS:
                yield f"{path}: unknown keyword {quoted(keyword)}: use one of JSON Schema 2020-12, or put it into description or meta"
            elif keyword in _PLAIN:
                problem = _PLAIN[keyword](value)
                if problem is not None:
                    yield f"{path}.{keyword}: {problem}"
                elif keyword == "$ref" and value[8:] not in _mapping(self.root.get("$defs")):
                    yield f"{path}.$ref: {quoted(value)} is not defined: add it to $defs at the root of the schema"
            else:
                yield from _shape(keyword, value, path)
        yield from self._sums(node, path)

    def _sums(self, node: dict[str, Any], path: str) -> Iterator[str]:
        if "$defs" in node and (node is not self.root or len(_mapping(node["$defs"])) > _DEFINITIONS):
            yield f"{path}.$defs: definitions stand at the root of the schema, at most {_DEFINITIONS}: move them there"
        self.unevaluated += ("unevaluatedItems" in node) + ("unevaluatedProperties" in node)
        if self.unevaluated > _UNEVALUATED:
            yield f"{path}: more than {_UNEVALUATED} unevaluatedItems and unevaluatedProperties: use additionalProperties and items"
            self.unevaluated = 0
        patterns = list(_mapping(node.get("patternProperties")))
        self.patterns += ("pattern" in node) + len(patterns)
        if self.patterns > _PATTERNS:
            yield f"{path}: more than {_PATTERNS} patterns in one schema: use enums or lengths"
            self.patterns = 0
        for pattern in patterns:
            problem = pattern_problem(pattern)
            if problem is not None:
                yield f"{path}.patternProperties: {problem}"


def _mapping(value: object) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _shape(keyword: str, value: object, path: str) -> Iterator[str]:
    if keyword in _MAPS and type(value) is not dict:
        yield f"{path}.{keyword}: must map names to schemas"
    elif keyword in _LISTS and (type(value) is not list or not value):
        yield f"{path}.{keyword}: must be a list of at least one schema"
    elif keyword == "$defs":
        for name in _mapping(value):
            if _reference("#/$defs/" + name) is not None:
                yield f"{path}.$defs: the name {quoted(name)} must be letters, digits, _ and - only"


def _children(node: dict[str, Any], path: str, depth: int, closed: bool) -> Iterator[tuple[Any, str, int, bool]]:
    for keyword, value in node.items():
        here = closed and keyword in _IN_PLACE
        if keyword in _MAPS and type(value) is dict:
            inside = path if keyword == "properties" else f"{path}.{keyword}"
            for name, sub in value.items():
                yield sub, step(inside, name), depth, here
        elif keyword in _LISTS and type(value) is list:
            for index, sub in enumerate(value):
                yield sub, f"{path}.{keyword}[{index}]", depth, here
        elif keyword in _ONES:
            yield value, f"{path}.{keyword}", depth, here


def _closes(node: dict[str, Any]) -> bool:
    return node.get("additionalProperties") is False or node.get("unevaluatedProperties") is False


def _closed(node: dict[str, Any], path: str, closed_around: bool) -> Iterator[str]:
    keys = [*_mapping(node.get("properties")), *_mapping(node.get("patternProperties"))]
    if closed_around:
        return
    if keys and not _closes(node):
        # without it a misspelt "read_only" once ran a tool with full access
        yield f"{path}: an object that declares keys must be closed: add additionalProperties: false"
    kinds = node.get("type")
    if keys and kinds != "object" and not (type(kinds) is list and "object" in kinds):
        yield f"{path}: declares keys but would let any text or number pass: add type: object"
    required = node.get("required")
    for name in required if _names(required) is None and required else ():
        if name not in keys and "allOf" not in node and "patternProperties" not in node:
            yield f"{path}.required: {quoted(name)} is not among properties: declare it there"


def _literals(node: dict[str, Any], path: str) -> Iterator[str]:
    for keyword in ("anyOf", "oneOf"):
        alternatives = node.get(keyword)
        if type(alternatives) is not list:
            continue
        literal = [type(one) is dict and bool({"enum", "const"} & set(one)) for one in alternatives]
        if sum(literal) > 1 or (literal and all(literal)):
            yield f"{path}.{keyword}: a union of literals must be one enum: write enum: [...] with all the values"
