"""The engine's kinds of worker as the first two subjects of a case: the same calls, once behind each wall.

Its job: one function of a case made into a job for each kind; for some cases, a third one with an image of the tool itself.
Not its job: the engine that a job opens (``payload.py``, which also says when there is no image to run).
"""

from collections.abc import Awaitable, Callable
from typing import Literal

import trio

from bench.case import OURS, PUBLISHED, WASM
from bench.measurement import Job, Run

Wall = Literal["native", "wasm", "published"]
Calls = Callable[[Run, Wall], Awaitable[None]]


def both(calls: Calls) -> dict[str, Job]:
    """The subjects of a case whose calls take the kind of worker that they are to run in."""
    return {OURS: _job(calls, "native"), WASM: _job(calls, "wasm")}


def with_published(calls: Calls) -> dict[str, Job]:
    """The same, and a third subject for calls that have their source published (``payload.published``)."""
    return {**both(calls), PUBLISHED: _job(calls, "published")}


def _job(calls: Calls, wall: Wall) -> Job:
    def job(run: Run) -> None:
        trio.run(calls, run, wall)

    return job
