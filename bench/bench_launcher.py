"""Starting a launcher, the process that workers are forked from: once in the life of an engine for each kind of worker that it uses.

The second kind's loads the engine of WebAssembly and the compiled image, which is hashed before.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import payload
from bench.case import Case, Metric
from bench.measurement import Run
from bench.rivals.jobs import rollup
from bench.walls import Wall, both
from engine.worker import launcher


async def _starts(run: Run, wall: Wall) -> None:
    for _ in range(run.size(full=6, quick=3)):
        with _program(run, wall) as program, run.timed("start"):
            running = await launcher.Launcher.start(program)
        run.check(running.dead, False, "a launcher that was started")
        run.add("memory", rollup(Path(f"/proc/{running.pid}"))["uss"])
        await running.close()


@contextmanager
def _program(run: Run, wall: Wall) -> Iterator[launcher.Program]:
    if wall == "native":
        yield launcher.NATIVE
        return
    with run.timed("image"):
        code = payload.open_image()
    try:
        yield launcher.wasm_program(code)
    finally:
        os.close(code)


CASE = Case(
    name="launcher",
    title="Starting a launcher",
    metrics=(
        Metric(name="start", about="until it has said what this host is"),
        Metric(name="image", about="finding the image before, and hashing its code"),
        Metric(name="memory", about="USS of one that has no worker yet", unit="MB"),
    ),
    subjects=both(_starts),
    compare=("start",),
)
