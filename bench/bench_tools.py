"""What many tools cost: sources of 1 to 500 tools, their load, and a call of one of them.

Its job: load time, a first call's and a paced call's latency as the number of tools in one source grows.
Not its job: many files (``bench_load.py``).
"""

import trio

from bench import payload
from bench.case import OURS, Case, Metric
from bench.measurement import Run

COUNTS = (1, 10, 50, 100, 250, 500)
_HEAD = "from engine import tool\n"
_TOOL = '''

@tool(effect="read")
def tool_{at}(number: int, words: list[str] | None = None) -> dict[str, int]:
    """Adds {at} to a number."""
    return {{"sum": number + {at}}}
'''


def _stockade(run: Run) -> None:
    trio.run(_all, run)


async def _all(run: Run) -> None:
    for count in (1, 100) if run.quick else COUNTS:
        await _loaded(run, count)


async def _loaded(run: Run, count: int) -> None:
    """An engine of its own for each number, so that nothing of an earlier one is there."""
    place = payload.write(run.folder, _HEAD + "".join(_TOOL.format(at=at) for at in range(count)))
    async with payload.engine(run) as engine:
        with run.timed("load", at=count):
            declarations = await engine.load(place)
        run.check(len(declarations), count, "tools of the source")
        for number in range(run.size(full=60, quick=15)):
            at = (number * 37) % count
            await trio.sleep(0.01)
            with run.timed("call" if number else "first_call", at=count):
                outcome = await engine.call(f"tool_{at}", {"number": number})
            run.check(outcome.value, {"sum": number + at}, outcome.reason)


CASE = Case(
    name="tools",
    title="One source of many tools",
    metrics=(
        Metric(name="load", about="loading the source", per="tools in the source", chart="growth"),
        Metric(name="first_call", about="the first call after it", per="tools in the source"),
        Metric(name="call", about="a later call of any of them, one at a time, every 10 ms", per="tools in the source", chart="growth"),
    ),
    subjects={OURS: _stockade},
    full=3,
    compare=("load", "call"),
)
