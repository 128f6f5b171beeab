"""Standard streams: whole, in order, and like a native worker's."""

from engine.wire import messages
from tests import wasm_guest

SOURCE = {
    "tools.py": """
import os, sys
from typing import Any
from engine import tool

@tool(effect="read", description="One of a test.")
def prints(size: int) -> int:
    for number in range(20):
        print(number, "\\u00e9" * size)
        sys.stdout.buffer.write(b"\\xff")
    os.write(1, b"at once")
    return 0

@tool(effect="read", description="One of a test.")
def told() -> list[Any]:
    streams = [sys.stdout, sys.stderr, sys.stdin]
    return [[s.encoding, s.errors, s.line_buffering, s.write_through, s.mode, s.name, s.fileno(), s.isatty()] for s in streams]

@tool(effect="read", description="One of a test.")
def mixed() -> None:
    sys.stderr.write("one")
    sys.stderr.write(" line\\n")
    print("\\ud800", file=sys.stderr)
    print("\\udcff")
    sys.stdout.close()
"""
}


def test_everything_printed_arrives_in_order(guest: wasm_guest.Guest) -> None:
    """A megabyte and more through the text and the binary side; what is written past both goes first, as everywhere."""
    answer = guest.call(SOURCE, "prints", {"size": 30_000})
    before, rest = answer.out.split(b"at once")
    lines = b"".join(b"%d " % number + "é".encode() * 30_000 + b"\n" for number in range(20))
    assert (before + rest).replace(b"\xff", b"") == lines
    assert len(answer.out) == len(lines) + 20 + 7


def test_the_streams_are_like_a_native_workers(guest: wasm_guest.Guest) -> None:
    """Encodings, errors, buffering, names and numbers."""
    assert guest.call(SOURCE, "told", {}).last == messages.Result(
        value=[
            ["utf-8", "surrogateescape", False, False, "w", "<stdout>", 1, False],
            ["utf-8", "backslashreplace", True, False, "w", "<stderr>", 2, False],
            ["utf-8", "surrogateescape", False, False, "r", "<stdin>", 0, False],
        ]
    )


def test_odd_texts_and_a_closed_stream(guest: wasm_guest.Guest) -> None:
    """Lone surrogates are written as a native worker writes them, and a closed stream does not cost the answer."""
    answer = guest.call(SOURCE, "mixed", {})
    assert (answer.out, answer.err, answer.last) == (b"\xff\n", b"one line\n\\ud800\n", messages.Result(value=None))
