"""Lengths and the cutting of a stream into frames."""

import pytest

from engine.wire.framing import FrameBuffer, RemoteFault, frame

LONGEST = 64


def taken(buffer: FrameBuffer) -> list[bytes]:
    """Every whole frame's payload that the buffer holds."""
    payloads = []
    while (length := buffer.length()) is not None and buffer.whole(length):
        view = buffer.payload(length)
        payloads.append(bytes(view))
        view.release()
        buffer.drop(length)
    return payloads


def test_a_frame_is_its_length_in_four_bytes_and_its_payload() -> None:
    """The length is big-endian and does not count itself."""
    assert frame(b"abc") == b"\0\0\0\3abc"


def test_what_was_framed_comes_out_again() -> None:
    """Frames come out whole and in order."""
    buffer = FrameBuffer(LONGEST)
    buffer.feed(frame(b"one") + frame(b"three"))
    assert taken(buffer) == [b"one", b"three"]
    assert len(buffer) == 0


@pytest.mark.parametrize("piece", range(1, 12))
def test_pieces_do_not_change_the_frames(piece: int) -> None:
    """However the stream is cut, the frames are the same."""
    stream = frame(b"one") + frame(b"x" * LONGEST) + frame(b"22")
    buffer, payloads = FrameBuffer(LONGEST), []
    for at in range(0, len(stream), piece):
        buffer.feed(stream[at : at + piece])
        payloads += taken(buffer)
    assert payloads == [b"one", b"x" * LONGEST, b"22"]


@pytest.mark.parametrize("length", [2, LONGEST - 1, LONGEST])
def test_lengths_within_the_bound_are_taken(length: int) -> None:
    """The bound itself is inside."""
    buffer = FrameBuffer(LONGEST)
    buffer.feed(frame(b"x" * length))
    assert taken(buffer) == [b"x" * length]


@pytest.mark.parametrize("length", [0, 1])
def test_a_length_too_short_for_a_message_is_a_fault(length: int) -> None:
    """Every message has at least an array's head and a number."""
    buffer = FrameBuffer(LONGEST)
    buffer.feed(length.to_bytes(4, "big"))
    with pytest.raises(RemoteFault) as caught:
        buffer.length()
    assert (caught.value.code, caught.value.line) == ("violation.protocol", "the worker sent a frame too short for any message")


@pytest.mark.parametrize("length", [LONGEST + 1, 1 << 31, (1 << 32) - 1])
def test_a_length_over_the_bound_is_a_fault_by_its_four_bytes(length: int) -> None:
    """No byte of the body is awaited."""
    buffer = FrameBuffer(LONGEST)
    buffer.feed(length.to_bytes(4, "big"))
    with pytest.raises(RemoteFault) as caught:
        buffer.length()
    assert (caught.value.code, caught.value.line) == ("violation.protocol", "the worker sent a frame longer than its bound")


def test_three_bytes_are_no_length_yet() -> None:
    """Nothing is judged before the length is whole, even when it cannot become a good one."""
    buffer = FrameBuffer(LONGEST)
    buffer.feed(b"\xff\xff\xff")
    assert buffer.length() is None


def test_the_first_two_bytes_can_be_seen_before_the_rest() -> None:
    """A message's head is known six bytes into its frame."""
    buffer = FrameBuffer(LONGEST)
    buffer.feed(b"\0\0\0\x09\x92")
    assert buffer.start() is None
    buffer.feed(b"\x17")
    assert buffer.start() == (0x92, 0x17)
    assert not buffer.whole(9)


def test_a_dropped_frame_frees_its_memory() -> None:
    """A buffer that was drained does not go on holding the largest frame it saw."""
    buffer = FrameBuffer(1 << 20)
    buffer.feed(frame(b"x" * (1 << 20)))
    taken(buffer)
    assert buffer._bytes.__alloc__() < 1024


def test_a_fault_is_one_printable_line() -> None:
    """What could drive a terminal or forge a line of a log does not survive in a fault."""
    assert RemoteFault("violation.protocol", "a\n\x1b[31mb\ud800").line == "a b"


def test_four_bytes_are_the_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that four bytes cannot measure is refused, not sent with a shorter length."""
    monkeypatch.setattr("engine.wire.framing.LONGEST", 4)
    assert frame(b"four") == b"\0\0\0\4four"
    with pytest.raises(ValueError, match="less than 4 GiB"):
        frame(b"fives")


@pytest.mark.parametrize("after", [b"", b"\0\0\0\2", frame(b"next")])
def test_a_frame_is_handed_over_and_what_follows_stays(after: bytes) -> None:
    """The payload is read-only and nobody else's; the buffer goes on behind it."""
    buffer = FrameBuffer(LONGEST)
    buffer.feed(frame(b"first") + after)
    taken = buffer.take(5)
    assert (bytes(taken), taken.readonly, len(buffer)) == (b"first", True, len(after))
    buffer.feed(b"more")
    assert bytes(taken) == b"first"
    assert len(buffer) == len(after) + 4
