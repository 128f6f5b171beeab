"""The door for TLS: refusals before anything is connected to, then bytes as they are, with half-closes and bounds."""

import functools

import pytest
import trio
import trio.testing

from engine.policy.network import EgressBounds
from tests.doors import NAME, Doors, break_off, destination, doors, listener, was_reset
from tests.servers import hello

HELLO = hello(NAME)


async def accepted(server: object) -> trio.SocketStream:
    """The next connection at a plain listening socket, read up to the end of the hello."""
    sock, _ = await trio.socket.from_stdlib_socket(server).accept()  # type: ignore[arg-type]  # a socket, named by its use
    stream = trio.SocketStream(sock)
    assert await exactly(stream, len(HELLO)) == HELLO
    return stream


async def exactly(stream: trio.SocketStream, size: int) -> bytes:
    """That many bytes."""
    got = b""
    while len(got) < size:
        data = await stream.receive_some(size - len(got))
        assert data
        got += data
    return got


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (hello("other.example.test"), "sni_mismatch"),
        (hello(None), "sni_missing"),
        (b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "not_tls"),
        (b"\x80\x2e\x01\x00\x02", "not_tls"),
    ],
)
async def test_a_hello_that_is_not_about_the_place_reaches_nobody(said: bytes, kind: str) -> None:
    """The tool is reset, the refusal is counted; the control after it goes through."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1])) as served:
            async with await served.connect() as tool:
                await tool.send_all(said)
                assert await was_reset(tool)
            with pytest.raises(BlockingIOError):
                server.accept()
            assert served.traffic.facts() == {"connections": 1, "in_bytes": 0, "out_bytes": 0, "denied": {kind: 1}}
            async with await served.connect() as tool:
                await tool.send_all(HELLO)
                async with await accepted(server) as host:
                    await host.send_all(b"x")
                    assert await tool.receive_some(9) == b"x"


async def test_a_client_that_says_too_little_is_refused_when_it_ends() -> None:
    """Half a hello, and nothing at all."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1])) as served:
            for said in (HELLO[:100], b""):
                async with await served.connect() as tool:
                    await tool.send_all(said)
                    await tool.send_eof()
                    assert await was_reset(tool)
            assert served.traffic.facts()["denied"] == {"not_tls": 1, "silent": 1}


async def test_a_client_that_never_ends_its_hello_is_refused() -> None:
    """When its time to connect is over."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1]), bounds=EgressBounds(connect_ms=50)) as served:
            async with await served.connect() as tool:
                await tool.send_all(HELLO[:100])
                assert await was_reset(tool)
            assert served.traffic.facts()["denied"] == {"silent": 1}


async def test_bytes_pass_as_they_are_and_half_closes_too() -> None:
    """More than all buffers hold, both ways; each direction ends alone."""
    size = 20 << 20
    with listener() as server:
        async with doors(destination(server.getsockname()[1])) as served, await served.connect() as tool:
            await tool.send_all(HELLO)
            async with await accepted(server) as host:
                await _send_and_end(tool, host, bytes(range(256)) * (size // 256))
                await _send_and_end(host, tool, b"answer" * 1000)
            assert served.traffic.facts() == {"connections": 1, "in_bytes": 6000, "out_bytes": len(HELLO) + size, "denied": {}}


async def _send_and_end(source: trio.SocketStream, target: trio.SocketStream, data: bytes) -> None:
    """All of it and then an end arrive at the other side."""

    async def send() -> None:
        await source.send_all(data)
        await source.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        got = bytearray()
        while part := await target.receive_some(1 << 20):
            got += part
    assert got == data


@pytest.mark.parametrize("side", ["tool", "host"])
async def test_a_reset_is_passed_on(side: str) -> None:
    """Whichever side breaks it off, the other one sees it."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1])) as served, await served.connect() as tool:
            await tool.send_all(HELLO)
            async with await accepted(server) as host:
                broken, other = (tool, host) if side == "tool" else (host, tool)
                await break_off(broken)
                assert await was_reset(other)


@pytest.mark.parametrize(("bounds", "kept"), [(EgressBounds(in_bytes=1000), 1000), (EgressBounds(in_bytes=999), 0)])
async def test_beyond_the_bytes_every_connection_is_reset(bounds: EgressBounds, kept: int) -> None:
    """At the bound all of it arrives; one byte over it, both connections break."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1]), bounds=bounds) as served:
            async with await served.connect() as tool, await served.connect() as other:
                for one in (tool, other):
                    await one.send_all(HELLO)
                async with await accepted(server) as host, await accepted(server) as second:
                    await host.send_all(bytes(1000))
                    if kept:
                        # which of the two connections was accepted first is the host's affair
                        await second.send_eof()
                        await host.send_eof()
                        assert not await was_reset(tool)
                        assert not await was_reset(other)
                    else:
                        for one in (tool, other, host, second):
                            assert await was_reset(one)
            assert served.traffic.facts()["denied"] == ({} if kept else {"bytes": 1})


async def test_an_idle_connection_is_reset(mock_clock: trio.testing.MockClock) -> None:
    """On both sides, once it was carried."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1]), bounds=EgressBounds(idle_ms=30_000)) as served:
            async with await served.connect() as tool:
                await tool.send_all(HELLO)
                async with await accepted(server) as host:
                    mock_clock.jump(31)
                    assert await was_reset(tool)
                    assert await was_reset(host)


async def test_a_slow_rate_delays_and_drops_nothing() -> None:
    """All of it arrives in its order."""
    data = bytes(range(250)) * 40
    with listener() as server:
        async with doors(destination(server.getsockname()[1]), bounds=EgressBounds(rate_bytes=100_000)) as served:
            async with await served.connect() as tool:
                await tool.send_all(HELLO)
                async with await accepted(server) as host:
                    await _send_and_end(tool, host, data)


async def test_many_connections_at_once_are_kept_apart() -> None:
    """Each gets its own answer."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1])) as served, trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(_echo, server, 12))
            async with trio.open_nursery() as tools:
                for number in range(12):
                    tools.start_soon(_ask, served, b"%03d" % number)


async def _echo(server: object, times: int) -> None:
    async def one(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(await exactly(stream, 3))

    async with trio.open_nursery() as nursery:
        for _ in range(times):
            nursery.start_soon(one, await accepted(server))


async def _ask(served: Doors, word: bytes) -> None:
    async with await served.connect() as tool:
        await tool.send_all(HELLO + word)
        assert await exactly(tool, 3) == word
        assert await tool.receive_some(1) == b""
