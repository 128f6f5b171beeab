"""Staged beside an attempt on a scope: the ways of connecting that a hostile tool has, with nothing of the engine in them.

``where`` is a host and a port: in a worker a name that it was granted, bare the address at which the same server listens.
"""

import contextlib
import hashlib
import os
import socket
import ssl
import struct
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

Where = list[Any]
SECONDS = 25
REQUEST = b"GET / HTTP/1.1\r\nHost: %s:%d\r\n\r\n"
KEPT: list[socket.socket] = []  # of this process, for whoever comes after
ENCRYPTED_HELLO = 0xFE0D  # the extension encrypted_client_hello (RFC 9849)


def opened(where: Where) -> socket.socket:
    """A connection."""
    return socket.create_connection((where[0], where[1]), SECONDS)


def secured(where: Where, name: str | None, *, trusting: bool = False) -> ssl.SSLSocket:
    """A connection by TLS whose hello has that name."""
    context = ssl.create_default_context()
    if not trusting:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = opened(where)
    try:
        return context.wrap_socket(plain, server_hostname=name)
    except BaseException:
        plain.close()
        raise


def tls(where: Where, name: str | None) -> str:
    """What the server says by TLS."""
    with secured(where, name) as made:
        made.sendall(REQUEST % (str(where[0]).encode(), where[1]))
        return said(made)


def plain(where: Where, *pieces: str) -> str:
    """What the server says to these bytes, sent one after the other on one connection, each after an answer to the one before."""
    with opened(where) as made:
        found = []
        for piece in pieces:
            made.sendall(piece.encode("latin-1"))
            found.append(said(made))
        return " ".join(found)


def said(made: socket.socket) -> str:
    """The body of an answer; of what is none, all that comes."""
    found = b""
    while (data := made.recv(4096)) and not whole(found := found + data):
        pass
    return found.rpartition(b"\r\n\r\n")[2].decode("latin-1")


def whole(found: bytes) -> bool:
    """Whether an answer has come to its end."""
    head, end, body = found.lower().partition(b"\r\n\r\n")
    return bool(end) and len(body) >= int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)


def hello(name: str) -> bytes:
    """The first that a client says, with that name in it, whatever its bytes are."""
    wanted = name.encode("utf-8")
    holder = b"x" * max(len(wanted) - 5, 1) + b".test"
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=holder.decode()).do_handshake()
    return sent.read().replace(holder, wanted.ljust(len(holder), b"\0"))


def with_extension(whole: bytes, kind: int, content: bytes) -> bytes:
    """A hello with an extension more, at its end."""
    body = whole[9:]
    at = 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    size = int.from_bytes(body[at : at + 2], "big")
    added = struct.pack(">HH", kind, len(content)) + content
    body = body[:at] + struct.pack(">H", size + len(added)) + body[at + 2 :] + added
    return whole[:3] + struct.pack(">H", len(body) + 4) + whole[5:6] + len(body).to_bytes(3, "big") + body


def greeted(where: Where, first: bytes, cut: int = 0) -> str:
    """Whether the server answers that hello as TLS does; it may be cut into two records, of which the first has so many bytes."""
    if cut:
        held = first[5:]
        first = b"".join(first[:3] + struct.pack(">H", len(part)) + part for part in (held[:cut], held[cut:]))
    with opened(where) as made:
        made.sendall(first)
        answer = made.recv(1)
        return "greeted" if answer == b"\x16" else f"answered {answer!r}"


def by_hello(where: Where, name: str, kind: int = 0, cut: int = 0) -> str:
    """The same with the hello of that name; with an extension of that kind when one is named."""
    first = hello(name)
    if kind:
        # of an outer hello: its kind, AES-128-GCM with HKDF-SHA256, number 7, a key of 32 bytes, 64 bytes that nobody can read
        first = with_extension(first, kind, b"\0" + struct.pack(">HHB", 1, 1, 7) + b"\0\x20" + bytes(32) + b"\0\x40" + bytes(64))
    return greeted(where, first, cut)


def chained(where: Where, target: str) -> str:
    """What somebody else says, by way of a server that forwards."""
    with opened(where) as made:
        made.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        if b" 200 " not in made.recv(4096):
            return "not connected"
        made.sendall(b"GET / HTTP/1.1\r\nHost: any\r\n\r\n")
        return said(made)


def redirected(where: Where, path: str) -> str:
    """What is at the end of a redirect, by a client that follows it."""
    with urllib.request.urlopen(f"http://{where[0]}:{where[1]}{path}", timeout=SECONDS) as answer:
        return str(answer.read().decode())


