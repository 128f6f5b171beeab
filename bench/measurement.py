"""``Run``: what one fresh process measures, and how it tells the harness.

Its job: numbers, checked answers and facts, kept in memory while it measures and told as one JSON document at the end.
Not its job: which processes run when (``harness.py``); statistics (``numbers.py``).
Laws:
1. Standard library only: the rivals' environments hold nothing of ours (tests/unit/test_bench_measurement.py).
2. A wrong answer is told, whatever else was measured (tests/unit/test_bench_measurement.py).
3. What the measured program prints cannot be taken for a measurement (tests/unit/test_bench_measurement.py).
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

QUICK = "--quick"
_SHOWN = 160  # characters of an answer that was wrong
_KEPT = 5  # wrong answers that are told in words; all are counted

Job = Callable[["Run"], None]


class Absent(Exception):
    """The subject cannot do this here; its text is the reason, one line."""


class Run:
    """One subject's part of one round. ``folder`` is a private temporary folder, ``quick`` asks for few repetitions.

    ``add`` a number, ``timed`` a block, ``check`` each answer (a number with a wrong answer behind it is no number), and
    raise ``Absent`` where the job cannot be done. ``at`` is the place on the x axis of what grows: calls in flight, bytes, files.
    """

    def __init__(self, *, quick: bool, folder: Path) -> None:
        self.quick, self.folder = quick, folder
        self._series: dict[tuple[str, float | None], list[float]] = {}
        self._facts: dict[str, str | float] = {}
        self._wrong: list[str] = []
        self._checked = self._missed = 0

    def size(self, *, full: int, quick: int) -> int:
        """How often something is repeated: ``quick`` of them in the quick mode."""
        return quick if self.quick else full

    def add(self, metric: str, value: float, *, at: float | None = None) -> None:
        """One number of a metric that the case declares."""
        self._series.setdefault((metric, at), []).append(float(value))

    @contextlib.contextmanager
    def timed(self, metric: str, *, at: float | None = None) -> Iterator[None]:
        """Add the milliseconds that the block takes."""
        started = time.perf_counter_ns()
        yield
        self.add(metric, (time.perf_counter_ns() - started) / 1e6, at=at)

    def check(self, got: object, wanted: object, what: str = "an answer") -> None:
        """Note whether an answer is the right one; call it for each timed call, outside the timed block."""
        self._checked += 1
        if got != wanted:
            self._missed += 1
            if len(self._wrong) < _KEPT:
                self._wrong.append(f"{what}: {_shown(got)} where {_shown(wanted)} is right")

    @property
    def missed(self) -> int:
        """How many answers were wrong until now."""
        return self._missed

    def fact(self, name: str, value: str | float) -> None:
        """Something worth knowing beside the numbers: a version, a count."""
        self._facts[name] = value

    def told(self) -> dict[str, Any]:
        """All of it as plain data."""
        series = [{"metric": metric, "at": at, "values": values} for (metric, at), values in self._series.items()]
        return {"series": series, "facts": self._facts, "checked": self._checked, "missed": self._missed, "wrong": self._wrong}


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def lookup_policy(region: str) -> dict[str, Any]:
    """What the tool of most cases answers: the right answer, computed here."""
    return {"region": region, "refundWindowDays": 14}


def measure(job: Job, *, quick: bool, package: str = "") -> dict[str, Any]:
    """Do one job in this process; what it told and the package's version, or why it is absent."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = Run(quick=quick, folder=Path(folder))
        try:
            job(run)
        except Absent as absent:
            return {"absent": " ".join(str(absent).split())}
        if package:
            with contextlib.suppress(metadata.PackageNotFoundError):
                run.fact("version", metadata.version(package))
        return run.told()


def main(jobs: Mapping[str, Job], package: str = "") -> None:
    """The body of a program that measures: ``NAME [--quick]`` as arguments, one JSON document on stdout. ``package``: what it measures."""
    name, *rest = sys.argv[1:]
    channel = os.dup(1)
    os.dup2(2, 1)  # whoever prints meanwhile, prints beside the channel
    told = measure(jobs[name], quick=QUICK in rest, package=package) if name in jobs else {"absent": "it has no such job"}
    with os.fdopen(channel, "w", encoding="utf-8") as out:
        json.dump(told, out)
