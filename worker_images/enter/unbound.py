"""One jail that nobody has ordered yet: it has done what is the same for every jail, and waits for the order that makes it one of its own.

Its job: what jails have in common, the waiting of its first process, the handing over, and what makes it unfit.
Not its job: when one is made, and who borrows and buries (``main.py``); the steps themselves (``enter.py``).
Laws:
1. It serves the first order of exactly its base, and no second one; until then it knows of no tool (tests/contract/test_unbound.py).
2. When the host's mounts changed since it was made it is ended: it would show folders as they were, and keep what was unmounted busy
   (tests/contract/test_unbound.py).
3. While it waits it holds no descriptor but the null ones, its own end, its monitor's pipe and its empty slots; nobody but the launcher
   has the other end (tests/security/test_promise_identity.py).
4. No place of the host is left in it, nor in a jail that is made beside it (tests/security/test_inherited_memory.py).
"""

import _socket
import os
import select
import sys
from typing import Any

from enter import kernel, zygote
from enter.enter import Plan

NAME = "unbound-jail"  # what its processes are called as long as it waits; the monitor keeps it
_FIXED = ("walls", "namespaces", "uids", "uid", "gid", "mountpoint", "hostname", "devices", "links", "scratch", "python")
_ORDER_BYTES = 1 << 20
_CHANNEL = 3


def base_of(plan: Plan) -> Plan | None:
    """What a plan asks for that the next one will as well; None for one without the wall, which is made of nothing."""
    if not plan["walls"]:
        return None
    shared = plan["shared"]
    # sizes are set by the order that gets it; until then slots have the least one, so that no order fails of what another asked
    slots = {"count": plan["slots"]["count"], "bytes": 4096, "inodes": 0}
    own = {"binds": plan["binds"][:shared], "shared": shared, "slots": slots, "cgroup_limits": plan["cgroup_limits"]}
    return {name: plan[name] for name in _FIXED} | own


def alike(one: Plan | None, other: Plan | None) -> bool:
    """Whether a jail that was made of the one base can become one of the other: it is the same but for the sizes of limits."""
    return one is not None and other is not None and _kinds(one) == _kinds(other)


def _kinds(base: Plan) -> Plan:
    return {**base, "cgroup_limits": sorted(base["cgroup_limits"])}


class Unbound:
    """The launcher's side of it."""

    def __init__(self, base: Plan) -> None:
        """Ready to be forked for, with ``far`` as the first process's end. Raises OSError."""
        self.base, self.monitor = base, -1
        self.mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)  # before the fork: no change goes unseen
        try:
            self._end, self.far = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        except OSError:
            os.close(self.mounts)
            raise

    def fit(self, base: Plan | None) -> bool | None:
        """Whether it can be bound to an order of that base now; None when it never can be again."""
        if _changed(self.mounts) or os.waitid(os.P_PID, self.monitor, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return None
        if not alike(base, self.base):
            return False
        try:
            self._end.recv(1, _socket.MSG_DONTWAIT)  # it says nothing: this is its end
            return None
        except BlockingIOError:
            return True  # it waits, or is on its way and further than one that is made now
        except OSError:
            return None

    def bind(self, plan: Plan, channel: int, codec: Any) -> None:
        """Hand it the rest of the plan and the supervisor's channel: from now on it is that order's jail. Raises OSError."""
        told = {name: value for name, value in plan.items() if name not in _FIXED}
        told |= {"binds": plan["binds"][plan["shared"] :], "shared": 0}
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, channel.to_bytes(4, sys.byteorder))]
        self._end.sendmsg([codec.pack(1, [told])], rights)

    def close(self) -> None:
        """Let go of it: one that was not bound ends by that."""
        self.far.close()
        self._end.close()
        os.close(self.mounts)


def wait(plan: Plan, end: _socket.socket, codec: Any) -> _socket.socket:
    """In the first process: until it is bound. The plan is whole then; the supervisor's channel. Ends with the launcher. Raises Step."""
    data, descriptors = zygote.receive(end, _ORDER_BYTES, 1)
    if not data:
        os._exit(0)
    plan.update(codec.unpack_own(data[4:])[1])
    end.close()
    os.dup2(descriptors[0], _CHANNEL, inheritable=False)
    os.close(descriptors[0])
    kernel.name_process(plan["called"])
    return _socket.socket(fileno=_CHANNEL)


def fail(end: _socket.socket, step: kernel.Step) -> None:
    """Instead of waiting: tell whom it was bound to meanwhile which step failed. If to nobody, the launcher finds its end closed."""
    end.shutdown(_socket.SHUT_RD)  # from now on it cannot be
    data, descriptors = zygote.receive(end, _ORDER_BYTES, 1)
    if data:
        os.write(descriptors[0], zygote.failure(step))


def _changed(mounts: int) -> bool:
    """Whether a table of mounts is another than when it was last asked (proc(5), mounts: poll)."""
    poll = select.poll()
    poll.register(mounts, select.POLLPRI)
    return bool(poll.poll(0))
