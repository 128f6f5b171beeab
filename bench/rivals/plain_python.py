"""The floor of whoever starts an interpreter for each call: ``python -I -S`` by ``subprocess``, no wall at all."""

import subprocess

from bench import measurement
from bench.rivals.started import jobs_for


def _start(command: list[str], stdin: str) -> str:
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


JOBS = jobs_for(_start)

if __name__ == "__main__":
    measurement.main(JOBS)
