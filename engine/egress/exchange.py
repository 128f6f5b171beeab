"""One request to a host and its answer, over a connection that may be kept for the next.

Its job: the host's side of HTTP/1.1 by h11; connecting, and TLS where the rule says so.
Not its job: the tool's side (``forward.py``), requests of a host call (``client.py``).
Laws:
1. A kept connection is used only while nothing came on it unasked (tests/egress/test_forward.py).
2. What h11 has to say about bytes is never in an error (tests/unit/test_egress_fields.py).
3. Each part of an answer gives others a turn, and the parts before its head are few (tests/egress/test_turns.py).
"""

import dataclasses

import h11
import trio

from engine.egress import fields
from engine.egress.dial import dialled
from engine.egress.fields import Head
from engine.egress.link import BROKEN, Link
from engine.egress.mask import Mask
from engine.egress.stream import Plain, Secured
from engine.egress.traffic import Denied, Traffic
from engine.egress.way import Way
from engine.policy.network import Destination, Transport

_INTERIM = 16  # answers of 1xx before the one that counts: 100, 103 and a 102 now and then


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The first part of an answer, masked, without what is about one connection."""

    status: int
    reason: bytes
    fields: fields.Fields


class Host:
    """A connection to a host, request after request."""

    def __init__(self, stream: Plain) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT, fields.LONGEST)
        self._interim = 0

    async def send(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """One part of a request. Raises Denied, OSError, ClosedResourceError."""
        try:
            data = self._http.send(event)
        except h11.ProtocolError:
            raise Denied("not_http") from None
        if data:
            await self.stream.write(data)

    async def offer(self, event: h11.Data | h11.EndOfMessage) -> bool:
        """As ``send``, but False where the host takes no more: its answer may be there all the same."""
        try:
            await self.send(event)
        except BROKEN:
            return False
        return True

    async def receive(self) -> h11.Event:
        """The next part of an answer: its head, data, or its end. Raises Denied, OSError, ClosedResourceError."""
        # security: one read may hold ten thousand parts
        await trio.lowlevel.checkpoint()
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self.stream.read())
        except h11.ProtocolError:
            raise Denied("answer") from None
        if isinstance(event, h11.Event):
            return event
        raise Denied("answer")  # paused: it says more than it was asked

    async def answer(self, mask: Mask) -> Answer | None:
        """The head of the answer; None for the word to go on with a body. Raises as ``receive``."""
        while True:
            event = await self.receive()
            if isinstance(event, h11.Response):
                self._interim = 0
                return _masked(event, mask)
            self._interim += 1
            if not isinstance(event, h11.InformationalResponse) or self._interim > _INTERIM:
                raise Denied("answer")
            if event.status_code == 100:
                return None

    async def again(self) -> bool:
        """Whether the next request may go over it. Raises Denied."""
        try:
            self._http.start_next_cycle()
        except h11.ProtocolError:
            return False
        return not self._http.trailing_data[0] and not await self.stream.stale()


def _masked(response: h11.Response, mask: Mask) -> Answer:
    raw = [(bytes(name), bytes(value)) for name, value in response.headers.raw_items()]
    coded = any(name.lower() == b"content-encoding" and value.strip().lower() not in (b"", b"identity") for name, value in raw)
    # security: a host that packs its answer would give an attached secret back unseen
    if mask and coded:
        raise Denied("coding")
    kept = [(mask.whole(name), mask.whole(value)) for name, value in fields.passed_on(raw)]
    return Answer(status=response.status_code, reason=mask.whole(bytes(response.reason)), fields=kept)


async def connected(link: Link, destination: Destination, way: Way, traffic: Traffic, *, tls: bool) -> Host:
    """A new connection to the destination. Raises Denied, OSError, ClosedResourceError."""
    seconds = traffic.bounds.connect_ms / 1000
    port = upstream(destination)
    with trio.move_on_after(seconds):
        sock = await dialled(destination.place, port, destination.rule, way.resolver, seconds)
        link.add(sock)
        if not tls:
            return Host(Plain(sock, link, traffic))
        try:
            stream = Secured(sock, link, traffic, await way.tls(), destination.place.host)
        except OSError:  # the file of trusted certificates
            raise Denied("certificate") from None
        await stream.open()
        return Host(stream)
    raise Denied("unreachable")


def upstream(destination: Destination) -> int:
    """The port that is connected to."""
    return destination.rule.upstream_port if destination.rule.transport is Transport.UPGRADE else destination.place.port


def addressed(head: Head, destination: Destination, *, tls: bool) -> h11.Request:
    """The request as it is written to the host. Raises Denied."""
    host = fields.host_field(destination.place, upstream(destination), 443 if tls else 80)
    try:
        return h11.Request(method=head.method, target=head.target, headers=[host, *head.fields])
    except h11.ProtocolError:
        raise Denied("not_http") from None
