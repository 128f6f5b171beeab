"""Schemas from type hints: our own small derivation, because it runs in the guest, where pydantic is not.

Its job: input, partial and output of a function from its hints; named types that hold themselves become ``$defs``.
Not its job: taking hints apart (``hints.py``), the strict rules (``strict.py``, applied to all schemas alike).
Laws:
1. A hint without a JSON form refuses and names the parameter and the remedy (tests/unit/test_derive.py).
2. Literals of one union fold into one enum (tests/unit/test_derive.py).
3. The same hints give the same schema on every interpreter (tests/house/test_guest_tree.py).
"""

import typing
from collections import abc
from collections.abc import Callable, Mapping
from typing import Any

from engine.authoring import hints as shapes
from engine.authoring import model, signature
from engine.authoring.convert import NotData, to_data
from engine.authoring.schema import Bounds, Schema, keywords
from engine.authoring.strict import NODES, quoted, step
from engine.errors import DeclarationError

_SCALARS: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    shapes.NONE: {"type": "null"},
}
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection)
_DICTS = (dict, abc.Mapping)
_STREAMS = (abc.Iterator, abc.Iterable, abc.Generator, abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)
_REMEDIES: Mapping[str, str] = {
    "bytes": "use str, with base64 for binary data",
    "bytearray": "use str, with base64 for binary data",
    "set": "use list",
    "frozenset": "use list",
    "datetime": "use Annotated[str, {'format': 'date-time'}]",
    "date": "use Annotated[str, {'format': 'date'}]",
    "UUID": "use Annotated[str, {'format': 'uuid'}]",
    "Decimal": "use str",
    "Path": "use str",
    "complex": "use a list of two floats",
}
_FOREIGN_BOUNDS = ("ge", "gt", "le", "lt", "min_length", "max_length", "multiple_of")  # the attributes of annotated-types
_FOREIGN_NAMES = {"ge": "minimum", "gt": "exclusive_minimum", "le": "maximum", "lt": "exclusive_maximum"}

hints_of = shapes.of_function


class Unsupported(Exception):
    """A hint has no JSON form; the text says where and what to do."""


def schemas_of(
    function: Callable[..., Any], hints: Mapping[str, Any], context: str | None, given: Mapping[str, Schema | None], lines: list[str]
) -> dict[str, Any]:
    """Input, output and partial: those given, else derived. What cannot be derived is added to ``lines``."""
    streams = signature.streams(function)
    made = dict(given)
    partial_hint, output_hint = Any, hints.get("return", Any)
    if streams and None in (made["partial"], made["output"]):
        partial_hint, output_hint = _stream_hints(output_hint, lines)
    try:
        if made["input"] is None:
            made["input"] = _input(function, hints, context)
        if made["output"] is None:
            made["output"] = _whole(output_hint, "the return value", "output")
        if made["partial"] is None and streams:
            made["partial"] = _whole(partial_hint, "what it yields", "partial")
    except (Unsupported, DeclarationError) as error:
        lines.extend(error.lines if isinstance(error, DeclarationError) else (str(error),))
    return made


def _stream_hints(hint: Any, lines: list[str]) -> tuple[Any, Any]:
    """What is yielded and what is returned at the end, from the return hint of a generator."""
    if hint is Any:
        return Any, Any
    origin = typing.get_origin(hint) or hint
    if origin not in _STREAMS:
        lines.append("the return value: a function that yields is annotated Iterator[...], Generator[...] or their async forms")
        return Any, Any
    arguments = typing.get_args(hint)
    returned = arguments[2] if origin is abc.Generator and len(arguments) == 3 else None
    return (arguments[0] if arguments else Any), (shapes.NONE if returned is None else returned)


def _input(function: Callable[..., Any], hints: Mapping[str, Any], context: str | None) -> Schema:
    deriver = _Deriver("input")
    properties: Schema = {}
    required = []
    for name, has_default in signature.parameters(function).items():
        if name == context:
            continue
        if name not in hints:
            raise Unsupported(f"the parameter {quoted(name)} has no type hint: add one, or give input=")
        properties[name] = deriver.schema(hints[name], f"the parameter {quoted(name)}")
        if has_default:
            properties[name] = _with_default(properties[name], signature.default_of(function, name))
        else:
            required.append(name)
    closed: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return deriver.finished({**closed, "required": required} if required else closed)


