"""From nothing to the first answer: import, open, load, first call; each part by itself.

A rival's ``first call`` is from opening it to its first answer, its import left out; ours is of a source that was loaded. The first load
of a WebAssembly worker starts the launcher that holds the image.
"""

import time

from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run, lookup_policy
from bench.walls import Wall, with_published


async def _calls(run: Run, wall: Wall) -> None:
    started = time.perf_counter()
    from bench import payload

    run.add("import", (time.perf_counter() - started) * 1000)
    place = payload.published(payload.write(run.folder, payload.LOOKUP), wall)
    made = payload.engine(run, wall)
    with run.timed("open"):
        engine = await made.__aenter__()
    try:
        with run.timed("load"):
            await engine.load(place)
        with run.timed("first call"):
            outcome = await engine.call("lookup_policy", {"region": "EU"})
        run.check(outcome.value, lookup_policy("EU"), outcome.reason)
    finally:
        await engine.__aexit__(None, None, None)


CASE = Case(
    name="first_call",
    title="From nothing to the first answer",
    metrics=(
        Metric(name="first call", about="the first answer"),
        Metric(name="import", about="importing the engine"),
        Metric(name="open", about="opening an engine: its launcher is started"),
        Metric(name="load", about="loading one small source into the new engine"),
    ),
    subjects=with_published(_calls),
    rivals=("monty", "eryx", "plain_python", "bubblewrap", "nsjail", "sandlock"),
    targets=(
        Target(metric="first call", statistic="median", bound=12),
        Target(metric="first call", statistic="median", bound=60, subject=WASM),
    ),
    seconds=300.0,  # the first part of a published tool makes its image
    full=8,
    quick=2,
    compare=("first call", "open", "load"),
)
