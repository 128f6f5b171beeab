"""The door for plain HTTP: unmodified clients work, every request is judged, and a host gets what was understood alone."""

import http.client
import socket
import urllib.request
from collections.abc import Callable

import pytest
import trio

from engine.policy.network import EgressBounds, Transport
from tests.doors import NAME, Doors, destination, doors, was_reset
from tests.servers import Said, Seen, echo, http_server

T = tuple[int, dict[str, str], bytes]


def asked(connection: http.client.HTTPConnection, method: str, target: str, body: object = None, **headers: str) -> T:
    """One request of the standard client, whose Host is the place's."""
    connection.request(method, target, body, {"Host": NAME, **{key.replace("_", "-"): value for key, value in headers.items()}})  # type: ignore[arg-type]  # bytes or portions
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


async def with_client(served: Doors, use: Callable[[http.client.HTTPConnection], object]) -> None:
    """A client in a thread, as a tool would have it."""

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", served.port(), timeout=60)
        try:
            use(connection)
        finally:
            connection.close()

    await trio.to_thread.run_sync(run)


async def test_requests_on_a_kept_connection_go_to_the_host() -> None:
    """Over one connection of the host's; its Host is written anew, and what is about the tool's connection is not there."""
    with http_server() as server:

        def use(connection: http.client.HTTPConnection) -> None:
            assert asked(connection, "GET", "/a?b=c", X_One="1", Keep_Alive="5")[0] == 200
            assert asked(connection, "POST", "/b", b"body", Content_Type="text/plain")[0] == 200

        async with doors(destination(server.port, Transport.HTTP)) as served:
            await with_client(served, use)
            assert served.traffic.facts()["denied"] == {}
            assert served.traffic.connections == 1
        host = ("Host", f"{NAME}:{server.port}")
        assert server.accepted == 1
        assert server.seen == [
            Seen(method="GET", target="/a?b=c", headers=(host, ("Accept-Encoding", "identity"), ("X-One", "1")), body=b""),
            Seen(
                method="POST",
                target="/b",
                headers=(host, ("Accept-Encoding", "identity"), ("Content-Length", "4"), ("Content-Type", "text/plain")),
                body=b"body",
            ),
        ]


def answers(seen: Seen) -> Said:
    """By path."""
    match seen.target:
        case "/chunks":
            return Said(body=(b"one", b"two", b"x" * 100_000))
        case "/empty":
            return Said(status=204)
        case "/same":
            return Said(status=304, headers=(("ETag", "x"),))
        case "/error":
            return Said(status=500, headers=(("X-Why", "because"),), body=b"no")
    return echo(seen)


async def test_every_kind_of_body_passes_both_ways() -> None:
    """Chunks, lengths, none; answers to HEAD and without a body; all on one connection."""
    with http_server(answers) as server:

        def use(connection: http.client.HTTPConnection) -> None:
            assert asked(connection, "GET", "/chunks")[2] == b"onetwo" + b"x" * 100_000
            assert asked(connection, "POST", "/b", iter([b"portion", b"s" * 200_000]))[0] == 200
            assert asked(connection, "HEAD", "/b")[::2] == (200, b"")
            assert asked(connection, "GET", "/empty")[::2] == (204, b"")
            assert asked(connection, "GET", "/same")[::2] == (304, b"")
            status, headers, body = asked(connection, "GET", "/error")
            assert (status, headers["X-Why"], body) == (500, "because", b"no")
            assert asked(connection, "PUT", "/b", b"z" * (3 << 20))[0] == 200
            assert asked(connection, "DELETE", "/b")[0] == 200

        async with doors(destination(server.port, Transport.HTTP)) as served:
            await with_client(served, use)
            assert served.traffic.facts()["denied"] == {}
        assert [(seen.method, len(seen.body)) for seen in server.seen] == [
            ("GET", 0),
            ("POST", 200_007),
            ("HEAD", 0),
            ("GET", 0),
            ("GET", 0),
            ("GET", 0),
            ("PUT", 3 << 20),
            ("DELETE", 0),
        ]
        assert server.accepted == 1


