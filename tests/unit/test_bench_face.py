"""``stockade bench`` over an engine of the test's own: what is measured, and what is told of calls that did not end well."""

import io
import sys
from itertools import count
from typing import Any, cast

import pytest
import trio

from engine.faces.bench import Caller, _told
from engine.faces.printing import Printer
from engine.faces.run import Wanted
from engine.host import Engine
from engine.outcome import REASONS, Outcome
from tests.batches import outcome


class Failing:
    """An engine whose every third call ends badly."""

    def __init__(self) -> None:
        self._numbers = count(1)

    async def call(self, name: str, arguments: object, **more: Any) -> Outcome:
        """Soon."""
        await trio.sleep(0.01)
        return outcome("ok.done" if next(self._numbers) % 3 else "refused.busy")


def caller() -> Caller:
    """Of that engine."""
    return Caller(cast(Engine, Failing()), "double", {}, Wanted())


async def test_only_calls_that_end_well_are_measured(autojump_clock: object) -> None:
    """Neither the times nor the rate nor the use hold another; all are counted by how they ended."""
    made = caller()
    paced = await made.paced(6)
    waited, rate = await made.in_flight(9, 2)
    assert (len(paced), len(waited), len(made.counted.cpu_ms)) == (4, 6, 10)
    assert rate > 0
    assert made.counted.reasons == {"ok.done": 10, "refused.busy": 5}


async def test_calls_that_end_badly_are_told_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many, and why; the exit code is theirs, and a row without a figure has dashes."""
    made = caller()
    for _ in range(3):
        await made.first()
    answer = _told("double", {"load": [1.0], "1 in flight": []}, 0.0, made.counted, {"load_before": 0, "load_after": 0, **MACHINE})
    assert answer.reason == "refused.busy"
    assert answer.value["milliseconds"]["1 in flight"] == {"count": 0, **dict.fromkeys(("min", "median", "p90", "p99", "max"))}
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert Printer(as_json=False).answer(answer) == 3
    assert said.getvalue() == "refused.busy: 1 of 3 calls, in no figure: on purpose\n" + ADVICE


ADVICE = f"  what to do: {REASONS['refused.busy'].advice}\n"
MACHINE = {"processors": 2, "kernel": "6", "python": "3"}
