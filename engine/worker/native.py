"""The native worker: a jail made by the launcher, and the children that its zygote forks.

Its job: start a jail and learn what it put in force, have it fork, hear how each child ended, end it all.
Not its job: one child's descriptors (``child.py``), when to kill (``supervision/reaper.py``), the inside (``worker_images/enter``).
Laws:
1. A pidfd comes with the peer's first byte from the kernel, never from a number that somebody wrote (tests/security/test_promise_ends.py).
2. An exit is believed from a pidfd alone; the zygote's word serves for status and usage (tests/contract/test_jails.py).
3. A jail that reports less than the policy needs is ended before any source is sent (tests/security/test_promise_enforced.py).
4. A zygote that writes what it never writes costs its jail alone, and nobody a turn (tests/contract/test_jails.py).
5. A scoped jail brings exactly the listeners of its plan, and never has two children (tests/contract/test_scoped_pool.py).
"""

import os
import select
import shutil
import socket
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from engine.errors import HostError
from engine.jail.plan import Plan
from engine.worker import asking
from engine.worker.base import End
from engine.worker.child import SO_PASSPIDFD, NativeChild, kill, with_descriptors
from engine.worker.launcher import Launcher

_REQUEST = struct.Struct("<cQB")
_ENDED = struct.Struct("<cQiQQQ")
_RECORD_BYTES = 64 << 10
_CLOSE_SECONDS = 5.0


