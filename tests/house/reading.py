"""The project's own Python files, read and parsed, never imported.

Its job: files of a tree, what each imports, which dotted names each uses.
Not its job: judging any of it (the tests beside this file).
Laws:
1. An import is seen wherever it stands: top level, in a function, under TYPE_CHECKING (tests/house/test_reading.py).
2. A name is seen through ``import x as y``, ``from x import y as z`` and ``getattr`` with a literal (tests/house/test_reading.py).
3. A file is parsed once for all the tests of a run, and again when its text has changed (tests/house/test_reading.py).
"""

import ast
import builtins
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SKIPPED = frozenset({"__pycache__", "build", "dist", "htmlcov", "node_modules"})  # made by tools, never by us


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One parsed file; ``name`` is its posix path from the tree's root."""

    name: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The name it is imported by: the jailed side's files count from ``worker_images``."""
        parts = self.name.removeprefix("worker_images/").removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        """Whether the file stands for its folder."""
        return self.name.endswith("__init__.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import:
    """``import target`` (name is None) or ``from target import name``; relative ones are resolved."""

    line: int
    target: str
    name: str | None

    @property
    def full(self) -> str:
        """The longest dotted name that the import could stand for."""
        return self.target if self.name is None else f"{self.target}.{self.name}"


def files(root: Path, *folders: str) -> Iterator[Path]:
    """Every file below the folders of the tree (of the whole tree without any), without what tools leave behind."""
    for start in [root / folder for folder in folders] or [root]:
        for path in sorted(start.iterdir()) if start.is_dir() else ():
            hidden = path.name.startswith(".") and path.name not in {".ci", ".gitignore"}
            if hidden or path.name in SKIPPED or path.is_symlink():
                continue
            if path.is_dir():
                yield from files(path)
            else:
                yield path


def sources(root: Path, *folders: str) -> tuple[Source, ...]:
    """The Python files below the folders, parsed."""
    found = []
    for path in files(root, *folders):
        if path.suffix == ".py":
            found.append(_parsed(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")))
    return tuple(found)


@functools.cache  # by name and text, not by place: what a test wrote anew is parsed anew
def _parsed(name: str, text: str) -> Source:
    return Source(name=name, text=text, tree=ast.parse(text, filename=name))


@functools.cache
def imports(source: Source) -> tuple[Import, ...]:
    """All imports of a file, in order of line."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found += [Import(line=node.lineno, target=alias.name, name=None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            target = _absolute(source, node)
            found += [Import(line=node.lineno, target=target, name=alias.name) for alias in node.names]
    return tuple(sorted(found, key=lambda found: found.line))


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    up = node.level - 1 if source.is_package else node.level
    base = parts[: len(parts) - up]
    return ".".join([*base, node.module] if node.module else base)


@functools.cache
def uses(source: Source) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of what the file touches: imported modules, their attributes, and builtins as ``builtins.x``."""
    known = _bindings(source)
    found = {(found.line, found.full) for found in imports(source)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.Call):
            dotted = _dotted(node, known)
            if dotted:
                found.add((node.lineno, dotted))
    return tuple(sorted(found))


def _bindings(source: Source) -> dict[str, str]:
    """What each name of the file stands for, builtins included; names the file defines itself stand for nothing."""
    known = {name: f"builtins.{name}" for name in dir(builtins)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node in source.tree.body:
            known.pop(node.name, None)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{_absolute(source, node)}.{alias.name}"
    return known


def _dotted(node: ast.expr, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, known)
        return base and f"{base}.{node.attr}"
    if isinstance(node, ast.Call) and _dotted(node.func, known) == "builtins.getattr" and len(node.args) >= 2:
        base, attribute = _dotted(node.args[0], known), node.args[1]
        named = isinstance(attribute, ast.Constant) and isinstance(attribute.value, str)
        return f"{base}.{ast.literal_eval(attribute)}" if base and named else None
    return None


def within(dotted: str, prefix: str) -> bool:
    """Whether a dotted name is the prefix or lies below it."""
    return dotted == prefix or dotted.startswith(prefix + ".")


def write(root: Path, **texts: str) -> Path:
    """A small tree for a test: ``write(root, **{"engine/a.py": "..."})`` makes the files and gives the root back."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root
