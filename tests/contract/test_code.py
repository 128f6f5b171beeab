"""Byte code is made when a source is staged and only makes its import cheaper: what it does, says and shows stays the same."""

import hashlib
import os
import socket
import sys
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.host import Engine
from engine.outcome import Outcome
from engine.staging.code import MOST_BYTES, Code, publish
from engine.worker.parser import Parser, open_parser
from enter import coding, reader
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


@pytest.mark.parametrize("how", ["changed", "cut", "longer", "link", "missing", "huge", "pipe", "folder"])
def test_what_is_not_the_code_that_was_made_is_not_used(tmp_path: Path, how: str) -> None:
    """Changed, cut, longer, behind a link, missing, larger than any or no file: the same as none, and nothing of it stays open."""
    place = made(tmp_path / "code")
    data = place.path.read_bytes()
    place.path.unlink()
    if how == "link":
        (tmp_path / "target").write_bytes(data)
        place.path.symlink_to(tmp_path / "target")
    elif how == "pipe":
        os.mkfifo(place.path)
    elif how == "folder":
        place.path.mkdir()
    elif how != "missing":
        put = {
            "changed": data[:-1] + bytes((data[-1] ^ 1,)),
            "cut": data[:-1],
            "longer": data + b"\0",
            "huge": data + bytes(coding.FILE_BYTES),
        }
        place.path.write_bytes(put[how])
    before = os.listdir("/proc/self/fd")
    assert coding.read([str(place.path), place.digest]) == {}
    assert os.listdir("/proc/self/fd") == before


FOLDS = b"".join(b"x = 'a' * 4096 + '%d'\n" % number for number in range(700))  # some 16 kB that are 3 MB of code


async def test_code_past_what_a_bundle_can_keep_is_not_held(engine: Engine) -> None:
    """A load with more of it has none at all, whatever comes after; a new load begins anew."""
    launcher = await engine._launchers.native()
    for second in (FOLDS, b"x = 1\n"):
        async with open_parser(launcher, engine._state.places) as parse:
            sizes = []
            for name, text in (("a.py", FOLDS), ("b.py", second), ("c.py", b"x = 1\n")):
                assert (await parse(text, name))["ok"] is True
                sizes.append(len(parse.code))
            assert sizes == ([1, 0, 0] if second == FOLDS else [1, 2, 3])


def test_a_parser_that_was_taken_over_fills_no_memory() -> None:
    """The supervisor counts for itself: at the bound it is kept, above it none, and none that follows."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parse = Parser(ours)
        parse._keep("a.py", "x" * MOST_BYTES, coding.PYTHON)
        assert sum(map(len, parse.code.values())) == MOST_BYTES
        for name in ("b.py", "c.py"):
            parse._keep(name, "x", coding.PYTHON)
            assert parse.code == {}


def test_a_parser_makes_no_code_past_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not kept is not compiled either."""
    asked = tmp_path / "asked"
    asked.write_bytes(b"".join(len(n).to_bytes(4, "big") + len(s).to_bytes(4, "big") + n + s for n, s in [(b"a.py", FOLDS)] * 4))
    compiled, sent, real = [], [], coding.code_of

    def code_of(text: bytes, name: str) -> str:
        compiled.append(name)
        return real(text, name)

    def pack(_: int, fields: list[Any]) -> bytes:
        sent.append(len(fields[1]) > 0)
        return b""

    monkeypatch.setattr(coding, "code_of", code_of)
    descriptor = os.open(asked, os.O_RDONLY)
    reader.serve(descriptor, types.SimpleNamespace(pack=pack))
    os.close(descriptor)
    assert (compiled, sent) == (["a.py"] * 2, [True, True, False, False])


def test_too_much_code_is_not_even_joined(tmp_path: Path) -> None:
    """A gigabyte of it costs nothing: it is counted first."""
    once = bytes(MOST_BYTES)
    tracemalloc.start()
    try:
        assert publish({f"{number}.py": once for number in range(256)}, coding.PYTHON, tmp_path / "code") is None
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("what", "well"), [("pipe", False), ("link", False), ("folder", False), ("longer", True), ("nothing", True)])
async def test_what_lies_in_the_place_of_code(tmp_path: Path, what: str, well: bool) -> None:
    """Only a regular file is read and written there; whatever else it is stays, unread, and the bundle has no code."""
    place = made(tmp_path / "code")
    data = place.path.read_bytes()
    place.path.unlink()
    target = tmp_path / "target"
    target.write_bytes(b"another's")
    put: dict[str, Callable[[], object]] = {
        "pipe": lambda: os.mkfifo(place.path),
        "link": lambda: place.path.symlink_to(target),
        "folder": place.path.mkdir,
        "longer": lambda: place.path.write_bytes(bytes(2 * MOST_BYTES)),
        "nothing": lambda: None,
    }
    put[what]()
    code = {"a.py": coding.code_of(b"x = 1\n", "a.py").encode("latin-1")}
    with trio.fail_after(20):
        found = await trio.to_thread.run_sync(publish, code, coding.PYTHON, tmp_path / "code", abandon_on_cancel=True)
    assert (found, target.read_bytes()) == (place if well else None, b"another's")
    assert not well or place.path.read_bytes() == data


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
