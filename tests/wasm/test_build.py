"""What an image is assembled of, and what its builder says of it."""

import json
from pathlib import Path

from engine.wire import messages
from python_wasm import build
from tests import wasm_guest


def test_the_carried_files_are_those_of_a_native_jail(tmp_path: Path) -> None:
    """The authoring files and nothing else of the engine; the guest and the image's own modules without the builder's."""
    build.assemble(wasm_guest.spec(tmp_path / "x.wasm"), tmp_path)
    engine = {path.relative_to(tmp_path / "engine").as_posix() for path in (tmp_path / "engine").rglob("*") if path.is_file()}
    authoring = {f"authoring/{path.name}" for path in (wasm_guest.PROJECT / "engine/authoring").glob("*.py")}
    assert engine == {"__init__.py", "errors.py", *authoring}
    assert not {path.name for path in tmp_path.rglob("*.py")} & {"build.py"}
    assert {path.name for path in (tmp_path / "guest").iterdir()} == {path.name for path in (wasm_guest.IMAGES / "guest").glob("*.py")}


def test_the_facts_are_what_a_tool_finds(guest: wasm_guest.Guest) -> None:
    """Each module that the builder could import, a tool can, and none that it could not."""
    facts = json.loads(Path(f"{wasm_guest.component()}.json").read_bytes())
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
    last = guest.call({"tools.py": source}, "missing", {"names": facts["modules"] + facts["missing"]}).last
    assert isinstance(last, messages.Result), last
    assert last.value == facts["missing"]
    assert {"json", "sqlite3", "asyncio", "zoneinfo", "decimal"} <= set(facts["modules"])
    assert facts["python"].startswith("3.14")
