"""The host call ``engine.http``: one request made for a tool that has no sockets, redirects and all.

Its job: arguments to an answer, hop by hop; each hop a granted place, each address judged anew.
Not its job: HTTP/1.1 itself (``exchange.py``), how a tool words its request (the guest).
Laws:
1. No hop leads to a place that was not granted, and none is made before that is known (tests/egress/test_client.py).
2. What was meant for one host is not sent to another one: the tool's fields but a few, attached secrets (tests/egress/test_client.py).
3. A refusal is one sentence without a name (tests/egress/test_client.py).
"""

import dataclasses
import re
from typing import Any

import h11
import trio

from engine.egress import attach, fields
from engine.egress.exchange import Answer, Host, addressed, connected, upstream
from engine.egress.link import BROKEN, Link, both, end_idle
from engine.egress.mask import Masking
from engine.egress.traffic import DENIALS, Denied, Traffic
from engine.egress.url import Url, redirected, url_of
from engine.egress.way import Way
from engine.policy.network import Destination, Place, Scope, Transport

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HOPS = 5  # redirects that are followed
_FIELDS = 100  # that a tool may set
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
_OURS = frozenset({b"host", b"content-length", b"expect", b"accept-encoding"})
# what goes on to another host; any other field may be a credential, whatever it is called
_SAFE = frozenset(
    b"accept accept-charset accept-language cache-control content-disposition content-encoding content-language content-range content-type"
    b" if-match if-modified-since if-none-match if-range if-unmodified-since pragma range user-agent".split()
)
_MALFORMED = "want {method, url, headers, body}: a method of HTTP, the whole address, pairs of text, and the body as text of bytes"
_BROKEN = "the destination broke the connection off"
_TOO_LONG = "the answer is longer than the call may take"


