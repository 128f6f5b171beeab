"""Type hints taken apart: the one place that knows how Python spells them.

Its job: resolve the hints of functions and classes, and say of what shape a hint is.
Not its job: schemas (``derive.py``), values (``convert.py``).
Laws:
1. Strings, ``from __future__ import annotations`` and late annotations resolve alike (tests/unit/test_derive.py).
2. A hint that cannot be resolved is kept as ``Unresolved``; nobody else's hint suffers (tests/unit/test_derive.py).
3. TypedDict of typing and of typing_extensions are the same to us (tests/unit/test_derive.py).
"""

import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

UNIONS = (typing.Union, types.UnionType)
NONE = type(None)
_QUALIFIERS = ("Required", "NotRequired", "ReadOnly")


class Unresolved(NamedTuple):
    """A hint that names something which cannot be found."""

    text: str


class Field(NamedTuple):
    """One key of a record: its hint, whether it must be there, and its default (or ``NO_DEFAULT``)."""

    hint: Any
    required: bool
    default: Any


NO_DEFAULT: Any = types.MappingProxyType({})  # compared by identity; no author can hold it by accident


def of_function(function: Callable[..., Any]) -> dict[str, Any]:
    """The resolved hints of a function, ``return`` among them."""
    return _resolve(_annotations(function), getattr(function, "__globals__", {}))


def of_class(kind: type) -> dict[str, Any]:
    """The resolved hints of a class and its bases. A name that cannot be found leaves that one hint unresolved."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ == "builtins":
            continue
        module = sys.modules.get(base.__module__)
        # a class without annotations of its own has its base's by attribute: resolved twice, to the same
        found |= _resolve(_annotations(base), dict(vars(module)) if module is not None else {})
    return found


def _annotations(owner: Any) -> dict[str, Any]:
    try:
        return dict(getattr(owner, "__annotations__", {}))
    except NameError:  # 3.14 evaluates annotations when they are asked for; some names exist for type checkers only
        import annotationlib  # type: ignore[import-not-found]  # the stubs for 3.11 do not have it

        return dict(annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF))


def _resolve(raw: Mapping[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, hint in raw.items():

        def holder() -> None:
            """Carries one hint, because get_type_hints fails for all when it fails for one."""

        holder.__annotations__ = {name: hint}
        try:
            found[name] = typing.get_type_hints(holder, globalns=names, include_extras=True)[name]
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            found[name] = Unresolved(f"{hint if isinstance(hint, str) else getattr(hint, '__forward_arg__', hint)!s} ({error})")
    return found


def alias_value(hint: Any) -> Any:
    """What a ``type X = ...`` alias or a NewType stands for, or ``NO_DEFAULT`` when the hint is neither."""
    if type(hint).__name__ == "TypeAliasType":
        module = sys.modules.get(hint.__module__)
        return _resolve({"value": hint.__value__}, dict(vars(module)) if module is not None else {})["value"]
    if type(hint).__name__ == "NewType":
        return hint.__supertype__
    return NO_DEFAULT


def is_typed_dict(hint: Any) -> bool:
    """Whether it is a TypedDict class of typing or of typing_extensions."""
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__") and hasattr(hint, "__total__")


def is_dataclass(hint: Any) -> bool:
    """Whether it is a dataclass (the class, not an instance)."""
    return isinstance(hint, type) and hasattr(hint, "__dataclass_fields__")


def is_named_tuple(hint: Any) -> bool:
    """Whether it is a class made by NamedTuple or namedtuple."""
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def is_model(hint: Any) -> bool:
    """Whether it is a pydantic model, or a class that describes and builds itself the same way."""
    return isinstance(hint, type) and hasattr(hint, "model_json_schema") and hasattr(hint, "model_validate")


def is_enum(hint: Any) -> bool:
    """Whether it is an Enum class; such a class can exist only when enum is loaded."""
    library = sys.modules.get("enum")
    return library is not None and isinstance(hint, type) and issubclass(hint, library.Enum)


def typed_dict_fields(hint: type) -> dict[str, Field]:
    """The keys of a TypedDict. ``Required`` and ``NotRequired`` inside a string annotation count as well."""
    required_keys: frozenset[str] = hint.__required_keys__  # type: ignore[attr-defined]  # checked by is_typed_dict
    fields = {}
    for name, found in of_class_total(hint).items():
        required, inner = name in required_keys, found
        while qualifier(inner) is not None:
            required = {"Required": True, "NotRequired": False}.get(str(qualifier(inner)), required)
            inner = typing.get_args(inner)[0]
        fields[name] = Field(inner, required, NO_DEFAULT)
    return fields


def of_class_total(hint: type) -> dict[str, Any]:
    """The hints of a TypedDict with those of its bases, which its own method resolution order does not list."""
    found: dict[str, Any] = {}
    for base in getattr(hint, "__orig_bases__", ()):
        if is_typed_dict(base):
            found |= of_class_total(base)
    return found | of_class(hint)


def qualifier(hint: Any) -> str | None:
    """``Required``, ``NotRequired`` or ``ReadOnly`` when the hint is wrapped in it."""
    name = getattr(typing.get_origin(hint), "_name", None)
    return name if name in _QUALIFIERS else None


def dataclass_fields(hint: type, *, init_only: bool) -> dict[str, Field]:
    """The fields of a dataclass; with ``init_only`` those that its constructor takes."""
    import dataclasses  # loaded already, or there would be no dataclass

    resolved = of_class(hint)
    fields = {}
    for field in dataclasses.fields(hint):
        if init_only and not field.init:
            continue
        free = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = NO_DEFAULT if field.default is dataclasses.MISSING else field.default
        fields[field.name] = Field(resolved.get(field.name, Any), free, default)
    return fields


def named_tuple_fields(hint: Any) -> dict[str, Any]:
    """The items of a named tuple in their order, each with its hint."""
    resolved = of_class(hint)
    return {name: resolved.get(name, Any) for name in hint._fields}
