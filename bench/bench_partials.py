"""What streaming costs: 1 to 100 000 partial results a call, and a consumer that is slower than the tool.

Its job: partials a second as they grow, each one checked; the supervisor's memory while nobody takes what the tool yields.
Not its job: large results (``bench_large.py``).
"""

import time

import psutil
import trio

from bench import payload
from bench.case import OURS, Case, Metric, Target
from bench.measurement import Run
from engine.events import PartialResult
from engine.host import Engine
from engine.outcome import Outcome

COUNTS = (1, 10, 100, 1000, 10_000, 100_000)
_SOURCE = '''
from collections.abc import Iterator
from engine import tool


@tool(effect="read")
def count(upto: int) -> Iterator[int]:
    """Counts."""
    yield from range(upto)


@tool(effect="read")
def pages(number: int, size: int) -> Iterator[str]:
    """So many pages of so many letters."""
    for _ in range(number):
        yield "x" * size
'''
# the default of 10 000 events bounds what a tool may make its caller look at; here looking at many is the job
_POLICY = """extends = "required"
[limits]
events = { value = 200000, reason = "the bench asks for 100 000 partial results" }
event_bytes = { value = "256 MiB", reason = "and for 200 MB of pages" }
wall = { value = "5 min", reason = "a slow consumer is part of the case" }
"""
_PAGE = 20_000  # letters


def _stockade(run: Run) -> None:
    trio.run(_all, run)


async def _all(run: Run) -> None:
    place = payload.write(run.folder, _SOURCE)
    policy = run.folder / "policy.toml"
    policy.write_text(_POLICY, encoding="utf-8")
    async with payload.engine(run, policy=policy) as engine:
        await engine.load(place)
        await _slowly(run, engine, run.size(full=10_000, quick=2000))  # first: what a large stream leaves would hide what this one takes
        for count in COUNTS[: run.size(full=6, quick=5)]:
            for _ in range(3 if count <= 1000 else 1):  # a call or two at small counts before the one that is counted
                taken_ms = await _counted(run, engine, count)
            run.add("stream", taken_ms, at=count)
            run.add("rate", count / taken_ms * 1000, at=count)


async def _counted(run: Run, engine: Engine, count: int) -> float:
    """One stream of so many, each partial the next number; the milliseconds until its outcome."""
    expected, reason = 0, ""
    await trio.sleep(0.01)
    started = time.perf_counter()
    async with engine.stream("count", {"upto": count}) as items:
        async for item in items:
            if isinstance(item, PartialResult):
                if item.value != expected:
                    run.check(item.value, expected, "a partial result")
                expected += 1
            elif isinstance(item, Outcome):
                reason = item.reason
    taken_ms = (time.perf_counter() - started) * 1000
    run.check((reason, expected), ("ok.done", count), "a stream")
    return taken_ms


async def _slowly(run: Run, engine: Engine, pages: int) -> None:
    """A tool that yields 20 KB pages as fast as it can, and a consumer that rests: what the supervisor holds for it meanwhile."""
    own = psutil.Process()
    taken, most, reason = 0, 0, ""
    before = own.memory_info().rss
    async with engine.stream("pages", {"number": pages, "size": _PAGE}) as items:
        async for item in items:
            if isinstance(item, Outcome):
                reason = item.reason
                continue
            taken += isinstance(item, PartialResult) and len(item.value) == _PAGE
            if taken % (pages // 20) == 1:
                await trio.sleep(0.1)  # long enough for the tool to fill whatever would be filled
                most = max(most, own.memory_info().rss)
    run.check((reason, taken), ("ok.done", pages), "a stream that was taken slowly")
    run.add("slow_consumer", max(0, most - before) / 2**20)
    run.fact("pages_mib", round(pages * _PAGE / 2**20))


CASE = Case(
    name="partials",
    title="Partial results of one call",
    metrics=(
        Metric(name="rate", about="partial results a second", unit="1/s", better="higher", per="partial results", chart="growth"),
        Metric(name="stream", about="a whole stream, from request to outcome", per="partial results"),
        Metric(name="slow_consumer", about="memory that the supervisor adds while a consumer of 20 KB pages rests", unit="MiB"),
    ),
    subjects={OURS: _stockade},
    targets=(Target(metric="slow_consumer", statistic="max", bound=8.0),),
    full=3,
    compare=("rate",),
)
