"""One batch over an engine that answers at once: every line has one outcome, whatever else happens."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from engine.errors import EngineError
from tests import batches
from tests.batches import FakeEngine, asked, ends, write_calls


async def stopped(engine: FakeEngine, folder: Path, **more: Any) -> None:
    """A run that is interrupted when a call of ``hold`` is there."""
    async with trio.open_nursery() as nursery:

        async def cut() -> None:
            await engine.holding.wait()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            engine.gate.set()  # too late for calls, not for receipts

        nursery.start_soon(cut)
        await batches.run(engine, folder, **more)


async def refusal(engine: FakeEngine, folder: Path, **more: Any) -> tuple[str, str]:
    """Why a run does not come to its end."""
    with pytest.raises(EngineError) as caught:
        await batches.run(engine, folder, **more)
    return caught.value.code, caught.value.lines[0]


def note(id: str) -> str:
    """As it stands before a call that changes the world."""
    return json.dumps({"id": id, "line": 1, "call": "sha256:" + "0" * 64}) + "\n"


@pytest.mark.parametrize("line", ['{"id":"w"}', '{"id":"w","line":1,"call":"x"}', '{"id":1,"line":1,"call":"sha256:' + "0" * 64 + '"}'])
async def test_notes_that_no_batch_wrote_are_refused(tmp_path: Path, line: str) -> None:
    """Their file is as it was; its control is ``test_it_is_made_again_when_that_is_allowed``."""
    write_calls(tmp_path, [asked("w")])
    (tmp_path / "results.jsonl.started").write_text(f"{line}\n")
    engine = FakeEngine()
    assert (await refusal(engine, tmp_path, resume=True))[1].endswith("started was not written by a batch: remove it, or name another file")
    assert ((tmp_path / "results.jsonl.started").read_text(), engine.calls) == (f"{line}\n", {})


async def test_each_line_has_an_outcome(tmp_path: Path) -> None:
    """The whole record of a call that went well, of one that failed and of one that was not made."""
    write_calls(tmp_path, [asked("a", number=4), asked("b", "fail"), asked("c", source="refused.source_missing")])
    batch = await batches.run(FakeEngine(), tmp_path)
    found = batches.results(tmp_path)
    digests = [record.pop("call") for record in found]
    empty = {"value": None, "stdout": "", "stderr": "", "usage": None}
    usage = {"wall_ms": 1.5, "cpu_ms": 1, "peak_rss_bytes": 4096}
    done = {"id": "a", "line": 1, "status": "ok", "reason": "ok.done", "lines": [], "receipt": "r"}
    failed = {"id": "b", "line": 2, "status": "tool_error", "reason": "tool_error.exception", "lines": ["on purpose"], "receipt": "r"}
    absent = {"id": "c", "line": 3, "status": "refused", "reason": "refused.source_missing", "lines": ["on purpose"], "receipt": None}
    assert found == [{**empty, **done, "value": 8, "usage": usage}, {**empty, **failed}, {**empty, **absent}]
    assert [digest[:7] for digest in digests] == ["sha256:"] * 3
    assert (batch.done, batch.total, batch.tally.outcomes()["ok.done"]) == (3, 3, 1)
    assert sorted(os.listdir(tmp_path)) == ["calls.jsonl", "results.jsonl"]


async def test_a_bad_line_stops_no_other(tmp_path: Path) -> None:
    """No JSON, too long, an unknown key, an id that is taken, an unknown tool, a bug of ours: each has its outcome."""
    long = json.dumps({"id": "l", "x": "x" * batches.LINE_BYTES})
    lines: list[Mapping[str, Any] | str] = [
        "no",
        long,
        asked("k", also=1),
        asked("a"),
        asked("a", number=2),
        asked("u", "none"),
        asked("x", "bug"),
        asked("z"),
    ]
    write_calls(tmp_path, lines)
    engine = FakeEngine()
    await batches.run(engine, tmp_path)
    assert ends(tmp_path) == [
        (None, "refused.request"),
        (None, "refused.request_size"),
        ("k", "refused.request"),
        ("a", "ok.done"),
        (None, "refused.request"),
        ("u", "refused.unknown_tool"),
        ("x", "engine_failed.bug"),
        ("z", "ok.done"),
    ]
    told = "the id 'a' stands on line 4 already: give this line an id of its own"
    assert batches.results(tmp_path)[4]["lines"] == [told]
    assert ("double", 2) not in engine.calls


async def test_no_more_calls_are_in_flight_than_asked_for(tmp_path: Path) -> None:
    """In all, and of one source and tenant no more than one worker has jails."""
    calls = [asked(f"{n}", "hold", number=n, source="ab"[n % 2], tenant="t" if n % 3 else None) for n in range(60)]
    write_calls(tmp_path, calls)
    engine = FakeEngine()

    async def open_when_all_hold() -> None:
        await engine.holding.wait()
        await trio.testing.wait_all_tasks_blocked()
        engine.gate.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_when_all_hold)
        await batches.run(engine, tmp_path, concurrency=7, jails=2)
    assert (engine.most, engine.most_in_lane, len(engine.calls)) == (7, 2, 60)


async def test_an_interrupted_run_is_gone_on_with(tmp_path: Path) -> None:
    """What was finished is not called again, what was not is; a bad line is told once."""
    write_calls(tmp_path, ["no", asked("a"), asked("h", "hold"), asked("b", number=1)])
    engine = FakeEngine()
    await stopped(engine, tmp_path, concurrency=2)
    assert ends(tmp_path) == [(None, "refused.request"), ("a", "ok.done"), ("b", "ok.done")]
    batch = await batches.run(engine, tmp_path, resume=True)
    assert engine.calls == {("double", 0): 1, ("double", 1): 1, ("hold", 0): 2}
    assert ends(tmp_path) == [(None, "refused.request"), ("a", "ok.done"), ("h", "ok.done"), ("b", "ok.done")]
    assert (batch.earlier, batch.finished, batch.tally.outcomes()) == (3, 1, {"ok.done": 3, "refused.request": 1})


async def test_what_was_answered_before_an_interrupt_is_not_lost(tmp_path: Path) -> None:
    """A call whose receipt is still being written is finished, and its line waits for that."""
    write_calls(tmp_path, [asked("a", "late", number=2)])
    engine = FakeEngine()
    await stopped(engine, tmp_path)
    assert ends(tmp_path) == [("a", "ok.done")]


@pytest.mark.parametrize("tool", ["pay", "send"])
async def test_a_call_that_changes_the_world_is_not_made_again(tmp_path: Path, tool: str) -> None:
    """Begun by a run that did not see its end, it is refused; its control, which only reads, is made again."""
    write_calls(tmp_path, [asked("w", tool), asked("r")])
    (tmp_path / "results.jsonl.started").write_text(note("w") + '{"id":"r')
    engine = FakeEngine()
    await batches.run(engine, tmp_path, resume=True)
    assert (ends(tmp_path), engine.calls) == ([("w", "refused.repeat"), ("r", "ok.done")], {("double", 0): 1})


async def test_it_is_made_again_when_that_is_allowed(tmp_path: Path) -> None:
    """Even after it was refused: then the later of its two outcomes counts, in every run that follows."""
    write_calls(tmp_path, [asked("w", "pay"), asked("r")])
    (tmp_path / "results.jsonl.started").write_text(note("w"))
    engine = FakeEngine()
    await batches.run(engine, tmp_path, resume=True)
    second = await batches.run(engine, tmp_path, resume=True, allow_repeat=True)
    third = await batches.run(engine, tmp_path, resume=True)
    assert engine.calls == {("pay", 0): 1, ("double", 0): 1}
    assert ends(tmp_path) == [("w", "refused.repeat"), ("w", "ok.done"), ("r", "ok.done")]
    assert [batch.tally.outcomes() for batch in (second, third)] == [{"ok.done": 2}] * 2


async def test_a_call_that_changes_the_world_is_noted_before_it_begins(tmp_path: Path) -> None:
    """The note is in the file when the engine is asked; one that only reads has none."""
    write_calls(tmp_path, [asked("w", "pay"), asked("r")])
    seen: dict[str, str] = {}

    class Looking(FakeEngine):
        async def call(self, name: str, arguments: object, **more: Any) -> Any:
            seen[name] = (tmp_path / "results.jsonl.started").read_text()
            return await super().call(name, arguments, **more)

    await batches.run(Looking(), tmp_path, concurrency=1)
    assert [json.loads(line)["id"] for line in seen["pay"].splitlines()] == ["w"]
    assert seen["double"] == seen["pay"]


async def test_a_line_that_changed_is_told(tmp_path: Path) -> None:
    """The id has the outcome of another call, which is not taken for this one's, nor made again; a line that only moved is known."""
    write_calls(tmp_path, [asked("a"), asked("b")])
    engine = FakeEngine()
    await batches.run(engine, tmp_path)
    write_calls(tmp_path, [asked("n", number=5), asked("b"), asked("a", number=7)])
    for _ in range(2):
        batch = await batches.run(engine, tmp_path, resume=True)
    assert engine.calls == {("double", 0): 2, ("double", 5): 1}
    told = [record for record in batches.results(tmp_path) if record["id"] is None]
    assert [(record["line"], record["lines"]) for record in told] == [
        (3, ["the id 'a' has an outcome, of another call already: give this line an id of its own"])
    ]
    assert batch.finished == 0