def _whole(hint: Any, where: str, keyword: str) -> Schema:
    deriver = _Deriver(keyword)
    return deriver.finished(deriver.schema(hint, where))


def _with_default(schema: Schema, default: Any) -> Schema:
    """The schema with its default, when that is plain data: what a model reads is a courtesy, the function's own default counts."""
    try:
        return {**schema, "default": to_data(default)}
    except NotData:
        return schema


class _Deriver:
    """Derives one schema; remembers the named types it is inside of, so that one which holds itself becomes a definition."""

    def __init__(self, keyword: str) -> None:
        self.keyword = keyword
        self.incoming = keyword == "input"
        self.definitions: Schema = {}
        self.names: dict[Any, str] = {}  # named types that are open now, or that hold themselves
        self.holds_itself: set[str] = set()
        self.nodes = 0

    def finished(self, schema: Schema) -> Schema:
        return {**schema, "$defs": self.definitions} if self.definitions else schema

    def unsupported(self, hint: Any, where: str, remedy: str = "") -> Unsupported:
        name = getattr(hint, "__name__", None) or str(hint)
        return Unsupported(f"{where}: the hint {quoted(name)} has no JSON form: {remedy or f'use plain types, or give {self.keyword}='}")

    def schema(self, hint: Any, where: str) -> Schema:
        """The schema of one hint. Raises Unsupported with its place."""
        self.nodes += 1
        if self.nodes > NODES:
            raise Unsupported(f"{where}: the hints expand to more than {NODES} schemas: give {self.keyword}=")
        if isinstance(hint, shapes.Unresolved):
            remedy = "define it at the top of the module, outside TYPE_CHECKING"
            raise Unsupported(f"{where}: the hint {quoted(hint.text)} cannot be found: {remedy}")
        if hint is None or (_hashable(hint) and hint in _SCALARS):
            return dict(_SCALARS[shapes.NONE if hint is None else hint])
        if hint is Any or hint is object:
            return {}
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            inner, *markers = typing.get_args(hint)
            return _bounded(self.schema(inner, where), markers, where)
        if origin is typing.Literal:
            return self._enum(typing.get_args(hint), hint, where)
        if origin in shapes.UNIONS:
            return self._union(typing.get_args(hint), where)
        return self._container(hint, origin or hint, typing.get_args(hint), where) or self._named(hint, where)

    def _container(self, hint: Any, origin: Any, arguments: tuple[Any, ...], where: str) -> Schema | None:
        if origin in _LISTS:
            return {"type": "array", "items": self.schema(arguments[0], where + "[]")} if arguments else {"type": "array"}
        if origin in _DICTS:
            if arguments and arguments[0] is not str:
                raise self.unsupported(hint, where, "keys of JSON objects are texts: use dict[str, ...]")
            return {"type": "object", "additionalProperties": self.schema(arguments[1], where + "[]")} if arguments else {"type": "object"}
        if origin is not tuple:
            return None
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return {"type": "array", "items": self.schema(arguments[0], where + "[]")}
        return {"type": "array"} if hint is tuple or hint is typing.Tuple else self._fixed(dict(enumerate(arguments)), where)  # noqa: UP006  the bare alias

    def _fixed(self, items: Mapping[Any, Any], where: str) -> Schema:
        if not items:
            return {"type": "array", "maxItems": 0}
        schemas = [self.schema(hint, f"{where}[{name}]") for name, hint in items.items()]
        return {"type": "array", "prefixItems": schemas, "items": False, "minItems": len(schemas), "maxItems": len(schemas)}

    def _named(self, hint: Any, where: str) -> Schema:
        if shapes.is_enum(hint):
            return self._enum(tuple(hint), hint, where)
        if shapes.is_model(hint):
            return model.schema_of(hint, self.definitions, taken=self.names.values(), incoming=self.incoming)
        record = shapes.is_dataclass(hint) or shapes.is_typed_dict(hint) or shapes.is_named_tuple(hint)
        value = shapes.alias_value(hint)
        if not record and value is shapes.NO_DEFAULT:
            raise self.unsupported(hint, where, _REMEDIES.get(getattr(hint, "__name__", ""), ""))
        if hint in self.names:
            self.holds_itself.add(self.names[hint])
            return {"$ref": "#/$defs/" + self.names[hint]}
        name = self.names[hint] = _free_name(hint.__name__, (*self.names.values(), *self.definitions))
        made = self._record(hint, where) if record else self.schema(value, where)
        if name not in self.holds_itself:
            del self.names[hint]
            return made
        self.definitions[name] = made
        return {"$ref": "#/$defs/" + name}

    def _record(self, hint: Any, where: str) -> Schema:
        if shapes.is_named_tuple(hint):
            return self._fixed(shapes.named_tuple_fields(hint), where)
        typed = shapes.is_typed_dict(hint)
        fields = shapes.typed_dict_fields(hint) if typed else shapes.dataclass_fields(hint, init_only=self.incoming)
        properties: Schema = {}
        required = []
        for name, field in fields.items():
            made = self.schema(field.hint, step(where, name))
            properties[name] = made if field.default is shapes.NO_DEFAULT or not self.incoming else _with_default(made, field.default)
            # what goes out has every field of a dataclass, what comes in may leave out those with a default
            if field.required or not (typed or self.incoming):
                required.append(name)
        closed: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**closed, "required": required} if required else closed

    def _enum(self, members: tuple[Any, ...], hint: Any, where: str) -> Schema:
        values: list[Any] = []
        for member in members:
            value = member.value if shapes.is_enum(type(member)) else member
            if type(value) not in (str, int, bool, shapes.NONE):
                raise self.unsupported(hint, where, "its values must be texts, whole numbers, true, false or null")
            if not any(type(value) is type(other) and value == other for other in values):
                values.append(value)
        if shapes.is_enum(hint) and hasattr(hint, "__or__") and hasattr(hint, "_flag_mask_"):
            raise self.unsupported(hint, where, "flags combine: use a list of an Enum")
        return {"enum": values}

    def _union(self, members: tuple[Any, ...], where: str) -> Schema:
        made = [self.schema(member, where) for member in members]
        literals = [one for one in made if set(one) == {"enum"}]
        others = [one for one in made if set(one) != {"enum"}]
        if literals:
            values = list({(type(value), value): value for one in literals for value in one["enum"]}.values())
            if {"type": "null"} in others:
                others.remove({"type": "null"})
                values += [] if None in values else [None]
            others.insert(0, {"enum": values})
        if {} in others:
            return {}
        if all(set(one) == {"type"} for one in others):
            kinds = [kind for one in others for kind in (one["type"] if isinstance(one["type"], list) else [one["type"]])]
            return {"type": list(dict.fromkeys(kinds)) if len(kinds) > 1 else kinds[0]}
        return others[0] if len(others) == 1 else {"anyOf": others}


