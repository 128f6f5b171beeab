"""The closed source graph: what it takes in, what it leaves out, what it says of each refusal."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.staging.facts import Written
from engine.staging.graph import close_graph, unmet
from engine.staging.sources import GraphBounds
from tests.staged import STANDARD, close, parsed, refusal, staged, write

Files = Mapping[str, str | bytes]
TOOL = "from engine import tool\n@tool({})\ndef f(): pass\n"


def asking(**lists: list[str]) -> str:
    """A tool file that asks for these."""
    return TOOL.format(", ".join(f"{key}={value!r}" for key, value in lists.items()))


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        ({"tool.py": "import a", "a.py": "import b", "b.py": "import a", "c.py": ""}, ["a.py", "b.py", "tool.py"]),
        ({"tool.py": "import p.m", "p/__init__.py": "", "p/m.py": "", "p/n.py": ""}, ["p/__init__.py", "p/m.py", "tool.py"]),
        ({"tool.py": "import p.q.m", "p/q/m.py": ""}, ["p/q/m.py", "tool.py"]),
        ({"tool.py": "from p import m, x", "p/__init__.py": "x = 1", "p/m.py": ""}, ["p/__init__.py", "p/m.py", "tool.py"]),
        ({"tool.py": "from p.m import x", "p/__init__.py": "", "p/m.py": ""}, ["p/__init__.py", "p/m.py", "tool.py"]),
        ({"tool.py": "def f():\n  import a", "a.py": ""}, ["a.py", "tool.py"]),
        ({"tool.py": "import a", "a/__init__.py": "", "a.py": ""}, ["a/__init__.py", "tool.py"]),
        ({"tool.py": "import importlib\nimportlib.import_module('a')", "a.py": ""}, ["a.py", "tool.py"]),
        ({"tool.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import a", "a.py": ""}, ["tool.py"]),
        (
            {"tool.py": "import p", "p/__init__.py": "from . import a", "p/a.py": "from .b import x", "p/b.py": ""},
            ["p/__init__.py", "p/a.py", "p/b.py", "tool.py"],
        ),
        (
            {"tool.py": "import p.q.a", "p/__init__.py": "", "p/q/__init__.py": "", "p/q/a.py": "from .. import z", "p/z.py": ""},
            ["p/__init__.py", "p/q/__init__.py", "p/q/a.py", "p/z.py", "tool.py"],
        ),
        (
            {"tool.py": "from p import *", "p/__init__.py": "__all__ = ['a', 'x']", "p/a.py": "", "p/b.py": ""},
            ["p/__init__.py", "p/a.py", "tool.py"],
        ),
        ({"tool.py": "import p", "p/__init__.py": "__all__ = ['a']", "p/a.py": ""}, ["p/__init__.py", "tool.py"]),
        ({"tool.py": "import p.__main__", "p/__init__.py": "", "p/__main__.py": ""}, ["p/__init__.py", "p/__main__.py", "tool.py"]),
        ({"tool.py": "import conftest", "conftest.py": ""}, ["conftest.py", "tool.py"]),
        ({"tool.py": "import json", "json/data.txt": ""}, ["tool.py"]),
        ({"tool.py": "try:\n  import a\nexcept ImportError: pass"}, ["tool.py"]),
        ({"tool.py": "try:\n  from . import a\nexcept ImportError:\n  import a", "a.py": ""}, ["a.py", "tool.py"]),
        ({"tool.py": "", "sitecustomize.py": "", "x.pth": "", "conftest.py": "", "__main__.py": "", "pyvenv.cfg": ""}, ["tool.py"]),
        ({"tool.py": "import __main__", "__main__.py.txt": ""}, ["tool.py"]),
    ],
)  # fmt: skip - one tree a line
def test_a_script_takes_what_it_imports(tmp_path: Path, files: Files, taken: list[str]) -> None:
    """Exactly the imported files come in: parents, submodules, relative, lazy, literal and starred ones, and nothing beside them."""
    graph = staged(tmp_path, files)
    assert (sorted(graph.files), dict(graph.externals)) == (taken, {})


def test_a_package_takes_its_own_files_only(tmp_path: Path) -> None:
    """The root of a package is its parent, and what lies beside the package is not the package's."""
    files = {"pkg/__init__.py": "from . import a\nimport other", "pkg/a.py": "import pkg.b", "pkg/b.py": "", "pkg/c.py": "", "other.py": ""}
    graph = staged(tmp_path / "root", files, "pkg")
    assert (graph.root, graph.entry, sorted(graph.files)) == ("root", "pkg", ["pkg/__init__.py", "pkg/a.py", "pkg/b.py"])
    assert dict(graph.externals) == {"other": "pkg/__init__.py:2"}


