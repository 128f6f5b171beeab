"""Plain data to what a tool's hints say, and what a tool returns to plain data.

Its job: ``arguments_for`` before a tool runs, ``to_data`` after.
Not its job: checking against a schema (the host does, before and after).
Laws:
1. ``to_data`` returns only None, bool, int64, finite float, str, list and dict with str keys, of exactly those types
   (tests/unit/test_convert.py).
2. Neither a value that holds itself nor one of a hundred thousand levels costs stack (tests/unit/test_convert.py).
3. What has no exact mapping refuses by path and type, never by value (tests/unit/test_convert.py).
"""

import functools
import typing
from collections import abc
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

from engine.authoring import hints as shapes
from engine.authoring.strict import quoted, step
from engine.errors import RequestError, ToolError

DEPTH = 128  # containers around a value, itself included, as on the wire
NODES = 1_000_000  # values in all, as on the wire
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_SCALARS = frozenset({str, int, float, bool})
_PATH = 400  # characters of a path worth reading


class NotData(ToolError):
    """A value is not plain data; ``path`` says where and ``type_name`` what stands there."""

    def __init__(self, path: str, type_name: str) -> None:
        self.path = path if len(path) <= _PATH else path[: _PATH // 2] + "…" + path[-_PATH // 2 :]
        self.type_name = type_name
        remedy = "return None, bool, int64, finite float, str, list or dict"
        super().__init__("tool_error.result_not_data", f"{self.path} is {type_name}: {remedy}")


class _Link:
    """A place in the value being walked: its key, the place above, and the container that stands there."""

    __slots__ = ("above", "depth", "key", "value")

    def __init__(self, above: "_Link | None", key: str | int | None, value: object) -> None:
        self.above = above
        self.key = key
        self.value = value
        self.depth: int = 1 if above is None else above.depth + 1

    def path(self) -> str:
        keys = []
        link: _Link | None = self
        while link is not None and link.key is not None:
            keys.append(link.key)
            link = link.above
        path = "$"
        for key in reversed(keys):
            path = f"{path}[{key}]" if isinstance(key, int) else step(path, key)
        return path


def to_data(value: object) -> Any:
    """The value as plain data: dataclass to dict, Enum to its value, tuple to list, a pydantic model by its own dump.

    Raises NotData with path and type name for anything else, for a value that holds itself, and past 128 levels.
    """
    out: list[Any] = []
    left = NODES
    todo: list[tuple[_Link, Any]] = [(_Link(None, None, value), out)]  # a place, and the list or dict that gets what stands there
    while todo:
        link, target = todo.pop()
        current = _plain(link.value, link)
        if type(current) is dict:
            made: Any = {}
            members: list[tuple[Any, Any]] = list(current.items())
        elif type(current) is list or type(current) is tuple:
            made = []
            members = list(enumerate(current))
        else:
            made, members = current, []
        if type(target) is dict:
            target[link.key] = made
        else:
            target.append(made)
        # security: a value that holds itself would be walked until memory ends
        if made is not current and link.depth > DEPTH:
            _refuse(link, f"nested deeper than {DEPTH} levels, or holds itself")
        left -= len(members)
        # security: a few values that hold each other twice are more than any memory once they are written out
        if left < 0:
            _refuse(link, f"more than {NODES} values with what stands before it")
        if members:
            for key, member in reversed(members):
                if type(current) is dict and type(key) is not str:
                    _refuse(link, f"a dict with a key of type {type(key).__name__}")
                todo.append((_Link(link, key, member), made))
            if type(made) is dict:
                made.update(dict.fromkeys(current))  # keys keep their order, whatever the order they are filled in
                for key in current:
                    _text(key, link)
    return out[0]


def _refuse(link: _Link, type_name: str) -> NoReturn:
    raise NotData(link.path(), type_name)


def _text(text: str, link: _Link) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            _refuse(link, "str with a lone surrogate")


def _plain(value: object, link: _Link) -> Any:
    """The value of this one place with an exact type; its members are still to do."""
    for _ in range(8):  # an Enum of a dataclass of a tuple is possible, an endless chain is not
        kind = type(value)
        if value is None or kind is bool or kind is dict or kind is list or kind is tuple:
            return value
        if kind is str:
            _text(typing.cast("str", value), link)
            return value
        if kind is int:
            return value if _INT_MIN <= typing.cast("int", value) <= _INT_MAX else _refuse(link, "int outside 64 bits")
        if kind is float:
            return value if value - value == 0.0 else _refuse(link, "float that is not finite")  # type: ignore[operator]  # kind is float
        value = _mapped(value, link)
    _refuse(link, "wrapped too often")


def _mapped(value: Any, link: _Link) -> Any:
    kind = type(value)
    if shapes.is_enum(kind):
        return value.value
    if shapes.is_dataclass(kind):
        import dataclasses  # loaded already, or there would be no dataclass

        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if shapes.is_named_tuple(kind):
        return list(value)
    if shapes.is_model(kind) and hasattr(kind, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    _refuse(link, kind.__name__)


# -- the way in


class Declared(Protocol):
    """What ``arguments_for`` needs of a tool."""

    @property
    def function(self) -> Any:
        """The plain function."""

    @property
    def declaration(self) -> dict[str, Any]:
        """Its declaration as plain data."""


class _Misfit(Exception):
    """The data does not fit the hint."""


def arguments_for(tool: Declared, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for the tool's function, converted to what its hints say. The context is the caller's to add.

    Keys that an open input lets pass but no parameter takes are left out. Raises RequestError when data that passed the schema does not
    fit the hint (the two then contradict each other).
    """
    hints = shapes.of_function(tool.function)
    _fields_of.cache_clear()  # a name in a hint may be found now that was not there yet at the last call
    known = tool.declaration["input"].get("properties", {})
    made = {}
    for name, value in arguments.items():
        if name not in known:
            continue
        try:
            made[name] = _build(hints.get(name, Any), value, choosing=False)
        except _Misfit as misfit:
            raise RequestError("refused.arguments", f"{quoted(name)} does not fit the function's hint: {misfit}") from None
    return made


def _build(hint: Any, value: Any, *, choosing: bool) -> Any:
    """The value as the hint says. ``choosing`` among alternatives, a scalar of another type is a misfit; else the schema has decided."""
    if type(value) is hint and hint in _SCALARS:
        return value  # most of what a large value holds
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return _build(arguments[0], value, choosing=choosing)
    if origin in shapes.UNIONS:
        return _alternative(arguments, value, choosing=choosing)
    if origin is typing.Literal:
        return _literal(arguments, value, choosing=choosing)
    named = shapes.alias_value(hint)
    if named is not shapes.NO_DEFAULT:
        return _build(named, value, choosing=choosing)
    if hint is float or hint is int:
        return _number(hint, value, choosing=choosing)
    if isinstance(hint, type) and origin is None and hint not in (list, dict, tuple, object):
        return _instance(hint, value, choosing=choosing)
    if hint is None or hint is Any or hint is object or isinstance(hint, shapes.Unresolved):
        return _same(value is None or hint is not None, value, choosing, "null")
    return _members(origin or hint, arguments, value, choosing=choosing)


def _same(fits: bool, value: Any, choosing: bool, wanted: str) -> Any:
    if choosing and not fits:
        raise _Misfit(f"it takes {wanted}")
    return value


def _alternative(members: tuple[Any, ...], value: Any, *, choosing: bool) -> Any:
    if type(value) in members:
        return value  # 1.0 stays a float where both int and float may be
    for member in members:
        try:
            return _build(member, value, choosing=True)
        except _Misfit:
            continue
    return _same(False, value, choosing, "one of the alternatives")


def _literal(members: tuple[Any, ...], value: Any, *, choosing: bool) -> Any:
    for member in members:
        plain = member.value if shapes.is_enum(type(member)) else member
        if type(plain) is type(value) and plain == value:
            return member
    return _same(False, value, choosing, "one of the literals")


def _number(hint: type, value: Any, *, choosing: bool) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if hint is int and type(value) is float and value.is_integer():
        return int(value)  # 1.0 is a whole number in JSON Schema
    return _same(type(value) is hint, value, choosing, hint.__name__)


def _instance(hint: Any, value: Any, *, choosing: bool) -> Any:
    if shapes.is_enum(hint):
        for member in hint:
            if type(member.value) is type(value) and member.value == value:
                return member
        raise _Misfit("it takes one of the enum's values")
    if shapes.is_model(hint):
        try:
            return hint.model_validate(value)
        except ValueError:
            raise _Misfit(f"it takes what {hint.__name__} takes") from None
    if shapes.is_typed_dict(hint):
        return _record(hint, _fields_of(hint), value, dict)
    if shapes.is_dataclass(hint):
        return _record(hint, _fields_of(hint), value, hint)
    if shapes.is_named_tuple(hint):
        items = _fields_of(hint)
        if type(value) is not list or len(value) != len(items):
            raise _Misfit(f"it takes a list of {len(items)} items")
        return hint(*(_build(one, item, choosing=choosing) for one, item in zip(items.values(), value, strict=True)))
    return _same(type(value) is hint, value, choosing, hint.__name__)


@functools.cache
def _fields_of(hint: Any) -> Any:
    """What the fields of a class are said to hold: read once for all the records of a call."""
    if shapes.is_typed_dict(hint):
        return shapes.typed_dict_fields(hint)
    if shapes.is_dataclass(hint):
        return shapes.dataclass_fields(hint, init_only=True)
    return shapes.named_tuple_fields(hint)


def _record(hint: Any, fields: Mapping[str, shapes.Field], value: Any, build: Any) -> Any:
    """An object of declared keys. Its scalars are compared as well: which keys there are is often the same for two alternatives."""
    if type(value) is not dict or not value.keys() <= fields.keys() or any(fields[name].required for name in fields.keys() - value.keys()):
        raise _Misfit(f"it takes an object with the keys of {hint.__name__}")
    return build(**{name: _build(fields[name].hint, item, choosing=True) for name, item in value.items()})


def _members(origin: Any, arguments: tuple[Any, ...], value: Any, *, choosing: bool) -> Any:
    if origin in (list, abc.Sequence, abc.Iterable, abc.Collection):
        if type(value) is not list:
            return _same(False, value, choosing, "a list")
        return [_build(arguments[0], item, choosing=choosing) for item in value] if arguments else value
    if origin in (dict, abc.Mapping):
        if type(value) is not dict:
            return _same(False, value, choosing, "an object")
        return {name: _build(arguments[1], item, choosing=choosing) for name, item in value.items()} if arguments else value
    if origin is tuple and type(value) is list:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_build(arguments[0], item, choosing=choosing) for item in value)
        hints = arguments or (Any,) * len(value)
        if len(hints) != len(value):
            raise _Misfit(f"it takes a list of {len(hints)} items")
        return tuple(_build(one, item, choosing=choosing) for one, item in zip(hints, value, strict=True))
    return _same(False, value, choosing, "another kind of value")
