"""``stockade batch``: a line of outcomes for each line of calls, a summary, the exit code from the table."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.batches import write_calls
from tests.e2e.commands import Ended, stockade, tools

pytestmark = pytest.mark.slow


def call(id: str, tool: str = "double", **more: Any) -> dict[str, Any]:
    """A call of a tool of the source that the option names."""
    return {"id": id, "tool": tool, **({"arguments": {"number": 4}} if tool == "double" else {}), **more}


def outcomes(folder: Path) -> dict[str | None, Mapping[str, Any]]:
    """The outcomes by id."""
    found = [json.loads(line) for line in (folder / "r.jsonl").read_text(encoding="ascii").splitlines()]
    assert len({record["id"] for record in found}) == len(found)
    return {record["id"]: record for record in found}


def words(folder: Path, *more: str) -> list[str]:
    """The command, with the usual source."""
    return ["batch", str(folder / "calls.jsonl"), "--out", str(folder / "r.jsonl"), "--source", tools(folder), *more]


def said(ended: Ended) -> list[str]:
    """What stands on stderr, without the lines on progress: how many there are is a matter of time."""
    return [line for line in ended.err.splitlines() if not line.startswith("batch ")]


def test_all_well_is_exit_0_and_a_summary(tmp_path: Path) -> None:
    """For people a table; the files of the batch hold the rest, and no file beside them is left."""
    write_calls(tmp_path, [call(f"c{number}") for number in range(5)])
    ended = stockade(tmp_path, *words(tmp_path))
    assert (ended.code, said(ended)) == (0, [])
    assert [line.split()[0] for line in ended.out.splitlines()[2:]] == ["lines", "outcomes", "wall", "results"]
    assert "ok.done 5" in ended.out
    made = outcomes(tmp_path)
    assert {id: (record["value"], record["stdout"]) for id, record in made.items()} == {f"c{n}": (8, "doubling\n") for n in range(5)}
    assert not (tmp_path / "r.jsonl.started").exists()


def test_the_receipt_of_each_call_is_in_the_journal(tmp_path: Path) -> None:
    """Its id stands on the line, with what the call used."""
    write_calls(tmp_path, [call("a"), call("b", "fail")])
    stockade(tmp_path, *words(tmp_path))
    (journal,) = (tmp_path / "state").rglob("receipts.jsonl")
    receipts = {made["id"]: made for made in map(json.loads, journal.read_text().splitlines())}
    for record in outcomes(tmp_path).values():
        receipt = receipts[record["receipt"]]
        assert receipt["verdict"]["reason"] == record["reason"]
        assert record["usage"] == {name: receipt["usage"][name] for name in ("wall_ms", "cpu_ms", "peak_rss_bytes")}


def test_json_is_one_document(tmp_path: Path) -> None:
    """Counts by reason, quantiles, and the exit code of the gravest outcome."""
    lines: list[Mapping[str, Any] | str] = [call("a"), "no", call("f", "fail"), call("l", "leave"), call("e", "erase"), call("u", "none")]
    write_calls(tmp_path, [*lines, call("s", "spin", timeout_ms=300), call("m", source=str(tmp_path / "none.py"))])
    ended = stockade(tmp_path, *words(tmp_path, "--json", "--concurrency", "2"))
    document = ended.document
    assert (ended.code, document["status"], document["reason"]) == (6, "crashed", "crashed.exit")
    value = document["value"]
    assert value["outcomes"] == {
        "ok.done": 1,
        "refused.request": 1,
        "tool_error.exception": 1,
        "crashed.exit": 1,
        "refused.approval": 1,
        "refused.unknown_tool": 1,
        "limit_exceeded.wall": 1,
        "refused.source_missing": 1,
    }
    assert (value["lines"], value["earlier"], value["concurrency"]) == (8, 0, 2)
    assert list(value["wall_ms"]) == ["min", "median", "p90", "p99", "max"]
    assert outcomes(tmp_path)["f"]["stderr"].endswith("ValueError: on purpose\n")


def test_sources_may_have_tools_of_one_name(tmp_path: Path) -> None:
    """Each line is answered by its own."""
    for number in (2, 3):
        text = f'from engine import tool\n@tool(effect="read", description="d")\ndef times(n: int) -> int:\n    return n * {number}\n'
        (tmp_path / f"t{number}.py").write_text(text)
    lines = [
        {"id": f"{a}x{b}", "source": str(tmp_path / f"t{b}.py"), "tool": "times", "arguments": {"n": a}} for a in range(4) for b in (2, 3)
    ]
    write_calls(tmp_path, lines)
    assert stockade(tmp_path, *words(tmp_path)).code == 0
    assert {id: record["value"] for id, record in outcomes(tmp_path).items()} == {f"{a}x{b}": a * b for a in range(4) for b in (2, 3)}


def test_more_lines_than_workers_wait_for_their_turn(tmp_path: Path) -> None:
    """None is refused as busy, whatever was asked for; the policy's bound is told."""
    write_calls(tmp_path, [call(f"c{number}", tenant=f"t{number % 3}") for number in range(60)])
    ended = stockade(tmp_path, *words(tmp_path, "--concurrency", "500"))
    assert (ended.code, said(ended)) == (0, ["15 calls at once: the policy's pool has no room for more"])
    assert len(outcomes(tmp_path)) == 60


def test_no_tool_drives_the_terminal(tmp_path: Path) -> None:
    """Nothing of what tools and lines say is shown; the file holds it in ASCII."""
    write_calls(tmp_path, [call("a\x1b[2J\x7f", "drive"), call("b\x1b[31m", "dri\x1bve"), '{"\x1b[2J": 1}', call("c", "fail")])
    ended = stockade(tmp_path, *words(tmp_path))
    assert not [character for character in ended.out + ended.err if character != "\n" and not character.isprintable()]
    assert "on purpose" not in ended.out + ended.err
    data = (tmp_path / "r.jsonl").read_bytes()
    assert all(byte == 10 or 32 <= byte <= 126 for byte in data)
    assert outcomes(tmp_path)["a\x1b[2J\x7f"]["value"] == "\x1b[2Jletters \u00e9\u202e\x7f"


def test_what_cannot_be_a_batch_is_refused(tmp_path: Path) -> None:
    """The line says it all: no advice for calls, and no file is left. What else is refused: tests/unit/test_batch_face.py."""
    os.mkfifo(tmp_path / "calls.jsonl")
    ended = stockade(tmp_path, *words(tmp_path))
    line = f"refused.request: the calls {tmp_path}/calls.jsonl are no file: a batch that is gone on with reads them again"
    assert (ended.code, said(ended)) == (2, [line])
    assert not (tmp_path / "r.jsonl").exists()


def test_a_batch_of_nothing_is_done(tmp_path: Path) -> None:
    """No line, no outcome, no fault."""
    write_calls(tmp_path, ["", "  "])
    ended = stockade(tmp_path, *words(tmp_path, "--json"))
    assert (ended.code, ended.document["value"]["lines"], (tmp_path / "r.jsonl").read_bytes()) == (0, 0, b"")
