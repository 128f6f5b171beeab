"""What a case is: one cost that a user sees, who pays it, how it is counted, and what it must reach.

Its job: the records that a bench file fills in. How to write one stands in ``harness.py``.
Not its job: running them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from bench.measurement import Job

Statistic = Literal["min", "median", "p90", "p99", "max"]
OURS = "stockade"
WASM = "stockade-wasm"  # the same engine with the other kind of worker
PUBLISHED = "stockade-published"  # that kind, with an image in which the tool is imported already


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One thing that is counted. ``per`` names the x axis of what grows; ``chart`` is how it is drawn, if at all."""

    name: str
    about: str
    unit: str = "ms"
    better: Literal["lower", "higher"] = "lower"
    per: str = ""
    chart: Literal["", "distribution", "growth"] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A figure that the engine is to reach: the statistic of a metric of ``subject`` is at most (or at least) ``bound``."""

    metric: str
    statistic: Statistic
    bound: float
    at: float | None = None
    subject: str = OURS
    over: str = ""  # a subject's name: the bound is on the ratio of that subject's statistic to ours
    under: str = ""  # a subject's name: the bound is on the ratio of ours to that subject's statistic


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One bench file. ``subjects`` are run by the file's own functions, ``rivals`` by ``bench/rivals/NAME.py`` under the case's name.

    The first subject is what the others are compared with. ``full`` and ``quick`` are rounds: in each, every subject is run once, in a
    process of its own, one after the other.
    """

    name: str
    title: str
    metrics: tuple[Metric, ...]
    subjects: Mapping[str, Job]
    rivals: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    full: int = 5
    quick: int = 1
    seconds: float = 120.0  # one subject's part of one round is ended after so long, and fails
    shares: tuple[str, ...] = ()  # subjects of whose best value of a growing metric ours is given as a share
    compare: tuple[str, ...] = ()  # metrics whose medians by round tell two commits apart; none: the case is not compared

    def metric(self, name: str) -> Metric:
        """The metric of that name. Raises KeyError for another."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(name)
