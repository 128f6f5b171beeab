"""The guest's standard streams: what is printed goes to the host whole, nothing comes in.

Its job: ``sys.stdout``, ``sys.stderr`` and ``sys.stdin`` with the buffers, encodings and ways with errors that a native worker has.
Not its job: how much may be printed (the host counts).
Why: the world's own output takes 8 KiB of each write and drops the rest.
Laws:
1. Whatever is written arrives whole and in order (tests/wasm/test_streams.py).
2. Their properties are those of a native worker's (tests/wasm/test_streams.py).
"""

import io
import os
import sys
from collections.abc import Callable
from typing import Any

_PIECE = 64 << 10  # bytes that cross the boundary at once
_NUMBERS = (1, 2, 3)  # the third is the channel's, in a native worker too
Emit = Callable[[int, str], None]


class _Output(io.RawIOBase):
    """Writes to one of the host's two outputs."""

    mode = "wb"

    def __init__(self, number: int, name: str, emit: Emit) -> None:
        self._number, self.name, self._emit = number, name, emit

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Hand over all of it."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        with memoryview(data).cast("B") as view:
            _emit_all(self._emit, self._number, view)
            return len(view)

    def fileno(self) -> int:
        """The number that a native worker's has."""
        return self._number

    def isatty(self) -> bool:
        """There is no terminal."""
        return False


class _Nothing(io.RawIOBase):
    """Standard input: at its end from the beginning."""

    name, mode = "<stdin>", "rb"

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Nothing."""
        return 0

    def fileno(self) -> int:
        """The number that a native worker's has."""
        return 0


def _emit_all(emit: Emit, number: int, view: memoryview) -> None:
    for at in range(0, len(view), _PIECE):
        emit(number, str(view[at : at + _PIECE], "latin-1"))


def install(emit: Emit) -> None:
    """Put them in place, and ``os.write`` to their numbers with them."""
    out = io.TextIOWrapper(io.BufferedWriter(_Output(1, "<stdout>", emit)), "utf-8", "surrogateescape", line_buffering=False)
    err = io.TextIOWrapper(io.BufferedWriter(_Output(2, "<stderr>", emit)), "utf-8", "backslashreplace", line_buffering=True)
    none = io.TextIOWrapper(io.BufferedReader(_Nothing()), "utf-8", "surrogateescape")
    for stream, mode in ((out, "w"), (err, "w"), (none, "r")):
        stream.mode = mode  # type: ignore[misc]  # as the interpreter's own start does
    sys.stdout, sys.stderr, sys.stdin = out, err, none
    sys.__stdout__, sys.__stderr__, sys.__stdin__ = out, err, none  # type: ignore[misc]  # whoever wants the first ones means these

    original = os.write

    def write(fd: int, data: Any, /) -> int:
        if fd not in _NUMBERS:
            return original(fd, data)
        with memoryview(data).cast("B") as view:
            _emit_all(emit, fd, view)
            return len(view)

    vars(sys.modules["posix"])["write"] = vars(os)["write"] = write
