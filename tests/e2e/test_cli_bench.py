"""``stockade bench``: figures for a tool of one's own, every call counted by how it ended. No figure is compared with another."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import stockade, tools
from tests.kit import call_receipts

pytestmark = pytest.mark.slow
FEW = ("--calls", "6", "--concurrency", "2")
ALL = 1 + 6 + 2 + 6  # the first, one at a time, those that start the jails, in flight
FIGURES = {"count", "min", "median", "p90", "p99", "max"}


def _source(folder: Path, text: str) -> str:
    place = folder / "tools.py"
    place.write_text(f"import time\nfrom engine import tool\n\n{text}", encoding="utf-8")
    return str(place)


def _value(document: dict[str, Any]) -> dict[str, Any]:
    value = document["value"]
    assert isinstance(value, dict)
    return value


def test_every_call_is_counted_and_has_its_receipt(tmp_path: Path) -> None:
    """Figures of the load and of three kinds of calls, usage from as many receipts as there were calls."""
    ended = stockade(tmp_path, "bench", tools(tmp_path), "double", '{"number": 4}', *FEW, "--json")
    value = _value(ended.document)
    assert (ended.code, value["tool"], value["outcomes"]) == (0, "double", {"ok.done": ALL})
    assert {name: row["count"] for name, row in value["milliseconds"].items()} == {
        "load": 1,
        "first call": 1,
        "one at a time": 6,
        "2 in flight": 6,
    }
    assert all(set(row) == FIGURES for row in value["milliseconds"].values())
    assert set(value["usage"]) == {"cpu_ms", "peak_rss_bytes"}
    assert value["calls_per_second"] > 0
    assert set(value["machine"]) == {"processors", "load_before", "load_after", "kernel", "python"}
    assert [made["tool"] for made in call_receipts(tmp_path / "state" / "stockade")] == ["double"] * ALL


def test_the_table_is_on_stdout(tmp_path: Path) -> None:
    """Two tables of aligned columns; what comes is told on stderr."""
    ended = stockade(tmp_path, "bench", tools(tmp_path), "double", '{"number": 4}', *FEW)
    assert ended.code == 0
    names = [re.split(r"  +", line)[0] for line in ended.out.splitlines()]
    assert [name for name in names if not set(name) <= {"-"}] == [
        "the caller waited (ms)",
        "load",
        "first call",
        "one at a time",
        "2 in flight",
        "of all calls",
        "calls a second",
        "CPU of a call",
        "memory at peak",
        "outcomes",
        "load average",
        "machine",
    ]
    assert re.fullmatch(
        r"bench first call [0-9.]+ ms; 14 more follow: 6 one at a time, 2 to start the workers, 6 with 2 in flight\n", ended.err
    )


def test_a_first_call_that_fails_is_the_answer(tmp_path: Path) -> None:
    """A tool that does not work is not called again: its outcome, one receipt, no table."""
    ended = stockade(tmp_path, "bench", tools(tmp_path), "fail", *FEW, "--json")
    assert (ended.code, ended.document["reason"], ended.document["value"]) == (1, "tool_error.exception", None)
    assert len(call_receipts(tmp_path / "state" / "stockade")) == 1


def test_no_more_calls_are_in_flight_than_the_pool_has_workers(tmp_path: Path) -> None:
    """Else they would measure the line, or be refused; what was asked for is told, and the row says what was done."""
    policy = tmp_path / "policy.toml"
    policy.write_text('extends = "required"\n[pool]\njails = { value = 1, reason = "one at a time" }\n', encoding="utf-8")
    ended = stockade(tmp_path, "bench", tools(tmp_path), "double", '{"number": 4}', *FEW, "--policy", str(policy), "--json")
    value = _value(ended.document)
    assert (ended.code, value["outcomes"], value["milliseconds"]["1 in flight"]["count"]) == (0, {"ok.done": ALL - 1}, 6)
    assert ended.err.splitlines()[0] == "1 calls at once: the policy's pool has no room for more"


@pytest.mark.parametrize(
    ("effect", "words", "code", "calls"), [("write", [], 2, 0), ("write", ["--allow-repeat"], 0, ALL), ("read", [], 0, ALL)]
)
def test_what_changes_the_world_is_not_repeated_unasked(tmp_path: Path, effect: str, words: list[str], code: int, calls: int) -> None:
    """A tool of the effect write is called only when the command line says so; the control, a read, needs no word."""
    source = _source(tmp_path, f"@tool(effect={effect!r})\ndef put() -> int:\n    'Puts.'\n    return 1\n")
    ended = stockade(tmp_path, "bench", source, "put", *FEW, *words, "--json")
    assert (ended.code, ended.document["reason"]) == (code, "refused.request" if code else "ok.done")
    assert len(call_receipts(tmp_path / "state" / "stockade")) == calls


@pytest.mark.parametrize(("option", "number"), [("--calls", "0"), ("--concurrency", "0"), ("--calls", "x")])
def test_numbers_that_mean_nothing_are_usage_errors(tmp_path: Path, option: str, number: str) -> None:
    """Exit code 2 and nothing is loaded."""
    ended = stockade(tmp_path, "bench", tools(tmp_path), "double", option, number, "--json")
    assert (ended.code, ended.document["reason"]) == (2, "refused.request")
