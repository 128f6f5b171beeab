"""The machine that the numbers come from, and how busy it is.

Its job: facts without names of hosts or paths; the calibration: a fixed piece of work whose time tells how busy the machine is.
Not its job: judging any of it.
"""

import functools
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
_STEPS = 400_000  # long enough that others get their turns in between
_TIMES = 3
_IDLE_SECONDS = 0.2


def calibration() -> float:
    """Milliseconds of a fixed piece of pure Python, the median of three: it grows as others use the machine."""
    taken = []
    for _ in range(_TIMES):
        started = time.perf_counter_ns()
        total = 0
        for number in range(_STEPS):
            total += number & 7
        taken.append((time.perf_counter_ns() - started) / 1e6)
    return statistics.median(taken)


@functools.cache
def idle_cost() -> float:
    """How many times longer a walk through 20 MB takes after 200 ms of idleness than right after another one; once a run.

    Near 1 on most machines. Where the host takes memory away that was not used lately, as some virtual machines do, all that waits is
    slow to wake: deadlines, calls that come now and then, first calls.
    """
    scattered = [bytearray(64) for _ in range(200_000)]
    ratios = []
    for _ in range(_TIMES):
        _walk(scattered)
        warm = _walk(scattered)
        time.sleep(_IDLE_SECONDS)
        ratios.append(_walk(scattered) / warm)
    return round(statistics.median(ratios), 1)


def _walk(through: list[bytearray]) -> int:
    started = time.perf_counter_ns()
    for one in through:
        one[0] = 1
    return time.perf_counter_ns() - started


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def facts(tree: Path = PROJECT) -> dict[str, str | int]:
    """Processor, cores, memory, kernel, Python, what idleness costs, and the commit; no host name, no path."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "idle_200_ms_cost": f"{idle_cost()}x",
        "commit": commit(tree),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit(tree: Path) -> str:
    """The short name of the tree's commit, with a plus when files differ from it; ``unknown`` outside of git."""
    try:
        named = _git(tree, "rev-parse", "--short", "HEAD")
        return f"{named}+" if _git(tree, "status", "--porcelain", "--untracked-files=no") else named
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()
