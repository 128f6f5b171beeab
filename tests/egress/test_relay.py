"""The doors of one call: whose listener, what is refused, what ends a call, and how everything ends with it."""

import socket

import pytest
import trio
import trio.testing

from engine.egress import relay
from engine.egress.traffic import Exceeded, Traffic
from engine.policy.network import EgressBounds, Transport
from tests.doors import NAME, break_off, destination, doors, listener, was_reset, way
from tests.servers import hello, http_server


async def test_the_destination_follows_from_the_listener() -> None:
    """The same hello is carried at the door of its host and refused at the other one."""
    with listener() as first, listener() as second:
        granted = [destination(server.getsockname()[1], host=host) for server, host in ((first, NAME), (second, "b.example.test"))]
        names = way({NAME: ["127.0.0.1"], "b.example.test": ["127.0.0.1"]})
        async with doors(*granted, by=names) as served:
            async with await served.connect(1) as tool:
                await tool.send_all(hello(NAME))
                assert await was_reset(tool)
            async with await served.connect(0) as tool:
                await tool.send_all(hello(NAME))
                accepted, _ = await trio.socket.from_stdlib_socket(first).accept()
                accepted.close()
            assert served.traffic.facts()["denied"] == {"sni_mismatch": 1}
        with pytest.raises(BlockingIOError):
            second.accept()


@pytest.mark.parametrize(
    ("answers", "kind"), [(["169.254.169.254"], "address"), (["127.0.0.1", "::ffff:127.0.0.1"], "address"), ([], "resolve")]
)
@pytest.mark.parametrize("transport", [Transport.TLS, Transport.HTTP])
async def test_a_name_with_a_bad_answer_is_reached_by_no_door(transport: Transport, answers: list[str], kind: str) -> None:
    """The tool is reset; nobody was connected to."""
    with http_server() as server:
        said = hello(NAME) if transport is Transport.TLS else b"GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n"
        async with doors(destination(server.port, transport), by=way({NAME: answers})) as served, await served.connect() as tool:
            await tool.send_all(said)
            assert await was_reset(tool)
            assert served.traffic.facts()["denied"] == {kind: 1}
        assert server.accepted == 0


async def test_one_connection_too_many_at_once_is_reset() -> None:
    """The others go on, and one that ended makes room."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1]), bounds=EgressBounds(connections=2)) as served:
            async with await served.connect() as first, await served.connect() as second:
                for tool in (first, second):
                    await tool.send_all(hello(NAME))
                hosts = [trio.SocketStream((await trio.socket.from_stdlib_socket(server).accept())[0]) for _ in range(2)]
                assert await served.refused()
                assert served.traffic.facts()["denied"] == {"connections": 1}
                for host in hosts:
                    await break_off(host)
                for tool in (first, second):
                    assert await was_reset(tool)
            async with await served.connect() as fourth:
                await fourth.send_all(hello(NAME))
                last, _ = await trio.socket.from_stdlib_socket(server).accept()
                last.close()
            assert served.traffic.facts()["denied"] == {"connections": 1}


async def test_refusals_without_end_end_the_call() -> None:
    """The last allowed one does not; the next one resets what is open as well."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1]), bounds=EgressBounds(denials=2)) as served:
            async with await served.connect() as good:
                await good.send_all(hello(NAME))
                host, _ = await trio.socket.from_stdlib_socket(server).accept()
                for _ in range(3):
                    assert not served.over.is_set()
                    async with await served.connect() as tool:
                        await tool.send_all(b"x")
                        assert await was_reset(tool)
                await served.over.wait()
                assert served.ended is not None
                assert served.ended.line == "more refused connections than a call may make"
                assert await was_reset(good)
                host.close()


async def test_connections_without_end_end_the_call() -> None:
    """The last allowed one is served."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1]), bounds=EgressBounds(total=2)) as served:
            for _ in range(2):
                async with await served.connect() as tool:
                    await tool.send_all(hello(NAME))
                    host, _ = await trio.socket.from_stdlib_socket(server).accept()
                    host.close()
            assert not served.over.is_set()
            assert await served.refused()
            await served.over.wait()
            assert served.ended is not None
            assert served.ended.line == "more connections than a call may make"


async def test_both_sides_are_reset_when_the_call_ends() -> None:
    """And one that is still connecting or saying its hello."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1])) as served:
            async with await served.connect() as tool, await served.connect() as silent:
                await tool.send_all(hello(NAME))
                sock, _ = await trio.socket.from_stdlib_socket(server).accept()
                async with trio.SocketStream(sock) as host:
                    served.scope.cancel()
                    assert await was_reset(tool)
                    assert await was_reset(host)
                await served.over.wait()
                if served.traffic.connections == 2:  # else it waits at the listener, which its jail closes
                    assert await was_reset(silent)


async def test_what_waits_before_a_call_is_reset_and_counted() -> None:
    """At every listener; what comes after is served."""
    with listener() as one, listener() as other, listener() as server:
        traffic = Traffic(EgressBounds())
        tools = [await trio.open_tcp_stream(*door.getsockname()) for door in (one, one, other)]
        relay.reset_waiting((one, other), traffic)
        assert [await was_reset(tool) for tool in tools] == [True] * 3
        assert traffic.facts() == {"connections": 0, "in_bytes": 0, "out_bytes": 0, "denied": {"early": 3}}
        for tool in tools:
            await tool.aclose()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay.serve, [(one, destination(server.getsockname()[1]))], way(), traffic)
            async with await trio.open_tcp_stream(*one.getsockname()) as tool:
                await tool.send_all(hello(NAME))
                host, _ = await trio.socket.from_stdlib_socket(server).accept()
                host.close()
            nursery.cancel_scope.cancel()


async def test_a_call_with_too_much_before_it_ends_at_once() -> None:
    """Nothing is served."""
    with listener() as door:
        traffic = Traffic(EgressBounds(denials=1))
        tools = [await trio.open_tcp_stream(*door.getsockname()) for _ in range(2)]
        relay.reset_waiting((door,), traffic)
        with pytest.raises(Exceeded):
            await relay.serve([(door, destination(443))], way(), traffic)
        for tool in tools:
            await tool.aclose()


async def test_listeners_that_are_closed_under_it_end_nothing_else() -> None:
    """A jail may be gone before its call is told."""
    with listener() as server, listener() as closed:
        async with doors(destination(server.getsockname()[1])) as served, trio.open_nursery() as nursery:
            nursery.start_soon(relay.serve, [(closed, destination(443))], way(), served.traffic)
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.notify_closing(closed)
            closed.close()
            async with await served.connect() as tool:
                await tool.send_all(hello(NAME))
                host, _ = await trio.socket.from_stdlib_socket(server).accept()
                host.close()
            nursery.cancel_scope.cancel()


async def test_a_reset_is_an_error_that_a_tool_can_catch() -> None:
    """As plain sockets see it."""
    with listener() as server:
        async with doors(destination(server.getsockname()[1])) as served:

            def tool() -> str:
                with socket.create_connection(("127.0.0.1", served.port()), 30) as sock:
                    sock.sendall(b"x")
                    try:
                        return repr(sock.recv(1))
                    except ConnectionResetError:
                        return "reset"

            assert await trio.to_thread.run_sync(tool) == "reset"
