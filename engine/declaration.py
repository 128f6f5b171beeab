"""Declarations as received data: checked like any other answer of a worker.

Its job: from plain data to a frozen ``Declaration`` with its digest, or one DeclarationError with a line for each problem.
Not its job: making declarations (``authoring/tool.py``), whether what they ask for is granted (``policy/resolve.py``).
Laws:
1. The rules are those of the authoring side, and each schema compiles on this host (tests/unit/test_declaration.py).
2. The data is bounded before anything looks into it (tests/unit/test_declaration.py).
3. One source declares each name once, and nests flatly (tests/unit/test_declaration.py).
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from engine import checking, outcome
from engine.authoring import canonical, convert, rules
from engine.authoring.strict import quoted
from engine.errors import DeclarationError

_NODES = 60_000  # values in one declaration; three schemas of the largest size have fewer
_TOOLS = 512  # tools of one source
_PATTERNS = 256  # in all schemas of one source; the most that one may cost to compile is about 2 ms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Declaration:
    """What one tool says of itself and asks for, checked. ``data`` is the whole as plain data, ``digest`` names exactly that.

    The declaration's own field ``data`` (files the tool reads) is ``data_files`` here.
    """

    name: str
    description: str
    title: str | None
    snippet: str | None
    guidelines: tuple[str, ...]
    input: Mapping[str, Any]
    output: Mapping[str, Any]
    partial: Mapping[str, Any] | None
    effect: str
    timeout_ms: int
    result: Mapping[str, Any]
    nested_tools: tuple[str, ...]
    allow_repeat: bool
    dangerous: bool
    read_only: bool
    cacheable: bool
    open_world: bool
    meta: Mapping[str, Any]
    includes: tuple[str, ...]
    data_files: tuple[str, ...]
    layers: tuple[str, ...]
    network: bool | tuple[str, ...]
    credentials: tuple[str, ...]
    environment: tuple[str, ...]
    worker: str | None
    limits: Mapping[str, str | int]
    streams: bool
    context: str | None
    module: str
    qualname: str
    digest: str
    data: Mapping[str, Any]


def check(raw: object) -> Declaration:
    """The declaration in the data. Raises DeclarationError (the author's fault) with one line for each problem."""
    problem = checking.data_problem(raw, nodes=_NODES)
    if problem is not None:
        raise DeclarationError(f"the declaration is not plain data: {problem}")
    if type(raw) is not dict:
        raise DeclarationError(f"a declaration is an object, not {type(raw).__name__}")
    name = raw.get("name")
    label = name if rules.is_name(name) else "without a valid name"
    lines = rules.problems(raw) or _uncompiled(raw)
    if lines:
        raise DeclarationError(*(f"tool {label}: {line}" for line in lines))
    own = convert.to_data(raw)  # a copy: the digest must go on naming what the record holds
    fields = {("data_files" if field == "data" else field): _frozen(value) for field, value in own.items()}
    return Declaration(**fields, digest=canonical.digest(own), data=own)


def check_all(raw: object) -> tuple[Declaration, ...]:
    """All declarations of one source. Raises DeclarationError, or ToolError ``refused.no_tools`` when there is none."""
    if type(raw) is not list:
        raise DeclarationError(f"declarations are a list, not {type(raw).__name__}")
    if not raw:
        raise outcome.error_for("refused.no_tools", "the source declares no tool: decorate a function with @tool(...)")
    if len(raw) > _TOOLS:
        raise DeclarationError(f"the source declares {len(raw)} tools, at most {_TOOLS} are allowed: split it")
    if (patterns := sum(_patterns(item) for item in raw)) > _PATTERNS:
        raise DeclarationError(f"the source's schemas hold {patterns} patterns, at most {_PATTERNS} are allowed: split it")
    found: dict[str, Declaration] = {}
    lines: list[str] = []
    for item in raw:
        declaration = check(item)
        if declaration.name in found:
            homes = f"{_home(found[declaration.name])} and {_home(declaration)}"
            lines.append(f"tool {declaration.name}: declared twice, in {homes}: rename one")
        found[declaration.name] = declaration
    for composite in found.values():
        for nested in composite.nested_tools:
            if nested in found:
                lines += [f"tool {composite.name}: {line}" for line in rules.nested_problems(composite.data, found[nested].data)]
    if lines:
        raise DeclarationError(*lines)
    return tuple(found.values())


def _patterns(raw: object) -> int:
    """How many patterns a declaration's schemas hold, whatever else is in it; a value's depth costs no stack."""
    count, level = 0, [raw]
    while level:
        below: list[object] = []
        for node in level:
            if isinstance(node, dict):
                named = node.get("patternProperties")
                count += isinstance(node.get("pattern"), str) + (len(named) if isinstance(named, dict) else 0)
                below += node.values()
            elif isinstance(node, list):
                below += node
        level = below
    return count


def _uncompiled(raw: Mapping[str, Any]) -> list[str]:
    """Lines for schemas that pass the rules but which this host's validator does not take (the grammar of a pattern, mostly)."""
    lines = []
    for field in ("input", "output", "partial"):
        if raw[field] is not None:
            try:
                checking.Checker(raw[field])
            except DeclarationError as error:
                lines += [f"{field}: {line}" for line in error.lines]
    return lines


def _home(declaration: Declaration) -> str:
    return quoted(f"{declaration.module}.{declaration.qualname}")


def _frozen(value: Any) -> Any:
    if type(value) is list:
        return tuple(value)
    return MappingProxyType(value) if type(value) is dict else value
