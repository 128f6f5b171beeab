"""The machine that the numbers come from, and how busy it is.

Its job: facts without names of hosts or paths; the calibration: a fixed piece of work whose time tells how busy the machine is.
Not its job: judging any of it.
"""

import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
_STEPS = 400_000  # long enough that others get their turns in between
_TIMES = 3


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


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def facts(tree: Path = PROJECT) -> dict[str, str | int]:
    """Processor, cores, memory, kernel, Python and the commit; no host name, no path."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else "ordinary user",
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
