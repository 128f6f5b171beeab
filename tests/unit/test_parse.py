"""The parser's facts of one file: imports, computed imports, tools and what they ask for."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enter import parse
from tests.interpreters import interpreter

PROJECT = Path(__file__).resolve().parents[2]


def facts(source: str, name: str = "tool.py") -> dict[str, Any]:
    return parse.facts(source.encode(), name)


def imports(source: str, name: str = "tool.py") -> list[tuple[Any, ...]]:
    """Rows without their lines, names as one text."""
    rows = facts(source, name)["imports"]
    return [(kind, module, " ".join(names), level, optional, local) for kind, module, names, level, _, optional, local in rows]


@pytest.mark.parametrize(
    ("source", "row"),
    [
        ("import a.b as c", ("import", "a.b", "", 0, False, False)),
        ("from a import b as c, d", ("from", "a", "b d", 0, False, False)),
        ("from a import *", ("from", "a", "*", 0, False, False)),
        ("from . import x", ("from", "", "x", 1, False, False)),
        ("from ..a.b import x", ("from", "a.b", "x", 2, False, False)),
        ("def f():\n  import a", ("import", "a", "", 0, False, True)),
        ("class C:\n  import a", ("import", "a", "", 0, False, False)),
        ("try:\n  import a\nexcept ImportError: pass", ("import", "a", "", 0, True, False)),
        ("try:\n  import a\nexcept (KeyError, ModuleNotFoundError): pass", ("import", "a", "", 0, True, False)),
        ("try:\n  import a\nexcept: pass", ("import", "a", "", 0, True, False)),
        ("try:\n  import a\nexcept KeyError: pass", ("import", "a", "", 0, False, False)),
        ("try: pass\nexcept ImportError:\n  import a", ("import", "a", "", 0, False, False)),
        ("try:\n  def f():\n    import a\nexcept ImportError: pass", ("import", "a", "", 0, False, True)),
        ("__all__ = ['a', 'b']", ("all", "", "a b", 0, True, False)),
        ("__import__('a.b')", ("literal", "a.b", "", 0, False, False)),
        ("__import__('a', fromlist=['b'], level=1)", ("from", "a", "b", 1, False, False)),
    ],
)
def test_an_import_statement_is_one_row(source: str, row: tuple[Any, ...]) -> None:
    """Each way to write an import gives its row: kind, module, names, level, optional, inside a function."""
    assert imports(source) == [row]


def test_suppressed_imports_are_optional() -> None:
    """``with suppress(ImportError)`` is a guard like ``try``."""
    rows = imports("import contextlib\nwith contextlib.suppress(ImportError):\n  import a")
    assert rows[1] == ("import", "a", "", 0, True, False)


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import a\nelse:\n  import b", ["b"]),
        ("import typing as t\nif t.TYPE_CHECKING:\n  import a", []),
        ("from typing import TYPE_CHECKING as T\nif not T:\n  import a\nelse:\n  import b", ["a"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING and x:\n  import a", []),
        ("TYPE_CHECKING = False\nif TYPE_CHECKING:\n  import a", []),
        ("TYPE_CHECKING = True\nif TYPE_CHECKING:\n  import a", ["a"]),
        ("TYPE_CHECKING = False\nTYPE_CHECKING = x()\nif TYPE_CHECKING:\n  import a", ["a"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING or x:\n  import a", ["a"]),
    ],
)
def test_what_only_type_checkers_read_is_left_out(source: str, kept: list[str]) -> None:
    """The body of a TYPE_CHECKING test is no import, its other branch is, and a name that may be true decides nothing."""
    assert [row[1] for row in imports(source) if row[1] not in ("typing",)] == kept


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import importlib\nimportlib.import_module('a.b')", "a.b"),
        ("from importlib import import_module as im\nim(name='a')", "a"),
        ("import importlib as i\nload = i.import_module\nagain = load\nagain('a')", "a"),
        ("import importlib\nimportlib.import_module('.b', 'a')", "a.b"),
        ("import importlib\nimportlib.import_module('..b', package='a.c')", "a.b"),
        ("import runpy\nrunpy.run_module('a')", "a"),
        ("import pkgutil\npkgutil.resolve_name('a.b:c')", "a.b"),
    ],
)
def test_a_literal_load_is_an_import(source: str, module: str) -> None:
    """A loader that is called with literals, under any name, imports what it names and is not computed."""
    found = facts(source)
    assert ([row[1] for row in found["imports"] if row[0] == "literal"], found["dynamic"]) == ([module], [])


def test_a_literal_load_relative_to_the_package_has_a_level() -> None:
    """``import_module(".a", __package__)`` is a relative import; ``__name__`` is a package in ``__init__.py`` only."""
    source = "import importlib\nimportlib.import_module('.a', {})"
    row = ("literal", "a", "", 1, False, False)
    assert imports(source.format("__package__"))[1:] == [row]
    assert imports(source.format("__name__"), "pkg/__init__.py")[1:] == [row]
    assert facts(source.format("__name__"), "pkg/mod.py")["dynamic"] == [[2, "importlib.import_module of something that is not a literal"]]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import importlib\nimportlib.import_module(x)", "importlib.import_module of something that is not a literal"),
        ("import importlib\nimportlib.import_module('a' + x)", "importlib.import_module of something that is not a literal"),
        ("import importlib\nimportlib.import_module(f'{x}')", "importlib.import_module of something that is not a literal"),
        ("import importlib\nimportlib.import_module(*x)", "importlib.import_module of something that is not a literal"),
        ("import importlib\nimportlib.import_module('../x')", "importlib.import_module of something that is not a literal"),
        ("from importlib import *\nimport_module(x)", "importlib.import_module of something that is not a literal"),
        ("x = __import__\nx(y)", "builtins.__import__ of something that is not a literal"),
        ("import builtins\nbuiltins.__import__(y)", "builtins.__import__ of something that is not a literal"),
        ("import importlib\nmap(importlib.import_module, x)", "importlib.import_module used as a value"),
        ("import importlib\ngetattr(importlib, 'import_module')(x)", "getattr of importlib"),
        ("import importlib\ngetattr(importlib, x)", "getattr of importlib"),
        ("import runpy\nrunpy.run_path('a.py')", "runpy.run_path of something that is not a literal"),
        (
            "import importlib.util as u\nu.spec_from_file_location('a', 'b')",
            "importlib.util.spec_from_file_location of something that is not a literal",
        ),
    ],
)
def test_a_computed_load_is_told_with_its_line(source: str, what: str) -> None:
    """What parsing cannot follow is named, also through an alias, a value or getattr."""
    assert facts(source)["dynamic"] == [[2, what]]


@pytest.mark.parametrize(
    "source",
    [
        "def import_module(x): pass\nimport_module(y)",
        "import importlib\ngetattr(importlib, 'invalidate_caches')()",
        "import mine\nmine.import_module(y)",
        "import importlib.metadata\nimportlib.metadata.version(y)",
    ],
)
def test_a_namesake_is_not_a_computed_load(source: str) -> None:
    """The control: names alike that load nothing are not told."""
    assert facts(source)["dynamic"] == []


NOTHING: dict[str, list[str]] = {"includes": [], "data": [], "layers": []}


@pytest.mark.parametrize(
    ("source", "tool"),
    [
        ("from engine import tool\n@tool(description='x')\ndef f(): pass", ["f", 2, NOTHING]),
        ("from engine import tool as t\n@t\ndef f(): pass", ["f", 2, NOTHING]),
        ("import engine\n@engine.tool(includes=['a.*'])\nasync def f(): pass", ["f", 2, {**NOTHING, "includes": ["a.*"]}]),
        ("import engine as e\ng = e.tool(data=('d/*',), layers=['n'])(f)", ["f", 2, {**NOTHING, "data": ["d/*"], "layers": ["n"]}]),
    ],
)
def test_a_tool_is_told_with_what_it_asks_for(source: str, tool: list[Any]) -> None:
    """A tool in any of its spellings gives its function, its line and its three lists."""
    found = facts(source)
    assert (found["tools"], found["problems"]) == ([tool], [])


@pytest.mark.parametrize("value", ["LIST", "['a', x]", "'a'", "[f'{x}']", "['a'] + ['b']", "[1]", "['\\ud800']"])
def test_what_is_not_a_literal_list_is_a_problem(value: str) -> None:
    """A list that parsing cannot read is told with its line."""
    assert facts(f"from engine import tool\n@tool(\n  includes={value})\ndef f(): pass")["problems"] == [
        [3, "includes must be a literal list of strings"]
    ]


def test_a_stranger_called_tool_is_no_tool() -> None:
    """The control: only the engine's own decorator makes a tool."""
    assert facts("from other import tool\n@tool(includes=X)\ndef f(): pass")["tools"] == []


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        (b"x = (", {"ok": False, "line": 1, "text": "'(' was never closed"}),
        (b"a\n\0", {"ok": False, "line": 2, "text": "the file holds a NUL byte"}),
        (b"# coding: rot13\n", {"ok": False, "line": 1, "text": "the encoding must be utf-8, ascii or latin-1"}),
        (b"#!/bin/x\n# -*- coding: punycode -*-\n", {"ok": False, "line": 2, "text": "the encoding must be utf-8, ascii or latin-1"}),
        (b"\r# coding=utf-7\r", {"ok": False, "line": 2, "text": "the encoding must be utf-8, ascii or latin-1"}),
        (b"x" * (parse.SOURCE_BYTES + 1), {"ok": False, "limit": "the file is larger than 1048576 bytes"}),
        (b"a\n" * parse.NODES, {"ok": False, "limit": "the file has more than 20000 syntax nodes"}),
        (b"-" * 100_000 + b"1", {"ok": False, "limit": "the file is nested too deep or needs too much memory to parse"}),
        (b"a" + b".b" * 100_000, {"ok": False, "limit": "the file is nested too deep or needs too much memory to parse"}),
    ],
)
def test_a_bad_file_has_an_answer(source: bytes, answer: dict[str, Any]) -> None:
    """Syntax errors, encodings, sizes and nesting are answers with a line or a limit, never an exception."""
    assert parse.facts(source, "a.py") == answer


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbfimport a",
        b"# coding: utf-8\nimport a",
        b"# vim: set fileencoding=latin-1 :\nimport a # \xe9",
        b"# coding: ascii\nimport a",
        b"import a\n\n# coding: rot13 counts in the first two lines only",
        b"\x0cimport a",
        b"import a; x = '\\d'",
        b"import a\nif 1 is 1: pass",
    ],
)
def test_a_plain_file_is_read(source: bytes) -> None:
    """The control: byte order mark, utf-8, ascii, latin-1, form feeds and doubtful escapes are all read."""
    assert [row[1] for row in parse.facts(source, "a.py")["imports"]] == ["a"]


