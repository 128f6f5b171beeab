"""A batch that was stopped, in order or outright, and gone on with: nothing finished is lost or made again."""

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.faces import leftovers
from tests import moments
from tests.batches import write_calls
from tests.e2e.commands import Ended, command, environment, stockade
from tests.kit import PROJECT

pytestmark = pytest.mark.slow

ENDING = 4
TOOLS = '''
import os, sys
from engine import tool

@tool(effect="read")
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number

@tool(effect="read")
def look() -> None:
    """Does not end before it is stopped."""
    while True:
        continue

@tool(effect="write")
def pay() -> None:
    """Never ends, and what it has done by then is done."""
    while True:
        continue
'''


def _words(folder: Path, *more: str) -> list[str]:
    (folder / "tools.py").write_text(TOOLS)
    given = ["--source", str(folder / "tools.py"), "--json", "--concurrency", "2"]
    return ["batch", str(folder / "calls.jsonl"), "--out", str(folder / "r.jsonl"), *given, *more]


def _outcomes(folder: Path) -> dict[str, str]:
    """Reasons by id; an id that stands twice is a failure."""
    found = [json.loads(line) for line in (folder / "r.jsonl").read_text().splitlines()]
    assert max(Counter(record["id"] for record in found).values(), default=1) == 1
    return {record["id"]: record["reason"] for record in found}


def _calls(folder: Path, tool: str) -> None:
    """Calls that end, and among them one that does not."""
    lines: list[dict[str, Any]] = [{"id": f"d{n}", "tool": "double", "arguments": {"number": n}} for n in range(ENDING)]
    write_calls(folder, [*lines[:2], {"id": "h", "tool": tool}, *lines[2:]])


def _running(folder: Path) -> "subprocess.Popen[bytes]":
    """A run that has told that all calls but the endless one are finished."""
    process = subprocess.Popen(
        command(*_words(folder)), cwd=PROJECT, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        told = json.loads(line)
        if (told["done"], told["total"]) == (ENDING, ENDING + 1):
            return process
    raise AssertionError("it ended before")


def _stopped(folder: Path, number: signal.Signals) -> Ended:
    """A run that gets this signal when all calls but the endless one are finished."""
    with _running(folder) as process:
        watched = [psutil.Process(int(line.split()[1])) for line in leftovers.processes_of(process.pid)]
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    moments.wait_gone_sync(watched)
    return Ended(process.returncode, out.decode(), err.decode())


def test_an_interrupted_batch_ends_cleanly_and_goes_on(tmp_path: Path) -> None:
    """Exit code 130, one document with the counts; then only what has no outcome is called, and the summary is that of the whole."""
    _calls(tmp_path, "look")
    ended = _stopped(tmp_path, signal.SIGINT)
    assert (ended.code, ended.document["reason"]) == (130, "cancelled.caller")
    assert ended.document["lines"] == [f"stopped with {ENDING} of {ENDING + 1} lines finished: --resume goes on with the others"]
    assert ended.document["value"]["outcomes"] == {"ok.done": ENDING}
    assert all(json.loads(line)["event"] == "batch" for line in ended.err.splitlines())
    before = (tmp_path / "r.jsonl").read_bytes()
    again = stockade(tmp_path, *_words(tmp_path, "--resume", "--timeout", "300"))
    assert (again.code, again.document["reason"], again.document["value"]["earlier"]) == (4, "limit_exceeded.wall", ENDING)
    assert again.document["value"]["outcomes"] == {"ok.done": ENDING, "limit_exceeded.wall": 1}
    assert (tmp_path / "r.jsonl").read_bytes().startswith(before)
    assert _outcomes(tmp_path)["h"] == "limit_exceeded.wall"


def test_a_terminated_batch_ends_cleanly(tmp_path: Path) -> None:
    """SIGTERM is the same end; meanwhile a second batch does not write to the file."""
    _calls(tmp_path, "look")
    with _running(tmp_path) as process:
        watched = [psutil.Process(int(line.split()[1])) for line in leftovers.processes_of(process.pid)]
        second = stockade(tmp_path, *_words(tmp_path, "--resume"))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    moments.wait_gone_sync(watched)
    assert (process.returncode, second.code, second.document["lines"]) == (130, 2, [f"another batch is writing to {tmp_path}/r.jsonl"])


def test_a_call_that_changes_the_world_is_not_made_again(tmp_path: Path) -> None:
    """After a kill it is refused; half a line at the end is cut off, and that call, which only reads, is made again."""
    _calls(tmp_path, "pay")
    assert _stopped(tmp_path, signal.SIGKILL).code == -signal.SIGKILL
    assert [json.loads(line)["id"] for line in (tmp_path / "r.jsonl.started").read_text().splitlines()] == ["h"]
    with (tmp_path / "r.jsonl").open("rb+") as file:
        file.seek(-30, os.SEEK_END)
        file.truncate()
    again = stockade(tmp_path, *_words(tmp_path, "--resume"))
    assert (again.code, again.document["reason"], again.document["value"]["earlier"]) == (3, "refused.repeat", ENDING - 1)
    assert Counter(_outcomes(tmp_path).values()) == {"ok.done": ENDING, "refused.repeat": 1}
    assert not (tmp_path / "r.jsonl.started").exists()
