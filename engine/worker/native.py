"""The native worker: a jail made by the launcher, and the children that its zygote forks.

Its job: start a jail and learn what it put in force, have it fork, hold each process by a pidfd that the kernel gave.
Not its job: frames (``supervision/pump.py``), when to kill (``supervision/reaper.py``), the inside (``worker_images/enter``).
Laws:
1. A pidfd comes with the peer's first byte from the kernel, never from a number that somebody wrote (tests/security/test_promise_ends.py).
2. An exit is believed from a pidfd alone; the zygote's word serves for status and usage (tests/security/test_promise_ends.py).
3. A jail that reports less than the policy needs is ended before any source is sent (tests/security/test_promise_enforced.py).
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from engine.errors import HostError
from engine.jail.plan import Plan
from engine.worker import asking
from engine.worker.base import End
from engine.worker.launcher import Launcher

_SO_PASSPIDFD, _SCM_PIDFD = 76, 4  # unix(7), Linux 6.5; asm-generic numbers, the same on x86_64 and aarch64
_REQUEST = struct.Struct("<cQB")
_ENDED = struct.Struct("<cQiQQQ")
_RECORD_BYTES = 64 << 10
_READ_BYTES = 64 << 10
_CLOSE_SECONDS = 5.0


class NativeChild:
    """One process in the jail. All its descriptors are waited for through one epoll descriptor."""

    def __init__(self, number: int, slot: int) -> None:
        self.number, self.slot = number, slot
        self.pidfd = self._pid = -1
        self.end: End | None = None
        self._outputs: dict[str, int] = {}
        self._far: list[int] = []
        self._epoll = select.epoll()
        self.channel, self.far_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.channel.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
            self.channel.setblocking(False)
            for name in ("stdout", "stderr"):
                self._outputs[name], far = os.pipe2(os.O_CLOEXEC)
                self._far.append(far)
                os.set_blocking(self._outputs[name], False)
        except OSError:  # our own table is full: what was opened must not stay
            self.close()
            raise
        self._names = {descriptor: name for name, descriptor in self._outputs.items()} | {self.channel.fileno(): "channel"}
        for descriptor in self._names:
            self._epoll.register(descriptor, select.EPOLLIN)

    def far_descriptors(self) -> tuple[int, int, int]:
        """The ends that the child gets: channel, stdout, stderr."""
        return (self.far_channel.fileno(), *self._far)  # type: ignore[return-value]  # always two outputs

    def release_far(self) -> None:
        """Close our copies of the child's ends, so that its end can be seen."""
        self.far_channel.close()
        while self._far:
            os.close(self._far.pop())

    async def meet(self, seconds: float | None, step: str = "lock the child") -> None:
        """Wait for the first byte and take the pidfd that the kernel puts beside it. Raises HostError; None: within the caller's time."""
        with contextlib.nullcontext() if seconds is None else trio.move_on_after(seconds):
            await trio.lowlevel.wait_readable(self.channel)
            _, self.pidfd = _with_pidfd(self.channel, 1)
            if self.pidfd >= 0:
                self.channel.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 0)
                self._names[self.pidfd] = "gone"
                self._epoll.register(self.pidfd, select.EPOLLIN)
                return
        said = self.read_output("stderr").decode("utf-8", "replace")
        raise HostError("refused.start_failed", f"step '{step}' failed: {said or 'no sign of life'}")

    async def wait(self) -> None:
        """Until any descriptor has something."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())

    def ready(self, seconds: float = 0.0) -> list[str]:
        """As in ``base.Child``."""
        return [self._names[descriptor] for descriptor, _ in self._epoll.poll(seconds)]

    def read(self) -> bytes | None:
        """As in ``base.Child``. Descriptors that the worker tries to send along are closed by the kernel: plain recv takes none."""
        if self._epoll.closed:  # its jail was ended to end it
            return b""
        try:
            return self.channel.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # it died with unread bytes of ours
            return b""

    def read_output(self, name: str) -> bytes:
        """As in ``base.Child``."""
        descriptor = self._outputs[name]
        try:
            data = os.read(descriptor, _READ_BYTES) if descriptor >= 0 else b""
        except BlockingIOError:
            return b""
        if not data and descriptor >= 0:
            self._epoll.unregister(descriptor)
            os.close(descriptor)
            self._outputs[name] = -1
        return data

    async def write(self, data: bytes) -> None:
        """As in ``base.Child``."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.channel.send(view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.channel)
            except ConnectionResetError as error:
                raise BrokenPipeError from error

    def gone(self) -> bool:
        """As in ``base.Child``."""
        return self.pidfd >= 0 and asking.ended(self.pidfd)

    def kill(self) -> None:
        """As in ``base.Child``."""
        _kill(self.pidfd)

    def cpu_seconds(self) -> float | None:
        """CPU time used so far, user and kernel; None when it is gone, or cannot be seen."""
        if self._pid <= 0:
            self._pid = asking.number_of(self.pidfd)
        used = asking.cpu_seconds(self._pid)
        return used if self.pidfd >= 0 and not self.gone() else None  # the number was its own all the while

    def close(self) -> None:
        """Let go of every descriptor of ours."""
        self.release_far()
        if self._epoll.closed:
            return
        trio.lowlevel.notify_closing(self._epoll.fileno())
        self._epoll.close()
        trio.lowlevel.notify_closing(self.channel)
        self.channel.close()
        for descriptor in (*self._outputs.values(), self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._outputs = dict.fromkeys(self._outputs, -1)
        self.pidfd = self._pid = -1


class Jail:
    """A native worker: monitor, first process and at most two children, each with its own scratch slot."""

    def __init__(self, launcher: Launcher, plan: Plan, control: socket.socket) -> None:
        self._launcher, self._plan, self._control = launcher, plan, control
        self._monitor = self._first = -1
        self._children: dict[int, NativeChild] = {}
        self._numbers = iter(range(1, 1 << 62))
        self._number = 0
        self._listening: trio.Event | None = None
        self.enforced: Mapping[str, int] = {}
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
                ours.setsockopt(socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
                jail._number, _, jail._monitor = await launcher.order("jail", order, theirs)
            await jail._report(seconds)
            return jail
        except BaseException:
            await jail.close()
            raise

    async def fork(self, *, seconds: float | None = _CLOSE_SECONDS) -> NativeChild:
        """As in ``base.Worker``. Raises HostError when the jail is dead or the child does not come up in time; None: the caller's time."""
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
                _kill(self._first)
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
            _kill(self._first)
            raise

    def threads(self) -> int | None:
        """How many the jail's first process has, the first one included; None when that cannot be seen."""
        found = asking.threads(asking.number_of(self._first))
        return None if self.dead() else found

    def _channels(self) -> NativeChild:
        """What a process gets to talk through, for one in the slot that is free. Raises HostError."""
        slot = min({0, 1} - {child.slot for child in self._children.values()})
        try:
            return NativeChild(next(self._numbers), slot)
        except OSError as error:
            raise HostError("refused.start_failed", f"step 'open the child's channels' failed: {error.strerror}") from None

    def _request(self, what: bytes, child: NativeChild) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", *child.far_descriptors()))]
        self._control.sendmsg([_REQUEST.pack(what, child.number, child.slot)], rights)
        child.release_far()

    async def bury(self, child: NativeChild, grace: float, *, shield: bool = False) -> End | None:
        """As in ``base.Worker``: the kernel's word that it is gone, then the zygote's on how."""
        with trio.CancelScope(deadline=trio.current_time() + grace, shield=shield):
            while child.end is None and self._records():
                if child.end is None:
                    await self._record()
            if child.pidfd >= 0 and not child.gone():  # the record was early, or there will be none
                await trio.lowlevel.wait_readable(child.pidfd)
            # it was killed just now; several may wait for that
            while child.end is None and not self.dead():  # noqa: ASYNC110 - the event is a descriptor's, which has one waiter
                await trio.sleep(0.001)
        if child.end is None and self.dead() and (child.pidfd < 0 or child.gone()):
            child.end = End(status=None)
        if child.end is not None:
            self._children.pop(child.number, None)  # its slot is free; its pipes may still hold output, so they stay open
        return child.end

    async def _record(self) -> None:
        """Until there may be a record. The next child may die while the last one is buried: then one waits for both."""
        if self._listening is not None:
            await self._listening.wait()
            return
        self._listening = trio.Event()
        try:
            await trio.lowlevel.wait_readable(self._control)
        except trio.ClosedResourceError:
            pass  # the jail was ended meanwhile, and with it all its children
        finally:
            self._listening.set()
            self._listening = None

    def dead(self) -> bool:
        """As in ``base.Worker``."""
        return self._first < 0 or asking.ended(self._first)

    def kill(self) -> None:
        """SIGKILL to the jail's first process, which takes all the others with it (pid_namespaces(7))."""
        _kill(self._first)

    async def close(self) -> None:
        """As in ``base.Worker``. Raises HostError when something survives a SIGKILL for five seconds."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS) as scope:
            # the monitor last: it may not have started the first process yet, or may itself have been stopped
            for pidfd in (self._first, self._monitor):
                _kill(pidfd)
                if pidfd >= 0:
                    await trio.lowlevel.wait_readable(pidfd)
                    asking.bury_if_ours(pidfd)
        for child in self._children.values():
            child.end = child.end or End(status=None)
            child.close()
        self._children.clear()
        trio.lowlevel.notify_closing(self._control)
        self._control.close()
        for pidfd in (self._first, self._monitor):
            if pidfd >= 0:
                os.close(pidfd)
        self._first = self._monitor = -1
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if scope.cancelled_caught:
            raise HostError("engine_failed.not_clean", "a jail's process outlived its SIGKILL by five seconds")

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
            data, self._first = _with_pidfd(self._control, _RECORD_BYTES)
            why = "the jail's report is malformed" if data else "the jail died while it was made"
        if data.startswith(b"F"):
            name, number, text = (data[1:].decode("utf-8", "replace") + "\n\n").split("\n")[:3]
            raise HostError("refused.start_failed", f"step '{name}' failed: {text} (errno {number})")
        if not data.startswith(b"U") or self._first < 0:
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

    def _records(self) -> bool:
        """Take what the zygote wrote on children that ended; false when it will write no more."""
        while True:
            try:
                data = self._control.recv(_RECORD_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            if len(data) != _ENDED.size:
                _kill(self._first)  # the end of the socket, or no record of ours: the zygote is dead or no longer itself
                return False
            _, number, status, user, system, peak = _ENDED.unpack(data)
            if number in self._children:
                self._children[number].end = End(status=status, user_us=user, system_us=system, peak_rss_kib=peak)


def _with_pidfd(end: socket.socket, size: int) -> tuple[bytes, int]:
    """One receive, and the sender's pidfd as the kernel attached it; -1 without one. Other descriptors are closed."""
    data, ancillary, _, _ = end.recvmsg(size, socket.CMSG_SPACE(4) * 4, socket.MSG_CMSG_CLOEXEC)
    found = -1
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == _SCM_PIDFD and found < 0:
            found = int.from_bytes(payload[:4], sys.byteorder, signed=True)
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            # security: a peer that sends descriptors would else fill our table
            for at in range(0, len(payload) - 3, 4):
                os.close(int.from_bytes(payload[at : at + 4], sys.byteorder))
    if found >= 0:
        os.set_inheritable(found, False)
    return data, found


def _kill(pidfd: int) -> None:
    if pidfd < 0:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return  # gone already
