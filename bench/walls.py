"""The engine's kinds of worker as the first two subjects of a case: the same calls, once behind each wall.

Its job: one function of a case made into a job for each kind.
Not its job: the engine that a job opens (``payload.py``, which also says when there is no image to run).
"""

from collections.abc import Awaitable, Callable
from typing import Literal

import trio

from bench.case import OURS, WASM
from bench.measurement import Job, Run

Wall = Literal["native", "wasm"]


def both(calls: Callable[[Run, Wall], Awaitable[None]]) -> dict[str, Job]:
    """The subjects of a case whose calls take the kind of worker that they are to run in."""
    return {OURS: _job(calls, "native"), WASM: _job(calls, "wasm")}


def _job(calls: Callable[[Run, Wall], Awaitable[None]], wall: Wall) -> Job:
    def job(run: Run) -> None:
        trio.run(calls, run, wall)

    return job