def test_a_module_below_a_given_root_brings_its_parents(tmp_path: Path) -> None:
    """With a root the entry has its dotted name, and each parent's __init__ is staged."""
    write(tmp_path, {"a/__init__.py": "", "a/b/__init__.py": "import c", "a/b/tool.py": "from .. import z", "a/z.py": "", "c.py": ""})
    graph = close(tmp_path / "a/b/tool.py", root=tmp_path)
    assert (graph.entry, sorted(graph.files)) == ("a.b.tool", ["a/__init__.py", "a/b/__init__.py", "a/b/tool.py", "a/z.py", "c.py"])


def test_the_graph_says_what_was_asked_and_what_is_needed(tmp_path: Path) -> None:
    """Standard modules are dotted, externals say where, tools and lists are those of all files."""
    files = {
        "tool.py": "import os.path, yaml\nfrom concurrent.futures import wait\nimport part\n" + asking(layers=["b-1"], data=["d/*.csv"]),
        "part.py": "import yaml, numpy.linalg\n" + asking(layers=["a"], includes=["more.*"]),
        "more/__init__.py": "",
        "more/x.py": "",
        "d/1.csv": "1",
        "d/2.txt": "2",
    }
    graph = staged(tmp_path, files)
    assert sorted(graph.files) == ["d/1.csv", "more/__init__.py", "more/x.py", "part.py", "tool.py"]
    assert graph.files["d/1.csv"] == b"1"
    assert graph.standard == {"os.path", "concurrent.futures"}
    assert dict(graph.externals) == {"yaml": "tool.py:1", "numpy": "part.py:1"}
    assert (graph.layers, graph.includes, graph.data, graph.tools) == (("a", "b-1"), ("more.*",), ("d/*.csv",), ("f",))
    assert graph.written == (
        Written(tool="f", file="tool.py", line=5, data=("d/*.csv",), layers=("b-1",)),
        Written(tool="f", file="part.py", line=3, includes=("more.*",), layers=("a",)),
    )


def test_the_same_package_by_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package is the same from within its folder, with a trailing ``..``, and by its __init__ below a root."""
    graph = staged(tmp_path, {"pkg/__init__.py": "from . import a", "pkg/a.py": "", "pkg/b/c.py": ""}, "pkg")
    monkeypatch.chdir(tmp_path / "pkg")
    assert close(Path()) == close(tmp_path / "pkg" / "b" / "..") == close(tmp_path / "pkg" / "__init__.py", root=tmp_path) == graph


@pytest.mark.parametrize(
    ("files", "entry", "more", "code", "line"),
    [
        ({"pkg/a.py": ""}, "pkg", {}, "refused.source_missing", "pkg holds no __init__.py: name a script, or give the package one"),
        ({"pkg/a.txt": ""}, "pkg/a.txt", {}, "refused.source_missing", "a.txt is neither a .py file nor a package folder"),
        (
            {"pkg/__init__.py": ""},
            "pkg/__init__.py",
            {},
            "refused.source_missing",
            "__init__.py is a part of its package: name the package's folder",
        ),
        ({"a.py": "", "b/c.py": ""}, "a.py", {"root": "b"}, "refused.source_path", "a.py is not below its root"),
    ],
)
def test_what_is_no_entry_refuses(tmp_path: Path, files: Files, entry: str, more: dict[str, str], code: str, line: str) -> None:
    """A folder without __init__, another kind of file, a package's inner file or a file outside the root is no entry."""
    roots = {key: tmp_path / value for key, value in more.items()}
    assert refusal(staged, tmp_path, files, entry, **roots) == (code, (line,))


def test_includes_may_name_what_is_elsewhere(tmp_path: Path) -> None:
    """An include of a standard module or of a layer's is noted like an import of it, whole packages too."""
    graph = staged(tmp_path, {"tool.py": asking(includes=["xml.dom", "json.*", "yaml.*"])})
    assert (graph.standard, dict(graph.externals)) == (frozenset({"xml.dom", "json"}), {"yaml": "tool.py:2"})


def test_a_star_finds_names_told_before_and_after(tmp_path: Path) -> None:
    """A package that is starred after it was read gives its submodules as well."""
    files = {"tool.py": "import p, q", "p/__init__.py": "__all__ = ['a']", "p/a.py": "", "q.py": "import r", "r.py": "from p import *"}
    assert "p/a.py" in staged(tmp_path, files).files


def test_what_no_layer_holds_is_told_with_its_line(tmp_path: Path) -> None:
    """An import that nothing meets has one line; met ones have none."""
    graph = staged(tmp_path, {"tool.py": "import yaml\nimport numpy"})
    assert unmet(graph, frozenset({"yaml"})) == ("tool.py:2: numpy is neither in the source, nor standard, nor in a granted layer",)
    assert unmet(graph, frozenset({"yaml", "numpy"})) == ()


