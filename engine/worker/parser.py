"""Parsing hostile source somewhere else: one restricted process per load, forked by the launcher, thrown away after it.

Its job: send a source, take its facts and its byte code, know when the parser died of it.
Not its job: what facts mean (``staging/facts.py``), the parsing (``worker_images/enter/parse.py``).
Laws:
1. The event loop never parses: a source of 1 MiB can hold the interpreter for a second (tests/security/test_staging.py).
2. A parser that dies or stays silent refuses that file and nothing else (tests/contract/test_parser.py).
3. Of all its code no more is held than a bundle can keep: past that, none (tests/contract/test_code.py).
"""

import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from engine.errors import HostError, ToolError
from engine.jail.plan import Places, parser_order
from engine.staging.code import MOST_BYTES
from engine.wire import messages
from engine.wire.framing import FrameBuffer, RemoteFault
from engine.worker.launcher import Launcher

_ANSWER_BYTES = 8 << 20
_SECONDS = 20.0  # for one file of at most 1 MiB; about one second is usual for the worst


class Parser:
    """Callable: source and name to facts. ``code`` keeps the byte code of each source by name, made by the interpreter ``python``.

    It is empty once it would be more than a bundle can keep.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.code: dict[str, bytes] = {}
        self.python = ""
        self._left = MOST_BYTES
        self._channel = channel
        self._buffer = FrameBuffer(_ANSWER_BYTES)

    async def __call__(self, source: bytes, filename: str) -> Mapping[str, Any]:
        """The facts of one source. Raises ToolError ``refused.source_limits`` when the parser did not survive it."""
        name = filename.encode("utf-8", "surrogateescape")
        head = len(name).to_bytes(4, "big") + len(source).to_bytes(4, "big")
        with trio.move_on_after(_SECONDS):
            try:
                await self._send(head + name + source)
                answer = await self._answer()
            except (OSError, RemoteFault):
                answer = []
            if answer and type(answer[0]) is dict:
                self._keep(filename, *answer[1:])
                return answer[0]
        raise ToolError("refused.source_limits", f"{filename}: the parser needs more time or memory for it than a source may cost")

    def _keep(self, filename: str, code: object = "", python: object = "", *_: object) -> None:
        """The code as bytes; whoever took the parser over may send anything, and a source without code is compiled when it is imported."""
        if type(code) is str and code and type(python) is str and python.isprintable() and "\n" not in filename:
            self._left -= len(code)
            if self._left < 0:  # security: 20 kB of source fold to 4 MiB of code, and a bundle may have thousands of such files
                self.code.clear()
                return
            try:
                self.code[filename], self.python = code.encode("latin-1"), python
            except UnicodeEncodeError:
                return

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._channel.send(view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._channel)

    async def _answer(self) -> list[Any]:
        while (length := self._buffer.length()) is None or not self._buffer.whole(length):
            await trio.lowlevel.wait_readable(self._channel)
            data = self._channel.recv(1 << 16)
            if not data:
                raise RemoteFault("violation.protocol", "the parser is gone")
            self._buffer.feed(data)
        with self._buffer.payload(length) as view:
            payload = bytes(view)
        self._buffer.drop(length)
        return messages.fields_of(payload)  # whoever took the parser over may send none


@asynccontextmanager
async def open_parser(launcher: Launcher, places: Places) -> AsyncIterator[Parser]:
    """A parser for one load; its process is gone when the block ends. Raises HostError when it cannot be started."""
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise HostError("refused.start_failed", f"step 'open the parser's channel' failed: {error.strerror}") from None
    ours.setblocking(False)
    pidfd = -1
    with ours:
        try:
            with theirs:
                _, _, pidfd = await launcher.order("parse", parser_order(launcher.facts, places), theirs)
            yield Parser(ours)
        finally:
            trio.lowlevel.notify_closing(ours)
            if pidfd >= 0:
                await _end(pidfd)


async def _end(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 2):
        await trio.lowlevel.wait_readable(pidfd)
    os.close(pidfd)
