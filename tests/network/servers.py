"""HTTP servers of this process on loopback, plain and with TLS, that keep what reached them: tests of egress judge by that from outside.

Each connection has a thread. All ends with ``close``: listeners, connections and their threads.
"""

import contextlib
import dataclasses
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import trio
import trustme

_SECONDS = 60.0  # a bound for a test that goes wrong, never what a test waits for
_PIECE = bytes(1 << 16)
_HEAD_BYTES = 1 << 16
_CONNECTIONS = 128  # of one server at once


class Authority:
    """A certificate authority of the test's own; its keys are in memory, its certificate can be written down."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    def write(self, folder: Path) -> Path:
        """Its certificate as ``ca.pem`` in that folder."""
        place = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(place))
        return place

    def serving(self, *names: str) -> ssl.SSLContext:
        """For a server of these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._ca.issue_cert(*names).configure_cert(context)
        return context

    def trusting(self) -> ssl.SSLContext:
        """For a client that trusts this authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._ca.configure_trust(context)
        return context


@dataclasses.dataclass(frozen=True)
class Asked:
    """One request as it came: the names of headers in small letters, and of a body its size and SHA-256."""

    method: str
    target: str
    headers: Mapping[str, str]
    size: int
    digest: str


@dataclasses.dataclass
class Connection:
    """What one connection brought. ``ended``: open, closed by the other side, reset by it, or ended here."""

    at: str  # the address that it came to
    peer: tuple[str, int]
    sni: str | None = None
    reached: bool = False  # by any byte at all
    secured: bool = False
    received: int = 0  # bytes of what it sent, without TLS
    sent: int = 0
    began: bytes = b""  # the first of it
    requests: list[Asked] = dataclasses.field(default_factory=list)
    ended: str = "open"


class Server:
    """An HTTP/1.1 server on loopback addresses that have one port; its paths are in ``_answer``. Without a context it is plain."""

    def __init__(self, context: ssl.SSLContext | None = None, *, addresses: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.connections: list[Connection] = []
        self._context, self._now, self._changed = context, threading.local(), threading.Condition()
        self._closing, self._together = False, 0
        self._sockets: set[socket.socket] = set()
        if context is not None:
            context.sni_callback = self._named
        self._listeners = _listening(addresses)
        self.port: int = self._listeners[0].getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, args=(one,), daemon=True) for one in self._listeners]
        for thread in self._threads:
            thread.start()

    # ---- what a test looks at

    @property
    def requests(self) -> list[Asked]:
        """All of them, in order of their connections."""
        with self._changed:
            return [asked for connection in self.connections for asked in connection.requests]

    @property
    def names(self) -> list[str | None]:
        """What each connection that was secured asked for by SNI."""
        with self._changed:
            return [connection.sni for connection in self.connections if connection.secured]

    @property
    def received(self) -> int:
        """Bytes of all connections."""
        with self._changed:
            return sum(connection.received for connection in self.connections)

    @property
    def reached(self) -> int:
        """Connections that brought anything."""
        with self._changed:
            return sum(connection.reached for connection in self.connections)

    @property
    def living(self) -> int:
        """Connections that have not ended."""
        with self._changed:
            return sum(connection.ended == "open" for connection in self.connections)

    def wait(self, wanted: Callable[["Server"], bool]) -> None:
        """Until that is true of this server; looked at whenever something changed."""
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self), _SECONDS), "the server waited in vain"

    async def wait_async(self, wanted: Callable[["Server"], bool]) -> None:
        """The same under trio."""
        await trio.to_thread.run_sync(self.wait, wanted)

    def settle(self) -> "Server":
        """Itself, once all that was sent before has been taken, and every connection has ended."""
        asked = set()
        for listener in self._listeners:
            with socket.create_connection(listener.getsockname()[:2], _SECONDS) as last:  # who waited to be accepted comes before it
                asked.add(last.getsockname()[:2])
        self.wait(lambda server: asked <= {one.peer for one in server.connections} and server.living == 0)
        with self._changed:
            self.connections = [one for one in self.connections if one.peer not in asked]
        return self

    def forget(self) -> None:
        """Wait for every connection's end, then count from nothing."""
        self.settle()
        with self._changed:
            self.connections.clear()
            self._together = 0

    @contextlib.contextmanager
    def certified(self, context: ssl.SSLContext) -> Iterator[None]:
        """Within the block, what comes is served with that context instead."""
        before, self._context = self._context, context
        context.sni_callback = self._named
        try:
            yield
        finally:
            self._context = before

    def close(self) -> None:
        """End it: nothing of it is left."""
        self._closing = True
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts (Linux)
        with self._changed:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_SECONDS)
        for listener in self._listeners:
            listener.close()

    # ---- connections

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                made, peer = listener.accept()
            except OSError:
                return
            connection = Connection(made.getsockname()[0], peer[:2])  # one that was reset meanwhile has no peer any more
            thread = threading.Thread(target=self._connection, args=(made, connection), daemon=True)
            with self._changed:
                if self.living >= _CONNECTIONS or self._closing:
                    made.close()
                    continue
                self.connections.append(connection)
                self._sockets.add(made)
                self._threads.append(thread)
                self._changed.notify_all()
            thread.start()

    def _connection(self, made: socket.socket, connection: Connection) -> None:
        self._now.connection, ended, raw = connection, "ended here", made
        try:
            made.settimeout(_SECONDS)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.reached = bool(made.recv(1, socket.MSG_PEEK))
            if self._context is not None:
                made = self._context.wrap_socket(made, server_side=True, do_handshake_on_connect=False)
                with self._changed:
                    self._sockets.discard(raw)
                    self._sockets.add(made)
                made.do_handshake()
                connection.secured = True
            ended = self._serve(made, connection)
        except (ConnectionResetError, BrokenPipeError):
            ended = "reset"
        except (OSError, ValueError):  # TLS or a request that was none, or was cut short
            ended = "closed"
        finally:
            made.close()
            with self._changed:
                self._sockets.discard(made)
                connection.ended = ended
                self._changed.notify_all()

    def _named(self, _made: object, name: str | None, _context: object) -> None:
        self._now.connection.sni = name  # in the thread of the connection, which makes the handshake

    def _serve(self, made: socket.socket, connection: Connection) -> str:
        reader = _Reader(made, connection)
        while (head := reader.until(b"\r\n\r\n")) is not None:
            first, *lines = head.decode("latin-1").split("\r\n")
            method, target = (*first.split(" "), "", "")[:2]
            pairs = (line.partition(":") for line in lines if line)
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            if headers.get("expect", "").lower() == "100-continue":
                made.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            digest, size = hashlib.sha256(), 0
            for piece in reader.body(headers):
                digest.update(piece)
                size += len(piece)
            asked = Asked(method, target, headers, size, digest.hexdigest())
            with self._changed:
                connection.requests.append(asked)
                self._changed.notify_all()
            self._answer(made, connection, asked)
        return "closed"

    # ---- what it answers

    def _answer(self, made: socket.socket, connection: Connection, asked: Asked) -> None:
        parts = urlsplit(asked.target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match parts.path:
            case "/large":
                self._send(made, connection, "200 OK", [], int(query["bytes"]))
            case "/endless":
                made.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
                while not self._closing:
                    made.sendall(_PIECE)
                    with self._changed:
                        connection.sent += len(_PIECE)
                        self._changed.notify_all()
            case "/redirect":
                self._send(made, connection, "302 Found", [f"Location: {query['to']}"], b"")
            case "/around":
                self._send(made, connection, "302 Found", ["Location: /around"], b"")
            case "/silent":
                made.recv(1)  # until the other side ends it
            case "/half":
                made.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of it")
                made.recv(1)
            case "/together":
                self._wait_for_others(int(query["count"]))
                self._send(made, connection, "200 OK", [], b"together")
            case "/headers":
                self._send(made, connection, "200 OK", [], repr(sorted(asked.headers.items())).encode())
            case _ if asked.method == "CONNECT":
                self._tunnel(made, asked.target)
            case _:
                said = f"{asked.method} {asked.size} {asked.digest}" if asked.size else "hello"
                self._send(made, connection, "200 OK", [], said.encode())

    def _send(self, made: socket.socket, connection: Connection, status: str, headers: list[str], body: bytes | int) -> None:
        size = body if isinstance(body, int) else len(body)
        head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {size}", "Content-Type: text/plain", *headers, "", ""]).encode()
        made.sendall(head if isinstance(body, int) else head + body)
        if isinstance(body, int):
            for begin in range(0, size, len(_PIECE)):
                made.sendall(_PIECE[: size - begin])
        connection.sent += size

    def _wait_for_others(self, count: int) -> None:
        """Nobody is answered before that many wait to be."""
        with self._changed:
            self._together += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._closing or self._together >= count, _SECONDS)

    def _tunnel(self, made: socket.socket, target: str) -> None:
        """What a proxy does that forwards to whatever it is told."""
        host, _, port = target.rpartition(":")
        with socket.create_connection((host, int(port)), _SECONDS) as other:
            made.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            while data := made.recv(1 << 16):
                other.sendall(data)
                made.sendall(other.recv(1 << 16))


