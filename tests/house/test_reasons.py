"""Every way a call can end is written in the README and asked for by a test."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from engine.outcome import REASONS, Fault, Reason
from tests.house.reading import PROJECT, sources, write
from tests.house.reason_table import BEGIN, END, block, rewrite, table


def untested(root: Path, codes: Iterable[str]) -> list[str]:
    """The codes that no string of the tests names; docstrings and the house tests do not count."""
    words: set[str] = set()
    for source in sources(root, "tests"):
        if not source.name.startswith("tests/house/"):
            words |= {word for text in _strings(source.tree) for word in re.findall(r"[a-z_]+\.[a-z_]+", text)}
    return [code for code in codes if code not in words]


def _strings(tree: ast.Module) -> list[str]:
    spoken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in spoken]
    return [node.value for node in nodes if isinstance(node.value, str)]


def test_every_reason_is_in_the_readme() -> None:
    """The README's table is the closed list, row for row (`make reasons` writes it)."""
    assert block((PROJECT / "README.md").read_text(encoding="utf-8")) == table(REASONS.values())


def test_every_reason_is_asked_for_by_a_test() -> None:
    """Each code stands as a string in at least one test that is not a house test."""
    assert not (found := untested(PROJECT, REASONS)), "\n".join(found)


def test_the_table_has_a_row_for_each_reason() -> None:
    """Code, exit code, fault, advice; the contract's name beside the code where there is one."""
    plain = Reason(code="ok.done", exit_code=0, fault=Fault.NOBODY, advice="a | b")
    named = Reason(code="refused.busy", exit_code=3, fault=Fault.CALLER, advice="wait", alias="old")
    assert table([plain, named]).splitlines()[2:] == [
        "| `ok.done` | 0 | nobody | a \\| b |",
        "| `refused.busy` (`old`) | 3 | caller | wait |",
    ]


def test_a_readme_without_its_markers_has_no_table() -> None:
    """Missing, doubled or swapped markers are no block, so that the comparison fails."""
    assert [block(text) for text in ("", f"{BEGIN}a", f"{END}a{BEGIN}", f"{BEGIN}a{END}{END}", f"{BEGIN}\na\n{END}")] == [None] * 4 + ["a"]


def test_writing_the_table_again_leaves_the_rest(tmp_path: Path) -> None:
    """Only what stands between the markers is replaced."""
    readme = write(tmp_path, **{"README.md": f"before\n{BEGIN}\nold\n{END}\nafter\n"}) / "README.md"
    rewrite(readme)
    text = readme.read_text(encoding="utf-8")
    assert (block(text), text.split(BEGIN)[0], text.split(END)[1]) == (table(REASONS.values()), "before\n", "\nafter\n")


def test_a_reason_that_no_test_names_is_reported(tmp_path: Path) -> None:
    """A code in a docstring, in a house test, or as a part of a longer one does not count; one within a message does."""
    tree = {
        "tests/unit/a.py": "'''refused.busy'''\nx = 'refused.limits: no'\ny = 'refused.source_missing'\n",
        "tests/house/b.py": "x = 'refused.busy'\n",
    }
    codes = ["refused.busy", "refused.limits", "refused.source", "ok.done"]
    assert untested(write(tmp_path, **tree), codes) == ["refused.busy", "refused.source", "ok.done"]
