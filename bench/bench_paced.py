"""A fresh call, one at a time, with 10 ms of rest before each: what one caller waits for.

The tool answers ``lookup_policy(region)`` with a small record; every subject does the same from a fresh state, and each answer is checked.
"""

import trio

from bench import payload
from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run, lookup_policy
from bench.walls import Wall, with_published

PACE_SECONDS = 0.01
_REGIONS = ("EU", "US", "UK")


async def _calls(run: Run, wall: Wall) -> None:
    place = payload.published(payload.write(run.folder, payload.LOOKUP), wall)
    async with payload.engine(run, wall) as engine:
        await engine.load(place)
        for number in range(run.size(full=220, quick=120)):
            region = _REGIONS[number % len(_REGIONS)]
            await trio.sleep(PACE_SECONDS)
            if number < 20:  # the first ones warm the path
                outcome = await engine.call("lookup_policy", {"region": region})
            else:
                with run.timed("call"):
                    outcome = await engine.call("lookup_policy", {"region": region})
            run.check(outcome.value, lookup_policy(region), outcome.reason)


CASE = Case(
    name="paced",
    title="A fresh call, one at a time, every 10 ms",
    metrics=(Metric(name="call", about="from request to checked answer", chart="distribution"),),
    subjects=with_published(_calls),
    rivals=("c_fork", "python_fork", "monty", "eryx", "plain_python", "bubblewrap", "nsjail", "sandlock"),
    targets=(
        Target(metric="call", statistic="median", bound=0.35),
        Target(metric="call", statistic="p99", bound=3.0),
        Target(metric="call", statistic="median", bound=60, over="plain_python"),
        Target(metric="call", statistic="median", bound=0.7, subject=WASM),
    ),
    seconds=300.0,  # the first part of a published tool makes its image
    compare=("call",),
)
