"""A tool that prints 1 GB: when the caller has a typed outcome, and what the flood costs the supervisor in memory."""

from bench import payload
from bench.case import Case, Metric, Target
from bench.measurement import Run, lookup_policy
from bench.rivals.jobs import FLOOD, peak_above_mb, reset_peak
from bench.walls import Wall, both

_SOURCE = payload.LOOKUP + f'\n\n@tool(effect="read", description="Prints 1 GB.")\ndef flood() -> str:\n{FLOOD}    return "done"\n'


async def _calls(run: Run, wall: Wall) -> None:
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        for _ in range(3):
            await engine.call("lookup_policy", {"region": "EU"})
        for _ in range(run.size(full=10, quick=3)):
            idle = reset_peak()
            with run.timed("seen"):
                outcome = await engine.call("flood", {})
            run.add("memory", peak_above_mb(idle))
            run.check(outcome.reason, "limit_exceeded.output", "the end of a flood")
            outcome = await engine.call("lookup_policy", {"region": "EU"})
            run.check(outcome.value, lookup_policy("EU"), outcome.reason)


CASE = Case(
    name="flood",
    title="A tool that prints 1 GB",
    metrics=(
        Metric(name="seen", about="until the caller has a typed outcome"),
        Metric(name="memory", about="the supervisor's peak above idle, while it lasts", unit="MB"),
    ),
    subjects=both(_calls),
    rivals=("monty", "eryx"),
    # what is kept of stdout and of stderr is 256 KiB each; 8 MB on top
    targets=(Target(metric="seen", statistic="median", bound=100), Target(metric="memory", statistic="max", bound=8.5)),
    full=3,
    compare=("seen",),
)