class Jail:
    """A native worker: monitor, first process and at most two children, each with its own scratch slot."""

    def __init__(self, launcher: Launcher, plan: Plan, control: socket.socket) -> None:
        self._launcher, self._plan, self._control = launcher, plan, control
        self._monitor = self._first = -1
        self._vital: select.poll | None = None  # of the first process
        self._children: dict[int, NativeChild] = {}
        self._numbers = iter(range(1, 1 << 62))
        self._number = 0
        self._listening: trio.Event | None = None
        self._ending: trio.Event | None = None  # set when the one who closes it is done
        self._survived = False
        self.doomed = False  # it was sent a SIGKILL, so it serves nobody again, though the kernel may not say yet that it is gone
        self.enforced: Mapping[str, int] = {}
        self.listeners: tuple[socket.socket, ...] = ()  # of the plan's, in its order, and bound; they do not block, and end with the jail
        self.holds_tool = False  # its first process has imported it, and its children find it there
        self._scratch: Path | None = None
        self.oom = plan.order["cgroup_limits"].get("memory") is not None

    @classmethod
    async def start(cls, launcher: Launcher, plan: Plan, *, seconds: float) -> "Jail":
        """A jail whose zygote waits. Raises HostError naming the step that failed, or the protection that is not in force."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise HostError("refused.start_failed", f"step 'open the jail's channel' failed: {error.strerror}") from None
        jail = cls(launcher, plan, ours)
        try:
            with theirs:
                order = jail._with_scratch(plan.order)
                ours.setblocking(False)
                ours.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
                jail._number, _, jail._monitor = await launcher.order("jail", order, theirs)
            await jail._report(seconds)
            return jail
        except BaseException:
            await jail.close()
            raise

    async def fork(self, *, seconds: float | None = _CLOSE_SECONDS) -> NativeChild:
        """A new child, locked, that has not read anything yet; ``seconds`` None: within the caller's time.

        Raises HostError when the jail is dead or the child does not come up in time.
        """
        child = self._channels()
        try:
            self._request(b"S", child)
            self._children[child.number] = child
            await child.meet(seconds)
            return child
        except OSError as error:
            child.close()
            raise HostError("refused.start_failed", f"step 'fork a child' failed: {error.strerror}") from None
        except BaseException:
            if child.pidfd < 0:  # never met: there is no pidfd to end it by, so the jail goes
                self.kill()
            else:
                child.kill()
            raise

    async def first_as_child(self) -> NativeChild:
        """The jail's first process itself, waiting to be told what to import. Close it when that is done. Raises HostError."""
        first = self._channels()
        try:
            self._request(b"I", first)
            await first.meet(_CLOSE_SECONDS, "make the first process ready to import")
            return first
        except OSError as error:
            first.close()
            raise HostError("refused.start_failed", f"step 'reach the first process' failed: {error.strerror}") from None
        except BaseException:
            first.close()
            self.kill()
            raise

    def monitor(self) -> int:
        """The number of the process that all others of the jail are below; -1 when it is gone."""
        return asking.number_of(self._monitor)

    def threads(self) -> int | None:
        """How many the jail's first process has, the first one included; None when that cannot be seen."""
        found = asking.threads(asking.number_of(self._first))
        return None if self.dead() else found

    def _channels(self) -> NativeChild:
        """What a process gets to talk through, for one in the slot that is free. Raises HostError."""
        # security: two children could connect at once, and nobody could tell whose call a connection belongs to
        slots = {0} if self._plan.listeners else {0, 1}
        free = slots - {child.slot for child in self._children.values()}
        if not free:
            raise HostError("refused.start_failed", f"step 'find the child a slot' failed: {len(slots)} of {len(slots)} taken")
        try:
            return NativeChild(next(self._numbers), min(free))
        except OSError as error:
            raise HostError("refused.start_failed", f"step 'open the child's channels' failed: {error.strerror}") from None

    def _request(self, what: bytes, child: NativeChild) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", *child.far_descriptors()))]
        self._control.sendmsg([_REQUEST.pack(what, child.number, child.slot)], rights)
        child.release_far()

    async def bury(self, child: NativeChild, grace: float, *, shield: bool = False) -> End | None:
        """How it ended, once the kernel said that it has; None when neither that nor the zygote's word came within ``grace`` seconds."""
        gone = False
        with trio.CancelScope(deadline=trio.current_time() + grace, shield=shield):
            while child.end is None and await self._heard():
                pass
            gone = child.pidfd < 0 or child.gone()
            if not gone:  # the record was early, or there will be none
                await child.wait_gone()
                gone = True
            # it was killed just now; several may wait for that
            while child.end is None and not self.dead():  # noqa: ASYNC110 - the event is a descriptor's, which has one waiter
                await trio.sleep(0.001)
        # security: the zygote of a snapshot has run tool code; without the kernel's word a record could keep a process alive
        if not gone and child.pidfd >= 0 and not child.gone():
            return None
        if child.end is None and self.dead():
            child.end = End(status=None)
        if child.end is not None:
            self._children.pop(child.number, None)  # its slot is free; its pipes may still hold output, so they stay open
        return child.end

    async def _heard(self) -> bool:
        """Take what the zygote wrote, and when that was nothing, wait for it; false when it will write no more.

        Several may be buried at once. One listens for all; nobody reads meanwhile, so no record is taken from under the one who waits.
        """
        if self._listening is not None:
            await self._listening.wait()
            return True
        if (heard := self._records()) is not None:
            return heard
        self._listening = trio.Event()
        try:
            await trio.lowlevel.wait_readable(self._control)
        except trio.ClosedResourceError:
            pass  # the jail was ended meanwhile, and with it all its children
        finally:
            self._listening.set()
            self._listening = None
        return self._records() is not False

    def dead(self) -> bool:
        """Whether the kernel says that the jail has ended."""
        return self._vital is None or bool(self._vital.poll(0))

    def kill(self) -> None:
        """SIGKILL to the jail's first process, which takes all the others with it (pid_namespaces(7))."""
        self.doomed = True
        kill(self._first)

    async def close(self) -> None:
        """End the jail and all in it. Raises HostError when something survives a SIGKILL for five seconds. Several may want it at once."""
        if self._ending is None:
            self._ending = trio.Event()
            try:
                await self._close()
            finally:
                self._ending.set()
        else:
            with trio.CancelScope(shield=True):
                await self._ending.wait()
        if self._survived:
            raise HostError("engine_failed.not_clean", "a jail's process outlived its SIGKILL by five seconds")

    async def _close(self) -> None:
        self.doomed = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS) as scope:
            # the monitor last: it may not have started the first process yet, or may itself have been stopped
            for pidfd in (self._first, self._monitor):
                kill(pidfd)
                if pidfd >= 0:
                    await trio.lowlevel.wait_readable(pidfd)
                    asking.bury_if_ours(pidfd)
        self._survived = scope.cancelled_caught
        for child in self._children.values():
            child.end = child.end or End(status=None)
            child.close()
        self._children.clear()
        for end in (self._control, *self.listeners):
            trio.lowlevel.notify_closing(end)
            end.close()
        self.listeners = ()
        for pidfd in (self._first, self._monitor):
            if pidfd >= 0:
                os.close(pidfd)
        self._first = self._monitor = -1
        self._vital = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def oom_kills(self) -> int:
        """How often the kernel killed in this jail's cgroup for memory; 0 where there is no cgroup."""
        if not self.oom or self._launcher.dead or self._first < 0:
            return 0
        try:
            # every order brings a channel; this one does not need it
            _, told, _ = await self._launcher.order("oom", {"number": self._number}, self._control)
        except HostError:
            return 0  # it died meanwhile, and what it counted with it
        return int(told["kills"])

    def _with_scratch(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without the wall there is no mount to keep scratch in: two folders of this worker's own, removed with it."""
        if self._plan.walls:
            return order
        try:
            self._scratch = Path(tempfile.mkdtemp(prefix="worker-", dir=order["scratch"]))
            for slot in ("0", "1"):
                (self._scratch / slot).mkdir(mode=0o700)
        except OSError as error:
            raise HostError("refused.storage", f"no scratch folder could be made: {error.strerror}") from None
        return {**order, "scratch": str(self._scratch)}

    async def _report(self, seconds: float) -> None:
        data, why = b"", f"the jail was not up within {seconds:g} s"
        with trio.move_on_after(seconds):
            await trio.lowlevel.wait_readable(self._control)
            data, self._first, descriptors = with_descriptors(self._control, _RECORD_BYTES, len(self._plan.listeners))
            self.listeners = tuple(socket.socket(fileno=descriptor) for descriptor in descriptors)
            self._vital = asking.watch(self._first) if self._first >= 0 else None
            why = "the jail's report is malformed" if data else "the jail died while it was made"
        if data.startswith(b"F"):
            name, number, text = (data[1:].decode("utf-8", "replace") + "\n\n").split("\n")[:3]
            raise HostError("refused.start_failed", f"step '{name}' failed: {text} (errno {number})")
        if not data.startswith(b"U") or self._first < 0 or not self._bound_as_planned():
            raise HostError("refused.start_failed", why)
        lines = dict(line.split("=", 1) for line in data[1:].decode("ascii", "replace").splitlines())
        self.enforced = {name: int(level) for name, level in lines.items() if name != "pid1"}
        if self._plan.walls:
            self.enforced = {**self.enforced, "peer_pidfd": 1, **{f"{name}_cgroup": 1 for name in self._plan.order["cgroup_limits"]}}
        missing = [
            f"{name}: in force {self.enforced.get(name, 0)}, needed {level}"
            for name, level in self._plan.needed.items()
            if self.enforced.get(name, 0) < level
        ]
        if self._plan.walls and missing:
            raise HostError("refused.cannot_enforce", *missing)

    def _bound_as_planned(self) -> bool:
        """Whether what came with the report are the plan's listeners, each where it belongs."""
        network = self._plan.order["network"]
        wanted = [] if network is None else [(address, port) for address, port in network["listeners"]]
        if len(self.listeners) != len(wanted) or len(wanted) != len(self._plan.listeners):
            return False
        for end in self.listeners:
            end.setblocking(False)
        # security: where a connection leads is told by its listener alone, so the order must be the plan's
        return all(_bound(end, place) for end, place in zip(self.listeners, wanted, strict=True))

    def _records(self) -> bool | None:
        """Take what the zygote wrote on children that ended; None when that was nothing, false when it will write no more."""
        taken: bool | None = None
        while True:  # at most once a child and once more: who writes more than that is ended
            try:
                data = self._control.recv(_RECORD_BYTES)
            except BlockingIOError:
                return taken
            except OSError:
                data = b""
            child = None
            if len(data) == _ENDED.size:
                _, number, status, user, system, peak = _ENDED.unpack(data)
                child = self._children.get(number)
            if child is None or child.end is not None:
                # the end of the socket, or no record of ours: the zygote is dead or no longer itself
                self.kill()  # security: one that is never slower than we are would else have us read for as long as it likes
                return False
            child.end, taken = End(status=status, user_us=user, system_us=system, peak_rss_kib=peak), True


def _bound(end: socket.socket, place: tuple[str, int]) -> bool:
    """Whether it is a TCP socket of IPv4, bound to that address and port, that does not listen."""
    options = (socket.SO_TYPE, socket.SO_PROTOCOL, socket.SO_ACCEPTCONN)
    # security: one that listens by itself would take connections outside of every call
    found = [end.getsockopt(socket.SOL_SOCKET, option) for option in options]
    return end.family == socket.AF_INET and found == [socket.SOCK_STREAM, socket.IPPROTO_TCP, 0] and end.getsockname() == place
