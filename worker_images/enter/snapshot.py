"""A zygote that imports the tool itself, once, so that its children find it there: the freshness ``snapshot``.

Its job: lend the first process what a child has while it imports (channel, outputs, scratch, limits), and see that it can be forked after.
Not its job: importing (``guest/main.py``); whether it is wanted, in time and well done (the supervisor).
Laws:
1. What the import used of the jail is bounded like a child's (tests/security/test_promise_kept.py).
2. An import that leaves what children cannot share, a process or an open file, has failed (tests/contract/test_snapshot.py).
"""

import _signal
import gc
import os
import resource
from collections.abc import Callable

from enter import zygote
from enter.enter import Plan

_SLACK_BYTES = 16 << 20  # of memory, for the zygote's own work once the tool has used up what is allowed
_SLACK_DESCRIPTORS = 64  # the zygote's own
Import = Callable[[int, str, Callable[[], str | None]], bool]


def learner(plan: Plan, import_tool: Import) -> Callable[[list[int], int], bool]:
    """What a zygote does with the descriptors of an order to import, and an empty slot; it says whether the tool is there now."""

    def learn(descriptors: list[int], slot: int) -> bool:
        channel, out, err = descriptors
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for own, shown in ((null, 0), (out, 1), (err, 2)):
            os.dup2(own, shown)
        os.close(out)
        os.close(err)
        _bound(plan)
        zygote.move_in(slot)
        held = _open()
        # the kernel adds this process's credentials to the first byte: that is how the supervisor learns who we are
        os.write(channel, b"\x01")
        well = import_tool(channel, os.getcwd(), lambda: _unfit(held))
        for shown in (1, 2):
            os.dup2(null, shown)
        os.close(null)
        os.close(channel)
        os.chdir("/")
        zygote.empty(slot)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ignored, it would keep the ends of children from us
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        gc.freeze()
        return well

    return learn


def _bound(plan: Plan) -> None:
    """The limits of a child, as far as a process that forks children can have them. For good: what the tool leaves here keeps them."""
    limits = plan["limits"]
    for name, soft, hard in (
        (resource.RLIMIT_AS, limits["address_bytes"], limits["address_bytes"] + _SLACK_BYTES),
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["descriptors"] + _SLACK_DESCRIPTORS, limits["descriptors"] + _SLACK_DESCRIPTORS),
        (resource.RLIMIT_NPROC, 2 * limits["tasks"], 2 * limits["tasks"]),  # a call's threads, and those of its spare
    ):
        ceiling = resource.getrlimit(name)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(name, (soft, hard))


def _unfit(held: list[int]) -> str | None:
    """What the import left that children cannot share, None when there is nothing."""
    pid = os.fork()  # a library may end its threads before a fork, and start them anew when it needs them
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    try:
        os.waitpid(-1, os.WNOHANG)
        return "the import left a process, which calls cannot share: have it ended in the import, or have the freshness fresh"
    except ChildProcessError:
        pass  # as it should be
    # security: a child closes them, and a file object whose number is somebody else's by then would read or write that
    if left := sorted(set(_open()) - set(held)):
        numbers = ", ".join(map(str, left[:8])) + (", ..." if len(left) > 8 else "")
        what, them = ("an open descriptor", "it") if len(left) == 1 else (f"{len(left)} open descriptors", "them")
        return f"the import left {what} ({numbers}), which calls cannot share: close {them} in the import, or have the freshness fresh"
    return None


def _open() -> list[int]:
    """The descriptors of this process."""
    found = []
    for descriptor in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        try:
            os.fstat(descriptor)
            found.append(descriptor)
        except OSError:
            continue
    return found
