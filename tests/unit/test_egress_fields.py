"""Heads of requests: passed on when they are about the place, written anew, and never ambiguous."""

import h11
import pytest

from engine.egress.exchange import addressed
from engine.egress.fields import Head, folded, host_field, passed_on, request_for
from engine.egress.traffic import Denied
from engine.policy.network import Place, Transport
from tests.doors import destination

PLACE = Place(host="api.example.test", port=8080)
GOOD = b"GET /a?b HTTP/1.1\r\nHost: api.example.test\r\n\r\n"


def judged(raw: bytes) -> Head | str:
    """What is passed on of a request as a tool would send it; or the kind of refusal, h11's among them."""
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(raw)
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return "not_http"
    if folded(raw):
        return "not_http"
    assert isinstance(event, h11.Request)
    try:
        return request_for(PLACE, event)
    except Denied as denied:
        return denied.kind


def with_host(host: bytes, target: bytes = b"/") -> bytes:
    """A request with that Host."""
    return b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"


def with_fields(*fields: bytes, method: bytes = b"POST") -> bytes:
    """A request with those lines."""
    return method + b" / HTTP/1.1\r\nHost: api.example.test\r\n" + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def test_a_plain_request_is_passed_on() -> None:
    """Its target as it is, its fields in their order and spelling, without its Host."""
    raw = b"GET /a?b=%20 HTTP/1.1\r\nX-b: 2\r\nHost: api.example.test:8080\r\nx-A: 1\r\n\r\n"
    assert judged(raw) == Head(method=b"GET", target=b"/a?b=%20", fields=[(b"X-b", b"2"), (b"x-A", b"1")], body=False)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        (b"api.example.test", None),
        (b"API.Example.test", None),
        (b"api.example.test.", None),
        (b"api.example.test:8080", None),
        (b"api.example.test.:8080", None),
        (b"api.example.test:80", "host_header"),
        (b"api.example.test:08080", "host_header"),
        (b"api.example.test:", "host_header"),
        (b"other.example.test", "host_header"),
        (b"example.test", "host_header"),
        (b"api.example.test.evil.test", "host_header"),
        (b"evil.test:8080", "host_header"),
        (b"user@api.example.test", "host_header"),
        (b"api.example.test@evil.test", "host_header"),
        (b"api.example.test evil.test", "host_header"),
        (b"api.example.test,evil.test", "host_header"),
        (b"api.example.test/", "host_header"),
        (b"api.example.test\\evil.test", "host_header"),
        (b"[api.example.test]", "host_header"),
        (b"127.0.0.1:8080", "host_header"),
        (b"\xc3\xa4pi.example.test", "host_header"),
        (b"", "host_header"),
        (b"api.example.test\0evil.test", "not_http"),
    ],
)
def test_the_host_names_the_place_or_the_request_is_refused(host: bytes, kind: str | None) -> None:
    """In every spelling of one name, with the place's port or without one."""
    found = judged(with_host(host))
    assert (found if isinstance(found, str) else None) == kind


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (b"http://api.example.test/x?y", b"/x?y"),
        (b"HTTP://API.example.test:8080", b"/"),
        (b"http://api.example.test?y", b"/?y"),
        (b"//evil.test/x", b"//evil.test/x"),  # a path: the place and the Host are what was granted
        (b"http://evil.test/x", "host_header"),
        (b"http://api.example.test@evil.test/", "host_header"),
        (b"http://api.example.test:80/", "host_header"),
        (b"https://api.example.test/", "not_http"),
        (b"ftp://api.example.test/", "not_http"),
        (b"api.example.test:8080", "not_http"),
        (b"*", "not_http"),
        (b"/a#b", "not_http"),
        (b"/a\\b", "not_http"),
        (b"/a b", "not_http"),
    ],
)
def test_an_absolute_target_agrees_and_becomes_a_path(target: bytes, found: bytes | str) -> None:
    """What is neither a path nor an address of the place is refused."""
    head = judged(with_host(b"api.example.test", target))
    assert (head if isinstance(head, str) else head.target) == found


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (with_fields(b"Content-Length: 1", b"Content-Length: 2"), "not_http"),
        (with_fields(b"Content-Length: 1, 2"), "not_http"),
        (with_fields(b"Content-Length: +1"), "not_http"),
        (with_fields(b"Content-Length: 1", b"Transfer-Encoding: chunked"), "not_http"),
        (with_fields(b"Transfer-Encoding: gzip, chunked"), "not_http"),
        (with_fields(b"Transfer-Encoding: xchunked"), "not_http"),
        (with_fields(b"Transfer-Encoding : chunked"), "not_http"),
        *(
            (with_fields(name + b": 1"), "not_http")
            for name in (b"Transfer_Encoding", b"content_length", b"Keep_Alive", b"PROXY_AUTHORIZATION", b"Http2_Settings")
        ),
        (with_fields(b"X: a", b" b: c"), "not_http"),
        (with_fields(b"X: a\rHost: evil.test"), "not_http"),
        (with_fields(b"X\0: a"), "not_http"),
        (with_fields(b": a"), "not_http"),
        (with_fields(b"Host: api.example.test"), "not_http"),
        (with_fields(b"Host: evil.test"), "not_http"),
        (b"GET / HTTP/1.1\r\n\r\n", "not_http"),
        (b"GET / HTTP/1.0\r\n\r\n", "host_header"),
        (b"GET / HTTP/2.0\r\nHost: api.example.test\r\n\r\n", "not_http"),
        (b"GET /\r\nHost: api.example.test\r\n\r\n", "not_http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not_http"),
        (b"CONNECT api.example.test:443 HTTP/1.1\r\nHost: api.example.test\r\n\r\n", "method"),
        (with_fields(method=b"TRACE"), "method"),
        (with_fields(method=b"connect"), "method"),
        (with_fields(b"Connection: upgrade", b"Upgrade: websocket", method=b"GET"), "switch"),
        (with_fields(b"Upgrade: h2c", method=b"GET"), "switch"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(raw: bytes, kind: str) -> None:
    """By h11 or here; the control is below."""
    assert judged(raw) == kind


def test_a_body_with_one_length_passes() -> None:
    """The control: a length, chunks, or none."""
    found = [
        judged(with_fields(*fields)) for fields in ((b"Content-Length: 3",), (b"Transfer-Encoding: chunked",), (b"Content-Length: 0",), ())
    ]
    assert [(head.fields, head.body) for head in found if isinstance(head, Head)] == [
        ([(b"Content-Length", b"3")], True),
        ([(b"Transfer-Encoding", b"chunked")], True),
        ([(b"Content-Length", b"0")], False),
        ([], False),
    ]


def test_what_is_about_one_connection_stays_there() -> None:
    """With what a Connection field names, but for the length that both sides count by."""
    fields = [
        (b"Connection", b"close, X-Own, content-length"),
        (b"X-Own", b"1"),
        (b"X-Other", b"2"),
        (b"Content-Length", b"3"),
        (b"Keep-Alive", b"1"),
        (b"TE", b"trailers"),
        (b"Trailer", b"X"),
        (b"Proxy-Authorization", b"x"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"x"),
    ]
    assert passed_on(fields) == [(b"X-Other", b"2"), (b"Content-Length", b"3")]


@pytest.mark.parametrize(
    ("place", "port", "value"),
    [
        (PLACE, 80, b"api.example.test"),
        (PLACE, 8080, b"api.example.test:8080"),
        (Place(host="2001:db8::1", port=1), 80, b"[2001:db8::1]"),
        (Place(host="2001:db8::1", port=1), 8080, b"[2001:db8::1]:8080"),
    ],
)
def test_the_host_is_written_from_the_place(place: Place, port: int, value: bytes) -> None:
    """Without the scheme's usual port."""
    assert host_field(place, port, 80) == (b"Host", value)


def test_what_cannot_be_written_is_refused_without_being_repeated() -> None:
    """The words of h11 have the bytes in them."""
    head = Head(method=b"GET", target=b"/", fields=[(b"X", b"secret\nvalue")], body=False)
    with pytest.raises(Denied) as caught:
        addressed(head, destination(80, Transport.HTTP), tls=False)
    assert (str(caught.value), caught.value.__suppress_context__) == ("not_http", True)


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (GOOD, False),
        (GOOD + b"\r\n x", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", True),
        (b"GET / HTTP/1.1\nHost: a\n\tb\n\n", True),
    ],
)
def test_a_folded_line_is_seen_in_the_head_alone(seen: bytes, found: bool) -> None:
    """What comes after the head is no line of it."""
    assert folded(seen) is found
