"""ARGUMENTS: left out, written out, from a file, from stdin; each way to get them wrong is exit code 2 with what is wrong."""

import io
import sys
from pathlib import Path

import pytest

from engine.errors import RequestError
from engine.faces.run import read_arguments
from tests.e2e.commands import stockade, tools


def _refused(written: str) -> RequestError:
    with pytest.raises(RequestError) as raised:
        read_arguments(written, "required")
    return raised.value


def _stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_arguments_left_out_are_an_empty_object() -> None:
    """A tool without parameters needs no ``{}``."""
    assert read_arguments(None, "required") == {}


def test_arguments_come_as_text_from_a_file_or_from_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three ways give the same object."""
    (tmp_path / "a.json").write_text('{"number": 21}')
    _stdin(monkeypatch, b'{"number": 21}')
    found = [read_arguments(written, "required") for written in ('{"number": 21}', f"@{tmp_path}/a.json", "-")]
    assert found == [{"number": 21}] * 3


@pytest.mark.parametrize(
    "written", ["", "[1]", "null", '"text"', "{", "{} {}", '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, "@", "@/"]
)
def test_anything_but_one_object_refuses(written: str) -> None:
    """Lists, scalars, doubled keys, numbers that are none, depth, files that are none."""
    assert _refused(written).code == "refused.request"


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """The line says which file and why."""
    assert _refused(f"@{tmp_path}/none.json").lines == (
        f"the arguments file {tmp_path}/none.json cannot be read: No such file or directory",
    )


def test_stdin_is_read_to_the_request_limit_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte past the limit refuses by size; what lies behind it is left alone."""
    _stdin(monkeypatch, b'{"a": "' + b"x" * (1 << 21) + b'"}')
    assert _refused("-").code == "refused.request_size"
    assert sys.stdin.buffer.tell() == (1 << 20) + 1


def test_a_device_without_end_refuses_by_size() -> None:
    """A file that never ends is not read for ever."""
    assert _refused("@/dev/zero").code == "refused.request_size"


def test_a_closed_stdin_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started without a descriptor 0 there is nothing to read."""
    monkeypatch.setattr("sys.stdin", None)
    assert _refused("-").code == "refused.request"


@pytest.mark.slow
def test_stdin_reaches_the_tool(tmp_path: Path) -> None:
    """From the shell's pipe to the tool's parameter."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "double", "-", given=b'{"number": 21}')
    assert (ended.code, ended.out) == (0, "42\n")


@pytest.mark.slow
def test_arguments_against_the_schema_are_exit_2_and_say_what_is_wrong(tmp_path: Path) -> None:
    """The lines are those that a model would get."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "double", '{"number": "x", "other": 1}', "--json")
    assert (ended.code, ended.document["reason"], len(ended.document["lines"])) == (2, "refused.arguments", 2)
