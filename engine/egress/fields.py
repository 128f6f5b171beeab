"""Heads of requests and answers of HTTP/1.1: whether a request is about its place, and what of a head is passed on.

Its job: pure judgements and rewriting of heads that h11 has read.
Not its job: bodies, connections (``exchange.py``), secrets in heads (``attach.py``).
Laws:
1. A request is passed on only if its one Host, and its absolute target if it has one, name the place (tests/unit/test_egress_fields.py).
2. What rules a single connection is never passed on: lengths and codings are written anew (tests/unit/test_egress_fields.py).
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import h11

from engine.egress.traffic import Denied
from engine.policy.network import Place, canonical_host

Fields = Sequence[tuple[bytes, bytes]]
LONGEST = 64 << 10  # bytes of a head
# RFC 9110 section 7.6.1, and what else means this one connection
_OF_A_CONNECTION = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
    + [b"http2-settings"]
)
# what frames a message besides
_FRAMING = _OF_A_CONNECTION | {b"content-length", b"host", b"expect"}
_FOLDED = re.compile(rb"\n[ \t]")
_END = re.compile(rb"\n\r?\n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """A request's first part, as it is written to a host. ``body``: whether one follows."""

    method: bytes
    target: bytes
    fields: Fields
    body: bool


def folded(seen: bytes | bytearray) -> bool:
    """Whether the head that these bytes begin with has a line that goes on in the next one (RFC 9112 section 5.2)."""
    end = _END.search(seen)
    return _FOLDED.search(seen, 0, len(seen) if end is None else end.start() + 1) is not None


def request_for(place: Place, request: h11.Request) -> Head:
    """What is passed on of a request, without a Host. Raises Denied."""
    method = bytes(request.method)
    if request.http_version not in (b"1.0", b"1.1"):
        raise Denied("not_http")
    # security: CONNECT makes a tunnel of the destination's, TRACE gives back what was attached; both never reach it
    if method.upper() in (b"CONNECT", b"TRACE"):
        raise Denied("method")
    fields = [(bytes(name), bytes(value)) for name, value in request.headers.raw_items()]
    names = [name.lower() for name, _ in fields]
    if ambiguous(names):
        raise Denied("not_http")
    if b"upgrade" in names:
        raise Denied("switch")
    lengths = [value for name, value in fields if name.lower() == b"content-length"]
    # security: of two lengths, the one that is not believed here is believed there, and a second request is smuggled between them
    if len(lengths) > 1 or (lengths and b"transfer-encoding" in names):
        raise Denied("not_http")
    hosts = [value for name, value in fields if name.lower() == b"host"]
    if len(hosts) != 1 or not _names(hosts[0], place):
        raise Denied("host_header")
    chunked = b"transfer-encoding" in names
    return Head(
        method=method,
        target=_target(bytes(request.target), method, place),
        fields=[*passed_on(fields, without=(b"host",)), *([(b"Transfer-Encoding", b"chunked")] if chunked else [])],
        body=chunked or lengths not in ([], [b"0"]),
    )


def ambiguous(names: Iterable[bytes]) -> bool:
    """Whether one of the names frames a message for a server that takes an underscore for a hyphen, and for no other one."""
    # security: "Transfer_Encoding" is a length of its own to such a server, and a second request is smuggled behind it
    return any(b"_" in name and name.lower().replace(b"_", b"-") in _FRAMING for name in names)


def passed_on(fields: Fields, *, without: Iterable[bytes] = ()) -> list[tuple[bytes, bytes]]:
    """Those fields that are not about one connection, in their order and spelling."""
    named = {word.strip().lower() for name, value in fields if name.lower() == b"connection" for word in value.split(b",")}
    # security: "Connection: Content-Length" would take away what both sides count by
    dropped = {*(named - {b"content-length"}), *_OF_A_CONNECTION, *without}
    return [(name, value) for name, value in fields if name.lower() not in dropped]


def host_field(place: Place, port: int, usual: int) -> tuple[bytes, bytes]:
    """The Host of a request to that port; without the port where it is the scheme's usual one."""
    written = str(Place(host=place.host, port=port))
    return b"Host", (written.removesuffix(f":{port}") if port == usual else written).encode("ascii")


def _names(value: bytes, place: Place) -> bool:
    """Whether a Host field, or the authority of a target, names the place, with its port or without one."""
    try:
        text = value.decode("ascii")
        if ":" in text and not text.endswith("]"):
            text, _, port = text.rpartition(":")
            if port != str(place.port):
                return False
        return canonical_host(text) == place.host
    except ValueError:
        return False


def _target(target: bytes, method: bytes, place: Place) -> bytes:
    """In origin form, whichever it came in (RFC 9112 section 3.2)."""
    if b"#" in target or b"\\" in target:
        raise Denied("not_http")
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target
    if target[:7].lower() != b"http://":
        raise Denied("not_http")
    authority, rest = re.fullmatch(rb"([^/?]*)(.*)", target[7:], re.DOTALL).groups()  # type: ignore[union-attr]  # it fits every text
    # security: the target outranks the Host field, RFC 9112 section 3.2.2
    if not _names(authority, place):
        raise Denied("host_header")
    return bytes(rest) if rest.startswith(b"/") else b"/" + bytes(rest)
