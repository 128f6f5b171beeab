"""Bytes from and to a socket, plain or inside TLS, counted where they leave or come from outside.

Its job: read, write, whether a kept connection is still good.
Not its job: what the bytes say (``exchange.py``), connecting (``dial.py``).
Laws:
1. Reading and writing may go on at once, in TLS as well (tests/egress/test_upgrade.py).
2. Each read and write gives others a turn, also when nothing has to be waited for (tests/egress/test_turns.py).
3. With TLS its records are what counts, the handshake's too (tests/egress/test_turns.py).
"""

import socket
import ssl

import trio

from engine.egress.link import Link
from engine.egress.traffic import Denied, Traffic

_READ_BYTES = 64 << 10  # and of a write in one go


class Plain:
    """A socket as it is. With a traffic its bytes are counted, as those of the host's side are."""

    def __init__(self, sock: socket.socket, link: Link, traffic: Traffic | None = None) -> None:
        self.sock, self._link, self._traffic = sock, link, traffic
        self._chunk = _READ_BYTES if traffic is None else min(_READ_BYTES, traffic.chunk)

    async def read(self) -> bytes:
        """Some bytes, none at the end. Raises Denied, OSError, ClosedResourceError."""
        return await self._receive()

    async def write(self, data: bytes) -> None:
        """All of them, no faster than the rate. Raises Denied, OSError, ClosedResourceError."""
        view = memoryview(data)
        for at in range(0, len(view), self._chunk):
            await self._send(view[at : at + self._chunk])

    async def stale(self) -> bool:
        """Whether a connection that waits for its next request is over, or says something unasked."""
        try:
            self.sock.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    async def _count(self, *, sent: int = 0, received: int = 0) -> None:
        await self._link.pause(0.0 if self._traffic is None else self._traffic.carry(sent=sent, received=received))

    async def _receive(self) -> bytes:
        while True:
            try:
                data = self.sock.recv(self._chunk)
                break
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.sock)
        await self._count(received=len(data))
        return data

    async def _send(self, data: bytes | memoryview) -> None:
        await self._count(sent=len(data))
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.sock)


class Secured(Plain):
    """A socket with TLS on it, as its client. ``open`` comes first."""

    def __init__(self, sock: socket.socket, link: Link, traffic: Traffic, context: ssl.SSLContext, host: str) -> None:
        super().__init__(sock, link, traffic)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._turn = trio.Lock()  # what TLS wrote leaves in its order

    async def open(self) -> None:
        """The handshake. Raises Denied when the host is not the one it should be, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
                continue
            except ssl.SSLError:
                raise Denied("certificate") from None
            await self._flush()
            return

    async def read(self) -> bytes:
        """As in ``Plain``; an end that TLS did not announce is a broken connection."""
        while True:
            try:
                data = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
                continue
            except ssl.SSLZeroReturnError:
                data = b""
            # security: whoever cuts the line must not pass for the host that ended its answer
            await self._link.pause(0.0)  # one read of the socket may hold thousands of records
            return data

    async def write(self, data: bytes) -> None:
        """As in ``Plain``."""
        view = memoryview(data)
        for at in range(0, len(view), self._chunk):
            self._tls.write(view[at : at + self._chunk])
            await self._flush()

    async def stale(self) -> bool:
        """As in ``Plain``; tickets for later sessions are no sign of anything."""
        try:
            data = self.sock.recv(self._chunk)
            if not data:
                return True
            await self._count(received=len(data))
            self._in.write(data)
        except BlockingIOError:
            pass
        except OSError:
            return True
        try:
            self._tls.read(1)
        except ssl.SSLWantReadError:
            return False
        except OSError:
            return True
        return True

    async def _flush(self) -> None:
        if self._out.pending:
            async with self._turn:
                await self._send(self._out.read())

    async def _feed(self) -> None:
        data = await self._receive()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
