"""Data patterns: anchored at the root, never code, never hidden by accident."""

from pathlib import Path

import pytest

from engine.staging.patterns import fits
from engine.staging.sources import GraphBounds
from tests.staged import close, refusal, staged, write


def asking(data: list[str]) -> str:
    """A tool file that asks for these data files."""
    return f"from engine import tool\n@tool(data={data!r})\ndef f(): pass\n"


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("a.csv", ["a.csv"]),
        ("*.csv", ["a.csv"]),
        ("?.csv", ["a.csv"]),
        ("*", ["a.csv", "b.txt"]),
        ("**", ["a.csv", "b.txt", "d/e/g.csv", "d/f.csv"]),
        ("**/*.csv", ["a.csv", "d/e/g.csv", "d/f.csv"]),
        ("d/*.csv", ["d/f.csv"]),
        ("d/**", ["d/e/g.csv", "d/f.csv"]),
        ("d/**/**/g.csv", ["d/e/g.csv"]),
        ("*/*/g*", ["d/e/g.csv"]),
        (".env", [".env"]),
        (".h/*", [".h/x"]),
    ],
)
def test_a_pattern_takes_what_it_says(tmp_path: Path, pattern: str, taken: list[str]) -> None:
    """Patterns are anchored at the root; stars stay in one name or span folders, and neither takes hidden names or code."""
    names = ["a.csv", "b.txt", "d/f.csv", "d/e/g.csv", ".env", ".h/x", "m.py", "n.so", "o.pyc", "p.pth", "q.so.1", "__pycache__/r.csv"]
    graph = staged(tmp_path, {**dict.fromkeys(names, ""), "tool.py": asking(data=[pattern])})
    assert sorted(set(graph.files) - {"tool.py"}) == taken


@pytest.mark.parametrize("pattern", ["", "/a", "a/", "../a", "a/../b", "./a", "a//b", "a\\b", "[ab]", "a**", "a\n", "C:/a", "a./b", " a"])
def test_what_is_no_pattern_refuses(tmp_path: Path, pattern: str) -> None:
    """Absolute, upward, empty and foreign spellings are refused before anything is looked at."""
    code, lines = refusal(staged, tmp_path, {"tool.py": asking(data=[pattern]), "a": "", "b": ""})
    assert (code, lines[0].partition(" data pattern")[2]) == (
        "refused.source_literals",
        ": write it relative to the root with *, ? and ** between slashes, without ..",
    )  # fmt: skip - one value


def test_a_package_gives_data_of_its_own_only(tmp_path: Path) -> None:
    """Patterns of a package start with its name; what lies beside it is not found."""
    files = {"pkg/__init__.py": asking(data=["pkg/*.csv"]), "pkg/a.csv": "", "b.csv": ""}
    assert sorted(staged(tmp_path, files, "pkg").files) == ["pkg/__init__.py", "pkg/a.csv"]
    write(tmp_path, {"pkg/__init__.py": asking(data=["*.csv"])})
    assert refusal(close, tmp_path / "pkg") == (
        "refused.source_literals",
        ("pkg/__init__.py:2: '*.csv' matches no data file beneath the root: start it with pkg/",),
    )  # fmt: skip - one value


def test_many_patterns_walk_no_more_than_one(tmp_path: Path) -> None:
    """The bound is on the names that all patterns look at together: else a thousand of them stall where one refuses."""
    files = {"tool.py": asking(data=["a", "b"]), "a": "", "b": ""}  # three names in the root, looked at for each
    assert sorted(staged(tmp_path, files, bounds=GraphBounds(walked_entries=6)).files) == ["a", "b", "tool.py"]
    line = "tool.py:2: data patterns walk more than 5 names: narrow 'b'"
    assert refusal(close, tmp_path / "tool.py", bounds=GraphBounds(walked_entries=5)) == ("refused.source_limits", (line,))


def test_no_pattern_stalls() -> None:
    """A pattern of many stars against a long name takes steps, not ages."""
    assert fits("*a" * 100 + "b", "a" * 250) is False
    assert fits("*a" * 100, "a" * 250) is True
