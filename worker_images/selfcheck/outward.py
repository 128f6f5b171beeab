"""What ``stockade doctor`` runs in a jail with a scope: the one granted place must answer, and nothing else may be there.

Its job: try, and tell what happened in one line each. A tool file by itself: the host lays a copy of it beside the name of its place.
Not its job: judging: the host looks at its listeners itself.
"""

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine import tool

PLACE = json.loads(Path(__file__).with_name("place.json").read_text(encoding="ascii"))
ELSEWHERE = "198.51.100.7"  # of no host (RFC 5737): without a wall a connection to it is under way, and with one it is refused at once
_SECONDS = 10


@dataclass
class Tried:
    """One attempt and its end."""

    name: str
    held: bool
    how: str


@tool(effect="read", network=[PLACE], data=["place.json"])
def reach(word: str, other: int) -> list[Tried]:
    """Ask the granted place for a word, then try another name, another listener of the host, another host and another kind of socket."""
    host, _, port = PLACE.rpartition(":")
    return [
        _asked(host, int(port), word),
        _refused("look up another name", lambda: socket.getaddrinfo(f"other.{host}", int(port))),
        _refused("reach another listener of this host", lambda: _connect("127.0.0.1", other)),
        _refused("reach another host", lambda: _connect(ELSEWHERE, int(port))),
        _refused("make a socket without a connection", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
    ]


def _asked(host: str, port: int, word: str) -> Tried:
    name, got = "reach the granted place", b""
    try:
        with _connect(host, port) as end:
            end.sendall(f"GET /{word} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode("ascii"))
            while piece := end.recv(4096):
                got += piece
    except OSError as error:
        return Tried(name, False, error.strerror or type(error).__name__)
    held = got.startswith(b"HTTP/1.1 200 ") and got.endswith(word.encode("ascii"))
    return Tried(name, held, "it answered" if held else "the connection ended without its answer")


def _connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=_SECONDS)


def _refused(name: str, attempt: Callable[[], object]) -> Tried:
    try:
        attempt()
    except TimeoutError:
        return Tried(name, False, "it was on its way")
    except OSError as error:
        return Tried(name, True, error.strerror or type(error).__name__)
    return Tried(name, False, "it was let through")