class _Refused(Exception):
    """What the tool is told; ``kind`` when it counts as a refusal."""

    def __init__(self, line: str, kind: str | None = None) -> None:
        self.line, self.kind = line, kind
        super().__init__(line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Request:
    method: str
    url: Url
    fields: fields.Fields
    body: bytes


async def answer(arguments: dict[str, Any], scope: Scope, way: Way, traffic: Traffic, *, longest: int) -> tuple[bool, Any]:
    """The answer as plain data, or False and why there is none. Raises Exceeded when the call has to end."""
    try:
        return True, await _Client(scope, way, traffic, longest).answer(_request(arguments))
    except Denied as denied:
        traffic.refused(denied)
        return False, DENIALS[denied.kind]
    except _Refused as refused:
        if refused.kind is not None:
            traffic.deny(refused.kind)
        return False, refused.line
    except BROKEN:
        return False, _BROKEN


def _request(arguments: dict[str, Any]) -> _Request:
    method, body, pairs = arguments.get("method"), arguments.get("body", ""), arguments.get("headers", [])
    if not (isinstance(method, str) and isinstance(body, str) and isinstance(pairs, list) and isinstance(arguments.get("url"), str)):
        raise _Refused(_MALFORMED, "not_http")
    if method not in METHODS or len(pairs) > _FIELDS or not all(_is_field(pair) for pair in pairs):
        raise _Refused(_MALFORMED, "not_http")
    try:
        url, content = url_of(arguments["url"]), body.encode("latin-1")
    except UnicodeEncodeError:
        raise _Refused(_MALFORMED, "not_http") from None
    except ValueError as error:
        raise _Refused(str(error), "not_http") from None
    named = [(name.encode("ascii"), value.encode("latin-1")) for name, value in pairs]
    if fields.ambiguous(name for name, _ in named):
        raise _Refused(_MALFORMED, "not_http")
    sent = fields.passed_on(named, without=_OURS)
    return _Request(method=method, url=url, fields=sent, body=content)


def _is_field(pair: object) -> bool:
    match pair:
        case [str(name), str(value)]:
            # security: a line break in a value would begin a field, or a request, of the tool's own
            return _NAME.fullmatch(name) is not None and _VALUE.fullmatch(value) is not None
    return False


class _Client:
    def __init__(self, scope: Scope, way: Way, traffic: Traffic, longest: int) -> None:
        self._scope, self._way, self._traffic, self._longest = scope, way, traffic, longest
        self._mask = way.mask(one.rule for one in scope.destinations)

    async def answer(self, request: _Request) -> dict[str, Any]:
        """Hop by hop, until one is no redirect."""
        for _ in range(_HOPS + 1):
            answered, body = await self._hop(request)
            location = _location(answered)
            if location is None:
                return _data(request, answered, body)
            request = self._following(request, answered.status, location)
        raise Denied("redirect")

    def _door(self, url: Url) -> Destination:
        """The granted destination of an address; TLS where its rule says so."""
        found = self._scope.of(url.place)
        if found is None and url.scheme == "https":  # a rule that adds TLS is about the place behind it too
            found = next((one for one in self._scope.destinations if _behind(one) == url.place), None)
        wanted = {Transport.TLS: "https", Transport.HTTP: "http"}
        if found is None or wanted.get(found.rule.transport, url.scheme) != url.scheme:
            raise Denied("destination")
        return found

    async def _hop(self, request: _Request) -> tuple[Answer, bytes]:
        destination = self._door(request.url)
        link, over = Link(), trio.CancelScope()
        found: list[tuple[Answer, bytes]] = []

        async def exchange() -> None:
            found.append(await self._exchange(request, destination, link))
            over.cancel()

        async def idle() -> None:
            with over:
                await end_idle((link,), self._traffic.bounds.idle_ms / 1000)

        self._traffic.enter(link.reset)
        try:
            await both(idle, exchange)
            link.close()
        finally:
            link.reset()
            self._traffic.leave(link.reset)
        return found[0]

    async def _exchange(self, request: _Request, destination: Destination, link: Link) -> tuple[Answer, bytes]:
        tls = destination.rule.transport is not Transport.HTTP
        head = attach.attached(_head(request), destination.rule.attach, self._way.secret)
        if self._mask:
            head = attach.plain_answers(head)
        written = addressed(head, destination, tls=tls)
        host = await connected(link, destination, self._way, self._traffic, tls=tls)
        await host.send(written)
        found: list[tuple[Answer, bytes]] = []
        answered = trio.CancelScope()

        async def upload() -> None:
            with answered:
                if request.body and not await host.offer(h11.Data(data=request.body)):
                    return
                await host.offer(h11.EndOfMessage())

        async def read() -> None:
            while (first := await host.answer(self._mask)) is None:
                pass  # it asks for the body, which is on its way
            found.append((first, await self._body(host)))
            answered.cancel()

        await both(upload, read)
        return found[0]

    async def _body(self, host: Host) -> bytes:
        body, masking = bytearray(), Masking(self._mask)
        while not isinstance(event := await host.receive(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Denied("answer")
            body += masking.take(bytes(event.data))
            if len(body) > self._longest:
                raise _Refused(_TOO_LONG)
        body += masking.end()
        if len(body) > self._longest:
            raise _Refused(_TOO_LONG)
        return bytes(body)

    def _following(self, request: _Request, status: int, location: str) -> _Request:
        """The next request, by RFC 9110 section 15.4."""
        try:
            url = redirected(request.url, location)
        except ValueError:
            raise Denied("destination") from None
        method, body, kept = request.method, request.body, [*request.fields]
        if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
            method, body = "GET", b""
            kept = [(name, value) for name, value in kept if not name.lower().startswith(b"content-")]
        # security: whoever redirects must not be able to send a tool's credentials elsewhere
        if self._door(url) != self._door(request.url) or url.scheme != request.url.scheme:
            kept = [(name, value) for name, value in kept if name.lower() in _SAFE]
        return _Request(method=method, url=url, fields=kept, body=body)


def _behind(destination: Destination) -> Place | None:
    if destination.rule.transport is not Transport.UPGRADE:
        return None
    return Place(host=destination.place.host, port=upstream(destination))


def _head(request: _Request) -> fields.Head:
    length = [(b"Content-Length", str(len(request.body)).encode("ascii"))]
    needs = bool(request.body) or request.method in ("POST", "PUT", "PATCH")
    return fields.Head(
        method=request.method.encode("ascii"),
        target=request.url.target.encode("ascii"),
        # the guest has no way of its own to unpack an answer
        fields=[*request.fields, (b"Accept-Encoding", b"identity"), *(length if needs else [])],
        body=bool(request.body),
    )


def _location(answered: Answer) -> str | None:
    """Where a redirect leads; None for any other answer."""
    found = [value for name, value in answered.fields if name.lower() == b"location"]
    if answered.status not in (301, 302, 303, 307, 308) or len(found) != 1:
        return None
    try:
        return found[0].decode("utf-8")
    except UnicodeDecodeError:
        return found[0].decode("latin-1")


def _data(request: _Request, answered: Answer, body: bytes) -> dict[str, Any]:
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in answered.fields]
    return {"status": answered.status, "url": str(request.url), "headers": headers, "body": body.decode("latin-1")}
