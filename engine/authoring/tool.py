"""The ``@tool`` decorator: a plain function together with what it says of itself.

Its job: make the declaration, check it where it is written, keep the function callable as before.
Not its job: schemas from hints (``derive.py``), plain data to and from hints (``convert.py``), running anything in a jail.
Laws:
1. A function that the guest could not find again by module and name refuses: lambdas, nested functions, methods
   (tests/unit/test_authoring.py).
2. The input's keys are the function's parameters, the context left out (tests/unit/test_authoring.py).
3. ``effect`` has no default (tests/unit/test_authoring.py).
4. One declaration has one digest on every interpreter (tests/house/test_guest_tree.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from engine.authoring import rules, signature
from engine.errors import DeclarationError

P = ParamSpec("P")
R = TypeVar("R")
Schema = dict[str, Any]


class Log(Protocol):
    """Where a tool says what it does; each line is sent to the host with its level and its data."""

    def debug(self, message: str, **data: Any) -> None:
        """For the author."""

    def info(self, message: str, **data: Any) -> None:
        """For whoever watches."""

    def warning(self, message: str, **data: Any) -> None:
        """For whoever cares about the result."""

    def error(self, message: str, **data: Any) -> None:
        """For whoever must act."""


class Context(Protocol):
    """What a tool may ask of the host while it runs: annotate a parameter with it, and leave it out of the input."""

    @property
    def log(self) -> Log:
        """The log with four levels."""

    @property
    def cancelled(self) -> bool:
        """Whether the host has asked this call to stop. It does not ask yet: a call that is given up is ended at once."""

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the call is."""

    def emit(self, event: Any) -> None:
        """Send one event of plain data."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a nested tool by its name. Raises when it is not among ``nested_tools`` or does not end well."""


class Tool(Generic[P, R]):
    """A declared tool: still callable as the plain function, with its ``declaration`` as plain data."""

    def __init__(self, function: Callable[P, R], declaration: dict[str, Any]) -> None:
        self.function = function
        self.declaration = declaration
        self.name: str = declaration["name"]
        self.__name__: str = getattr(function, "__name__", self.name)
        self.__qualname__: str = getattr(function, "__qualname__", self.name)
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function here: no jail, no checks."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


def artifact(*, strategy: str = "page", max_inline_tokens: int = rules.INLINE_TOKENS, recovery: str = "exact_ccr") -> dict[str, Any]:
    """The result policy of tools with large results: a first part inline, the rest by pages, the whole recoverable exactly."""
    return {"policy": "artifact", "strategy": strategy, "max_inline_tokens": max_inline_tokens, "recovery": recovery}


def tool(
    *misplaced: object,
    effect: str | None = None,
    description: str | None = None,
    name: str | None = None,
    title: str | None = None,
    snippet: str | None = None,
    guidelines: Sequence[str] = (),
    input: Schema | None = None,
    output: Schema | None = None,
    partial: Schema | None = None,
    timeout_ms: int = rules.TIMEOUT_MS,
    result: str | Mapping[str, Any] = "auto",
    nested_tools: Sequence[str | Tool[..., Any]] = (),
    allow_repeat: bool = False,
    dangerous: bool = False,
    read_only: bool | None = None,
    cacheable: bool = False,
    open_world: bool = False,
    meta: Mapping[str, Any] | None = None,
    includes: Sequence[str] = (),
    data: Sequence[str] = (),
    layers: Sequence[str] = (),
    network: bool | Sequence[str] = False,
    credentials: Sequence[str] = (),
    environment: Sequence[str] = (),
    worker: str | None = None,
    limits: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Declare the function below as a tool. Schemas left out are derived from the type hints, the description from the docstring.

    ``effect`` is read, write, idempotent or external. ``read_only`` left out means: effect read and not dangerous. ``worker`` is native or
    wasm when only that kind will do. Raises DeclarationError (the author's fault) with one line for each problem, before anything runs.
    """
    nested = _list(nested_tools)
    inferred = effect == "read" and dangerous is False
    said: dict[str, Any] = {"name": name, "description": description, "title": title, "snippet": snippet, "guidelines": _list(guidelines)}
    said |= {"effect": effect, "timeout_ms": timeout_ms, "result": {"policy": result} if isinstance(result, str) else _dict(result)}
    said |= {"allow_repeat": allow_repeat, "dangerous": dangerous, "read_only": inferred if read_only is None else read_only}
    said |= {"cacheable": cacheable, "open_world": open_world, "meta": _dict(meta or {})}
    said |= {"includes": _list(includes), "data": _list(data), "layers": _list(layers), "limits": _dict(limits or {})}
    said |= {"network": _list(network), "credentials": _list(credentials), "environment": _list(environment), "worker": worker}
    said["nested_tools"] = [one.name if isinstance(one, Tool) else one for one in nested] if isinstance(nested, list) else nested
    if misplaced:
        _refuse(str(getattr(misplaced[0], "__name__", "?")), ["write @tool(effect=..., ...) with keywords: effect has no default"])
    given = {"input": input, "output": output, "partial": partial}
    known = [one for one in nested if isinstance(one, Tool)] if isinstance(nested, list) else []
    return lambda function: _declared(function, said, given, known)


def _declared(
    function: Callable[P, R], said: Mapping[str, Any], given: Mapping[str, Schema | None], nested: Sequence[Tool[..., Any]]
) -> Tool[P, R]:
    label = said["name"] if isinstance(said["name"], str) else str(getattr(function, "__name__", "?"))
    plain = signature.function_problem(function)
    if plain is not None:
        _refuse(label, [plain])
    declaration = _declaration(function, label, said, given)
    lines = rules.problems(declaration)
    lines = lines or signature.input_problems(function, declaration["input"], declaration["context"])
    for one in nested if not lines else ():
        lines += rules.nested_problems(declaration, one.declaration)
    if lines:
        _refuse(label, lines)
    return Tool(function, declaration)


def _declaration(function: Callable[..., Any], name: str, said: Mapping[str, Any], given: Mapping[str, Schema | None]) -> dict[str, Any]:
    """The whole declaration as plain data, still unchecked. Raises DeclarationError when a schema cannot be derived."""
    from engine.authoring import derive  # here, because a tool that is only imported again from a cache need not pay for it

    hints = derive.hints_of(function)
    context = signature.context_of(function, hints, Context)
    description = said["description"]
    if description is None:
        description = _first_paragraph(function.__doc__)
        if description is None:
            _refuse(name, ["description: say what the tool does and when to call it, in description= or in a docstring"])
    lines: list[str] = []
    schemas = derive.schemas_of(function, hints, context, given, lines)
    if lines:
        _refuse(name, lines)
    whole = {**said, **schemas, "name": name, "description": description, "streams": signature.streams(function), "context": context}
    whole |= {"module": function.__module__, "qualname": function.__qualname__}
    return {field: whole[field] for field in rules.FIELDS}


def _first_paragraph(doc: str | None) -> str | None:
    """The docstring's first paragraph on one line: 3.13 and later strip indentation that earlier ones keep."""
    words = " ".join((doc or "").strip().split("\n\n")[0].split())
    return words or None


def _list(given: Any) -> Any:
    """A list of what was given; anything else is kept for the rule to refuse by name (a set has no order, so no digest)."""
    return list(given) if isinstance(given, list | tuple) else given


def _dict(given: Any) -> Any:
    return dict(given) if isinstance(given, Mapping) else given


def _refuse(name: str, lines: list[str]) -> NoReturn:
    raise DeclarationError(*(f"tool {name}: {line}" for line in lines))
