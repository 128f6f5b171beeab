"""What the parser said of one file, checked before anything believes it.

Its job: the shape of an answer of ``worker_images/enter/parse.py``, the refusals it stands for.
Not its job: parsing Python (a restricted child does), finding modules.
Laws:
1. The answer comes from a process that read hostile bytes: each part is checked, none is trusted (tests/unit/test_graph.py).
2. What a source asks for is a literal or it refuses with file and line (tests/unit/test_graph.py).
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from engine.outcome import error_for

ASKED = ("includes", "data", "layers")
_ROWS = 100_000
_CHARS = 2_000
_SHAPES: Mapping[str, tuple[type, ...]] = {
    "imports": (str, str, list, int, int, bool, bool),
    "dynamic": (int, str),
    "tools": (str, int, dict),
    "problems": (int, str),
}
_LAYER = re.compile(r"[a-z][a-z0-9-]{0,63}")
_INCLUDE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?:\.\*)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import:
    """One import: ``kind`` is import, from, literal or all (the names of ``__all__``)."""

    kind: str
    module: str
    names: tuple[str, ...]
    level: int
    line: int
    optional: bool
    local: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """What one ``@tool(...)`` or table asks for, as written; a table has no tool name."""

    tool: str
    file: str
    line: int
    includes: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """One file's checked facts."""

    imports: tuple[Import, ...]
    dynamic: tuple[tuple[int, str], ...]
    tools: tuple[Written, ...]


def check(answer: Mapping[str, Any], file: str) -> Facts:
    """The facts of an answer. Raises refused.source_syntax, _limits or _literals with the file and line."""
    if type(answer) is not dict or type(answer.get("ok")) is not bool:
        _nonsense(file)
    if not answer["ok"]:
        _refuse(answer, file)
    if set(answer) != {"ok", *_SHAPES}:
        _nonsense(file)
    for key, shape in _SHAPES.items():
        _check_rows(answer[key], shape, file)
    if answer["problems"]:
        raise error_for("refused.source_literals", *(f"{file}:{line}: {text}" for line, text in answer["problems"][:20]))
    return Facts(
        imports=tuple(_import(row, file) for row in answer["imports"]),
        dynamic=tuple((line, text) for line, text in answer["dynamic"]),
        tools=tuple(written(asked, tool, line, file) for tool, line, asked in answer["tools"]),
    )


def _refuse(answer: Mapping[str, Any], file: str) -> NoReturn:
    if set(answer) == {"ok", "limit"} and type(answer["limit"]) is str:
        raise error_for("refused.source_limits", f"{file}: {answer['limit']}")
    if set(answer) == {"ok", "line", "text"} and type(answer["line"]) is int and type(answer["text"]) is str:
        raise error_for("refused.source_syntax", f"{file}:{answer['line']}: {answer['text']}")
    _nonsense(file)


def _nonsense(file: str) -> NoReturn:
    raise error_for("refused.source_syntax", f"{file}: the parser gave an answer that no parser gives: treat the source as hostile")


def _check_rows(rows: Any, shape: tuple[type, ...], file: str) -> None:
    if type(rows) is not list or len(rows) > _ROWS:
        _nonsense(file)
    for row in rows:
        if type(row) is not list or tuple(type(value) for value in row) != shape:
            _nonsense(file)
        if any((kind is str and len(value) > _CHARS) or (kind is int and value < 0) for kind, value in zip(shape, row, strict=True)):
            _nonsense(file)


def is_module(name: str) -> bool:
    """Whether this is a dotted name that an import statement could hold."""
    return all(part.isidentifier() for part in name.split("."))


def _import(row: list[Any], file: str) -> Import:
    kind, module, names, level, line, optional, local = row
    named = (module or level or kind == "all") and (not module or is_module(module))
    listed = len(names) <= _ROWS and all(type(name) is str and (name == "*" or name.isidentifier()) for name in names)
    if kind not in ("import", "from", "literal", "all") or not named or not listed:
        _nonsense(file)
    return Import(kind=kind, module=module, names=tuple(names), level=level, line=line, optional=optional, local=local)


def written(asked: Mapping[str, Any], tool: str, line: int, file: str) -> Written:
    """One ``Written`` from its three lists. Raises refused.source_literals for an entry that names no layer or module."""
    if set(asked) != set(ASKED):
        _nonsense(file)
    for texts in asked.values():
        if type(texts) is not list or len(texts) > _ROWS or any(type(text) is not str or len(text) > _CHARS for text in texts):
            _nonsense(file)
    made = Written(tool=tool, file=file, line=line, **{key: tuple(asked[key]) for key in ASKED})
    for layer in made.layers:
        if not _LAYER.fullmatch(layer):
            raise error_for("refused.source_literals", f"{made.where}: {layer!r} is no layer: a-z first, then a-z, 0-9, -, 64 at most")
    for include in made.includes:
        if not _INCLUDE.fullmatch(include):
            raise error_for("refused.source_literals", f"{made.where}: {include!r} is no include: write 'package.module' or 'package.*'")
    return made
