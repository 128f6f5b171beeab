"""Frames to a guest and bytes from it, over a socket pair."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from wasm.relay import Channel, write


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel]]:
    """The supervisor's end, and a channel with the child's."""
    ours, theirs = socket.socketpair()
    channel = Channel()
    channel.open(theirs.fileno())
    with ours, theirs:
        yield ours, channel


def framed(payload: bytes) -> bytes:
    """As the supervisor sends it."""
    return len(payload).to_bytes(4, "big") + payload


def test_frames_come_whole_and_in_order(ends: tuple[socket.socket, Channel]) -> None:
    """In one piece, in pieces of one byte, an empty one, and several at once."""
    ours, channel = ends
    payloads = [b"one", b"", bytes(range(256)), b"x" * 70_000]
    sent = b"".join(map(framed, payloads))

    def send() -> None:
        for at in range(600):
            ours.sendall(sent[at : at + 1])
        ours.sendall(sent[600:])

    sender = threading.Thread(target=send)
    sender.start()
    assert [channel.receive(wait=True) for _ in payloads] == payloads
    sender.join()


def test_without_waiting_there_may_be_none_yet(ends: tuple[socket.socket, Channel]) -> None:
    """Nothing, half a frame: empty. The whole frame: that."""
    ours, channel = ends
    assert channel.receive(wait=False) == b""
    frame = framed(b"here")
    ours.sendall(frame[:6])
    assert channel.receive(wait=False) == b""
    ours.sendall(frame[6:])
    assert channel.receive(wait=False) == b"here"


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("rest", [b"", b"\0\0\0\5ha"])
def test_a_closed_channel_has_no_more_frames(ends: tuple[socket.socket, Channel], rest: bytes, wait: bool) -> None:
    """Also when it was closed within a frame; one that came whole before is given out."""
    ours, channel = ends
    ours.sendall(framed(b"last") + rest)
    ours.close()
    assert channel.receive(wait=wait) == b"last"
    assert channel.receive(wait=wait) is None


def test_writing_waits_for_a_reader() -> None:
    """More than a pipe holds arrives whole; without a reader it is an error."""
    near, far = os.pipe()
    data = os.urandom(1 << 20)

    def send() -> None:
        write(far, data)
        os.close(far)

    writer = threading.Thread(target=send)
    writer.start()
    got = b""
    while part := os.read(near, 1 << 16):
        got += part
    writer.join()
    os.close(near)
    assert got == data
    near, far = os.pipe()
    os.close(near)
    with pytest.raises(BrokenPipeError):
        write(far, b"x")
    os.close(far)
