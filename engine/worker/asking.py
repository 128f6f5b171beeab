"""What the kernel tells of a process that is held by a pidfd.

Its job: whether it has ended, its number, the CPU time and the threads behind the number.
Not its job: holding or ending it (``child.py``, ``native.py``);
whether the number is still its own, which whoever holds the pidfd asks afterwards.
Laws:
1. The number comes from the kernel, never from what a process says of itself (tests/contract/test_freshness.py).
"""

import os
import select
import time

import psutil

_CPUCLOCK_SCHED = 2  # the whole process, all of its threads; the same on all architectures (linux/posix-timers_types.h)


def watch(pidfd: int) -> select.poll:
    """What can be asked again and again whether it has ended, by ``poll(0)``: empty until then."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return poll


def ended(pidfd: int) -> bool:
    """Whether it has."""
    return bool(watch(pidfd).poll(0))


def bury_if_ours(pidfd: int) -> None:
    """Bury a dead process that came down to us: as process 1 we get the jails of a launcher that was killed."""
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return  # the usual case: its own parent does


def number_of(pidfd: int) -> int:
    """The process behind it; -1 when it is buried (pidfd_open(2)), or that cannot be seen, as when our own table of files is full."""
    if pidfd < 0:
        return -1
    try:
        with open(f"/proc/self/fdinfo/{pidfd}") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("Pid:")), -1)
    except OSError:
        return -1


def cpu_seconds(number: int) -> float | None:
    """CPU time it used so far, user and kernel; None when there is no such process, or no such clock."""
    if number <= 0:
        return None
    try:
        return time.clock_gettime(~number << 3 | _CPUCLOCK_SCHED)
    except OSError:
        return None


def threads(number: int) -> int | None:
    """How many it has, the first one included; None when that cannot be seen."""
    try:
        return psutil.Process(number).num_threads()
    except (psutil.Error, OSError, ValueError):
        return None
