"""Frames: a length of four bytes, big-endian, then that many bytes of one message.

Its job: cut the stream of one worker into frames within a bound, put a length before what we send; the class of a worker's faults.
Not its job: what is in a frame (``messages.py``), which frame may come now (``session.py``), moving bytes (``supervision/pump.py``).
Laws:
1. A length outside the bound is refused from the four bytes alone; nothing is set aside for it (tests/unit/test_framing.py).
2. However the stream is cut into pieces, the frames are the same (tests/unit/test_framing.py).
3. ``RemoteFault`` is the worker's fault and never leaves the engine as an exception; it becomes a verdict (tests/fuzz/test_session.py).

Cost: a frame's bytes are copied once, into one ``bytearray``; the payload is a view of it, also of a large frame that is
handed over. Deleting from the front of a ``bytearray`` moves its start and copies nothing (CPython since 3.4), so no offset is kept.
"""

from engine.errors import one_line

HEADER_BYTES = 4
LONGEST = (1 << 32) - 1  # what four bytes can say
_SHORTEST = 2  # the array's head and the message's number: every message has them


class RemoteFault(Exception):
    """The worker broke the rules: a ``code`` of ``outcome.REASONS`` and one sanitised ``line``. Its stream is over."""

    def __init__(self, code: str, line: str) -> None:
        self.code = code
        self.line = one_line(line)
        super().__init__(f"{code}: {self.line}")


def frame(payload: bytes) -> bytes:
    """The payload with its length before it. Raises ValueError when four bytes cannot say the length."""
    if len(payload) > LONGEST:
        raise ValueError("a frame holds less than 4 GiB")
    return b"".join((len(payload).to_bytes(HEADER_BYTES, "big"), payload))


class FrameBuffer:
    """The bytes of one stream that were received and not yet taken; looks at no more than the first frame."""

    __slots__ = ("_bytes", "longest")

    def __init__(self, longest: int) -> None:
        self._bytes = bytearray()
        self.longest = longest

    def __len__(self) -> int:
        return len(self._bytes)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append what was received."""
        self._bytes += data

    def length(self) -> int | None:
        """The first frame's length, None until its four bytes are here. Raises RemoteFault when no frame may be that long or short."""
        if len(self._bytes) < HEADER_BYTES:
            return None
        length = int.from_bytes(self._bytes[:HEADER_BYTES], "big")
        # security: judged before a byte of the body is awaited, else a length of 4 GiB makes us hold 4 GiB
        if length > self.longest:
            raise RemoteFault("violation.protocol", "the worker sent a frame longer than its bound")
        if length < _SHORTEST:
            raise RemoteFault("violation.protocol", "the worker sent a frame too short for any message")
        return length

    def said(self) -> int:
        """What the first four bytes say, allowed or not."""
        return int.from_bytes(self._bytes[:HEADER_BYTES], "big")

    def start(self) -> tuple[int, int] | None:
        """The first frame's first two bytes, None until they are here."""
        if len(self._bytes) < HEADER_BYTES + _SHORTEST:
            return None
        return self._bytes[HEADER_BYTES], self._bytes[HEADER_BYTES + 1]

    def whole(self, length: int) -> bool:
        """Whether the first frame, of that length, is here to its last byte."""
        return len(self._bytes) >= HEADER_BYTES + length

    def payload(self, length: int) -> memoryview:
        """A view of the first frame's payload. Whoever asks releases it before the next ``feed`` or ``drop``."""
        return memoryview(self._bytes)[HEADER_BYTES : HEADER_BYTES + length]

    def take(self, length: int) -> memoryview:
        """The first frame's payload, of that length, handed over: without a copy when nothing came after it."""
        taken, self._bytes = self._bytes, bytearray()
        end = HEADER_BYTES + length
        if len(taken) > end:
            self._bytes += memoryview(taken)[end:]
        return memoryview(taken)[HEADER_BYTES:end].toreadonly()

    def drop(self, length: int) -> None:
        """Forget the first frame, of that length."""
        del self._bytes[: HEADER_BYTES + length]

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self._bytes = bytearray()
