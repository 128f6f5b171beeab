"""The jobs of the rivals, written once: a rival gives the calls, here they are timed and checked.

Its job: the same pacing, warm-up, counting and checking for everybody.
Not its job: how a rival is driven (the files beside this one).
Laws:
1. Standard library only, for Python 3.11 and newer: these files run in the rivals' environments (tests/unit/test_bench_measurement.py).
"""

import functools
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import workloads as work
from bench.measurement import Run, lookup_policy
from bench.sources import nbody, records

PACE_SECONDS = 0.01
REST_SECONDS = 0.05  # in which the next worker or sandbox is made ready
REGIONS = ("EU", "US", "UK")
CPU_STEPS = 100_000
CPU_STEPS_QUICK = 20_000
LARGE_BYTES = 1_000_000
# 1 GB in lines of 64 KiB, four blanks in: the body of a function
FLOOD = "    for _ in range(16384):\n        print('x' * 65535)\n"
DEADLINE_MS = 200
# ways of not returning in time, as bodies of functions; each takes seconds at least
LATE = {
    "loop": "    while True:\n        pass\n",
    "regular expression": "    import re\n    re.match('(a+)+b', 'a' * 60)\n",
    "large number": "    7 ** 7 ** 9\n",
    "sleep": "    import time\n    time.sleep(3)\n",
}
BOMB_BYTES = 256 << 20
# memory that is really used, a MiB at a time, as a body of a function
BOMB = "    held = []\n    while True:\n        held.append(b'x' * (1 << 20))\n"
Lookup = Callable[[str], Any]
Expected = type[Exception] | tuple[type[Exception], ...]


def paced(run: Run, lookup: Lookup, *, full: int = 200, quick: int = 100, warm: int = 20) -> None:
    """The job ``paced``: one call at a time, 10 ms of rest before each."""
    for number in range(warm + run.size(full=full, quick=quick)):
        region = REGIONS[number % len(REGIONS)]
        time.sleep(PACE_SECONDS)
        if number < warm:
            answer = lookup(region)
        else:
            with run.timed("call"):
                answer = lookup(region)
        run.check(answer, lookup_policy(region))


def paced_slowly(run: Run, lookup: Lookup) -> None:
    """The same with fewer calls, for who starts an interpreter each time."""
    paced(run, lookup, full=40, quick=12, warm=2)


def throughput(run: Run, lookups: Sequence[Lookup], in_flight: Sequence[int] = (1, 2, 8)) -> None:
    """The job ``throughput``: calls per second from so many threads. One lookup serves all threads, or there is one for each."""
    seconds = run.size(full=20, quick=5) / 10
    for count in in_flight:
        chosen = [lookups[number % len(lookups)] for number in range(count)]
        _rate(run, chosen, seconds / 4)
        run.add("rate", _rate(run, chosen, seconds), at=count)