def _hashable(hint: Any) -> bool:
    try:
        hash(hint)
    except TypeError:  # Literal and Annotated over lists
        return False
    return True


def _free_name(name: str, taken: tuple[str, ...]) -> str:
    plain = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)
    number = 2
    free = plain
    while free in taken:
        free, number = f"{plain}_{number}", number + 1
    return free


def _bounded(schema: Schema, markers: list[Any], where: str) -> Schema:
    """The schema with the bounds of an Annotated. A marker nobody knows refuses: dropping a bound would open what it closed."""
    for marker in markers:
        if isinstance(marker, str):
            found: Schema = {"description": marker}
        elif isinstance(marker, Bounds):
            found = marker.keywords
        elif isinstance(marker, dict):
            found = keywords(marker)
        else:
            foreign = {name: getattr(marker, name) for name in _FOREIGN_BOUNDS if getattr(marker, name, None) is not None}
            if not foreign:
                raise Unsupported(f"{where}: the marker {quoted(type(marker).__name__)} is not known: use schema.Bounds(...)")
            found = keywords({_FOREIGN_NAMES.get(name, name): value for name, value in foreign.items()})
        sized = {"minLength": "minItems", "maxLength": "maxItems"} if schema.get("type") == "array" else {}
        schema = {**schema, **{sized.get(keyword, keyword): value for keyword, value in found.items()}}
    return schema
