"""A name server of this process: its answers are those of a function, which may give others each time it is asked.

It speaks as much of RFC 1035 as a stub resolver needs: one question by UDP, answered with addresses.
"""

import contextlib
import dataclasses
import ipaddress
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import trio

from engine.egress.resolver import NoAddress

A, AAAA = 1, 28  # RFC 1035 section 3.2.2, RFC 3596
_HEADER = struct.Struct(">6H")
_SECONDS = 30.0  # a bound for a test that goes wrong
Answers = Callable[[str, int], Sequence[str]]  # of a name and of how often that name was asked for, from 0, each type for itself


def steadily(answers: Mapping[str, Sequence[str]]) -> Answers:
    """The same each time."""
    return lambda name, _: answers.get(name, ())


def in_turn(*rounds: Sequence[str]) -> Answers:
    """Of one name after the other; the last one for ever."""
    return lambda _, count: rounds[min(count, len(rounds) - 1)]


@dataclasses.dataclass(frozen=True)
class Question:
    """What was asked."""

    name: str
    kind: int


class Responder:
    """A name server on a loopback address. ``asked`` is what it was asked, in order."""

    def __init__(self, answers: Answers, *, address: str = "127.0.0.1", port: int = 0) -> None:
        self.asked: list[Question] = []
        self.answers = answers
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, port))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            data, peer = self._socket.recvfrom(512)
            if not data:
                return
            self._socket.sendto(self._answered(data), peer)

    def _answered(self, data: bytes) -> bytes:
        number, flags, *_ = _HEADER.unpack_from(data)
        labels, at = [], _HEADER.size
        while size := data[at]:
            labels.append(data[at + 1 : at + 1 + size].decode("latin-1"))
            at += 1 + size
        (kind,) = struct.unpack_from(">H", data, at + 1)
        asked = Question(".".join(labels).lower(), kind)
        addresses = [ipaddress.ip_address(one) for one in self.answers(asked.name, self.asked.count(asked))]
        self.asked.append(asked)
        fitting = [one.packed for one in addresses if {A: 4, AAAA: 6}.get(kind) == one.version]
        # a pointer to the name in the question, the type, the class IN, no time to live
        records = [struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(packed)) + packed for packed in fitting]
        # an answer, authoritative, recursion as wished and had; a name without any address does not exist
        status = 0x8480 | (flags & 0x0100) | (0 if addresses else 3)
        return _HEADER.pack(number, status, 1, len(records), 0, 0) + data[_HEADER.size : at + 5] + b"".join(records)

    def close(self) -> None:
        """End it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address)
        self._thread.join(_SECONDS)
        self._socket.close()


@contextlib.contextmanager
def responding(answers: Answers, *, address: str = "127.0.0.1", port: int = 0) -> Iterator[Responder]:
    """One of them, ended with the block."""
    made = Responder(answers, address=address, port=port)
    try:
        yield made
    finally:
        made.close()


class Asking:
    """A resolver of an engine that asks a name server at that address, for both kinds of address, each time anew."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server

    async def addresses(self, host: str) -> Sequence[str]:
        """Every address in its answers."""
        found = [one for kind in (A, AAAA) for one in await self._asked(host, kind)]
        if not found:
            raise NoAddress
        return found

    async def _asked(self, host: str, kind: int) -> list[str]:
        labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in host.split("."))
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as made, trio.fail_after(_SECONDS):
            await made.connect(self._server)
            await made.send(_HEADER.pack(kind, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1))
            data = await made.recv(4096)
        _, _, _, count, *_ = _HEADER.unpack_from(data)
        at, found = _HEADER.size + len(labels) + 1 + 4, []
        for _ in range(count):
            (size,) = struct.unpack_from(">H", data, at + 10)
            found.append(str(ipaddress.ip_address(data[at + 12 : at + 12 + size])))
            at += 12 + size
        return found