def _rate(run: Run, lookups: Sequence[Lookup], seconds: float) -> float:
    answers: list[list[tuple[str, Any]]] = [[] for _ in lookups]
    errors: list[Exception] = []
    started = time.perf_counter()

    def caller(number: int, lookup: Lookup) -> None:
        region = f"region-{number}"
        try:
            while time.perf_counter() - started < seconds:
                answers[number].append((region, lookup(region)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=caller, args=pair) for pair in enumerate(lookups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - started
    if errors:
        raise errors[0]
    for region, answer in (pair for given in answers for pair in given):
        run.check(answer, lookup_policy(region))
    return sum(len(given) for given in answers) / taken


def cpu(run: Run, call: Callable[[int], Any]) -> None:
    """The job ``cpu``: n-body of so many steps, less what a call of no steps takes."""
    steps = run.size(full=CPU_STEPS, quick=CPU_STEPS_QUICK)
    empty = []
    for _ in range(3):
        started = time.perf_counter()
        call(0)
        empty.append((time.perf_counter() - started) * 1000)
    for _ in range(2):
        started = time.perf_counter()
        answer = call(steps)
        run.add("work", (time.perf_counter() - started) * 1000 - statistics.median(empty))
        run.check(answer, nbody(steps))


def workloads(run: Run, call: Callable[[str], str]) -> None:
    """The job ``workloads``: each kind of work by its name, the call included, and the geometric mean of a round of all."""
    for name in work.TEXTS:
        call(name)
    for _ in range(run.size(full=5, quick=2)):
        taken = []
        for name in work.TEXTS:
            time.sleep(REST_SECONDS)
            started = time.perf_counter()
            told = call(name)
            taken.append((time.perf_counter() - started) * 1000)
            run.check(told, work.answer(name), name)
            run.add(name, taken[-1])
        run.add("mean", math.exp(sum(map(math.log, taken)) / len(taken)))


def text(run: Run, call: Callable[[str], Any]) -> None:
    """Part of the job ``large``: 1 MB of text goes in and comes back."""
    value = "x" * LARGE_BYTES
    for _ in range(run.size(full=5, quick=2)):
        with run.timed("text in and out", at=LARGE_BYTES):
            answer = call(value)
        run.check(answer == value, True, "1 MB of text")


def large(run: Run, call: Callable[[Any], Any]) -> None:
    """Part of the job ``large``: a list of records of about 1 MB goes in and comes back."""
    value = records(LARGE_BYTES)
    for _ in range(run.size(full=5, quick=2)):
        with run.timed("records in and out", at=LARGE_BYTES):
            answer = call(value)
        run.check(answer == value, True, "1 MB of records")


def late(run: Run, call: Callable[[str], Any], expected: Expected, after: Lookup, ways: Sequence[str] = ("loop",)) -> None:
    """The job ``deadline``: work of one of the ways with 200 ms, seen to have ended by the caller; then the next call."""
    for way in ways:
        for _ in range(run.size(full=10, quick=3)):
            with run.timed("seen" if way == "loop" else f"seen, {way}"):
                ended = _end(functools.partial(call, way), expected)
            run.check(isinstance(ended, str) and ended != "late", True, f"the end of a {way}")
            with run.timed("next call"):
                answer = after("EU")
            run.check(answer, lookup_policy("EU"))


def _end(call: Callable[[], Any], expected: Expected) -> object:
    """What it gave, or the name of the exception that was to be expected."""
    try:
        return call()
    except expected as error:
        return type(error).__name__


def flood(run: Run, call: Callable[[], Any], expected: Expected) -> None:
    """The job ``flood``: 1 GB of print, until the caller knows; the peak memory of its process above idle."""
    for _ in range(run.size(full=2, quick=1)):
        _overdone(run, call, expected)


def bomb(run: Run, call: Callable[[], Any], expected: Expected, after: Lookup) -> None:
    """The job ``bomb``: memory without end, until the caller knows; the peak memory of its process above idle; the next call."""
    for _ in range(run.size(full=5, quick=2)):
        _overdone(run, call, expected)
        with run.timed("next call"):
            answer = after("EU")
        run.check(answer, lookup_policy("EU"))


def _overdone(run: Run, call: Callable[[], Any], expected: Expected) -> None:
    idle = reset_peak()
    with run.timed("seen"):
        ended = _end(call, expected)
    run.add("memory", peak_above_mb(idle))
    run.check(isinstance(ended, str), True, "the end of what has no end")
    run.fact("outcome", str(ended))


def reset_peak() -> float:
    """Forget this process's peak memory; what it holds now, MB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_mb("VmRSS")


def peak_above_mb(idle: float) -> float:
    """The peak since, less what was held then."""
    return max(0.0, _status_mb("VmHWM") - idle)


def _status_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError(name)


def rollup(process: Path) -> dict[str, float]:
    """Of a process's folder in /proc, in MB; ``dirty`` is the part of ``uss`` that was written. Raises PermissionError for another's."""
    found: dict[str, int] = {}
    for line in (process / "smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]:
        name, value, *_ = line.split()
        found[name.rstrip(":")] = int(value) * 1024
    private = found["Private_Clean"] + found["Private_Dirty"]
    return {"uss": private / 1e6, "pss": found["Pss"] / 1e6, "dirty": found["Private_Dirty"] / 1e6}
