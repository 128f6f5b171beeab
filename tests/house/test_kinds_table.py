"""The table of what runs on every kind of worker names what there is."""

import ast
from pathlib import Path

from tests import kinds
from tests.house.reading import PROJECT


def named(path: Path) -> set[str]:
    """Classes and tests of a file, as their ids name them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for top in tree.body:
        if isinstance(top, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(top.name)
        if isinstance(top, ast.ClassDef):
            found |= {f"{top.name}::{one.name}" for one in top.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_every_name_of_it_is_there() -> None:
    """A file that both kinds run, and in it each class and test that is listed; a renamed one would run, or not, without a word."""
    absent = [name for name in kinds.BOTH if not (PROJECT / "tests" / name).is_file()]
    for listed in (*kinds.NATIVE_ONLY, *kinds.ONE_CASE):
        file, _, name = listed.partition("[")[0].partition("::")
        if file not in kinds.BOTH or name not in named(PROJECT / "tests" / file):
            absent.append(listed)
    assert absent == []


def test_each_reason_is_in_words() -> None:
    """More than one."""
    assert [reason for reason in (*kinds.NATIVE_ONLY.values(), *kinds.ONE_CASE.values()) if len(reason.split()) < 4] == []
