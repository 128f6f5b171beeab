"""What the jails of an engine hold in memory.

Its job: the private bytes of everything below the launcher, and whether one jail more fits a budget.
Not its job: which jail goes (``upkeep.py``), the limit of one call (``jail/plan.py``).
Laws:
1. It runs beside the calls: between two processes it lets the event loop go on (tests/unit/test_memory.py).
2. A process that may not be looked into counts with all that it wrote itself, and more (tests/unit/test_memory.py).

Private bytes are the unique set size out of ``/proc/PID/smaps_rollup``. The kernel refuses that file for processes that are not dumpable
to everybody but root; then an estimate is taken: resident pages that are no file's, out of ``/proc/PID/statm``. It counts the pages that a
child has not yet copied from its parent once more in each of them, and leaves out pages of files that no other process has open.
"""

import dataclasses

import psutil
import trio

_JAIL_BYTES = 8 << 20  # a jail and its waiting child, until one was measured


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Private bytes of all jails, and how many they were."""

    bytes: int = 0
    jails: int = 0

    def fits(self, living: int, budget: int) -> bool:
        """Whether one jail more than those that live now stays within a budget, by what a jail held on average."""
        each = max(_JAIL_BYTES, self.bytes // max(1, self.jails))
        return self.bytes + each * max(1, living + 1 - self.jails) <= budget


async def private_bytes(*above: int) -> int:
    """Private bytes of all processes below these, themselves left out; 0 for one that is gone."""
    total, waiting = 0, [child for pid in above for child in _children(pid)]
    while waiting:
        pid = waiting.pop()
        total += _private(pid)
        waiting += _children(pid)
        await trio.lowlevel.checkpoint()
    return total


def _private(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        try:
            return int(process.memory_full_info().uss)
        except psutil.AccessDenied:
            seen = process.memory_info()
            return int(max(0, seen.rss - seen.shared))
    except (psutil.Error, OSError):
        return 0  # it ended meanwhile, or our own table of files is full


def _children(pid: int) -> list[int]:
    # psutil would read the whole of /proc for each; every process here has one thread that forks
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(number) for number in file.read().split()]
    except OSError:
        return []