class _Reader:
    """Reads a connection, and counts."""

    def __init__(self, made: socket.socket, connection: Connection) -> None:
        self._socket, self._connection, self._held = made, connection, b""

    def _more(self) -> bool:
        data = self._socket.recv(1 << 16)
        self._connection.received += len(data)
        self._connection.began = (self._connection.began + data)[:200] if len(self._connection.began) < 200 else self._connection.began
        self._held += data
        return bool(data)

    def until(self, mark: bytes) -> bytes | None:
        """What comes before the mark; None when it ends or grows too long before."""
        while mark not in self._held:
            if len(self._held) > _HEAD_BYTES or not self._more():
                return None
        head, _, self._held = self._held.partition(mark)
        return head

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            if not self._held and not self._more():
                raise ConnectionResetError
            piece, self._held = self._held[:size], self._held[size:]
            size -= len(piece)
            yield piece

    def body(self, headers: Mapping[str, str]) -> Iterator[bytes]:
        """The body in pieces; of a request that names both ways of measuring it, by its chunks."""
        if headers.get("transfer-encoding", "").lower() != "chunked":
            yield from self._exactly(int(headers.get("content-length", 0)))
            return
        while True:
            size = int((self.until(b"\r\n") or b"0").split(b";")[0], 16)
            yield from self._exactly(size)
            self.until(b"\r\n")
            if size == 0:
                return


def _listening(addresses: tuple[str, ...]) -> list[socket.socket]:
    """Sockets that listen there, on one port that is free on all of them."""
    for _ in range(20):
        made: list[socket.socket] = []
        try:
            for address in addresses:
                port = made[0].getsockname()[1] if made else 0
                made.append(
                    socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=128)
                )
        except OSError:
            for one in made:
                one.close()
            if len(addresses) == 1:
                raise
        else:
            return made
    raise OSError("no port is free on all of these addresses")


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None, *, addresses: tuple[str, ...] = ("127.0.0.1",)) -> Iterator[Server]:
    """One of them, ended with the block."""
    server = Server(context, addresses=addresses)
    try:
        yield server
    finally:
        server.close()