async def test_a_client_that_waits_for_a_word_before_its_body_gets_it() -> None:
    """Expect: 100-continue, as the host answers it."""
    with http_server() as server:
        async with doors(destination(server.port, Transport.HTTP)) as served, await served.connect() as tool:
            await tool.send_all(b"POST / HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
            assert (await tool.receive_some(999)).startswith(b"HTTP/1.1 100 ")
            await tool.send_all(b"body")
            assert (await tool.receive_some(999)).startswith(b"HTTP/1.1 200 ")
        assert server.seen[0].body == b"body"


async def test_an_old_client_is_answered_until_the_end_of_its_connection() -> None:
    """HTTP/1.0 with a Host; and one that ends its side after its request."""
    with http_server(answers) as server:
        async with doors(destination(server.port, Transport.HTTP)) as served, await served.connect() as tool:
            await tool.send_all(b"GET /chunks HTTP/1.0\r\nHost: api.example.test\r\n\r\n")
            await tool.send_eof()
            got = b""
            while data := await tool.receive_some(65536):
                got += data
            assert got.startswith(b"HTTP/1.1 200 ")
            assert got.endswith(b"\r\n\r\nonetwo" + b"x" * 100_000)


async def test_a_proxy_client_works() -> None:
    """Its targets are whole addresses."""
    with http_server() as server:
        async with doors(destination(server.port, Transport.HTTP)) as served:

            def use() -> bytes:
                proxy = urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{served.port()}"})
                with urllib.request.build_opener(proxy).open(f"http://{NAME}:{server.port}/x", timeout=60) as answer:
                    return bytes(answer.read())

            assert b'"target": "/x"' in await trio.to_thread.run_sync(use)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "host_header"),
        (b"GET http://evil.test/ HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "host_header"),
        (b"GET / HTTP/1.1\r\nHost: api.example.test\r\nHost: evil.test\r\n\r\n", "not_http"),
        (b"CONNECT evil.test:80 HTTP/1.1\r\nHost: evil.test:80\r\n\r\n", "method"),
        (b"GET / HTTP/1.1\r\nHost: api.example.test\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "switch"),
        (b"POST / HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "not_http"),
        (b"GET / HTTP/1.1\r\nHost: api.example.test\r\nX: a\r\n b\r\n\r\n", "not_http"),
        (b"GET / HTTP/1.1\r\nHost: api.example.test\r\nX: " + b"a" * 70_000, "not_http"),
        (b"GET /" + b"a" * 70_000, "not_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "not_http"),
        (b"SSH-2.0-x\r\n\r\n", "not_http"),
    ],
)
@pytest.mark.parametrize("first", [b"", b"GET /good HTTP/1.1\r\nHost: api.example.test\r\n\r\n"])
async def test_a_request_that_is_not_about_the_place_reaches_nobody(first: bytes, raw: bytes, kind: str) -> None:
    """As the first one, and behind a good one in the same bytes."""
    with http_server() as server:
        async with doors(destination(server.port, Transport.HTTP)) as served, await served.connect() as tool:
            await tool.send_all(first + raw)
            assert await was_reset(tool)
            assert served.traffic.facts()["denied"] == {kind: 1}
        assert [seen.target for seen in server.seen] == (["/good"] if first else [])


async def test_a_body_cannot_begin_a_request_of_its_own() -> None:
    """What a length covers is a body at the host as well."""
    inner = b"GET /inner HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    with http_server() as server:
        async with doors(destination(server.port, Transport.HTTP)) as served, await served.connect() as tool:
            await tool.send_all(b"POST /outer HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner)
            assert (await tool.receive_some(999)).startswith(b"HTTP/1.1 200 ")
        assert [(seen.target, seen.body) for seen in server.seen] == [("/outer", inner)]


async def test_a_host_that_ends_its_connection_is_connected_to_again() -> None:
    """For the next request on the tool's kept one; it counts as another connection."""
    with http_server(lambda seen: Said(headers=(("Connection", "close"),), body=seen.target.encode())) as server:

        def use(connection: http.client.HTTPConnection) -> None:
            assert [asked(connection, "GET", target)[2] for target in ("/a", "/b")] == [b"/a", b"/b"]

        async with doors(destination(server.port, Transport.HTTP)) as served:
            await with_client(served, use)
            assert served.traffic.connections == 2
        assert server.accepted == 2


@pytest.mark.parametrize(
    "said",
    [
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
    ],
)
async def test_an_answer_that_is_not_http_breaks_the_connection(said: bytes) -> None:
    """And is counted; nothing of it reaches the tool."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        async with doors(destination(server.getsockname()[1], Transport.HTTP)) as served, await served.connect() as tool:
            await tool.send_all(b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n")
            sock, _ = await trio.socket.from_stdlib_socket(server).accept()
            async with trio.SocketStream(sock) as host:
                await host.receive_some(9999)
                await host.send_all(said)
                with pytest.raises(trio.BrokenResourceError):
                    await tool.receive_some(9)
            assert served.traffic.facts()["denied"] == {"answer": 1}


async def test_a_cut_answer_is_no_whole_one() -> None:
    """The tool sees a broken connection where the host broke off."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        async with doors(destination(server.getsockname()[1], Transport.HTTP)) as served, await served.connect() as tool:
            await tool.send_all(b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n")
            sock, _ = await trio.socket.from_stdlib_socket(server).accept()
            async with trio.SocketStream(sock) as host:
                await host.receive_some(9999)
                await host.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            assert await was_reset(tool)


async def test_an_early_answer_arrives_although_the_host_takes_no_more() -> None:
    """A body that is refused half-way."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        async with doors(destination(server.getsockname()[1], Transport.HTTP)) as served, await served.connect() as tool:
            await tool.send_all(b"POST / HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 8\r\n\r\nhalf")
            sock, _ = await trio.socket.from_stdlib_socket(server).accept()
            async with trio.SocketStream(sock) as host:
                await host.receive_some(9999)
                await host.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                assert (await tool.receive_some(999)).startswith(b"HTTP/1.1 413 ")
                await tool.send_all(b"rest")
                await tool.send_eof()
                assert not await was_reset(tool)


async def test_beyond_the_bytes_the_connection_breaks() -> None:
    """In the middle of a body, of which the host gets no more than the bound."""
    with http_server() as server:
        bounds = EgressBounds(out_bytes=100_000)
        async with doors(destination(server.port, Transport.HTTP), bounds=bounds) as served, await served.connect() as tool:
            await tool.send_all(b"POST / HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: 200000\r\n\r\n")
            try:  # an error is told once: to whoever writes, or to whoever reads
                await tool.send_all(bytes(200_000))
                broken = await was_reset(tool)
            except trio.BrokenResourceError:
                broken = True
            assert broken
            assert served.traffic.facts()["denied"] == {"bytes": 1}
            assert served.traffic.out_bytes <= 100_000
        assert server.seen == []
