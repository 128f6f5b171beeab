"""The door for TLS: the hello is read, everything after it is carried as it is.

Its job: a tool's connection to a host's, byte by byte, with its half-closes, at full speed and under the call's bounds.
Not its job: what a hello says (``hello.py``), requests (``forward.py``). What TLS hides stays hidden: a request inside that names
another host of the same server is the server's to refuse.
Laws:
1. Until a hello about the place was read to its end, no host is connected to (tests/egress/test_tunnel.py).
2. What one side sends arrives at the other as it is, and the end of one direction leaves the other one open (tests/egress/test_tunnel.py).
3. Each portion gives others a turn (tests/egress/test_turns.py).
"""

import functools
import socket
from collections.abc import Callable

import trio

from engine.egress import hello
from engine.egress.dial import dialled
from engine.egress.link import Link, both
from engine.egress.traffic import Denied, Traffic
from engine.egress.way import Way
from engine.policy.network import Destination

_FIRST_BUFFER = 16 << 10  # grows to the traffic's chunk with the first reads that fill it: most connections never do


async def carry(link: Link, near: socket.socket, destination: Destination, way: Way, traffic: Traffic) -> None:
    """One connection until both directions have ended. Raises Denied, OSError, ClosedResourceError."""
    seconds = traffic.bounds.connect_ms / 1000
    first = await _first(near, destination, seconds)
    far = await dialled(destination.place, destination.place.port, destination.rule, way.resolver, seconds)
    link.add(far)
    await link.pause(traffic.carry(sent=len(first)))
    await _send(far, memoryview(first))
    outwards = functools.partial(_pump, link, near, far, lambda count: traffic.carry(sent=count), traffic.chunk)
    inwards = functools.partial(_pump, link, far, near, lambda count: traffic.carry(received=count), traffic.chunk)
    await both(outwards, inwards)


async def _first(near: socket.socket, destination: Destination, seconds: float) -> bytearray:
    """All that came with a hello that is about the destination."""
    reader = hello.Reader()
    with trio.move_on_after(seconds):
        while True:
            try:
                data = near.recv(hello.LONGEST)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(near)
                continue
            if not data:
                raise Denied("not_tls" if reader.seen else "silent")
            if (found := reader.take(data)) is not None:
                if (kind := hello.judged(found, destination.place)) is not None:
                    raise Denied(kind)
                return reader.seen
            # security: bytes that come one by one would keep others from their turn
            await trio.lowlevel.checkpoint()
    raise Denied("silent")


async def _pump(link: Link, source: socket.socket, target: socket.socket, count: Callable[[int], float], chunk: int) -> None:
    buffer = memoryview(bytearray(min(_FIRST_BUFFER, chunk)))
    while True:
        try:
            size = source.recv_into(buffer)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(source)
            continue
        if not size:
            target.shutdown(socket.SHUT_WR)
            return
        await link.pause(count(size))
        await _send(target, buffer[:size])
        if size == len(buffer) < chunk:
            buffer = memoryview(bytearray(min(4 * size, chunk)))


async def _send(target: socket.socket, data: memoryview) -> None:
    """All of it; whoever counted it before gave others their turn."""
    while data:
        try:
            sent = target.send(data)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(target)
            continue
        data = data[sent:]
