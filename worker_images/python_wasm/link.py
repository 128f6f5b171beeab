"""The channel of a guest without descriptors: whole frames through two functions of the host's.

Its job: frames out by ``emit``, frames in by ``call``.
Not its job: what frames mean (``guest/main.py``), their bytes (``guest/wire.py``).
Laws:
1. What the host reads is what a native worker would have written (tests/wasm/test_guest.py).
2. A channel that is closed ends the guest's program (tests/wasm/test_guest.py).
3. However long a frame is, no more than ``PIECE`` of it crosses at once, and nothing follows one that broke off (tests/wasm/test_guest.py).
"""

from collections.abc import Callable
from typing import Any

from guest import main, wire

FRAME = 3
PIECE = 1 << 20  # bytes that cross the boundary at once: the host copies each, and refuses a frame by the length in its first
_NEXT, _POLL = "next", "poll"
_LAST_WORDS = main.LAST_WORDS.decode("latin-1")


class Gone(BaseException):
    """The host closed the channel: there is nobody to work for."""


class HostLink:
    """Frames over the host's two functions. The boundary carries text, so each byte travels as the character of its number."""

    def __init__(self, codec: wire.Codec, emit: Callable[[int, str], None], call: Callable[[str], str]) -> None:
        self._codec, self._emit, self._call = codec, emit, call
        self._gone = False

    def send(self, number: int, fields: list[Any]) -> None:
        """Hand over one whole frame, in pieces. Raises ValueError when the fields are not plain data, Gone when the channel is closed."""
        if self._gone:
            raise Gone
        frame = memoryview(self._codec.pack(number, fields))
        for at in range(0, len(frame), PIECE):
            self._emit(FRAME, str(frame[at : at + PIECE], "latin-1"))
            self._gone = True  # should memory run out now: nothing can be said behind a part of a frame
        self._gone = False

    def send_last_words(self) -> None:
        """Say that memory ran out, when there is none left to say it with. Raises Gone when the channel is closed."""
        if self._gone:
            raise Gone
        self._emit(FRAME, _LAST_WORDS)

    def receive(self, *, wait: bool) -> tuple[int, list[Any]] | None:
        """The next frame from the host. Raises Gone when the channel is closed."""
        try:
            text = self._call(_NEXT if wait else _POLL)
        except Exception:
            self._gone = True
            raise Gone from None  # the boundary's own class for an error says no more
        if not text:
            return None
        number, *fields = self._codec.unpack_own(text.encode("latin-1"))
        return number, fields
