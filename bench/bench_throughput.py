"""Fresh calls per second with 1 to 64 in flight, receipts and redaction on.

Beside it stands what the same machine can do at all: fork and pipe in C, and ``os.fork`` of a small Python, which bounds whoever forks
a Python for each call.
"""

import time

import trio

from bench import payload
from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run, lookup_policy
from bench.walls import Wall, with_published
from engine import Engine

IN_FLIGHT = {"native": (1, 2, 4, 8, 16, 32, 64), "wasm": (1, 2, 4, 8), "published": (1, 2, 4, 8)}


async def _points(run: Run, wall: Wall) -> None:
    place = payload.published(payload.write(run.folder, payload.LOOKUP), wall)
    seconds = 0.5 if run.quick else 2.0
    async with payload.engine(run, wall) as engine:
        await engine.load(place)
        for in_flight in IN_FLIGHT[wall]:
            await _rate(run, engine, in_flight, seconds / 4)  # jails are started as they are wanted
            run.add("rate", await _rate(run, engine, in_flight, seconds), at=in_flight)


async def _rate(run: Run, engine: Engine, in_flight: int, seconds: float) -> float:
    """Calls per second over about that time, all answers checked, the last one's burial included."""
    done = 0
    started = time.perf_counter()

    async def caller(number: int) -> None:
        nonlocal done
        region = f"region-{number}"
        while time.perf_counter() - started < seconds:
            outcome = await engine.call("lookup_policy", {"region": region})
            run.check(outcome.value, lookup_policy(region), outcome.reason)
            done += 1

    async with trio.open_nursery() as nursery:
        for number in range(in_flight):
            nursery.start_soon(caller, number)
    return done / (time.perf_counter() - started)


CASE = Case(
    name="throughput",
    title="Fresh calls per second",
    metrics=(
        Metric(
            name="rate", about="calls per second, answers checked", unit="calls/s", better="higher", per="calls in flight", chart="growth"
        ),
    ),
    subjects=with_published(_points),
    rivals=("c_fork", "python_fork", "monty", "eryx", "plain_python", "sandlock"),
    targets=(
        Target(metric="rate", statistic="median", bound=800, at=2),
        Target(metric="rate", statistic="median", bound=800, at=8),
        Target(metric="rate", statistic="median", bound=0.5, at=2, under="python_fork"),
        Target(metric="rate", statistic="median", bound=130, at=2, subject=WASM),
        Target(metric="rate", statistic="median", bound=130, at=8, subject=WASM),
    ),
    shares=("python_fork", "c_fork", "monty"),
    full=3,
    seconds=300.0,  # the first part of a published tool makes its image
    compare=("rate",),
)
