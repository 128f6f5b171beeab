"""What a function's own signature allows, read from its code object: inspect would cost ten times the rest of the import.

Its job: refuse what cannot be found or called by name, and compare parameters with the input's keys.
Not its job: hints (``derive.py``).
Laws:
1. What the guest cannot reach as module and name refuses by what it is (tests/unit/test_authoring.py).
2. Every parameter can be given by keyword (tests/unit/test_authoring.py).
"""

from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from engine.authoring.strict import listed, quoted

_VARARGS, _VARKEYWORDS, _GENERATOR, _ASYNC_GENERATOR = 0x04, 0x08, 0x20, 0x200  # co_flags, the data model's reference section 3.2
_TOP = "declare a function at the top of a module"


def function_problem(function: object) -> str | None:
    """Why the guest could not find or call this function, and the remedy; None when it can."""
    if not isinstance(function, FunctionType):
        kind = type(function).__name__
        return f"is a {kind} and no function: {_TOP}, with @tool nearest to the def"
    code = function.__code__
    if function.__name__ == "<lambda>":
        return f"is a lambda, which has no name to find it by: {_TOP}"
    if hasattr(function, "__wrapped__"):
        return "is the wrapper of another decorator: put @tool nearest to the def, and call what the wrapper did from inside"
    if code.co_freevars:
        return f"is a closure over {listed(code.co_freevars)}, which cannot be carried into a worker: {_TOP}"
    if "<locals>" in function.__qualname__:
        return f"is nested in another function: {_TOP}"
    if "." in function.__qualname__:
        return f"is a method of a class: {_TOP}"
    if code.co_posonlyargcount:
        return "has positional-only parameters, but arguments come by name: remove the / from its parameters"
    if code.co_flags & _VARARGS:
        return "has *args, but arguments come by name: declare each parameter, or one list"
    if code.co_flags & _VARKEYWORDS:
        return "has **kwargs, so that a misspelt argument would pass: declare each parameter, or one dict"
    return None


def parameters(function: Callable[..., Any]) -> dict[str, bool]:
    """The names of a plain function's parameters in their order, each with whether it has a default."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    keyword = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = len(function.__defaults__ or ())
    found = {name: index >= len(positional) - defaults for index, name in enumerate(positional)}
    return found | {name: name in (function.__kwdefaults__ or {}) for name in keyword}


def default_of(function: Callable[..., Any], name: str) -> Any:
    """The default of a parameter that has one."""
    keyword: dict[str, Any] = function.__kwdefaults__ or {}
    if name in keyword:
        return keyword[name]
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults: tuple[Any, ...] = function.__defaults__ or ()
    return defaults[positional.index(name) - len(positional)]


def streams(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a generator or an async generator."""
    return bool(function.__code__.co_flags & (_GENERATOR | _ASYNC_GENERATOR))


def context_of(function: Callable[..., Any], hints: Mapping[str, Any], context: type) -> str | None:
    """The first parameter annotated with the context."""
    return next((name for name in parameters(function) if hints.get(name) is context), None)


def input_problems(function: Callable[..., Any], schema: Mapping[str, Any], context: str | None) -> list[str]:
    """Where the input's keys and the function's parameters differ, one line each."""
    return list(_input_problems(parameters(function), schema, context))


def _input_problems(found: dict[str, bool], schema: Mapping[str, Any], context: str | None) -> Iterator[str]:
    found.pop(context or "", None)
    properties = schema.get("properties", {})
    takes = f"the function takes {listed(found)}" if found else "the function takes none"
    for key in properties:
        if key not in found:
            yield f"input: the key {quoted(key)} has no parameter: {takes}"
        elif key not in schema.get("required", ()) and not found[key]:
            yield f"input: the key {quoted(key)} is optional, but its parameter has no default: give it one, or require the key"
    for name in found:
        if name not in properties:
            yield f"input: the parameter {quoted(name)} has no key: declare it, annotate it with Context, or remove it"
