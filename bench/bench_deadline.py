"""A deadline of 200 ms for a tool that never returns: when the caller knows, and what the next call takes."""

import trio

from bench import payload
from bench.case import OURS, Case, Metric, Target
from bench.measurement import Run, lookup_policy

ASKED_MS = 200
_SOURCE = payload.LOOKUP + '\n\n@tool(effect="read", description="Never returns.")\ndef loop() -> str:\n    while True:\n        pass\n'


def _stockade(run: Run) -> None:
    trio.run(_calls, run)


async def _calls(run: Run) -> None:
    async with payload.engine(run) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        await engine.call("lookup_policy", {"region": "EU"})
        for _ in range(run.size(full=40, quick=8)):
            with run.timed("seen"):
                outcome = await engine.call("loop", {}, timeout_ms=ASKED_MS)
            run.check(outcome.reason, "limit_exceeded.wall", "the end of an endless loop")
            with run.timed("next call"):
                outcome = await engine.call("lookup_policy", {"region": "EU"})
            run.check(outcome.value, lookup_policy("EU"), outcome.reason)


CASE = Case(
    name="deadline",
    title="A deadline of 200 ms, and the call after it",
    metrics=(
        Metric(name="seen", about="until the caller has the outcome of an endless loop", chart="distribution"),
        Metric(name="next call", about="the call right after it"),
    ),
    subjects={OURS: _stockade},
    rivals=("monty", "eryx", "sandlock"),
    targets=(Target(metric="seen", statistic="p99", bound=210), Target(metric="next call", statistic="median", bound=5)),
    compare=("seen", "next call"),
)
