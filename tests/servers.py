"""HTTP and TLS servers of a test's own on loopback, each with a log of what reached it, and the hello of a real TLS client."""

import contextlib
import dataclasses
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import trustme


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """A request as it reached a server."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """What a server answers: bytes with their length, or portions as chunks."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | tuple[bytes, ...] = b""


def echo(seen: Seen) -> Said:
    """All of the request, as JSON."""
    return Said(
        headers=(("Content-Type", "application/json"),),
        body=json.dumps(
            {"method": seen.method, "target": seen.target, "headers": seen.headers, "body": seen.body.decode("latin-1")}
        ).encode(),
    )


class Server:
    """One that runs; ``seen`` are its requests, ``accepted`` its connections, ``names`` those that TLS clients asked for."""

    def __init__(self, answer: Callable[[Seen], Said]) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.accepted = 0
        self.names: list[str | None] = []
        self.port = 0


class _Listening(http.server.ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, server: Server, context: ssl.SSLContext | None) -> None:
        self.server, self.context = server, context
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        sock, peer = super().get_request()
        self.server.accepted += 1
        if self.context is not None:
            sock = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self.open.add(sock)
        return sock, peer

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off is no fault of the server's."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listening

    def _serve(self) -> None:
        seen = Seen(method=self.command, target=self.path, headers=tuple(self.headers.items()), body=self._body())
        self.server.server.seen.append(seen)
        said = self.server.server.answer(seen)
        self.send_response(said.status)
        for name, value in said.headers:
            self.send_header(name, value)
        if isinstance(said.body, bytes):
            if said.status not in (204, 304):
                self.send_header("Content-Length", str(len(said.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said.body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for portion in said.body:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(portion), portion))
        self.wfile.write(b"0\r\n\r\n")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed: the log is ``seen``."""


@contextlib.contextmanager
def http_server(answer: Callable[[Seen], Said] = echo, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server for HTTP/1.1 that keeps connections."""
    server = Server(answer)
    listening = _Listening(server, context)
    server.port = listening.server_port
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        for sock in [*listening.open]:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        listening.server_close()
        thread.join()


class _Secure(ssl.SSLSocket):
    """Closes itself where a client is gone before it was wrapped, of which nobody gets to know."""

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def https_server(authority: trustme.CA, *names: str, answer: Callable[[Seen], Said] = echo) -> Iterator[Server]:
    """The same inside TLS, with a certificate for those names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _Secure
    authority.issue_cert(*names).configure_cert(context)
    asked: list[str | None] = []
    context.sni_callback = lambda _sock, name, _context: asked.append(name)
    with http_server(answer, context) as server:
        server.names = asked
        yield server


def hello(name: str | None, context: ssl.SSLContext | None = None) -> bytes:
    """What a TLS client says first that wants that host."""
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = name is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()
