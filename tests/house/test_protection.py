"""Tasks of the engine are protected from an interrupt: it is for the program's own task, which would else not hear of it.

trio hands protection down to no task that is started, so each function that becomes one says it by itself.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.reading import PROJECT, sources, write

PROTECTION = "enable_ki_protection"
# programs by themselves: there the interrupt is caught on purpose
PROGRAMS = ("engine/faces/", "engine/batch/")


def _starts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and last name of each function that is handed to ``start_soon`` or to a nursery's ``start``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            place = ast.unparse(node.func.value)
            if node.func.attr == "start_soon" or (node.func.attr == "start" and ("nursery" in place or place == "around")):
                yield node.lineno, ast.unparse(node.args[0]).rpartition(".")[2]


def _protected(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Name of each asynchronous function, and whether it is protected."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            yield node.name, any(PROTECTION in ast.unparse(decorator) for decorator in node.decorator_list)


def unprotected(root: Path) -> list[str]:
    """One line for each task of the engine that an interrupt could hit."""
    engine = [source for source in sources(root, "engine") if not source.name.startswith(PROGRAMS)]
    everywhere: dict[str, set[bool]] = {}
    for source in engine:
        for name, protected in _protected(source.tree):
            everywhere.setdefault(name, set()).add(protected)
    lines = []
    for source in engine:
        own: dict[str, set[bool]] = {}
        for name, protected in _protected(source.tree):
            own.setdefault(name, set()).add(protected)
        for line, name in _starts(source.tree):
            if True not in everywhere.get(name, ()) if name not in own else own[name] != {True}:
                lines.append(f"{source.name}:{line}: {name} becomes a task, and is not marked with trio.lowlevel.{PROTECTION}")
    return lines


def test_every_task_of_the_engine_is_protected() -> None:
    """A further one says so, or a Ctrl-C would end it in place of the program."""
    assert not (found := unprotected(PROJECT)), "\n".join(found)


def test_one_that_is_not_is_reported(tmp_path: Path) -> None:
    """By its place; a protected one, and a program's own, are not."""
    task = "async def carry():\n    pass\n\nasync def run(nursery):\n    nursery.start_soon(carry)\n"
    marked = "import trio\n\n@trio.lowlevel.enable_ki_protection\n" + task.replace("carry", "kept")
    write(tmp_path, **{"engine/one.py": task, "engine/two.py": marked, "engine/faces/three.py": task})
    assert unprotected(tmp_path) == ["engine/one.py:5: carry becomes a task, and is not marked with trio.lowlevel.enable_ki_protection"]
