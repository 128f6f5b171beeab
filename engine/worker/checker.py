"""The process that checks large values, as the supervisor holds it.

Its job: exec it with nothing inherited, have it locked, give it one order at a time, hand on its answers, end it.
Not its job: what is checked (``wire/judging.py``), who waits for it and for how long (``supervision/values.py``).
Laws:
1. It is started from the trio thread: the death signal goes by thread (tests/contract/test_checker.py).
2. Its environment is the four names below, whatever ours holds; it inherits one descriptor (tests/contract/test_checker.py).
3. When ``close`` returns the process is gone (tests/contract/test_checker.py).
"""

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from engine.errors import HostError
from engine.places import data_dir
from engine.wire import messages
from engine.wire.framing import FrameBuffer, RemoteFault

_ANSWER_BYTES = 1 << 20
_SEND_BYTES = 256 << 10  # at once: about what a socket takes, copied in 50 us
_START_SECONDS = 10.0  # a tenth of a second is usual
_END_SECONDS = 3.0
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "PATH": "/nonexistent", "TZ": "UTC"}


class CheckingProcess:
    """A running one. ``orders`` counts what it was given."""

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int, channel: socket.socket) -> None:
        self._process, self._pidfd, self._channel = process, pidfd, channel
        self._buffer = FrameBuffer(_ANSWER_BYTES)
        self.orders = 0

    @classmethod
    async def start(cls, lock: Mapping[str, Any]) -> "CheckingProcess":
        """One that says it is locked as told. Raises HostError when it could not be started."""
        try:
            made = cls(*_spawn())
        except OSError as error:
            raise HostError("refused.start_failed", f"the checking process could not be started: {error.strerror}") from None
        try:
            with trio.fail_after(_START_SECONDS):
                await made.order("lock", lock, b"")
                if (await made.answer())[0] == "locked":
                    return made
        except (OSError, RemoteFault, trio.TooSlowError):
            pass  # said below, for all of them
        except BaseException:
            await made.close()
            raise
        await made.close()
        raise HostError("refused.start_failed", "the checking process did not come up")

    @property
    def pid(self) -> int:
        """Its process id, for tests."""
        return self._process.pid

    @property
    def dead(self) -> bool:
        """Whether the kernel says that it has ended, or it was closed."""
        if self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def order(self, what: str, details: Mapping[str, Any], payload: bytes | memoryview) -> None:
        """Give an order and the bytes that belong to it. Raises OSError when the process is gone."""
        self.orders += 1
        for data in (messages.order(self.orders, what, {**details, "bytes": len(payload)}), payload):
            view = memoryview(data)
            while view:
                self._require_open()
                try:
                    view = view[self._channel.send(view[:_SEND_BYTES]) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._channel)
                else:
                    await trio.lowlevel.checkpoint()  # a process that reads as fast as we write must not hold the loop

    async def answer(self) -> tuple[str, Any]:
        """The next answer to the last order, by name. Raises RemoteFault when it is none or nobody gives it, OSError once closed."""
        while (length := self._buffer.length()) is None or not self._buffer.whole(length):
            self._require_open()
            await trio.lowlevel.wait_readable(self._channel)
            try:
                data = self._channel.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise RemoteFault("violation.protocol", "the checking process is gone")
            self._buffer.feed(data)
        fields = messages.fields_of(bytes(self._buffer.take(length)))
        if len(fields) != 3 or fields[0] != self.orders or type(fields[1]) is not str or type(fields[2]) is not dict:
            raise RemoteFault("violation.protocol", "the checking process gave an answer that is none")
        return fields[1], fields[2].get("told")

    def _require_open(self) -> None:
        if self._pidfd < 0:  # trio takes a closed socket for a fault of its caller
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    async def close(self) -> None:
        """End it; returns when it is buried. Raises HostError when it survives a SIGKILL for three seconds."""
        if self._pidfd < 0:
            return  # closed already
        trio.lowlevel.notify_closing(self._channel)
        self._channel.close()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        pidfd, self._pidfd = self._pidfd, -1
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS) as left:
            await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
        if left.cancelled_caught:
            raise HostError("engine_failed.not_clean", "the checking process outlived its SIGKILL by three seconds")
        self._process.wait()


def _spawn() -> tuple[subprocess.Popen[bytes], int, socket.socket]:
    program = data_dir("worker_images") / "checker" / "main.py"
    carried = Path(__file__).resolve().parent.parent.parent
    import msgpack  # where it lies is all that is asked of it here

    packages = Path(msgpack.__file__).resolve().parent.parent
    command = [getattr(sys, "_base_executable", "") or sys.executable, "-I", "-S", "-X", "utf8", str(program)]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as opened:
        opened.callback(ours.close)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and program, no shell
                [*command, str(os.getpid()), str(carried), str(packages), str(theirs.fileno())],
                env=_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.setblocking(False)
        pidfd = os.pidfd_open(process.pid)
        opened.pop_all()
        return process, pidfd, ours
