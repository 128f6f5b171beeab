"""The launcher's process as the supervisor holds it: the one place where a worker process is started.

Its job: exec it with nothing inherited, give it orders one at a time, hand on what it answers, end it.
Not its job: what a jail looks like (``jail/plan.py``), talking to a jail (``native.py``).
Laws:
1. It is started from the trio thread: the death signal goes by thread, and a pool thread dies after ten idle seconds (prctl(2))
   (tests/contract/test_launcher.py).
2. Its environment is the four names below, whatever ours holds (tests/security/test_promise_environment.py).
3. Orders and answers alternate; a caller that gives up in between cannot shift them (tests/contract/test_launcher.py).
"""

import contextlib
import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import trio

from engine.errors import HostError
from engine.jail.facts import HostFacts
from engine.places import data_dir
from engine.wire import messages
from engine.wire.framing import RemoteFault

_ANSWER_BYTES = 1 << 20
_ANSWER_SECONDS = 10.0  # a fork on a loaded machine; beyond it the launcher is taken for dead
_LEAVE_SECONDS = 6.0  # a second more than the launcher gives its jails
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "PATH": "/nonexistent", "TZ": "UTC"}  # one arena: 64 threads fit RLIMIT_AS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """What a launcher runs, below ``worker_images``, and what it is given beyond what all are: words, and descriptors to keep."""

    file: str
    words: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()


NATIVE = Program(file="enter/main.py")


def wasm_program(code: int) -> Program:
    """The launcher of WebAssembly workers; ``code`` is the descriptor of an image's compiled code."""
    packages = Path(str(metadata.distribution("wasmtime").locate_file(""))).resolve()
    return Program(file="wasm/main.py", words=(str(packages), str(code)), descriptors=(code,))


class Launcher:
    """A running launcher. ``facts`` is what it told of this host."""

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int, control: socket.socket, errors: int) -> None:
        self._process, self._pidfd, self._control, self._errors = process, pidfd, control, errors
        self._turn = trio.Lock()
        self._number = 0
        self._lost = False
        self.facts: HostFacts

    @classmethod
    async def start(cls, program: Program = NATIVE) -> "Launcher":
        """A launcher that has said what this host is. Raises HostError when it could not start."""
        try:
            launcher = cls(*_spawn(program))
        except OSError as error:
            raise HostError("refused.start_failed", f"the launcher could not be started: {error.strerror}") from None
        try:
            _, told, _ = await launcher._answer()
            launcher.facts = HostFacts.of(told)
        except BaseException:
            await launcher.close()
            raise
        return launcher

    @property
    def pid(self) -> int:
        """Its process id, for tests and ``doctor``."""
        return self._process.pid

    @property
    def dead(self) -> bool:
        """Whether it has ended, or cannot be talked to any more."""
        if self._lost:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def order(self, what: str, details: Mapping[str, Any], channel: socket.socket) -> tuple[int, dict[str, Any], int]:
        """Give one order with the far end of its channel; its number, the answer, and the descriptor that came with it (-1: none).

        Raises HostError: the launcher is gone, or the order failed at the step that is named.
        """
        # shielded, with the deadline of ``_answer``: half an exchange would give the next caller this one's answer
        with trio.CancelScope(shield=True):
            async with self._turn:
                if self._lost:  # by the order before this one: waiting as long again would tell nothing new
                    raise self._died(None)
                self._number += 1
                number = self._number
                try:
                    await self._send(messages.order(number, what, details), channel.fileno())
                except (OSError, trio.ClosedResourceError) as error:
                    raise self._died(error) from None
                answered, told, descriptor = await self._answer()
        if answered != number:
            if descriptor >= 0:
                os.close(descriptor)
            raise self._died(None)
        if "step" in told:
            raise HostError("refused.start_failed", f"step '{told['step']}' failed: {told['text']} (errno {told['errno']})")
        return number, told, descriptor

    async def close(self) -> None:
        """End it and everything below it; returns when it is buried. Raises HostError when it survives a SIGKILL for as long again."""
        self._lost = True
        with contextlib.suppress(OSError):  # it let go first
            self._control.shutdown(socket.SHUT_RDWR)  # closing is not enough where somebody forked this process and holds a copy
        trio.lowlevel.notify_closing(self._control)  # whoever waits for an answer is told: the number may be another's in a moment
        self._control.close()  # it ends its jails, gives back what they borrowed, and leaves
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_LEAVE_SECONDS) as left:
                await trio.lowlevel.wait_readable(self._pidfd)
            if left.cancelled_caught:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                with trio.move_on_after(_LEAVE_SECONDS) as left:
                    await trio.lowlevel.wait_readable(self._pidfd)
        os.close(self._pidfd)
        os.close(self._errors)
        self._pidfd = self._errors = -1  # the numbers may be others' by now, and whoever still holds this one would read there
        if left.cancelled_caught:
            raise HostError("engine_failed.not_clean", f"the launcher outlived its SIGKILL by {_LEAVE_SECONDS:g} s")
        self._process.wait()

    async def _send(self, data: bytes, descriptor: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))]
        while True:
            try:
                self._control.sendmsg([data], rights)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._control)

    async def _answer(self) -> tuple[int, dict[str, Any], int]:
        with trio.move_on_after(_ANSWER_SECONDS):
            try:
                await trio.lowlevel.wait_readable(self._control)
                # security: closed on exec from the first moment, or a program that a thread of the host starts right now inherits it
                data, ancillary, _, _ = self._control.recvmsg(_ANSWER_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
                if data:
                    number, told = messages.fields_of(data[4:])
                    return number, told, int.from_bytes(ancillary[0][2][:4], sys.byteorder) if ancillary else -1
            except (OSError, RemoteFault, ValueError, trio.ClosedResourceError) as error:
                raise self._died(error) from None
        raise self._died(None)

    def _died(self, error: Exception | None) -> HostError:
        self._lost = True
        try:
            said = os.read(self._errors, 4096).decode("utf-8", "replace").strip().splitlines()
        except OSError:
            said = []
        why = said[-1] if said else type(error).__name__ if error else "no answer"
        return HostError("refused.start_failed", f"the launcher is gone: {why}")


def _spawn(program: Program) -> tuple[subprocess.Popen[bytes], int, socket.socket, int]:
    file = data_dir("worker_images") / program.file
    carried = Path(__file__).resolve().parent.parent.parent
    import msgpack  # where it lies is all that is asked of it here

    packages = Path(msgpack.__file__).resolve().parent.parent
    command = [getattr(sys, "_base_executable", "") or sys.executable, "-I", "-S", "-X", "utf8", str(file)]
    with contextlib.ExitStack() as opened:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.callback(ours.close)
        with theirs:
            errors, far_errors = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            opened.callback(os.close, errors)
            try:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and program, no shell
                    [*command, str(os.getpid()), str(carried), str(packages), str(theirs.fileno()), *program.words],
                    env=_ENVIRONMENT,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=far_errors,
                    pass_fds=[theirs.fileno(), *program.descriptors],
                    start_new_session=True,
                )
            finally:
                os.close(far_errors)
        ours.setblocking(False)
        pidfd = os.pidfd_open(process.pid)
        opened.pop_all()
        return process, pidfd, ours, errors
