"""What a process does that was forked from the launcher: first of all, and in whole where it is no jail's.

Its job: close what is not its own, end with its parent; parse for one load, or try one protection.
Not its job: jails (``main.py``, ``enter.py``), which orders there are.
Laws:
1. It keeps no descriptor but the null ones, its channel and what it is told to keep (tests/contract/test_launcher.py,
   tests/security/test_promise_identity.py).
"""

import os
import select
from typing import Any

from enter import enter, kernel, probe, reader, zygote

CHANNEL = 3  # where a process finds what it was forked with


def only(channel: int, kept: list[int]) -> int:
    """Close every descriptor but the null ones, the channel (moved to its place) and what is kept."""
    os.dup2(0, 2)
    os.dup2(channel, CHANNEL)
    for descriptor in kept:
        os.set_inheritable(descriptor, False)
    last = CHANNEL
    for descriptor in sorted(kept):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 1 << 20)
    return CHANNEL


def die_with_monitor(alive: int) -> None:
    """Be killed with the monitor; it is not visible from a new pid namespace, so a pipe tells whether it was there in time."""
    kernel.prctl("die with the monitor", kernel.PR_SET_PDEATHSIG, 9)
    poll = select.poll()
    poll.register(alive, 0)
    if poll.poll(0):
        os._exit(1)


def parse(details: dict[str, Any], launcher: int, channel: int, codec: Any) -> None:
    """Parse sources for one load in a process that can do nothing else, and be thrown away."""
    try:
        zygote.quiet_signals()
        channel = only(channel, [])
        zygote.lock_parser(details, launcher)
        reader.serve(channel, codec)
    finally:
        os._exit(0)


def attempt(details: dict[str, Any], launcher: int, channel: int) -> None:
    """Try one protection in this process and say what came of it; the process is of no further use."""
    try:
        zygote.quiet_signals()
        channel = only(channel, [])
        enter.die_with(launcher, "die with the launcher")
        level, text = probe.attempt(details)
        os.write(channel, f"{level}\n{text}".encode())
    finally:
        os._exit(0)
