"""Byte code is made when a source is staged and only makes its import cheaper: what it does, says and shows stays the same."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.host import Engine
from engine.outcome import Outcome
from engine.staging.code import Code, publish
from enter import coding
from tests import kit

TOOLS = '''
import sys
from typing import Any
from engine import tool

seen: list[str] = []
sys.addaudithook(lambda event, arguments: seen.append(event) if event in ("compile", "marshal.loads") else None)

import helper

@tool(effect="read")
def told(text: str) -> dict[str, Any]:
    """What the helper says, how it was imported, and what else there is."""
    return {"said": helper.said(text), "how": list(seen), "file": helper.__file__, "name": helper.__spec__.name}

@tool(effect="read")
def fail() -> None:
    """Raise below the entry."""
    helper.fail()
'''
HELPER = """
def said(text: str) -> str:
    return "the helper says " + text

def fail() -> None:
    raise RuntimeError("on purpose")  # the line to be shown
"""
SOURCE = {"tools.py": TOOLS, "helper.py": HELPER}


def kept(state: Path) -> list[Path]:
    """The files of byte code that an engine keeps."""
    return [path for path in state.rglob("code/*") if path.is_file()]


def spoil(state: Path) -> None:
    """Put something else where each file of byte code lies."""
    for path in kept(state):
        path.write_bytes(path.read_bytes().replace(b"the helper says ", b"somebody spoke: "))


async def both(folder: Path, tool: str, arguments: dict[str, Any]) -> list[Outcome]:
    """The same call of the same source, with its byte code and with that spoilt between load and call."""
    outcomes = []
    for name in ("with", "without"):
        async with kit.clean_engine(folder / name) as engine:
            await engine.load(kit.write(folder / "source", SOURCE))
            if name == "without":
                spoil(folder / name)
            outcomes.append(await engine.call(tool, arguments))
    return outcomes


async def test_code_is_used_and_nothing_else_changes(tmp_path: Path) -> None:
    """With it no source is compiled; without it (what lies there is not what was made) the source is, and the answer is the same."""
    used, spoilt = await both(tmp_path, "told", {"text": "hello"})
    assert (used.reason, used.value["how"]) == ("ok.done", ["marshal.loads"])
    assert (spoilt.reason, "compile" in spoilt.value["how"]) == ("ok.done", True)
    rest = {"said": "the helper says hello", "file": "/bundle/helper.py", "name": "helper"}
    assert {**used.value, "how": []} == {**spoilt.value, "how": []} == {**rest, "how": []}


async def test_a_trace_shows_the_lines_of_the_source(tmp_path: Path) -> None:
    """The same trace with byte code and without, down to the line that raised."""
    used, spoilt = await both(tmp_path, "fail", {})
    assert used.reason == spoilt.reason == "tool_error.exception"
    assert used.stderr == spoilt.stderr
    assert 'raise RuntimeError("on purpose")  # the line to be shown' in used.stderr


async def test_a_loaded_source_finds_its_code_again(engine: Engine, tmp_path: Path) -> None:
    """What was spoilt is written anew by the next load; equal sources share one file."""
    await engine.load(kit.write(tmp_path / "one", SOURCE))
    before = {path.name: path.read_bytes() for path in kept(tmp_path / "state")}
    spoil(tmp_path / "state")
    async with kit.clean_engine(tmp_path / "state") as again:
        await again.load(kit.write(tmp_path / "two", SOURCE))
    assert {path.name: path.read_bytes() for path in kept(tmp_path / "state")} == before
    assert len(before) == 1


async def test_another_bundle_with_the_same_file_has_code_of_its_own(engine: Engine, tmp_path: Path) -> None:
    """Code goes by the load that made it, so a source cannot plant any for a file that others hold too."""
    await engine.load(kit.write(tmp_path / "one", SOURCE))
    await engine.load(
        kit.write(tmp_path / "two", {"tools.py": TOOLS.replace("def told", "def other"), "helper.py": HELPER}), namespace="two"
    )
    assert len(kept(tmp_path / "state")) == 2


async def test_code_of_a_tool_is_not_in_its_jail(engine: Engine, tmp_path: Path) -> None:
    """There is no file of it inside: nothing to write to, for this call or the next."""
    body = "    return sorted(os.listdir('/bundle'))\n"
    listing = "import os\nfrom engine import tool\n@tool(effect='read')\ndef files() -> list[str]:\n    'List.'\n" + body
    assert (await kit.jailed(engine, tmp_path / "one", listing, "files")).value == ["tools.py"]


async def test_a_warning_of_the_compiler_is_there_each_time(engine: Engine, tmp_path: Path) -> None:
    """A source that the compiler warns about is compiled by each import, as it always was."""
    warned = "from engine import tool\n@tool(effect='read')\ndef odd() -> bool:\n    'Odd.'\n    return 1 is 1\n"
    for _ in range(2):
        outcome = await kit.jailed(engine, tmp_path / "one", warned, "odd")
        assert (outcome.value, "SyntaxWarning" in outcome.stderr) == (True, True)


def made(folder: Path, *, python: str = coding.PYTHON) -> Code:
    """Code of one file, kept in the folder."""
    found = publish({"a.py": coding.code_of(b"x = 1\n", "a.py").encode("latin-1")}, python, folder)
    assert found is not None
    return found


def test_code_comes_back_as_it_was(tmp_path: Path) -> None:
    """The zygote's reader finds the bytes that were made, under the name of their source."""
    place = made(tmp_path / "code")
    assert coding.read([str(place.path), place.digest]) == {"a.py": coding.code_of(b"x = 1\n", "a.py").encode("latin-1")}


