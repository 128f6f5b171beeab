"""What the wall costs ordinary work in a tool, beside plain CPython in the same run: eleven kinds of it, and their geometric mean.

A round is one fresh call for each kind, the call included, as its caller sees it, after a rest in which everybody has made its next worker
ready. The mean of a round's times stands against the mean of a plain interpreter's: what comes out is the mean of the ratios.
"""

import math
import time

import trio

from bench import payload
from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run
from bench.rivals import jobs
from bench.walls import Wall, both
from bench.workloads import IMPORTS, TEXTS, TIMES, WORKLOADS, answer

_WORK = """

@tool(effect="read", description="Does the work of that name.")
def work(name: str) -> str:
    return [json.dumps(WORKLOADS[name]()) for _ in range(TIMES)][-1]
""".replace("TIMES", str(TIMES))
_TABLE = "WORKLOADS = {" + ", ".join(f"{name!r}: {name}" for name in TEXTS) + "}\n"
_SOURCE = "\n\n".join([IMPORTS, "from engine import tool\n", *TEXTS.values(), _TABLE]) + _WORK


async def _calls(run: Run, wall: Wall) -> None:
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        for name in TEXTS:
            await engine.call("work", {"name": name})
        for _ in range(run.size(full=5, quick=2)):
            taken = []
            for name in TEXTS:
                await trio.sleep(jobs.REST_SECONDS)
                started = time.perf_counter()
                outcome = await engine.call("work", {"name": name})
                taken.append((time.perf_counter() - started) * 1000)
                run.check(outcome.value, answer(name), f"{name}: {outcome.reason}")
                run.add(name, taken[-1])
            run.add("mean", math.exp(sum(map(math.log, taken)) / len(taken)))


def _plain(run: Run) -> None:
    jobs.workloads(run, answer)


CASE = Case(
    name="workloads",
    title="Ordinary work in a tool",
    metrics=(
        Metric(name="mean", about="geometric mean of a round of all of them"),
        *(Metric(name=name, about=(work.__doc__ or "").rstrip(".")) for name, work in WORKLOADS.items()),
    ),
    subjects={**both(_calls), "plain_cpython": _plain},
    rivals=("eryx",),
    targets=(
        # of the best round each: what others do on the machine meanwhile only adds, and not to both alike
        Target(metric="mean", statistic="min", bound=1.03, under="plain_cpython"),
        Target(metric="mean", statistic="min", bound=2.1, under="plain_cpython", subject=WASM),
    ),
    full=3,
    compare=("mean",),
)
