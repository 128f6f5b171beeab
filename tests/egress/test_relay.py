"""The doors of one call: whose listener, what is refused, what ends a call, and how everything ends with it."""

import errno
import socket

import pytest
import trio
import trio.testing

from engine.egress import relay, tunnel
from engine.egress.traffic import Traffic
from engine.errors import HostError
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


def bound() -> socket.socket:
    """A door as a jail brings it: at its place, not listening."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setblocking(False)
    return made


async def refused(door: socket.socket) -> bool:
    """Whether nobody listens there; who is connected says nothing."""
    try:
        await (await trio.open_tcp_stream(*door.getsockname())).aclose()
    except OSError:
        return True
    return False


async def test_nobody_connects_outside_of_a_call_and_nothing_waits_for_the_next_one() -> None:
    """What waits when a call ends is reset, what was accepted is not, and the next call finds an empty queue, as often as there is one."""
    with bound() as one, bound() as other:
        for _ in range(3):
            assert [await refused(door) for door in (one, other)] == [True, True]
            with relay.opened((one, other), pytest.fail):
                tools = [await trio.open_tcp_stream(*door.getsockname()) for door in (one, one, other)]
                accepted, _ = one.accept()
            assert [await refused(door) for door in (one, other)] == [True, True]
            with accepted:
                accepted.sendall(b"goes on")
                assert await tools[0].receive_some() == b"goes on"
            assert [await was_reset(tool) for tool in tools] == [False, True, True]
            with relay.opened((one, other), pytest.fail):
                for door in (one, other):
                    with pytest.raises(BlockingIOError):
                        door.accept()
            for tool in tools:
                await tool.aclose()


async def test_a_door_that_cannot_listen_is_the_end_of_its_jail() -> None:
    """Those before it are shut again; the control goes on."""
    with bound() as good, listener() as taken, socket.socket() as bad:
        ended: list[bool] = []
        bad.close()
        with pytest.raises(HostError) as caught, relay.opened((good, bad), lambda: ended.append(True)):
            pytest.fail("the call began")
        assert (caught.value.code, caught.value.lines) == (
            "refused.start_failed",
            ("step 'listen for the tool' failed: Bad file descriptor",),
        )
        assert (ended, await refused(good), await refused(taken)) == ([True], True, False)


async def test_a_door_that_cannot_be_shut_is_the_end_of_its_jail() -> None:
    """The control is one that was shut already, or closed with its jail."""

    class Stubborn(socket.socket):
        def shutdown(self, how: int) -> None:
            raise OSError(errno.EIO, "it does not")

    with Stubborn() as stubborn, bound() as shut, bound() as closed:
        ended: list[bool] = []
        with relay.opened((stubborn,), lambda: ended.append(True)):
            assert ended == []
        assert ended == [True]
        with relay.opened((shut, closed), pytest.fail):
            shut.shutdown(socket.SHUT_RD)
            closed.close()


@pytest.mark.parametrize("error", [ValueError("a mistake of ours"), KeyboardInterrupt()])
async def test_a_mistake_while_carrying_comes_out_as_itself(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no group, however many nurseries are around it."""

    async def carry(*_: object) -> None:
        raise error

    monkeypatch.setattr(tunnel, "carry", carry)
    with listener() as door:
        async with await trio.open_tcp_stream(*door.getsockname()) as tool:
            with pytest.raises(type(error)) as caught:
                await relay.serve([(door, destination(443))], way(), Traffic(EgressBounds()))
            assert caught.value is error
            assert await was_reset(tool)


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