def test_nodes_up_to_the_bound_are_read() -> None:
    """The control of the node bound: two nodes for each line and one for the module."""
    assert parse.facts(b"a\n" * (parse.NODES // 2 - 1), "a.py")["ok"] is True


SAMPLE = """
import sys
sys.path.insert(0, {folder!r})
before = set(sys.modules)
import parse
added = sorted(set(sys.modules) - before)
source = open({sample!r}, "rb").read()
print([name for name in ("ast", "json", "tokenize") if name in sys.modules], parse.facts(source, "a.py"))
print([parse.facts(b, "a.py")["ok"] for b in (b"-" * 10**6 + b"1", b"(" * 10**6, b"a" + b".b" * 10**5, b"a" + b"()" * 10**5)])
"""


def test_every_python_reads_the_same() -> None:
    """One file has the same facts on each supported Python that is here, without ast or json being imported."""
    sample = PROJECT / "worker_images" / "enter" / "parse.py"
    script = SAMPLE.format(folder=str(sample.parent), sample=str(sample))
    pythons = [Path(sys.executable), *(path for version in ((3, 12), (3, 13)) if (path := interpreter(version)) is not None)]
    said = [subprocess.run([path, "-I", "-S", "-c", script], capture_output=True, text=True, check=True).stdout for path in pythons]
    assert said[0].startswith("[] {'ok': True")
    assert said[0].endswith("[False, False, False, False]\n")
    assert set(said) == {said[0]}
