"""What an image is assembled of, and what its builder says of it."""

import sys
from pathlib import Path

from engine.wire import messages
from python_wasm import build
from tests import kit, wasm_guest


def test_the_carried_files_are_those_of_a_native_jail(tmp_path: Path) -> None:
    """The authoring files and nothing else of the engine; the guest and the image's own modules without the builder's."""
    build.assemble(wasm_guest.spec(tmp_path / "x.wasm"), tmp_path)
    engine = {path.relative_to(tmp_path / "engine").as_posix() for path in (tmp_path / "engine").rglob("*") if path.is_file()}
    authoring = {f"authoring/{path.name}" for path in (kit.PROJECT / "engine/authoring").glob("*.py")}
    assert engine == {"__init__.py", "errors.py", *authoring}
    assert not {path.name for path in tmp_path.rglob("*.py")} & {"build.py"}
    assert {path.name for path in (tmp_path / "guest").iterdir()} == {path.name for path in (wasm_guest.IMAGES / "guest").glob("*.py")}


def test_the_facts_are_what_a_tool_finds(guest: wasm_guest.Guest) -> None:
    """Each module that the builder could import, a tool can, and none that it could not."""
    image = wasm_guest.image()
    absent = sorted({*sys.stdlib_module_names} - image.modules)
    source = """
import importlib
from engine import tool

@tool(effect="read", description="One of a test.")
def missing(names: list[str]) -> list[str]:
    found = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            found.append(name)
    return found
"""
    last = guest.call({"tools.py": source}, "missing", {"names": [*sorted(image.modules), *absent]}).last
    assert isinstance(last, messages.Result), last
    assert last.value == absent
    assert {"json", "sqlite3", "asyncio", "zoneinfo", "decimal"} <= image.modules
    assert {"ssl", "ctypes", "bz2"} <= {*absent}
    assert image.python.startswith("3.14")