def test_a_folder_and_a_layer_of_one_name_clash(tmp_path: Path) -> None:
    """A namespace package of the source loses to a layer's package of that name, so both together refuse; alone it is fine."""
    graph = staged(tmp_path, {"tool.py": "import ns.a", "ns/a.py": ""})
    assert [line.partition(":")[0] for line in unmet(graph, frozenset({"ns"}))] == ["ns/"]
    assert unmet(graph, frozenset({"other"})) == ()


def test_a_folder_without_modules_does_not_stand_in_for_a_layer(tmp_path: Path) -> None:
    """``import yaml`` beside a folder of yaml files means the layer's yaml."""
    assert dict(staged(tmp_path, {"tool.py": "import yaml", "yaml/a.yaml": ""}).externals) == {"yaml": "tool.py:1"}


@pytest.mark.parametrize(
    ("files", "code", "lines"),
    [
        ({"tool.py": "import p.x", "p/__init__.py": ""}, "refused.source_import", ("tool.py:1: there is no p.x beneath the root",)),
        ({"tool.py": "import a.b", "a.py": ""}, "refused.source_import", ("tool.py:1: there is no a.b beneath the root",)),
        ({"tool.py": "from ns import x, y", "ns/x.py": ""}, "refused.source_import", ("tool.py:1: there is no y in ns/",)),
        (
            {"tool.py": "from . import a", "a.py": ""},
            "refused.source_import",
            ("tool.py:1: the relative import goes above the root: load the package's folder, or import by full name",),
        ),
        (
            {"tool.py": "import p.a", "p/__init__.py": "", "p/a.py": "from ... import b"},
            "refused.source_import",
            ("p/a.py:1: the relative import goes above the root: load the package's folder, or import by full name",),
        ),
        (
            {"tool.py": "import a", "a.py": "\nimport importlib\nimportlib.import_module(x)"},
            "refused.source_open_graph",
            ("a.py:3: importlib.import_module of something that is not a literal",),
        ),
        ({"tool.py": "import a", "a.py": "x = ("}, "refused.source_syntax", ("a.py:1: '(' was never closed",)),
        ({"tool.py": "a\n" * 20_000}, "refused.source_limits", ("tool.py: the file has more than 20000 syntax nodes",)),
        (
            {"tool.py": TOOL.format("data=D")},
            "refused.source_literals",
            ("tool.py:2: data must be a literal list of strings",),
        ),
        (
            {"tool.py": asking(includes=["../x"])},
            "refused.source_literals",
            ("tool.py:2: '../x' is no include: write 'package.module' or 'package.*'",),
        ),
        (
            {"tool.py": asking(layers=["Big"])},
            "refused.source_literals",
            ("tool.py:2: 'Big' is no layer: a-z first, then a-z, 0-9, -, 64 at most",),
        ),
        (
            {"tool.py": asking(includes=["a.*"]), "a.py": ""},
            "refused.source_import",
            ("tool.py:2: a is a module and has no a.*",),
        ),
        (
            {"tool.py": asking(includes=["p.gone"]), "p/__init__.py": ""},
            "refused.source_import",
            ("tool.py:2: there is no p.gone beneath the root",),
        ),
        (
            {"tool.py": asking(data=["d/*.csv"]), "d/a.txt": ""},
            "refused.source_literals",
            ("tool.py:2: 'd/*.csv' matches no data file beneath the root: code comes in by import only",),
        ),
        ({"other.py": ""}, "refused.source_missing", ("there is no tool.py: name a tool file or a package folder",)),
    ],
)
def test_an_open_graph_refuses_with_file_and_line(tmp_path: Path, files: Files, code: str, lines: tuple[str, ...]) -> None:
    """Each way in which a graph is not closed has its code and a line that names the file relative to the root."""
    assert refusal(staged, tmp_path, files) == (code, lines)


def test_includes_close_a_computed_import(tmp_path: Path) -> None:
    """The control: with includes the computed import stands, and the modules listed come in with their own closure."""
    source = "import importlib\nimportlib.import_module(x)\n" + asking(includes=["plugins.a", "extra.*"])
    files = {
        "tool.py": source,
        "plugins/__init__.py": "",
        "plugins/a.py": "import deep",
        "plugins/b.py": "",
        "deep.py": "",
        "extra/__init__.py": "",
        "extra/x.py": "",
        "extra/sub/y.py": "",
        "extra/__main__.py": "",
        "extra/conftest.py": "",
        "extra/__pycache__/z.pyc": "",
        "extra/not-a-name.py": "",
    }  # fmt: skip - a tree reads best close together
    assert sorted(staged(tmp_path, files).files) == [
        "deep.py",
        "extra/__init__.py",
        "extra/sub/y.py",
        "extra/x.py",
        "plugins/__init__.py",
        "plugins/a.py",
        "tool.py",
    ]  # fmt: skip - as above


