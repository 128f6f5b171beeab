"""Hellos of TLS clients: read in any portions, refused for what they hide or name, never believed for what they are not."""

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.egress.hello import LONGEST, Hello, Reader, judged
from engine.egress.traffic import Denied
from engine.policy.network import Place
from tests.servers import hello

PLACE = Place(host="api.example.test", port=443)
LITERAL = Place(host="192.0.2.1", port=443)


def vector(length: int, content: bytes) -> bytes:
    """Bytes behind their own length."""
    return len(content).to_bytes(length, "big") + content


def extension(number: int, content: bytes) -> bytes:
    """One extension."""
    return number.to_bytes(2, "big") + vector(2, content)


def server_name(name: bytes, kind: int = 0) -> bytes:
    """The extension that names a host."""
    return extension(0, vector(2, bytes([kind]) + vector(2, name)))


def message(*extensions: bytes, session: bytes = b"", suites: bytes = b"\x13\x01", compression: bytes = b"\0") -> bytes:
    """A client's hello without records."""
    body = b"\x03\x03" + bytes(32) + vector(1, session) + vector(2, suites) + vector(1, compression) + vector(2, b"".join(extensions))
    return b"\x01" + vector(3, body)


def records(content: bytes, size: int = 1 << 14) -> bytes:
    """A message in records of at most that many bytes."""
    return b"".join(b"\x16\x03\x01" + vector(2, content[at : at + size]) for at in range(0, len(content), size))


def read(data: bytes, portion: int = 1 << 20) -> Hello | str | None:
    """What a reader makes of bytes that come in such portions."""
    reader = Reader()
    try:
        for at in range(0, len(data), portion):
            if (found := reader.take(data[at : at + portion])) is not None:
                return found
    except Denied as denied:
        return denied.kind
    return None


def verdict(data: bytes, place: Place = PLACE) -> str | None:
    """Why those bytes are refused for a place."""
    found = read(data)
    return judged(found, place) if isinstance(found, Hello) else found or "incomplete"