def taken(where: Where, name: str, path: str, most: int) -> int:
    """How many bytes of an answer come, at most so many."""
    count = 0
    with contextlib.suppress(OSError), secured(where, name) as made:
        made.sendall(f"GET {path} HTTP/1.1\r\nHost: {where[0]}:{where[1]}\r\n\r\n".encode())
        while count < most and (data := made.recv(1 << 16)):
            count += len(data)
    return count


def taken_and_more(where: Where, name: str, path: str) -> str:
    """What the server says to another connection, after an answer was taken as far as it comes."""
    taken(where, name, path, 1 << 40)
    return tls(where, name)


def given_up(where: Where, name: str, size: int) -> str:
    """What becomes of a body of that size that is sent."""
    with secured(where, name) as made:
        body = bytes(size)
        made.sendall(b"POST /up HTTP/1.1\r\nHost: any\r\nContent-Length: %d\r\n\r\n" % size)
        made.sendall(body)
        answer = made.recv(4096).decode("latin-1")
    return "whole" if hashlib.sha256(body).hexdigest() in answer else f"cut: {answer[-60:]}"


def one_after_the_other(where: Where, name: str, count: int) -> list[str]:
    """As many connections in turn, whatever becomes of each."""
    return [tried(lambda: tls(where, name)) for _ in range(count)]


def side_by_side(where: Where, name: str, count: int) -> list[str]:
    """As many connections that all stay open."""
    kept: list[ssl.SSLSocket] = []

    def another() -> str:
        kept.append(secured(where, name))
        kept[-1].sendall(REQUEST % (str(where[0]).encode(), where[1]))
        return said(kept[-1])

    return [tried(another) for _ in range(count)]


def half_a_hello(where: Where, name: str) -> str:
    """How a connection ends on which a client says half of what it says first, and then waits."""
    first = hello(name)
    with opened(where) as made:
        made.sendall(first[: len(first) // 2])
        return ended(made)


def idle(where: Where, name: str) -> str:
    """How a connection ends on which nothing more is said after an answer."""
    with secured(where, name) as made:
        made.sendall(REQUEST % (str(where[0]).encode(), where[1]))
        made.recv(4096)
        return ended(made)


def ended(made: socket.socket) -> str:
    """Once it has."""
    try:
        data = made.recv(1)
    except TimeoutError:
        return "stays open"
    except OSError:
        return "ended"
    return f"said {data!r}" if data else "ended"


def sending(where: Where, name: str) -> None:
    """Has a thread send without end; returns once some of it has left."""
    left = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError), secured(where, name) as made:
            made.sendall(b"POST /up HTTP/1.1\r\nHost: any\r\nContent-Length: 1000000000000\r\n\r\n")
            while True:
                made.sendall(bytes(1 << 16))
                left.set()

    threading.Thread(target=send, daemon=True).start()
    assert left.wait(SECONDS)


def start(where: Where, name: str) -> None:
    """A connection for later, on which a hello was said."""
    KEPT.append(opened(where))
    KEPT[-1].sendall(hello(name))


def leave(where: Where, times: int) -> int:
    """So many connections, begun and left as they are."""
    for _ in range(times):
        KEPT.append(socket.socket())
        KEPT[-1].setblocking(False)
        KEPT[-1].connect_ex((socket.gethostbyname(where[0]), where[1]))
    return len(KEPT)


def kept(where: Where, name: str) -> str:
    """What the server says on the connection that an earlier call has left, or on a new one."""
    if not KEPT:
        KEPT.append(secured(where, name))
    KEPT[0].sendall(REQUEST % (str(where[0]).encode(), where[1]))
    return said(KEPT[0])


def in_the_middle(where: Where, name: str, path: str, then: str) -> str:
    """What ends in the middle of an answer: by itself, with its process, or never."""
    KEPT.append(secured(where, name))
    KEPT[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: {where[0]}:{where[1]}\r\n\r\n".encode())
    KEPT[-1].recv(1)
    if then == "exit":
        os._exit(3)
    if then == "wait":
        threading.Event().wait()
    return "returned"


def tried(act: Callable[[], Any]) -> Any:
    """What it gives, or the name of the error that it ends with; of all errors of TLS and of connections one name."""
    try:
        return act()
    except (ssl.SSLError, ConnectionError, EOFError):
        return "cut"
    except socket.gaierror:
        return "no such name"
    except Exception as error:
        return type(error).__name__


def listed(text: str) -> Any:
    """The function of that name."""
    return globals()[text]
