"""A tool that takes all the memory there is: when the caller has a typed outcome, what it costs the supervisor, and the next call."""

from bench import payload
from bench.case import Case, Metric, Target
from bench.measurement import Run, lookup_policy
from bench.rivals.jobs import BOMB, peak_above_mb, reset_peak
from bench.walls import Wall, both

_SOURCE = payload.LOOKUP + f'\n\n@tool(effect="read", description="Takes memory without end.")\ndef bomb() -> str:\n{BOMB}'
# a guest's interpreter has the same end in its own words as a native one: the tool's MemoryError, or the limit
_ENDS = ("limit_exceeded.memory", "tool_error.exception")


async def _calls(run: Run, wall: Wall) -> None:
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        for _ in range(3):
            await engine.call("lookup_policy", {"region": "EU"})
        for _ in range(run.size(full=10, quick=3)):
            idle = reset_peak()
            with run.timed("seen"):
                outcome = await engine.call("bomb", {})
            run.add("memory", peak_above_mb(idle))
            run.check(outcome.reason in _ENDS, True, f"the end of a bomb: {outcome.reason}")
            run.fact("outcome", outcome.reason)
            with run.timed("next call"):
                outcome = await engine.call("lookup_policy", {"region": "EU"})
            run.check(outcome.value, lookup_policy("EU"), outcome.reason)


CASE = Case(
    name="bomb",
    title="A tool that takes memory without end, of which it may have 256 MiB",
    metrics=(
        Metric(name="seen", about="until the caller has a typed outcome"),
        Metric(name="memory", about="the peak of the caller's process above idle, while it lasts", unit="MB"),
        Metric(name="next call", about="the call right after it"),
    ),
    subjects=both(_calls),
    rivals=("monty", "eryx"),
    targets=(Target(metric="memory", statistic="max", bound=8),),
    full=3,
    compare=("seen", "next call"),
)