@pytest.mark.parametrize("portion", [1, 2, 5, 6, 100, 1 << 20])
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_hello_of_a_real_client_names_its_host(newest: ssl.TLSVersion, portion: int) -> None:
    """Of this OpenSSL, in portions of any size."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = newest
    context.set_alpn_protocols(["h2", "http/1.1"])
    assert read(hello("api.example.test", context), portion) == Hello(name=b"api.example.test", hidden=False)


def test_the_hello_of_a_real_client_without_a_name_has_none() -> None:
    """It is refused for a name, and accepted for an address."""
    assert read(hello(None)) == Hello(name=None, hidden=False)
    assert (verdict(hello(None)), verdict(hello(None), LITERAL)) == ("sni_missing", None)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_hello_in_many_records_is_one_hello(size: int) -> None:
    """Split within its head and within its name."""
    assert read(records(message(server_name(b"api.example.test")), size), 7) == Hello(name=b"api.example.test", hidden=False)


def test_all_that_came_is_kept_to_be_passed_on() -> None:
    """With what follows after the hello."""
    reader = Reader()
    sent = records(message(server_name(b"api.example.test"))) + b"\x14\x03\x03\x00\x01\x01early data"
    assert reader.take(sent) is not None
    assert bytes(reader.seen) == sent


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (records(message(server_name(b"api.example.test"))), None),
        (records(message(server_name(b"API.Example.TEST"))), None),
        (records(message(server_name(b"api.example.test."))), None),
        (records(message(extension(0x2A2A, b"grease"), server_name(b"api.example.test"))), None),
        (records(message(server_name(b"other.example.test"))), "sni_mismatch"),
        (records(message(server_name(b"example.test"))), "sni_mismatch"),
        (records(message(server_name(b"x.api.example.test"))), "sni_mismatch"),
        (records(message(server_name(b"api.example.test\0.evil.test"))), "sni_mismatch"),
        (records(message(server_name(b"evil.test\0api.example.test"))), "sni_mismatch"),
        (records(message(server_name(b"api.example.test:443"))), "sni_mismatch"),
        (records(message(server_name(b"*.example.test"))), "sni_mismatch"),
        (records(message(server_name("api。example。test".encode()))), "sni_mismatch"),
        (records(message(server_name(b"192.0.2.1"))), "sni_mismatch"),
        (records(message()), "sni_missing"),
        (records(message(server_name(b"api.example.test"), extension(0xFE0D, b"\0"))), "encrypted_hello"),
        (records(message(server_name(b"api.example.test"), extension(0xFFCE, b"\0"))), "encrypted_hello"),
        (records(message(extension(0xFE0A, b"\0"))), "encrypted_hello"),
        (records(message(server_name(b"api.example.test"), server_name(b"api.example.test"))), "not_tls"),
        (records(message(server_name(b"api.example.test"), extension(5, b""), extension(5, b""))), "not_tls"),
        (records(message(server_name(b"api.example.test", kind=1))), "not_tls"),
        (records(message(server_name(b""))), "not_tls"),
        (records(message(extension(0, vector(2, b"\0" + vector(2, b"api.example.test") * 2)))), "not_tls"),
        (records(message(extension(0, vector(2, b"\0" + vector(2, b"api.example.test")) + b"x"))), "not_tls"),
        (records(message(server_name(b"api.example.test"), suites=b"")), "not_tls"),
        (records(message(server_name(b"api.example.test"), suites=b"\x13")), "not_tls"),
        (records(message(server_name(b"api.example.test"), compression=b"")), "not_tls"),
        (records(message(server_name(b"api.example.test"), session=bytes(33))), "not_tls"),
        (records(message(server_name(b"api.example.test")) * 2), "not_tls"),
        (records(message(server_name(b"api.example.test")) + b"x"), "not_tls"),
        (records(b"\x02" + message()[1:]), "not_tls"),
        (b"GET / HTTP/1.1\r\n", "not_tls"),
        (b"\x80\x2e\x01\x00\x02", "not_tls"),  # the hello of SSL 2
        (b"\x17\x03\x03\x00\x01x", "not_tls"),
        (b"\x16\x02\x01\x00\x01\x01", "not_tls"),
        (b"\x16\x03\x05\x00\x01\x01", "not_tls"),
        (b"\x16\x03\x01\x00\x00", "not_tls"),
        (b"\x16\x03\x01\xff\xff", "not_tls"),
        (b"\x16\x03\x01\x00\x01\x01\x17\x03\x01\x00\x01\x01", "not_tls"),  # another kind of record within the hello
        (b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", "not_tls"),
        (records(b"\x01" + vector(3, bytes(LONGEST - 4)), 100), "not_tls"),  # with its records it is beyond the bound
    ],
)
def test_a_hello_is_judged_by_what_it_says(data: bytes, kind: str | None) -> None:
    """And what is no hello is refused."""
    assert verdict(data) == kind


def test_what_is_not_tls_shows_with_its_first_byte() -> None:
    """Nothing is waited for."""
    assert [read(bytes([first])) for first in (0x00, 0x15, 0x17, 0x47, 0x80)] == ["not_tls"] * 5
    assert read(b"\x16") is None


def test_the_largest_hello_passes_and_one_byte_more_does_not() -> None:
    """16 KiB of records."""
    head = len(records(message(server_name(b"api.example.test"), extension(21, b""))))
    largest, beyond = (records(message(server_name(b"api.example.test"), extension(21, bytes(LONGEST - head + more)))) for more in (0, 1))
    assert (len(largest), verdict(largest), verdict(beyond)) == (LONGEST, None, "not_tls")


@given(st.binary(max_size=400), st.integers(1, 50))
def test_no_bytes_raise_anything_but_a_refusal(data: bytes, portion: int) -> None:
    """As they are, as a record, and as a hello's body."""
    for made in (data, b"\x16\x03\x01" + vector(2, data or b"\x01"), records(b"\x01" + vector(3, data), 97)):
        found = read(made, portion)
        assert found is None or found == "not_tls" or isinstance(found, Hello)


@given(st.data())
def test_a_real_hello_with_a_flaw_raises_nothing_but_a_refusal(data: st.DataObject) -> None:
    """One byte changed, or cut somewhere: then it is refused, incomplete, or still a hello."""
    good = bytearray(records(message(server_name(b"api.example.test"), extension(10, b"\0\x02\0\x17"), session=bytes(32))))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    found = read(bytes(good[: data.draw(st.integers(1, len(good)))]), data.draw(st.integers(1, 60)))
    assert found is None or found == "not_tls" or isinstance(found, Hello)
