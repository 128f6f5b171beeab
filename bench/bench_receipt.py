"""What a receipt costs in CPU: making it, its line, and its part of the write; and what the supervisor spends on a whole call.

The parts are clocked where they are done, in an engine that works as always; CPU time of the thread, not of the clock on the wall.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any

import trio

from bench import payload
from bench.case import OURS, Case, Metric, Target
from bench.measurement import Absent, Run, lookup_policy

# the digest of the result; the record and its line; the group's write
_PARTS = (("engine.spelling", "digest"), ("engine.concluding", "Conclusion._conclude"), ("engine.results.journal", "Journal.flush"))


def _stockade(run: Run) -> None:
    trio.run(_calls, run)


async def _calls(run: Run) -> None:
    spent = [0]
    for module, name in _PARTS:
        _clock(module, name, spent)
    async with payload.engine(run) as engine:
        await engine.load(payload.write(run.folder, payload.LOOKUP))
        for batch in range(run.size(full=12, quick=4)):
            spent[0], started = 0, time.process_time_ns()
            for _ in range(50):
                outcome = await engine.call("lookup_policy", {"region": "EU"})
                run.check(outcome.value, lookup_policy("EU"), outcome.reason)
            await outcome.concluded()
            if batch:  # the first one warms the path
                run.add("receipt", spent[0] / 50 / 1000)
                run.add("supervisor", (time.process_time_ns() - started) / 50 / 1000)


def _clock(module: str, name: str, spent: list[int]) -> None:
    """Have a method of the engine add its CPU nanoseconds."""
    try:
        owner: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        raise Absent(f"this engine has no {module}") from None
    *path, last = name.split(".")
    for step in path:
        owner = getattr(owner, step, None)
    method: Callable[..., Any] | None = getattr(owner, last, None)
    if method is None:
        raise Absent(f"this engine has no {name}")

    def clocked(*arguments: Any, **options: Any) -> Any:
        started = time.thread_time_ns()
        try:
            return method(*arguments, **options)
        finally:
            spent[0] += time.thread_time_ns() - started

    setattr(owner, last, clocked)


CASE = Case(
    name="receipt",
    title="CPU of a receipt",
    metrics=(
        Metric(name="receipt", about="CPU per call for its receipt", unit="us"),
        Metric(name="supervisor", about="CPU per call of the whole supervisor, the receipt included", unit="us"),
    ),
    subjects={OURS: _stockade},
    targets=(Target(metric="receipt", statistic="median", bound=120),),
    full=3,
    compare=("receipt", "supervisor"),
)
