"""A peer that always has data: other tasks of the engine have their turns, and what it makes the engine read counts."""

import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import h11
import pytest
import trio
import trio.testing
import trustme

from engine.egress import client, forward, tunnel
from engine.egress.exchange import Answer, Host
from engine.egress.link import Link
from engine.egress.mask import Mask
from engine.egress.stream import Plain, Secured
from engine.egress.traffic import Denied, Traffic
from engine.policy.network import EgressBounds, Scope, Transport
from tests.doors import NAME, destination, way
from tests.servers import hello

FAST = 1 << 40
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = 2000
SHORT = 2  # a pass begins with either of two tasks that can go on: the first and the last turn may be missed
ONE_BY_ONE = b"1\r\nx\r\n" * CHUNKS + b"0\r\n\r\n"


class Ready:
    """A socket whose other side has data without a pause: first what it is made with, then ``more`` until ``size`` bytes, then its end."""

    def __init__(self, first: bytes, more: bytes = b"", size: int = 0, *, deaf: bool = False) -> None:
        self.said, self.more, self.left, self.deaf = first, more, max(size, len(first)), deaf
        self.reads = 0

    def recv(self, size: int) -> bytes:
        """What is there, at once."""
        self.reads += 1
        if self.more and (short := min(size, self.left) - len(self.said)) > 0:
            self.said += self.more * -(-short // len(self.more))
        data, self.said = self.said[: min(size, self.left)], self.said[min(size, self.left) :]
        self.left -= len(data)
        return data

    def recv_into(self, buffer: memoryview) -> int:
        """The same."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def shutdown(self, _how: int) -> None:
        """It goes on saying what it has to say."""

    def send(self, data: bytes) -> int:
        """It takes all, or none where it is deaf."""
        if self.deaf:
            raise BrokenPipeError
        return len(data)

    def setsockopt(self, *_: object) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Nothing is kept."""

    def fileno(self) -> int:
        """None: whoever waits for it fails."""
        return -1


class Silent(Ready):
    """One that says nothing yet, and takes nothing."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(b"", deaf=True)
        self._sock = sock

    def recv(self, size: int) -> bytes:
        """Never anything."""
        return self._sock.recv(size)

    def fileno(self) -> int:
        """To wait for."""
        return self._sock.fileno()


@contextlib.asynccontextmanager
async def turns() -> AsyncIterator[list[int]]:
    """How often another task had its turn in the block, one that could always go on."""
    count = [0]

    async def other() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            count[0] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        yield count
        nursery.cancel_scope.cancel()


def traffic(**bounds: int) -> Traffic:
    """Books without a rate that matters."""
    return Traffic(EgressBounds(**{"rate_bytes": FAST, **bounds}))


def plain(sock: Ready, books: Traffic | None = None) -> Plain:
    """A stream over it."""
    return Plain(sock, Link(), books)  # type: ignore[arg-type]  # all that is used of a socket


@pytest.fixture
def quiet() -> Iterator[Silent]:
    """A host that takes nothing, and has not answered yet."""
    ends = socket.socketpair()
    ends[0].setblocking(False)
    yield Silent(ends[0])
    for end in ends:
        end.close()


async def headed(host: Host) -> Answer:
    """The head of its answer, however often it says to go on."""
    while (answer := await host.answer(Mask([]))) is None:
        pass
    return answer


@pytest.mark.parametrize("counted", [True, False])
async def test_each_read_and_write_gives_a_turn(counted: bool) -> None:
    """With a traffic and without one; a long write is many."""
    books = traffic() if counted else None
    stream = plain(Ready(b"", b"x", 1 << 20), books)
    async with turns() as other:
        while await stream.read():
            pass
        assert other[0] >= (1 << 20) // (64 << 10) - SHORT
        before = other[0]
        await stream.write(bytes(1 << 20))
        assert other[0] - before >= (1 << 20) // (64 << 10) - SHORT
    assert books is None or (books.in_bytes, books.out_bytes) == (1 << 20, 1 << 20)


async def test_a_tunnel_gives_a_turn_with_every_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although neither side ever lets it wait."""
    books, size = traffic(), 16 << 20
    near, far = Ready(hello(NAME), b"x", size), Ready(b"", b"x", size)

    async def dialled(*_: object) -> Ready:
        return far

    monkeypatch.setattr(tunnel, "dialled", dialled)
    async with turns() as other:
        await tunnel.carry(Link(), near, destination(443), way(), books)  # type: ignore[arg-type]  # as above
        assert other[0] >= max(near.reads, far.reads) - SHORT - 1
    assert (books.out_bytes, books.in_bytes) == (size, size)


async def test_a_host_that_says_go_on_for_ever_is_refused() -> None:
    """After a few times, each of which gives a turn."""
    for status in (b"102 Wait", b"103 Early", b"100 Continue"):
        host = Host(plain(Ready(b"", b"HTTP/1.1 " + status + b"\r\n\r\n", 1 << 20), traffic()))
        await host.send(h11.Request(method="GET", target="/", headers=[("Host", NAME)]))
        async with turns() as other:
            with pytest.raises(Denied) as caught:
                await headed(host)
            assert (caught.value.kind, other[0] >= 16 - SHORT) == ("answer", True)


async def test_a_few_words_before_an_answer_are_none_of_it() -> None:
    """The control."""
    host = Host(plain(Ready(b"HTTP/1.1 103 Early\r\n\r\n" * 16 + OK), traffic()))
    await host.send(h11.Request(method="GET", target="/", headers=[("Host", NAME)]))
    assert (await headed(host)).status == 200


async def test_each_chunk_of_an_answer_gives_a_turn() -> None:
    """Although thousands come with one read."""
    host = Host(plain(sock := Ready(OK + ONE_BY_ONE), traffic()))
    await host.send(h11.Request(method="GET", target="/", headers=[("Host", NAME)]))
    async with turns() as other:
        assert await host.answer(Mask([])) is not None
        while not isinstance(await host.receive(), h11.EndOfMessage):
            pass
        assert (sock.reads, other[0] >= CHUNKS - SHORT) == (1, True)


async def test_each_chunk_that_a_tool_is_sent_gives_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a door, and for a tool that has no sockets."""
    books, one = traffic(), destination(80, Transport.HTTP)

    async def connected(*_: object, **__: object) -> Host:
        return Host(plain(Ready(OK + ONE_BY_ONE), books))

    monkeypatch.setattr(forward, "connected", connected)
    monkeypatch.setattr(client, "connected", connected)
    asked = Ready(b"GET / HTTP/1.1\r\nHost: api.example.test\r\nConnection: close\r\n\r\n")
    async with turns() as other:
        await forward.carry(Link(), asked, one, way(), books, Mask([]))  # type: ignore[arg-type]  # as above
        assert other[0] >= CHUNKS - SHORT
        before = other[0]
        scope = Scope(profile="test", destinations=(one,), bounds=books.bounds)
        words = {"method": "GET", "url": f"http://{NAME}/"}
        good, value = await client.answer(words, scope, way(), books, longest=CHUNKS)
        assert (good, value["body"], other[0] - before >= CHUNKS - SHORT) == (True, "x" * CHUNKS, True)


UPLOAD = b"POST / HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\n\r\n"
SIZE = 200_000


def uploading(host: Ready, books: Traffic, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """A tool that sends chunks of one byte to a host that takes none; it breaks off in the middle of a chunk."""

    async def connected(*_: object, **__: object) -> Host:
        made = Host(stream := plain(host, books))
        host.deaf = False  # for the request's head alone

        async def write(data: bytes, first: Callable[[bytes], Awaitable[None]] = stream.write) -> None:
            await first(data)
            host.deaf = True

        monkeypatch.setattr(stream, "write", write)
        return made

    monkeypatch.setattr(forward, "connected", connected)
    near, one = Ready(UPLOAD, b"1\r\nx\r\n", SIZE), destination(80, Transport.HTTP)
    return functools.partial(forward.carry, Link(), near, one, way(), books, Mask([]))  # type: ignore[arg-type]  # as above


async def test_what_a_host_does_not_take_gives_turns_and_counts(quiet: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it came, so that a byte in a chunk of its own is no cheaper than others."""
    books = traffic()
    upload = uploading(quiet, books, monkeypatch)
    async with turns() as other:
        with pytest.raises(Denied) as caught:
            await upload()
        assert (caught.value.kind, other[0] >= SIZE // 8) == ("not_http", True)
    assert books.out_bytes >= SIZE - (64 << 10)


async def test_what_a_host_does_not_take_keeps_to_the_rate(
    quiet: Silent, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """By the clock that the engine goes by."""
    books = traffic(rate_bytes=10_000)
    upload = uploading(quiet, books, monkeypatch)
    began = trio.current_time()
    with pytest.raises(Denied):
        await upload()
    assert trio.current_time() - began >= (books.out_bytes - 10_000) / 10_000
    assert books.out_bytes >= SIZE - (64 << 10)


async def test_a_handshake_without_end_gives_turns_and_counts() -> None:
    """Requests to begin anew, which a client skips; they end at the bytes of the call."""
    size = 1 << 20
    books = traffic(in_bytes=size)
    sock = Ready(b"", b"\x16\x03\x03\x00\x04\0\0\0\0", 2 * size)
    stream = Secured(sock, Link(), books, ssl.create_default_context(), NAME)  # type: ignore[arg-type]  # as above
    async with turns() as other:
        with pytest.raises(Denied) as caught:
            await stream.open()
        assert (caught.value.kind, other[0] >= sock.reads - SHORT - 1) == ("bytes", True)
    assert size - (64 << 10) <= books.in_bytes <= size


async def test_each_record_gives_a_turn_and_counts_whole() -> None:
    """Of one byte each, many of which come with one read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(NAME).configure_cert(server)
    server.num_tickets = 0
    to, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    other_side = server.wrap_bio(to, back, server_side=True)

    class Talking(Ready):
        def send(self, data: bytes) -> int:
            to.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                other_side.do_handshake()
                for _ in range(CHUNKS):
                    other_side.write(b"x")
            self.said += (came := back.read())
            self.left += len(came)
            return len(data)

    sock, books = Talking(b""), traffic()
    stream = Secured(sock, Link(), books, context, NAME)  # type: ignore[arg-type]  # as above
    await stream.open()
    handshake = books.in_bytes
    async with turns() as other:
        got = b"".join([await stream.read() for _ in range(CHUNKS)])
        assert (got, other[0] >= CHUNKS - SHORT) == (b"x" * CHUNKS, True)
    assert handshake > 500
    assert books.in_bytes >= handshake + 18 * CHUNKS
