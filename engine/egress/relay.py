"""The doors of one call: connections are accepted while it runs, and carried by the transport of their destination.

Its job: open and close the listeners, accept, count, hand to the door, end everything with the call.
Not its job: the doors themselves (``tunnel.py``, ``forward.py``), the listeners, which belong to a jail.
Laws:
1. The destination follows from the listener alone (tests/egress/test_relay.py).
2. A refusal is a reset: the tool sees a connection that broke, and can go on (tests/egress/test_relay.py).
3. When a call ends, both sides of each of its connections are reset at once (tests/egress/test_relay.py).
4. Outside of a call the kernel refuses whoever connects, and nothing waits from one call to the next (tests/egress/test_relay.py).
"""

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator, Sequence

import trio

from engine.egress import forward, tunnel
from engine.egress.link import BROKEN, Link, end_idle, plainly, reset
from engine.egress.mask import Mask
from engine.egress.traffic import Denied, Exceeded, Traffic
from engine.egress.way import Way
from engine.errors import HostError
from engine.policy.network import Destination, Transport

_BACKLOG = 64  # connections that wait until they are accepted; further ones try again by themselves
_FULL_S = 0.05  # until a descriptor may have become free


@contextlib.contextmanager
def opened(listeners: Sequence[socket.socket], give_up: Callable[[], None]) -> Iterator[None]:
    """Let tools connect while the block lasts. Raises HostError when that cannot be.

    ``give_up`` ends the jail: it is called when a listener does not do as it is told.
    """
    try:
        try:
            for listener in listeners:
                listener.listen(_BACKLOG)
        except OSError as error:
            give_up()
            raise HostError("refused.start_failed", f"step 'listen for the tool' failed: {error.strerror}") from None
        yield
    finally:
        for listener in listeners:
            _shut(listener, give_up)


def _shut(listener: socket.socket, give_up: Callable[[], None]) -> None:
    # security: a connection that waits from one call to the next would be carried as that one's, and be on its books;
    # the kernel resets all that wait, and refuses what comes until it is told to listen again
    try:
        listener.shutdown(socket.SHUT_RD)
    except OSError as error:
        if error.errno != errno.ENOTCONN and listener.fileno() >= 0:  # it did not listen; it was closed with its jail
            give_up()


async def serve(doors: Sequence[tuple[socket.socket, Destination]], way: Way, traffic: Traffic) -> None:
    """Carry connections until cancelled. Raises Exceeded when the call has to end."""
    relay = _Relay(way, traffic, way.mask(destination.rule for _, destination in doors))
    try:
        async with plainly() as nursery:
            relay.nursery = nursery
            for listener, destination in doors:
                nursery.start_soon(relay.accept, listener, destination)
            await end_idle(relay.links, traffic.bounds.idle_ms / 1000)
    finally:
        for link in [*relay.links]:
            link.reset()
    if traffic.exceeded is not None:
        raise Exceeded(traffic.exceeded)


@contextlib.contextmanager
def _counting(traffic: Traffic) -> Iterator[None]:
    """A refusal is counted before whoever is refused can see it. Raises Exceeded."""
    try:
        yield
    except Denied as denied:
        traffic.refused(denied)


class _Relay:
    nursery: trio.Nursery

    def __init__(self, way: Way, traffic: Traffic, mask: Mask) -> None:
        self._way, self._traffic, self._mask = way, traffic, mask
        self.links: set[Link] = set()

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def accept(self, listener: socket.socket, destination: Destination) -> None:
        """Take connections of one listener for ever."""
        while listener.fileno() >= 0:  # it is closed with its jail
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                with contextlib.suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(listener)
                continue
            except OSError:  # our own table is full; or it was gone before it was taken
                await trio.sleep(_FULL_S)
                continue
            self._take(accepted, destination)
            await trio.lowlevel.checkpoint()

    def _take(self, accepted: socket.socket, destination: Destination) -> None:
        link = Link(accepted)
        try:
            with _counting(self._traffic):
                self._traffic.enter(link.reset)
                self.links.add(link)
                self.nursery.start_soon(self._carry, link, accepted, destination)
                return
        except Exceeded:
            self.nursery.cancel_scope.cancel()
        reset(accepted)

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _carry(self, link: Link, near: socket.socket, destination: Destination) -> None:
        try:
            with _counting(self._traffic):
                near.setblocking(False)
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if destination.rule.transport is Transport.TLS:
                    await tunnel.carry(link, near, destination, self._way, self._traffic)
                else:
                    await forward.carry(link, near, destination, self._way, self._traffic, self._mask)
                link.close()
        except Exceeded:
            self.nursery.cancel_scope.cancel()
        except BROKEN:
            pass  # a side broke it off, or it was reset from here: the other side sees the same
        finally:
            link.reset()
            self._traffic.leave(link.reset)
            self.links.discard(link)
