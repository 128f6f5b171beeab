"""What the floors have in common: a small program that forks a child for each line it reads, asked from here over pipes.

Its job: starting such programs, asking them, the jobs over them.
Not its job: the programs (the floors themselves).
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.measurement import Job, Run
from bench.rivals import jobs

Build = Callable[[Run], Sequence[str]]  # the command of the program, made ready


def jobs_for(build: Build) -> Mapping[str, Job]:
    """The jobs of a floor. Two in flight are two programs, as a pool of two workers would be."""

    def paced(run: Run) -> None:
        with _asked(build(run), 1) as lookups:
            jobs.paced(run, lookups[0])

    def throughput(run: Run) -> None:
        with _asked(build(run), 2) as lookups:
            jobs.throughput(run, lookups, (1, 2))

    return {"paced": paced, "throughput": throughput}


@contextmanager
def _asked(command: Sequence[str], count: int) -> Iterator[list[Callable[[str], Any]]]:
    """So many programs, each as the function that asks it."""
    programs = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) for _ in range(count)]
    try:
        yield [_asker(program) for program in programs]
    finally:
        for program in programs:
            program.communicate()


def _asker(program: "subprocess.Popen[str]") -> Callable[[str], Any]:
    asks, tells = program.stdin, program.stdout
    assert asks is not None
    assert tells is not None

    def lookup(region: str) -> Any:
        asks.write(region + "\n")
        return json.loads(tells.readline())

    return lookup
