"""What the wall costs a tool that computes: n-body in the tool, and the same code in a plain interpreter of the same run."""

from bench import payload
from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run
from bench.rivals.jobs import CPU_STEPS, CPU_STEPS_QUICK
from bench.sources import NBODY, nbody
from bench.walls import Wall, both

_SOURCE = f'from engine import tool\n\n\n@tool(effect="read", description="The energy of five bodies.")\n{NBODY}'


async def _calls(run: Run, wall: Wall) -> None:
    steps = run.size(full=CPU_STEPS, quick=CPU_STEPS_QUICK)
    wanted = nbody(steps)
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        await engine.call("nbody", {"steps": 0})
        for _ in range(2):
            with run.timed("work"):
                outcome = await engine.call("nbody", {"steps": steps})
            run.check(outcome.value, wanted, outcome.reason)


def _plain(run: Run) -> None:
    steps = run.size(full=CPU_STEPS, quick=CPU_STEPS_QUICK)
    wanted = nbody(steps)  # as much of a warm-up as the others have
    for _ in range(2):
        with run.timed("work"):
            energy = nbody(steps)
        run.check(energy, wanted)


CASE = Case(
    name="cpu",
    title="A tool that computes",
    metrics=(Metric(name="work", about="n-body, the call included"),),
    subjects={**both(_calls), "plain_cpython": _plain},
    rivals=("monty", "eryx", "sandlock", "bubblewrap"),
    targets=(
        Target(metric="work", statistic="median", bound=1.03, under="plain_cpython"),
        Target(metric="work", statistic="min", bound=2.1, under="plain_cpython", subject=WASM),
    ),
    compare=("work",),
)
