"""What the rivals that start an interpreter for each call have in common: the program, and the jobs over one way of starting it.

Its job: the program that a call runs, ``jobs_for`` a function that runs a command with text on stdin.
Not its job: the wall around the command (the rivals themselves).
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bench.measurement import Job, Run
from bench.rivals import jobs
from bench.sources import NBODY, POLICY

Start = Callable[[list[str], str], str]  # a command and its stdin -> its stdout
PROGRAM = (
    "import json, sys\n"
    + POLICY
    + NBODY.replace("def nbody(steps: int) -> float:", "def nbody(steps):")
    + "job, value = json.load(sys.stdin)\n"
    + "do = {'lookup': lookup_policy, 'nbody': nbody, 'echo': lambda value: value}[job]\n"
    + "json.dump(do(value), sys.stdout)\n"
)
PREFIX = sys.base_prefix  # what the interpreter needs to be seen of the machine


def python() -> str:
    """The interpreter itself, not an environment's link to it."""
    return os.path.realpath(sys.executable)


def ask(start: Start, job: str, value: object) -> Any:
    """One call: a new interpreter, the value as JSON in, the answer as JSON out."""
    return json.loads(start([python(), "-I", "-S", "-c", PROGRAM], json.dumps([job, value])))


def jobs_for(start: Start) -> Mapping[str, Job]:
    """The jobs of a rival that starts an interpreter behind its wall for each call."""

    def lookup(region: str) -> Any:
        return ask(start, "lookup", region)

    def first_call(run: Run) -> None:
        with run.timed("first call"):
            answer = lookup("EU")
        run.check(answer, {"region": "EU", "refundWindowDays": 14})

    return {
        "paced": lambda run: jobs.paced_slowly(run, lookup),
        "throughput": lambda run: jobs.throughput(run, [lookup], (1, 2, 8)),
        "cpu": lambda run: jobs.cpu(run, lambda steps: ask(start, "nbody", steps)),
        "large": lambda run: jobs.large(run, lambda value: ask(start, "echo", value)),
        "first_call": first_call,
    }
