"""Sizes: a file is at most 400 lines, a function at most 60, so that each can be read in one go."""

import ast
from pathlib import Path

import pytest

from tests.house.reading import PROJECT, sources, write

FILE_LINES = 400
FUNCTION_LINES = 60  # from def to its end, docstring included, decorators not


def size_problems(root: Path) -> list[str]:
    """One line for each file, and outside tests each function, that is too long."""
    problems = []
    for source in sources(root, "engine", "worker_images", "bench", "tests"):
        lines = len(source.text.splitlines())
        if lines > FILE_LINES:
            problems.append(f"{source.name} has {lines} lines, more than {FILE_LINES}")
        if source.name.startswith("tests/"):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    problems.append(f"{source.name}:{node.lineno} {node.name} has {length} lines, more than {FUNCTION_LINES}")
    return problems


def test_every_file_and_function_can_be_read_in_one_go() -> None:
    """No file and no function of the project is longer than the house allows."""
    assert not (found := size_problems(PROJECT)), "\n".join(found)


@pytest.mark.parametrize("folder", ["engine", "worker_images/guest", "bench", "tests/unit"])
def test_a_file_one_line_too_long_is_reported(tmp_path: Path, folder: str) -> None:
    """400 lines pass, 401 are reported."""
    write(tmp_path, **{f"{folder}/under.py": "\n" * FILE_LINES, f"{folder}/over.py": "\n" * (FILE_LINES + 1)})
    assert size_problems(tmp_path) == [f"{folder}/over.py has 401 lines, more than 400"]


def test_a_function_one_line_too_long_is_reported(tmp_path: Path) -> None:
    """60 lines pass, 61 are reported, in a method as well."""
    under = "def under():\n" + "    pass\n" * (FUNCTION_LINES - 1)
    over = "class A:\n    async def over(self):\n" + "        pass\n" * FUNCTION_LINES
    assert size_problems(write(tmp_path, **{"engine/a.py": under + over})) == ["engine/a.py:62 over has 61 lines, more than 60"]