async def test_a_full_disk_stops_the_batch(tmp_path: Path) -> None:
    """Else every line that follows would end for it; what was finished is kept, and the line goes on later."""
    write_calls(tmp_path, [asked("a"), asked("f", "full"), asked("b")])
    assert await refusal(FakeEngine(), tmp_path, concurrency=1) == ("refused.storage", "on purpose")
    assert ends(tmp_path)[:1] == [("a", "ok.done")]
    assert ("f", "refused.storage") not in ends(tmp_path)


async def test_a_worker_that_would_not_end_stops_the_batch(tmp_path: Path) -> None:
    """Its line has its outcome, and no call follows while something is alive."""
    write_calls(tmp_path, [asked("l", "left"), *(asked(f"{n}") for n in range(5))])
    assert await refusal(FakeEngine(), tmp_path, concurrency=1) == ("engine_failed.not_clean", "something is alive")
    assert ends(tmp_path) == [("l", "engine_failed.not_clean")]


async def test_outcomes_are_not_written_over(tmp_path: Path) -> None:
    """Nor is a note of what was begun, when the outcomes are gone."""
    write_calls(tmp_path, [asked("a")])
    await batches.run(FakeEngine(), tmp_path)
    assert (await refusal(FakeEngine(), tmp_path))[0] == "refused.request"
    (tmp_path / "results.jsonl").unlink()
    (tmp_path / "results.jsonl.started").write_text(note("a"))
    line = f"{tmp_path}/results.jsonl.started is there already: --resume goes on with it, else name another"
    assert await refusal(FakeEngine(), tmp_path) == ("refused.request", line)
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"id": 1},
        {"line": "1"},
        {"call": "sha256:x"},
        {"reason": "ok"},
        {"reason": ["ok.done"]},
        {"usage": {}},
        {"usage": {"wall_ms": "1"}},
        {"usage": {"wall_ms": math.inf}},
    ],
)
async def test_outcomes_that_no_batch_wrote_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """Nothing is called, and nothing is added to them."""
    write_calls(tmp_path, [asked("a")])
    await batches.run(FakeEngine(), tmp_path)
    (record,) = batches.results(tmp_path)
    text = json.dumps({**record, **change}) + "\n"
    (tmp_path / "results.jsonl").write_text(text)
    write_calls(tmp_path, [asked("a"), asked("b")])
    engine = FakeEngine()
    line = f"{tmp_path}/results.jsonl was not written by a batch, or not as it is now: name another file"
    assert await refusal(engine, tmp_path, resume=True) == ("refused.request", line)
    assert (engine.calls, (tmp_path / "results.jsonl").read_text()) == ({}, text)
