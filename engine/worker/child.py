"""One process of a native jail: its channel, its outputs, and the pidfd that the kernel gave for it.

Its job: read and write without ever blocking, wait for all of it at once, say whether it has ended, kill it.
Not its job: the jail around it, how it ended (``native.py``); frames (``supervision/pump.py``).
Laws:
1. A pidfd comes with the peer's first byte from the kernel, never from a number that somebody wrote (tests/security/test_promise_ends.py).
2. When its jail is ended under it, whoever waits for it is told that it is gone (tests/contract/test_jails.py).
"""

import os
import select
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

import trio

from engine.errors import HostError
from engine.worker import asking
from engine.worker.base import End

SO_PASSPIDFD = 76  # unix(7), Linux 6.5; an asm-generic number, the same on x86_64 and aarch64
_SCM_PIDFD = 4  # likewise
_READ_BYTES = 64 << 10


class NativeChild:
    """One process in the jail. All its descriptors are waited for through one epoll descriptor."""

    def __init__(self, number: int, slot: int) -> None:
        self.number, self.slot = number, slot
        self.pidfd = self._pid = -1
        self.end: End | None = None
        self._outputs: dict[str, int] = {}
        self._awaited: set[int] = set()  # descriptors of ours that somebody waits for
        self._epoll = select.epoll()
        self.channel, far_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._far = [far_channel.detach()]
        self._names: dict[int, str] = {}  # by descriptor, what the epoll descriptor tells of
        try:
            self._watch(self.channel.fileno(), "channel")  # alone: until the child was met, nothing else is waited for
            self.channel.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 1)
            self.channel.setblocking(False)
            for name in ("stdout", "stderr"):
                self._outputs[name], far = os.pipe2(os.O_CLOEXEC)
                self._far.append(far)
                os.set_blocking(self._outputs[name], False)
        except OSError:  # our own table is full: what was opened must not stay
            self.close()
            raise

    def far_descriptors(self) -> tuple[int, ...]:
        """The three ends that the child gets: channel, stdout, stderr."""
        return tuple(self._far)

    def release_far(self) -> None:
        """Close our copies of the child's ends, so that its end can be seen."""
        far, self._far = self._far, []
        for descriptor in far:
            os.close(descriptor)

    async def meet(self, seconds: float | None, step: str = "lock the child") -> None:
        """Wait for the first byte and take the pidfd that the kernel puts beside it. Raises HostError; None: within the caller's time."""
        if seconds is None:
            await self.wait()
        else:
            with trio.move_on_after(seconds):
                await self.wait()
        if self._epoll.closed:
            raise HostError("refused.start_failed", f"step '{step}' failed: its jail was ended meanwhile")
        try:
            _, self.pidfd = with_pidfd(self.channel, 1)
        except BlockingIOError:
            self.pidfd = -1  # nothing came in that time
        for name, descriptor in self._outputs.items():
            self._watch(descriptor, name)
        if self.pidfd < 0:
            said = self.read_output("stderr").decode("utf-8", "replace")
            raise HostError("refused.start_failed", f"step '{step}' failed: {said or 'no sign of life'}")
        self.channel.setsockopt(socket.SOL_SOCKET, SO_PASSPIDFD, 0)
        self._watch(self.pidfd, "gone")

    def _watch(self, descriptor: int, name: str) -> None:
        self._names[descriptor] = name
        self._epoll.register(descriptor, select.EPOLLIN)

    async def wait(self) -> None:
        """Until any descriptor has something, or its jail was ended."""
        if not self._epoll.closed:
            await self._until(trio.lowlevel.wait_readable, self._epoll.fileno())

    async def wait_gone(self) -> None:
        """Until the kernel says that it has ended, or its jail was ended for it."""
        await self._until(trio.lowlevel.wait_readable, self.pidfd)

    async def _until(self, wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
        """Until that is so, or the descriptor was closed, as its jail was ended: ``ready`` says it."""
        self._awaited.add(descriptor)
        try:
            await wait(descriptor)
        except trio.ClosedResourceError:
            return
        finally:
            self._awaited.discard(descriptor)

    def ready(self, seconds: float = 0.0) -> list[str]:
        """As in ``base.Child``."""
        if self._epoll.closed:  # its jail was ended to end it
            return ["gone"]
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
        try:
            while view:
                if self._epoll.closed:  # its jail was ended to end it
                    raise BrokenPipeError
                try:
                    view = view[self.channel.send(view) :]
                except BlockingIOError:
                    await self._until(trio.lowlevel.wait_writable, self.channel.fileno())
        except ConnectionResetError as error:
            raise BrokenPipeError from error

    def gone(self) -> bool:
        """As in ``base.Child``."""
        return self.pidfd >= 0 and asking.ended(self.pidfd)

    def kill(self) -> None:
        """As in ``base.Child``."""
        kill(self.pidfd)

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
        for descriptor in self._awaited:
            trio.lowlevel.notify_closing(descriptor)
        self._epoll.close()
        self.channel.close()
        for descriptor in (*self._outputs.values(), self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._outputs = dict.fromkeys(self._outputs, -1)
        self.pidfd = self._pid = -1


def with_pidfd(end: socket.socket, size: int) -> tuple[bytes, int]:
    """One receive, and the sender's pidfd as the kernel attached it; -1 without one. Other descriptors are closed."""
    data, found, others = with_descriptors(end, size, 0)
    for descriptor in others:
        os.close(descriptor)  # security: a peer that sends descriptors would else fill our table
    return data, found


def with_descriptors(end: socket.socket, size: int, wanted: int) -> tuple[bytes, int, list[int]]:
    """The same with those that the sender attached, not inherited: as many as are wanted, or a few more or less."""
    space = socket.CMSG_SPACE(4) * 4 + socket.CMSG_SPACE(4 * wanted)
    data, ancillary, _, _ = end.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    found, others = -1, []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == _SCM_PIDFD and found < 0:
            found = int.from_bytes(payload[:4], sys.byteorder, signed=True)
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            others += [int.from_bytes(payload[at : at + 4], sys.byteorder) for at in range(0, len(payload) - 3, 4)]
    if found >= 0:
        os.set_inheritable(found, False)
    return data, found, others


def kill(pidfd: int) -> None:
    """SIGKILL, when there is such a process still."""
    if pidfd < 0:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return  # gone already
