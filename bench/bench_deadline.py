"""A deadline of 200 ms for a tool that does not return in time: when the caller knows, and what the next call takes.

Four ways of not returning: a loop, a regular expression that backtracks, arithmetic on a large number, which is one step of the
interpreter, and a sleep, which is one of the kernel.
"""

from bench import payload
from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run, lookup_policy
from bench.rivals.jobs import DEADLINE_MS, LATE
from bench.walls import Wall, both


def _tool(way: str) -> str:
    return way.replace(" ", "_")


_SOURCE = payload.LOOKUP + "".join(
    f'\n\n@tool(effect="read", description="Does not return in time.")\ndef {_tool(way)}() -> str:\n{body}    return "late"\n'
    for way, body in LATE.items()
)


async def _calls(run: Run, wall: Wall) -> None:
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        await engine.call("lookup_policy", {"region": "EU"})
        for way in LATE:
            for _ in range(run.size(full=40 if way == "loop" else 12, quick=8 if way == "loop" else 4)):
                with run.timed("seen" if way == "loop" else f"seen, {way}"):
                    outcome = await engine.call(_tool(way), {}, timeout_ms=DEADLINE_MS)
                run.check(outcome.reason, "limit_exceeded.wall", f"the end of a {way}")
                with run.timed("next call"):
                    outcome = await engine.call("lookup_policy", {"region": "EU"})
                run.check(outcome.value, lookup_policy("EU"), outcome.reason)


CASE = Case(
    name="deadline",
    title="A deadline of 200 ms, and the call after it",
    metrics=(
        Metric(name="seen", about="until the caller has the outcome of an endless loop", chart="distribution"),
        *(Metric(name=f"seen, {way}", about=f"the same of a {way}") for way in LATE if way != "loop"),
        Metric(name="next call", about="the call right after it"),
    ),
    subjects=both(_calls),
    rivals=("monty", "eryx", "sandlock"),
    targets=(
        Target(metric="seen", statistic="p99", bound=210),
        *(Target(metric="seen" if way == "loop" else f"seen, {way}", statistic="median", bound=215, subject=WASM) for way in LATE),
        Target(metric="next call", statistic="median", bound=5),
    ),
    compare=("seen", "next call"),
)
