"""Imports: the standard library first, then the bundle, then its layers."""

import pytest

from engine.wire import messages
from tests import wasm_guest

TOOL = """
from typing import Any
from engine import tool

@tool(effect="read", description="One of a test.")
def told(text: str) -> Any:
    import importlib, importlib.metadata, sys
    return eval(text)
"""
FILES = {
    "tools.py": TOOL,
    "json/__init__.py": "STAGED = 1",
    "guest/main.py": "STAGED = 1",
    "engine.py": "STAGED = 1",
    "space/inner/thing.py": "HERE = __file__",
    "helper.py": "import helper2\nHERE = 'bundle'",
    "helper2.py": "",
}
LAYERS = {
    "one": {
        "foo.py": "HERE = __file__",
        "helper.py": "HERE = 'layer'",
        "foo-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: foo\nVersion: 1.2\n",
    },
    "two": {"foo.py": "HERE = 'two'"},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hasattr(importlib.import_module('json'), 'STAGED')", False),
        ("hasattr(importlib.import_module('guest.main'), 'STAGED')", False),
        ("hasattr(importlib.import_module('engine'), 'STAGED')", False),
        ("importlib.import_module('space.inner.thing').HERE", "/bundle/space/inner/thing.py"),
        ("importlib.import_module('helper').HERE", "bundle"),
        ("importlib.import_module('foo').HERE", "/layers/one/foo.py"),
        ("importlib.metadata.version('foo')", "1.2"),
        ("sys.path", ["/python/lib/python3.14", "/bundle", "/layers/one", "/layers/two", "/packages"]),
        ("importlib.import_module('sqlite3.dbapi2').__file__", "/python/lib/python3.14/sqlite3/dbapi2.py"),
        ("importlib.import_module('wsgiref.headers').__spec__.origin", "/python/lib/python3.14/wsgiref/headers.py"),
    ],
)
def test_what_an_import_finds(guest: wasm_guest.Guest, text: str, value: object) -> None:
    """As in a native jail."""
    assert guest.call(FILES, "told", {"text": text}, layers=LAYERS).last == messages.Result(value=value)


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [
        ("import nowhere", "import", "ModuleNotFoundError"),
        ("def f(:", "import", "SyntaxError"),
        ("raise SystemExit(1)", "exit", "SystemExit"),
    ],
)
def test_a_source_that_does_not_import(guest: wasm_guest.Guest, source: str, kind: str, name: str) -> None:
    """Told as such, before there is a Ready."""
    answer = guest.call({"tools.py": source}, "told", {})
    assert len(answer.messages) == 1
    assert isinstance(answer.last, messages.Failure)
    assert (answer.last.kind, answer.last.type) == (kind, name)
