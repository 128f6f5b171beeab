"""The door for plain HTTP: every request is read, judged and written anew, as are the answers.

Its job: a tool's connection, request after request; attached secrets on the way out, and masked on the way back.
Not its job: the host's side of it (``exchange.py``), judging heads (``fields.py``).
Laws:
1. No byte of a request reaches a host as it came: it is written from what was understood (tests/egress/test_forward.py).
2. Each request on a kept connection is judged (tests/egress/test_forward.py).
3. A secret that a host gives back does not reach the tool (tests/egress/test_upgrade.py).
4. What a host does not take any more counts and keeps to the rate all the same (tests/egress/test_turns.py).
"""

import functools
import socket

import h11
import trio

from engine.egress import attach, fields
from engine.egress.exchange import Answer, Host, addressed, connected
from engine.egress.link import Link, both
from engine.egress.mask import Mask, Masking
from engine.egress.stream import Plain
from engine.egress.traffic import Denied, Traffic
from engine.egress.way import Way
from engine.policy.network import Destination, Transport


async def carry(link: Link, near: socket.socket, destination: Destination, way: Way, traffic: Traffic, mask: Mask) -> None:
    """One connection until it ends. Raises Denied, OSError, ClosedResourceError."""
    await _Forward(link, near, destination, way, traffic, mask).run()


class _Forward:
    def __init__(self, link: Link, near: socket.socket, destination: Destination, way: Way, traffic: Traffic, mask: Mask) -> None:
        self._link, self._destination, self._way, self._traffic, self._mask = link, destination, way, traffic, mask
        self._near = Plain(near, link)
        self._tool = h11.Connection(h11.SERVER, fields.LONGEST)
        self._tls = destination.rule.transport is Transport.UPGRADE
        self._host: Host | None = None

    async def run(self) -> None:
        with trio.move_on_after(self._traffic.bounds.connect_ms / 1000) as within:
            head = await self._request()
        if within.cancelled_caught:
            raise Denied("silent")
        while head is not None:
            await self._serve(head)
            if self._tool.our_state is not h11.DONE or self._tool.their_state is not h11.DONE:
                return
            self._tool.start_next_cycle()
            head = await self._request()

    async def _request(self) -> fields.Head | None:
        """The next request's head, as it goes on; None at the end."""
        seen = bytearray(self._tool.trailing_data[0])
        while (event := self._next()) is h11.NEED_DATA:
            data = await self._near.read()
            seen += data
            self._receive(data)
        if isinstance(event, h11.ConnectionClosed):
            return None
        if not isinstance(event, h11.Request):
            raise Denied("not_http")
        if fields.folded(seen.lstrip(b"\r\n")):
            raise Denied("not_http")
        head = fields.request_for(self._destination.place, event)
        head = attach.attached(head, self._destination.rule.attach, self._way.secret)
        return attach.plain_answers(head) if self._mask else head

    def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._tool.next_event()
        except h11.ProtocolError:
            raise Denied("not_http") from None

    def _receive(self, data: bytes) -> None:
        try:
            self._tool.receive_data(data)
        except h11.ProtocolError:
            raise Denied("not_http") from None

    async def _serve(self, head: fields.Head) -> None:
        host = await self._connection()
        await host.send(addressed(head, self._destination, tls=self._tls))
        if not head.body:
            if not isinstance(self._next(), h11.EndOfMessage):
                raise Denied("not_http")
            await host.send(h11.EndOfMessage())
            await self._answer(host)
            return
        ended = trio.CancelScope()
        upload = functools.partial(self._upload, host, ended)
        await both(upload, functools.partial(self._answer_to_body, host, ended))

    async def _connection(self) -> Host:
        """The kept one while it is good, else a new one."""
        if self._host is not None:
            if await self._host.again():
                return self._host
            self._link.drop(self._host.stream.sock)
            self._traffic.count()
        self._host = await connected(self._link, self._destination, self._way, self._traffic, tls=self._tls)
        return self._host

    async def _upload(self, host: Host, ended: trio.CancelScope) -> None:
        """The body of a request; what the host does not take any more is read all the same, so that its answer is not lost."""
        taken = True
        with ended:
            while not isinstance(event := self._next(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    data = await self._near.read()
                    if not taken:  # else what is written counts
                        await self._link.pause(self._traffic.carry(sent=len(data)))
                    self._receive(data)
                elif not isinstance(event, h11.Data):
                    raise Denied("not_http")
                elif taken:
                    taken = await host.offer(h11.Data(data=event.data))
                else:
                    await trio.lowlevel.checkpoint()
            if taken:
                await host.offer(h11.EndOfMessage())

    async def _answer_to_body(self, host: Host, ended: trio.CancelScope) -> None:
        await self._answer(host)
        if self._tool.they_are_waiting_for_100_continue:  # then no body comes any more
            ended.cancel()

    async def _answer(self, host: Host) -> None:
        while (answer := await host.answer(self._mask)) is None:
            if self._tool.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        await self._write(_response(answer))
        masking = Masking(self._mask) if self._mask else None
        while not isinstance(event := await host.receive(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Denied("answer")
            await self._body(bytes(event.data) if masking is None else masking.take(bytes(event.data)))
        await self._body(b"" if masking is None else masking.end())
        await self._write(h11.EndOfMessage())

    async def _body(self, data: bytes) -> None:
        if data:
            await self._write(h11.Data(data=data))

    async def _write(self, event: h11.Event) -> None:
        try:
            data = self._tool.send(event)
        except h11.ProtocolError:
            raise Denied("answer") from None
        if data:
            await self._near.write(data)


def _response(answer: Answer) -> h11.Response:
    try:
        return h11.Response(status_code=answer.status, headers=list(answer.fields), reason=answer.reason)
    except h11.ProtocolError:
        raise Denied("answer") from None
