"""The sockets of one connection of a tool, which end together.

Its job: close them in order or reset them, from any task; end those that are idle; tasks whose errors come out alone.
Not its job: what goes over them (``tunnel.py``, ``stream.py``).
Laws:
1. Whoever waits for a socket that is reset is woken, and nothing is opened on a link that was closed (tests/egress/test_link.py).
2. An error or an interrupt comes out as itself, in no group (tests/egress/test_link.py).
3. A pause gives others a turn, however short it is (tests/egress/test_turns.py).
"""

import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator

import trio

_NO_LINGER = struct.pack("ii", 1, 0)  # socket(7): close sends a reset, and drops what was not sent
# what ends a connection from outside: the peer, the network, a reset of ours
BROKEN = (OSError, trio.ClosedResourceError)


def reset(sock: socket.socket) -> None:
    """Close with a reset, so that the other side sees an error and not an end."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    close(sock)


def close(sock: socket.socket) -> None:
    """Close, and wake whoever waits for it."""
    if sock.fileno() >= 0:
        trio.lowlevel.notify_closing(sock)
        sock.close()


class Link:
    """Sockets that end together. ``touched``: when something last went over one of them."""

    def __init__(self, *sockets: socket.socket) -> None:
        self._sockets = [*sockets]
        self.touched = trio.current_time()
        self.closed = False

    def add(self, sock: socket.socket) -> None:
        """One more. Raises ClosedResourceError, with it reset, when the link is over."""
        if self.closed:
            reset(sock)
            raise trio.ClosedResourceError
        self._sockets.append(sock)

    def drop(self, sock: socket.socket) -> None:
        """One less: it is closed alone."""
        if sock in self._sockets:
            self._sockets.remove(sock)
        close(sock)

    def reset(self) -> None:
        """All of them, at once."""
        self._end(reset)

    def close(self) -> None:
        """All of them; what was written still arrives."""
        self._end(close)

    def _end(self, how: Callable[[socket.socket], None]) -> None:
        self.closed = True
        for sock in self._sockets:
            how(sock)
        self._sockets.clear()

    async def pause(self, seconds: float) -> None:
        """Wait as the rate demands; it does not count as being idle. Others get a turn also when there is nothing to wait for."""
        self.touched = max(self.touched, trio.current_time() + seconds)
        # security: a peer that always has data would keep the whole engine, its deadlines too, from going on
        await trio.sleep(seconds)


async def end_idle(links: Collection[Link], seconds: float) -> None:
    """Reset each link over which nothing went for so long; for ever. A new one is not older than the last look."""
    while True:
        now = trio.current_time()
        for link in [*links]:
            if now - link.touched >= seconds:
                link.reset()
        oldest = min((link.touched for link in links if not link.closed), default=now)
        await trio.sleep_until(oldest + seconds)


@contextlib.asynccontextmanager
async def plainly() -> AsyncIterator[trio.Nursery]:
    """A nursery out of which one error comes, in no group: an interrupt before all others, else the first."""
    found: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        errors = [error for error in _leaves(group) if not isinstance(error, trio.Cancelled)]
        if not errors:
            raise
        found = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    if found is not None:
        raise found


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def both(first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[None]]) -> None:
    """Run two at once; the first error of either ends the other one and is raised as it is, in no group."""
    failed: list[Exception] = []

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def guarded(one: Callable[[], Awaitable[None]]) -> None:
        try:
            await one()
        except Exception as error:
            failed.append(error)
            nursery.cancel_scope.cancel()

    async with plainly() as nursery:
        nursery.start_soon(guarded, first)
        await guarded(second)
    if failed:
        raise failed[0]
