"""A batch that is gone on with: which calls are made again, and what is counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.outcome import REASONS
from tests import batches
from tests.batches import FakeEngine, asked, ends, write_calls


def turned(folder: Path, id: str, reason: str) -> None:
    """As if that call had ended so."""
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for record in found:
        if record["id"] == id:
            record.update(reason=reason, status=str(REASONS[reason].status), usage=None)
    (folder / "results.jsonl").write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in found))


def noted(folder: Path, id: str) -> None:
    """As if a run that was killed had begun that call."""
    note = {"id": id, "line": 1, "call": "sha256:" + "0" * 64}
    (folder / "results.jsonl.started").write_text(json.dumps(note) + "\n")


async def ended(folder: Path, tool: str, reason: str) -> FakeEngine:
    """An engine for going on with a batch whose one call of that tool ended so."""
    write_calls(folder, [asked("a"), asked("x", tool)])
    await batches.run(FakeEngine(), folder)
    turned(folder, "x", reason)
    return FakeEngine()


@pytest.mark.parametrize("reason", ["crashed.worker", "refused.busy", "refused.start_failed", "refused.source_changed"])
async def test_what_the_host_ended_is_made_again(tmp_path: Path, reason: str) -> None:
    """Its id has two lines then, and the later counts, in this run and in those that follow."""
    engine = await ended(tmp_path, "double", reason)
    made = [await batches.run(engine, tmp_path, resume=True) for _ in range(2)]
    assert engine.calls == {("double", 0): 1}
    assert ends(tmp_path) == [("a", "ok.done"), ("x", reason), ("x", "ok.done")]
    assert [(batch.tally.outcomes(), batch.done, batch.tally.reason()) for batch in made] == [({"ok.done": 2}, 2, "ok.done")] * 2


@pytest.mark.parametrize(
    "reason", ["tool_error.exception", "crashed.exit", "limit_exceeded.wall", "refused.arguments", "engine_failed.bug"]
)
async def test_any_other_end_stands(tmp_path: Path, reason: str) -> None:
    """The control: another call would end so again, or is to be looked into first."""
    engine = await ended(tmp_path, "double", reason)
    batch = await batches.run(engine, tmp_path, resume=True)
    assert (engine.calls, batch.tally.outcomes(), batch.earlier) == ({}, {"ok.done": 1, reason: 1}, 2)


@pytest.mark.parametrize(
    ("reason", "allowed", "calls"), [("crashed.worker", False, 0), ("crashed.worker", True, 1), ("refused.busy", False, 1)]
)
async def test_a_call_that_may_have_changed_the_world_stands(tmp_path: Path, reason: str, allowed: bool, calls: int) -> None:
    """It is made again when nothing of it ran, or when that is allowed; what is not has its outcome counted, and no second line."""
    engine = await ended(tmp_path, "pay", reason)
    batch = await batches.run(engine, tmp_path, resume=True, allow_repeat=allowed)
    assert engine.calls.total() == calls
    assert batch.tally.outcomes() == ({"ok.done": 2} if calls else {"ok.done": 1, reason: 1})
    assert (batch.done, len(ends(tmp_path))) == (2, 2 + calls)


async def test_a_refused_call_that_a_later_run_began_is_not_made_again(tmp_path: Path) -> None:
    """The note is all that is known of that run."""
    engine = await ended(tmp_path, "pay", "refused.busy")
    noted(tmp_path, "x")
    await batches.run(engine, tmp_path, resume=True)
    assert (engine.calls, ends(tmp_path)[2]) == ({}, ("x", "refused.repeat"))
    await batches.run(engine, tmp_path, resume=True, allow_repeat=True)
    assert (engine.calls, ends(tmp_path)[3]) == ({("pay", 0): 1}, ("x", "ok.done"))


async def test_mended_lines_turn_a_batch_green(tmp_path: Path) -> None:
    """What stood on a line that reads otherwise by now, or is gone, is in no count; an id whose call was refused is free for another."""
    first: list[Any] = ["no", asked("k", also=1), asked("a"), asked("f", "fail"), asked("u", "none")]
    write_calls(tmp_path, first)
    engine = FakeEngine()
    before = await batches.run(engine, tmp_path)
    assert before.tally.outcomes() == {"refused.request": 2, "ok.done": 1, "tool_error.exception": 1, "refused.unknown_tool": 1}
    write_calls(tmp_path, [asked("n", number=1), asked("k", number=2), asked("a"), asked("u", number=3)])
    for earlier in (1, 4):
        batch = await batches.run(engine, tmp_path, resume=True)
        assert (batch.tally.outcomes(), batch.tally.reason(), batch.earlier, batch.total) == ({"ok.done": 4}, "ok.done", earlier, 4)
