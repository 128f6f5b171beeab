"""What a neighbour feels: how late a task that ticks every millisecond is while results of 8 MiB come back in the same event loop."""

import time
from typing import Any

import trio

from bench import payload
from bench.case import OURS, Case, Metric, Target
from bench.measurement import Run
from engine import Engine

SIZE = 8_000_000
_TICK_SECONDS = 0.001
_SOURCE = """
from engine import tool


@tool(effect="read", description="Records of about so many bytes.")
def records(size: int) -> list[dict[str, int]]:
    return [{"number": number, "square": number * number % 100000} for number in range(size // 34)]


@tool(effect="read", description="So many letters.")
def text(size: int) -> str:
    return "x" * size
"""


def _stockade(run: Run) -> None:
    trio.run(_all, run)


async def _all(run: Run) -> None:
    times = run.size(full=5, quick=2)
    async with payload.engine(run) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        for name in ("text", "records"):
            await engine.call(name, {"size": 34})
        await _beside(run, "alone", trio.sleep, 0.5)
        for name, length in (("text", SIZE), ("records", SIZE // 34)):
            for _ in range(times):
                await _beside(run, f"beside {name}", _call, run, engine, name, length)


async def _call(run: Run, engine: Engine, name: str, length: int) -> None:
    with run.timed(f"result of {name}"):
        outcome = await engine.call(name, {"size": SIZE})
    run.check(len(outcome.value or ()), length, f"{name}: {outcome.reason}")


async def _beside(run: Run, metric: str, work: Any, *arguments: Any) -> None:
    """Tick for as long as the work lasts, and note how late each tick was."""
    late: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tick, late)
        await work(*arguments)
        await trio.sleep(3 * _TICK_SECONDS)  # the ticks that were held up last are noted as well
        nursery.cancel_scope.cancel()
    for value in late:
        run.add(metric, value)
    run.add(f"longest {metric}", max(late))


async def _tick(late: list[float]) -> None:
    """Each tick that was due counts, also those that a long stall swallowed: else one stall would be one late tick."""
    due = time.perf_counter()
    while True:
        due += _TICK_SECONDS
        await trio.sleep(max(0.0, due - time.perf_counter()))
        while (now := time.perf_counter()) >= due:
            late.append((now - due) * 1000)
            due += _TICK_SECONDS


CASE = Case(
    name="stall",
    title="A neighbour of results of 8 MiB",
    metrics=(
        Metric(name="beside records", about="lateness of a tick while records come back", chart="distribution"),
        Metric(name="beside text", about="lateness of a tick while a text comes back"),
        Metric(name="longest beside records", about="the longest stall while one result of records comes back"),
        Metric(name="longest beside text", about="the longest stall while one text comes back"),
        Metric(name="longest alone", about="the longest stall of half a second of nothing"),
        Metric(name="alone", about="lateness of a tick while nothing else happens"),
        Metric(name="result of records", about="the call that returns the records"),
        Metric(name="result of text", about="the call that returns the text"),
    ),
    subjects={OURS: _stockade},
    targets=(Target(metric="beside records", statistic="p99", bound=20), Target(metric="beside text", statistic="p99", bound=20)),
    full=3,
    compare=("longest beside records", "longest beside text", "result of records"),
)
