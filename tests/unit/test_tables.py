"""What a source asks for in tables beside its calls."""

from pathlib import Path

import pytest

from tests.staged import refusal, staged

INLINE = "# /// script\n# requires-python = '>=3.11'\n# [tool.stockade]\n{}# ///\nimport importlib\nimportlib.import_module(x)\n"


def test_the_inline_table_counts_like_the_call(tmp_path: Path) -> None:
    """``[tool.stockade]`` of the entry's script block is merged with what the calls say."""
    source = INLINE.format('# includes = ["a"]\n#\n# data = ["d.txt"]\n# layers = ["l"]\n')
    graph = staged(tmp_path, {"tool.py": source, "a.py": source, "d.txt": ""})
    assert (sorted(graph.files), graph.includes, graph.data, graph.layers) == (["a.py", "d.txt", "tool.py"], ("a",), ("d.txt",), ("l",))


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("# includes = 'a'\n", "tool.py:1: includes must be a list of strings"),
        ("# network = true\n", "tool.py:1: [tool.stockade] takes includes, data, layers and nothing else"),
        ("# includes = [\n", "tool.py:1: the inline script block is not TOML"),
        ("# a = " + "[" * 30_000 + "\n", "tool.py:1: the inline script block is not TOML"),
        ("# a = '" + "x" * 70_000 + "'\n", "tool.py:1: one inline script block of at most 64 KiB"),
        ("# a = " + "9" * 5_000 + "\n", "tool.py:1: the inline script block is not TOML"),
        ("# " + ".".join("a" * 30_000) + " = 1\n", "tool.py:1: the inline script block holds a key of more than 64 parts"),
        ("# [" + " . ".join(['"\\""', "'b'", "c"] * 22) + "]\n", "tool.py:1: the inline script block holds a key of more than 64 parts"),
    ],
)
def test_a_bad_inline_table_refuses(tmp_path: Path, table: str, line: str) -> None:
    """An unknown key, another type, broken, deep or huge TOML each refuse with file and line."""
    assert refusal(staged, tmp_path, {"tool.py": INLINE.format(table)}) == ("refused.source_literals", (line,))


def test_a_key_of_64_parts_is_taken(tmp_path: Path) -> None:
    """One part less than what refuses, in a key and in a table's name."""
    key = ".".join("a" * 64)
    graph = staged(tmp_path, {"tool.py": INLINE.format(f"# includes = ['a']\n# [{key}]\n# {key} = 1\n"), "a.py": ""})
    assert graph.includes == ("a",)


@pytest.mark.parametrize("ending", ["", "# ///\n"])
def test_a_source_of_nothing_but_starts_of_blocks(tmp_path: Path, ending: str) -> None:
    """Eighty thousand starts cost one pass: looking for the end of each took minutes. Without an end they are comments."""
    files = {"tool.py": "# /// script\n" * 80_000 + ending}
    if ending:
        assert refusal(staged, tmp_path, files) == ("refused.source_literals", ("tool.py:2: one inline script block of at most 64 KiB",))
    else:
        assert staged(tmp_path, files).includes == ()


PROJECT = "import importlib\nimportlib.import_module(x)\n"


def test_the_project_table_counts_like_the_call(tmp_path: Path) -> None:
    """``[tool.stockade]`` of the root's pyproject.toml is taken, and the file itself is not staged."""
    table = "[project]\nname = 'x'\n[tool.stockade]\nincludes = ['a']\ndata = ['d.txt']\nlayers = ['l']\n"
    graph = staged(tmp_path, {"tool.py": PROJECT, "a.py": "", "d.txt": "", "pyproject.toml": table})
    assert (sorted(graph.files), graph.includes, graph.data, graph.layers) == (["a.py", "d.txt", "tool.py"], ("a",), ("d.txt",), ("l",))


def test_a_project_without_the_table_asks_for_nothing(tmp_path: Path) -> None:
    """Other tables of pyproject.toml are nobody's business here."""
    graph = staged(tmp_path, {"tool.py": "", "pyproject.toml": "[tool.other]\nincludes = ['a']\n"})
    assert (graph.includes, graph.data, graph.layers) == ((), (), ())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[tool.stockade]\nnetwork = true\n", "pyproject.toml:1: [tool.stockade] takes includes, data, layers and nothing else"),
        ("[tool.stockade\n", "pyproject.toml:1: it is not TOML"),
        ("[tool.stockade]\ndata = 'd'\n", "pyproject.toml:1: data must be a list of strings"),
    ],
)
def test_a_bad_project_table_refuses(tmp_path: Path, text: str, line: str) -> None:
    """An unknown key, broken TOML and another type each refuse with the file."""
    assert refusal(staged, tmp_path, {"tool.py": "", "pyproject.toml": text}) == ("refused.source_literals", (line,))
