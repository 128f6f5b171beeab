"""What a TLS client says first: which host it wants, read out of its hello without any TLS being spoken.

Its job: bytes to a hello, whatever their portions; whether a hello is about a place. Sans-io.
Not its job: reading from a socket, what follows after the hello (``tunnel.py``).
Laws:
1. Bytes that are no hello of TLS are refused as soon as that shows, and no input raises anything else or is read beyond
   16 KiB (tests/unit/test_egress_hello.py).
2. The hellos of a real TLS client give the name that it wants, in any portions (tests/unit/test_egress_hello.py).
3. A hello that hides its host, names none, or another, is refused (tests/unit/test_egress_hello.py).
"""

import dataclasses

from engine.egress.traffic import Denied
from engine.policy.network import Place, canonical_host

LONGEST = 16 << 10  # bytes of records until the hello is complete; real ones have 200 to 2000
_RECORD, _NEWEST = b"\x16\x03", b"\x04"  # handshake, version 3.0 to 3.4; RFC 8446 section 5.1
_CLIENT_HELLO = 1  # RFC 8446 section 4
_FRAGMENT = 1 << 14  # bytes in a record, RFC 8446 section 5.1
_SERVER_NAME = 0  # RFC 6066 section 3
# encrypted_client_hello with its drafts' numbers, its outer_extensions, and encrypted_server_name before it
_HIDING = frozenset({0xFFCE, 0xFD00, *range(0xFE08, 0xFE0E)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hello:
    """``name`` as the client wrote it, None without one; ``hidden``: it carries an encrypted hello."""

    name: bytes | None
    hidden: bool


class Reader:
    """Takes bytes until the hello is complete; ``seen`` is all of them, to be passed on."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self._message = bytearray()
        self._at = 0  # where the next record begins

    def take(self, data: bytes | memoryview) -> Hello | None:
        """The hello once it is there. Raises Denied for bytes that are none."""
        self.seen += data
        while (length := self._record()) is not None:
            start = self._at + 5
            self._message += self.seen[start : start + length]
            self._at = start + length
            if (found := self._hello()) is not None:
                return found
        return None

    def _record(self) -> int | None:
        """The length of a record that is complete; its head is judged as soon as its bytes are there."""
        head = self.seen[self._at : self._at + 5]
        if head[:1] not in (b"", _RECORD[:1]) or head[1:2] not in (b"", _RECORD[1:]) or head[2:3] > _NEWEST:
            raise Denied("not_tls")
        if len(head) < 5:
            return None
        length = int.from_bytes(head[3:5], "big")
        # security: records without content could go on for ever
        if not 0 < length <= _FRAGMENT or self._at + 5 + length > LONGEST:
            raise Denied("not_tls")
        return length if len(self.seen) >= self._at + 5 + length else None

    def _hello(self) -> Hello | None:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise Denied("not_tls")
        if len(message) < 4:
            return None
        length = int.from_bytes(message[1:4], "big")
        # security: a second message in the same records could be a hello that another reader takes for the first
        if length > LONGEST or len(message) > 4 + length:
            raise Denied("not_tls")
        return _parsed(_Bytes(message[4:])) if len(message) == 4 + length else None


class _Bytes:
    """A message that is taken apart from its front."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data, self._at = bytes(data), 0

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise Denied("not_tls")
        found, self._at = self._data[self._at : end], end
        return found

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def vector(self, length: int) -> bytes:
        """What follows its own length, which has so many bytes."""
        return self.take(self.number(length))

    def over(self) -> bool:
        return self._at == len(self._data)


def _parsed(message: _Bytes) -> Hello:
    """The structure ClientHello of RFC 8446 section 4.1.2, which older versions share."""
    message.take(2 + 32)  # version, random
    session, suites, compression = message.vector(1), message.vector(2), message.vector(1)
    if len(session) > 32 or not suites or len(suites) % 2 or not compression:
        raise Denied("not_tls")
    if message.over():
        return Hello(name=None, hidden=False)
    found: dict[int, bytes] = {}
    extensions = _Bytes(message.vector(2))
    if not message.over():
        raise Denied("not_tls")
    while not extensions.over():
        number, content = extensions.number(2), extensions.vector(2)
        # security: two names, of which one is compared here and the other is used there
        if number in found:
            raise Denied("not_tls")
        found[number] = content
    name = _name(_Bytes(found[_SERVER_NAME])) if _SERVER_NAME in found else None
    return Hello(name=name, hidden=not _HIDING.isdisjoint(found))


def _name(extension: _Bytes) -> bytes:
    names = _Bytes(extension.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or not name or not names.over() or not extension.over():  # host_name is the only kind there is
        raise Denied("not_tls")
    return name


def judged(hello: Hello, place: Place) -> str | None:
    """Why a hello is refused for that place, a kind of refusal; None when it is about it."""
    if hello.hidden:
        return "encrypted_hello"
    if place.literal:  # RFC 6066 section 3: an address is no server's name
        return None if hello.name is None else "sni_mismatch"
    if hello.name is None:
        return "sni_missing"
    try:
        # security: "allowed.example\0.other" is the first name to one reader and the second one to another
        name = hello.name.decode("ascii")
        same = name == place.host or canonical_host(name) == place.host
    except ValueError:
        same = False
    return None if same else "sni_mismatch"
