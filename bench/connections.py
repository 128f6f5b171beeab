"""Both ends of the connections of the case ``egress``: what connects, here and as text for a tool, and what answers.

Its job: a client that says a real TLS hello and then plain bytes, its text, a server that answers such a client, a process of each.
Not its job: what lies between the two, the engine, statistics (``bench_egress.py``).
Laws:
1. The text and the functions are the same code (tests/unit/test_bench_egress.py).
2. An answer that is not about the very bytes that were sent is an error, never a time (tests/unit/test_bench_egress.py).
3. A client that breaks off leaves the server to the next one (tests/unit/test_bench_egress.py).

There is no TLS after the hello, on purpose: who carries a connection reads the hello and nothing behind it, so that is all it costs, and
the cryptography of the two ends, which is the same with and without somebody between them, would only hide it.
"""

import contextlib
import hashlib
import inspect
import json
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

HOST = "api.example.test"
REST_SECONDS = 0.002  # before a connection: who carries the last one is done with it, and sleeps
_SECONDS = 20  # of patience with the other end
_BLANK = memoryview(bytes(1 << 20))
_HEAD = struct.Struct("!BHH")  # of a TLS record (RFC 8446 section 5.1)
_TAIL = struct.Struct("!QQ")  # a request: its number, and how many bytes it wants


def hello() -> bytes:
    """What a TLS client says first: one record."""
    said = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), said, server_hostname=HOST)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def connect(name: str, port: int, count: int) -> list[int]:
    """Nanoseconds of so many new connections, one after the other: connect, hello and request, answer. The name is looked up before."""
    address = (socket.gethostbyname(name), port)
    taken = []
    for number in range(count):
        request = hello() + struct.pack("!QQ", number, 0)
        wanted = hashlib.sha256(request).digest()
        time.sleep(REST_SECONDS)
        started = time.perf_counter_ns()
        with socket.create_connection(address, timeout=20) as end:
            end.sendall(request)
            answer = end.recv(64)
            taken.append(time.perf_counter_ns() - started)
        if answer != wanted:
            raise ValueError("the answer is not about this request")
    return taken


def download(name: str, port: int, size: int) -> int:
    """Nanoseconds from the answer to the last of so many bytes behind it."""
    buffer = bytearray(256 << 10)
    request = hello() + struct.pack("!QQ", 0, size)
    with socket.create_connection((name, port), timeout=20) as end:
        end.sendall(request)
        answer = end.recv(32)
        started = time.perf_counter_ns()
        while got := end.recv_into(buffer):
            size -= got
        taken = time.perf_counter_ns() - started
    if size or answer != hashlib.sha256(request).digest():
        raise ValueError("the answer is not what was asked for")
    return taken


IMPORTS = "import contextlib\nimport hashlib\nimport socket\nimport ssl\nimport struct\nimport time\n"
TEXT = "\n\n".join([f"HOST = {HOST!r}\nREST_SECONDS = {REST_SECONDS}\n", *(inspect.getsource(one) for one in (hello, connect, download))])


def serve(listener: socket.socket) -> None:
    """Answer for ever, one connection at a time: the digest of hello and request, then as many bytes as are wanted."""
    while True:
        end, _ = listener.accept()
        with end, contextlib.suppress(OSError):  # what one client does is not the next one's trouble
            end.settimeout(_SECONDS)
            _answer(end)


def _answer(end: socket.socket) -> None:
    said = asked(end)
    end.sendall(hashlib.sha256(said).digest())
    size = _TAIL.unpack(said[-_TAIL.size :])[1]
    while size:
        size -= end.send(_BLANK[:size])


def asked(end: socket.socket) -> bytes:
    """A client's hello and request. Raises ConnectionError when it breaks off."""
    head = _exactly(end, _HEAD.size)
    return head + _exactly(end, _HEAD.unpack(head)[2] + _TAIL.size)


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := end.recv(size - len(data))):
            raise ConnectionError("it ended too early")
        data += part
    return data


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """A server on loopback in a process of its own; its port."""
    with _process("serve") as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@contextlib.contextmanager
def client(port: int) -> Iterator["Client"]:
    """A client of that server, in a process of its own, with nothing between them."""
    with _process("connect", str(port)) as process:
        yield Client(process)


class Client:
    """The same client as in the tool, in a plain process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def connect(self, count: int) -> list[int]:
        """As ``connect`` there. Raises ValueError when it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(count, file=self._process.stdin, flush=True)
        taken: list[int] = json.loads(self._process.stdout.readline())
        return taken


@contextlib.contextmanager
def _process(*words: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "bench.connections", *words]
    tree = Path(__file__).resolve().parents[1]
    process = subprocess.Popen(command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def main(words: Sequence[str]) -> None:
    """The body of both processes: ``serve``, or ``connect PORT`` with a count on each line that comes in."""
    if words[0] == "serve":
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            print(listener.getsockname()[1], flush=True)
            serve(listener)
    for line in sys.stdin:
        print(json.dumps(connect("127.0.0.1", int(words[1]), int(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