TREE: Files = {"tool.py": "import a\n" + asking(data=["d/*"]), "a.py": "import b", "b.py": "", "d/1": "12", "d/2": "34"}


@pytest.mark.parametrize(
    ("name", "least", "line"),
    [
        ("modules", 3, "the source has more than 2 modules"),
        ("module_bytes", 67, "tool.py is larger than 66 bytes"),
        ("data_files", 2, "tool.py:3: 'd/*' brings more than 1 data files"),
        ("data_file_bytes", 2, "d/1 is larger than 1 bytes"),
        ("total_bytes", 79, "the source with its data is larger than 78 bytes"),
        ("folder_entries", 4, ". holds more than 3 names"),
        ("walked_entries", 6, "tool.py:3: data patterns walk more than 5 names: narrow 'd/*'"),
        ("depth", 1, "d is deeper than 0 folders"),
    ],
)
def test_each_bound_holds_to_the_unit(tmp_path: Path, name: str, least: int, line: str) -> None:
    """At its bound a source is staged, one below it refuses by name."""
    write(tmp_path, TREE)
    change: Any = {name: least}
    assert sorted(close(tmp_path / "tool.py", bounds=GraphBounds(**change)).files) == sorted(TREE)
    change = {name: least - 1}
    assert refusal(close, tmp_path / "tool.py", bounds=GraphBounds(**change)) == ("refused.source_limits", (line,))


def answering(answer: Any) -> Any:
    """A parser that gives that answer whatever it is asked."""

    async def parse(source: bytes, name: str) -> Any:
        return answer

    return parse


FACTS: dict[str, Any] = {"ok": True, "imports": [], "dynamic": [], "tools": [], "problems": []}
ROW = ["import", "a", [], 0, 1, False, False]
ASKED: dict[str, list[Any]] = {"includes": [], "data": [], "layers": []}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"ok": 1},
        {**FACTS, "more": []},
        {"ok": False},
        {"ok": False, "line": "1", "text": "x"},
        {**FACTS, "imports": {}},
        {**FACTS, "imports": [ROW[:-1]]},
        {**FACTS, "imports": [["import", "../../etc/passwd", *ROW[2:]]]},
        {**FACTS, "imports": [["run", *ROW[1:]]]},
        {**FACTS, "imports": [["from", "a", ["/etc"], *ROW[3:]]]},
        {**FACTS, "imports": [["from", "", ["a"], *ROW[3:]]]},
        {**FACTS, "imports": [["from", "a", [1], *ROW[3:]]]},
        {**FACTS, "imports": [[*ROW[:3], -1, *ROW[4:]]]},
        {**FACTS, "imports": [[*ROW[:5], 0, False]]},
        {**FACTS, "dynamic": [["1", "x"]]},
        {**FACTS, "tools": [["f", 1, {}]]},
        {**FACTS, "tools": [["f", 1, {**ASKED, "data": [1]}]]},
        {**FACTS, "tools": [["f", 1, {**ASKED, "data": "abc"}]]},
        {**FACTS, "problems": [[1, "x" * 3000]]},
    ],
)
def test_a_parser_is_not_believed(tmp_path: Path, answer: Any) -> None:
    """An answer of another shape than a parser's is refused, whatever part of it differs."""
    assert refusal(staged, tmp_path, {"tool.py": ""}, parser=answering(answer)) == (
        "refused.source_syntax",
        ("tool.py: the parser gave an answer that no parser gives: treat the source as hostile",),
    )  # fmt: skip - one value


def test_a_parser_of_the_right_shape_is_taken(tmp_path: Path) -> None:
    """The control: an answer with each kind of row is used."""
    answer = {**FACTS, "imports": [ROW], "tools": [["f", 1, {**ASKED, "layers": ["l"]}]]}
    graph = staged(tmp_path, {"tool.py": ""}, parser=answering(answer))
    assert (dict(graph.externals), graph.layers) == ({"a": "tool.py:1"}, ("l",))


def test_what_looks_at_many_files_is_done_aside(tmp_path: Path) -> None:
    """The walks of the data patterns and the last look at every file would hold an event loop: where nobody does them, there is no data."""
    left: list[Callable[[], None]] = []
    write(tmp_path, TREE)

    async def aside(act: Callable[[], None]) -> None:
        left.append(act)

    graph = trio.run(functools.partial(close_graph, tmp_path / "tool.py", parsed, aside, standard=STANDARD))
    assert (sorted(graph.files), len(left)) == (["a.py", "b.py", "tool.py"], 2)
