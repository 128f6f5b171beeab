"""Ends a child for certain.

Its job: kill, wait for the kernel's word, and when it does not come, take the whole worker down.
Not its job: the verdict, which stands before anything here is called.
Laws:
1. When it returns, the kernel has said that the child is gone, or the worker with all in it is (tests/security/test_promise_ends.py).
2. Nothing is killed by number (tests/house/test_fences.py).
"""

from engine.supervision.deadline import GRACE_SECONDS
from engine.wire.framing import RemoteFault
from engine.worker.base import End
from engine.worker.child import NativeChild
from engine.worker.native import Jail


async def reap(jail: Jail, child: NativeChild, *, leave_seconds: float = 0.0) -> End:
    """How the child ended; afterwards nothing of it is alive. It may leave by itself first. Shielded, within two graces."""
    if leave_seconds:
        end = await jail.bury(child, leave_seconds, shield=True)
        if end is None and child.gone():  # by itself: only the word on how is late, on a host that is busy
            end = await jail.bury(child, GRACE_SECONDS, shield=True)
        if end is not None:
            return end
    child.kill()
    end = await jail.bury(child, GRACE_SECONDS, shield=True)
    if end is None:
        jail.kill()
        end = await jail.bury(child, GRACE_SECONDS, shield=True)
    if end is None:
        await jail.close()
    return End(status=None, forced=True) if end is None else end.by_force()


def ending(end: End, cpu_s: int, oom_kills: int) -> tuple[str, str]:
    """Reason and line for a child that ended without an answer and that we did not kill."""
    if end.status is None:
        return "crashed.worker", "the worker around the tool died"
    if end.forced:
        return "crashed.silent", "the process closed its channel without an answer and went on"
    if end.status & 0x7F == 0:
        return "crashed.exit", f"the process ended with exit code {end.status >> 8 & 0xFF} and no answer"
    number = end.status & 0x7F
    # SIGXCPU comes at the limit, SIGKILL a second later when it was caught. The limit counts whole ticks of the clock, the usage exact
    # time, and on a busy host the two differ by several per cent; a tool that sends itself either feigns no more than what it half used
    if number in (24, 9) and (end.cpu_ms or 0) >= cpu_s * 500:
        return "limit_exceeded.cpu", f"more than {cpu_s} s of CPU time"
    if number == 9 and oom_kills:
        return "limit_exceeded.memory", "the kernel killed it at the worker's memory limit"
    return "crashed.signal", f"the process died of signal {number}"


async def why_closed(jail: Jail, end: End, fault: RemoteFault | None, cpu_s: int) -> tuple[str, str]:
    """Reason and line for a channel that ended without an answer: how the process ended says more than where it stopped writing."""
    if fault is not None and fault.code != "crashed.silent" and end.status == 0:
        return fault.code, fault.line
    killed = end.status is not None and end.status & 0x7F == 9 and not end.forced  # only then is the launcher worth asking
    return ending(end, cpu_s, await jail.oom_kills() if killed else 0)
