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

TOOLS = '''
import os, sys
from engine import tool

@tool(effect="read")
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number

@tool(effect="read")
def look() -> None:
    """Never ends."""
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
    """Twenty calls that end, and among them one that does not."""
    lines: list[dict[str, Any]] = [{"id": f"d{n}", "tool": "double", "arguments": {"number": n}} for n in range(20)]
    write_calls(folder, [*lines[:5], {"id": "h", "tool": tool}, *lines[5:]])


def _running(folder: Path) -> "subprocess.Popen[bytes]":
    """A run that has told that all calls but the endless one are finished."""
    process = subprocess.Popen(
        command(*_words(folder)), cwd=PROJECT, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        told = json.loads(line)
        if (told["done"], told["total"]) == (20, 21):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_batch_ends_cleanly_and_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 130, one document, what is left is told; then only what has no outcome is called, and the summary is that of the whole."""
    _calls(tmp_path, "look")
    ended = _stopped(tmp_path, number)
    assert (ended.code, ended.document["reason"]) == (130, "cancelled.caller")
    assert ended.err.splitlines()[-1] == "stopped with 20 of 21 lines finished: --resume goes on with the others"
    before = (tmp_path / "r.jsonl").read_bytes()
    again = stockade(tmp_path, *_words(tmp_path, "--resume", "--timeout", "500"))
    assert (again.code, again.document["reason"], again.document["value"]["earlier"]) == (4, "limit_exceeded.wall", 20)
    assert again.document["value"]["outcomes"] == {"ok.done": 20, "limit_exceeded.wall": 1}
    assert (tmp_path / "r.jsonl").read_bytes().startswith(before)
    assert _outcomes(tmp_path)["h"] == "limit_exceeded.wall"


def test_a_batch_killed_outright_goes_on(tmp_path: Path) -> None:
    """Half a line at the end is made whole; a call that only reads is made again."""
    _calls(tmp_path, "look")
    assert _stopped(tmp_path, signal.SIGKILL).code == -signal.SIGKILL
    with (tmp_path / "r.jsonl").open("rb+") as file:
        file.seek(-30, os.SEEK_END)
        file.truncate()
    again = stockade(tmp_path, *_words(tmp_path, "--resume", "--timeout", "500"))
    assert (again.code, again.document["value"]["earlier"]) == (4, 19)
    assert Counter(_outcomes(tmp_path).values()) == {"ok.done": 20, "limit_exceeded.wall": 1}


def test_a_call_that_changes_the_world_is_made_again_only_when_allowed(tmp_path: Path) -> None:
    """After a kill it is refused, with what to do; ``--allow-repeat`` calls it."""
    _calls(tmp_path, "pay")
    _stopped(tmp_path, signal.SIGKILL)
    assert [json.loads(line)["id"] for line in (tmp_path / "r.jsonl.started").read_text().splitlines()] == ["h"]
    again = stockade(tmp_path, *_words(tmp_path, "--resume", "--timeout", "500"))
    assert (again.code, again.document["reason"]) == (3, "refused.repeat")
    assert Counter(_outcomes(tmp_path).values()) == {"ok.done": 20, "refused.repeat": 1}
    assert not (tmp_path / "r.jsonl.started").exists()
    third = stockade(tmp_path, *_words(tmp_path, "--resume", "--allow-repeat", "--timeout", "500"))
    assert (third.code, third.document["value"]["outcomes"]) == (4, {"ok.done": 20, "limit_exceeded.wall": 1})
    fourth = stockade(tmp_path, *_words(tmp_path, "--resume", "--timeout", "500"))
    assert (fourth.code, fourth.document["value"]["earlier"]) == (4, 21)


def test_two_batches_do_not_write_to_one_file(tmp_path: Path) -> None:
    """The second is refused while the first runs."""
    _calls(tmp_path, "look")
    with _running(tmp_path) as process:
        second = stockade(tmp_path, *_words(tmp_path, "--resume", "--timeout", "500"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert (second.code, second.document["lines"]) == (2, ["another batch is writing to r.jsonl"])
