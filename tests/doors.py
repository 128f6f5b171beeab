"""Doors of a relay on loopback, as a jail would have them, for tests that need no jail."""

import contextlib
import hashlib
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import trio

from engine.egress import relay
from engine.egress.resolver import FixedResolver, Resolver
from engine.egress.traffic import Exceeded, Traffic
from engine.egress.way import Way
from engine.policy.network import Attachment, Destination, EgressBounds, Place, Rule, Transport

NAME = "api.example.test"
LOOPBACK = ("127.0.0.0/8",)


def destination(
    port: int,
    transport: Transport = Transport.TLS,
    *,
    host: str = NAME,
    upstream_port: int | None = None,
    attach: tuple[Attachment, ...] = (),
    private: tuple[str, ...] = LOOPBACK,
) -> Destination:
    """One granted place."""
    place = Place(host=host, port=port)
    rule = Rule(place=place, transport=transport, upstream_port=upstream_port or port, attach=attach, private=private)
    return Destination(place=place, rule=rule)


def way(
    names: Resolver | Mapping[str, Sequence[str]] | None = None, secrets: Mapping[str, str] | None = None, trust: str | None = None
) -> Way:
    """One whose names are a table."""
    if names is None or isinstance(names, Mapping):
        names = FixedResolver(names or {NAME: ["127.0.0.1"]})
    digest = None
    if trust is not None and Path(trust).is_file():
        digest = f"sha256:{hashlib.sha256(Path(trust).read_bytes()).hexdigest()}"
    return Way(resolver=names, secret=dict(secrets or {}).__getitem__, trust=trust, digest=digest)


class Doors:
    """Listeners that are served; ``ended`` is why the call had to end."""

    def __init__(self, listeners: list[socket.socket], traffic: Traffic) -> None:
        self.listeners, self.traffic = listeners, traffic
        self.ended: Exceeded | None = None
        self.over = trio.Event()
        self.scope = trio.CancelScope()

    def port(self, number: int = 0) -> int:
        """Where a tool would connect to."""
        return int(self.listeners[number].getsockname()[1])

    async def connect(self, number: int = 0) -> trio.SocketStream:
        """As a tool."""
        return await trio.open_tcp_stream("127.0.0.1", self.port(number))

    async def refused(self, number: int = 0) -> bool:
        """Whether a connection is reset before anything is said on it; one that is quick is told while it connects."""
        try:
            stream = await self.connect(number)
        except OSError:
            return True
        async with stream:
            return await was_reset(stream)

    async def serve(self, destinations: Sequence[Destination], by: Way) -> None:
        """Until it is ended or cancelled."""
        try:
            with self.scope:
                await relay.serve([*zip(self.listeners, destinations, strict=True)], by, self.traffic)
        except Exceeded as exceeded:
            self.ended = exceeded
        finally:
            self.over.set()


def listener() -> socket.socket:
    """One on loopback that does not block."""
    made = socket.create_server(("127.0.0.1", 0), backlog=128)
    made.setblocking(False)
    return made


@contextlib.asynccontextmanager
async def doors(*destinations: Destination, by: Way | None = None, bounds: EgressBounds | None = None) -> AsyncIterator[Doors]:
    """Served until the block ends."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(listener()) for _ in destinations]
        made = Doors(listeners, Traffic(bounds or EgressBounds()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.serve, destinations, by or way())
            yield made
            nursery.cancel_scope.cancel()


async def was_reset(stream: trio.SocketStream) -> bool:
    """Whether the other side broke the connection off, rather than ending it."""
    try:
        while await stream.receive_some(65536):
            pass
    except trio.BrokenResourceError:
        return True
    return False


async def break_off(stream: trio.SocketStream) -> None:
    """End a connection as a program does that is killed: with a reset."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()