@pytest.mark.parametrize("other", ["cpython-38 30800f0", ""])
def test_code_of_another_interpreter_is_not_used(tmp_path: Path, other: str) -> None:
    """Its instructions would mean something else."""
    place = made(tmp_path / "code", python=other)
    assert coding.read([str(place.path), place.digest]) == {}


@pytest.mark.parametrize("how", ["changed", "cut", "longer", "link", "missing", "huge"])
def test_what_is_not_the_code_that_was_made_is_not_used(tmp_path: Path, how: str) -> None:
    """Changed, cut, longer, behind a link, missing or larger than any: the same as none."""
    place = made(tmp_path / "code")
    data = place.path.read_bytes()
    place.path.unlink()
    if how == "link":
        (tmp_path / "target").write_bytes(data)
        place.path.symlink_to(tmp_path / "target")
    elif how != "missing":
        put = {
            "changed": data[:-1] + bytes((data[-1] ^ 1,)),
            "cut": data[:-1],
            "longer": data + b"\0",
            "huge": data + bytes(coding.FILE_BYTES),
        }
        place.path.write_bytes(put[how])
    assert coding.read([str(place.path), place.digest]) == {}


def test_too_much_code_is_none(tmp_path: Path) -> None:
    """At the bound it is kept, above it the sources are compiled by those who import them."""
    head = len(f"{coding.PYTHON}\n4194304 a.py") + 4
    assert publish({"a.py": bytes(coding.FILE_BYTES - head)}, coding.PYTHON, tmp_path / "code") is not None
    assert publish({"a.py": bytes(coding.FILE_BYTES - head + 1)}, coding.PYTHON, tmp_path / "code") is None
    assert publish({}, coding.PYTHON, tmp_path / "code") is None


@pytest.mark.parametrize("source", [b"return\n", b"x = 1 is 1\n", b"x = (\n", b"\0", b"x = " + b"-" * 100_000 + b"1"])
def test_what_does_not_compile_in_silence_has_no_code(source: bytes) -> None:
    """Errors and warnings are for whoever imports it."""
    assert coding.code_of(source, "a.py") == ""
    assert coding.code_of(b"x = 1\n", "a.py") != ""


def test_a_digest_is_that_of_the_whole_file(tmp_path: Path) -> None:
    """Head and code alike: a name cannot be moved to other bytes."""
    place = made(tmp_path / "code")
    assert hashlib.sha256(place.path.read_bytes()).hexdigest() == place.digest == place.path.name
    assert sys.implementation.cache_tag in place.path.read_bytes().decode("latin-1")
