"""Lines of calls: strict, bounded, one bad one keeps no other from being read."""

import hashlib
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch.lines import BadLine, CallLine, Defaults, Raw, raw_lines, read_line

LIMIT = 1000
GOOD = {"id": "a", "source": "s.py", "tool": "t"}
NONE = Defaults()


def raw(text: str | bytes, number: int = 1) -> Raw:
    """One line."""
    (made,) = raw_lines(io.BytesIO(text.encode() if isinstance(text, str) else text), LIMIT)
    return made


def read(text: str | bytes, defaults: Defaults = NONE) -> CallLine | BadLine:
    """What one line is taken for."""
    return read_line(raw(text), LIMIT, defaults)


def refused(text: str | bytes) -> tuple[str | None, str, tuple[str, ...]]:
    """Id, reason and lines of a line that cannot be called."""
    line = read(text)
    assert isinstance(line, BadLine)
    return line.id, line.reason, line.lines


def test_a_line_with_all_it_may_say() -> None:
    """Every key arrives; the digest is that of the line's bytes."""
    text = json.dumps({**GOOD, "arguments": {"x": [1, "é"]}, "timeout_ms": 5, "tenant": "n"})
    digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    wanted = {"id": "a", "source": "s.py", "tool": "t", "arguments": {"x": [1, "é"]}, "timeout_ms": 5, "tenant": "n"}
    assert read(text + "\n") == CallLine(number=1, digest=digest, **wanted)  # type: ignore[arg-type]  # a table of mixed values


def test_what_a_line_does_not_say_is_taken_from_the_defaults() -> None:
    """Its own word goes first."""
    defaults = Defaults(source="d.py", timeout_ms=7, tenant="e")
    line = read('{"id": "a", "tool": "t", "tenant": "n"}', defaults)
    assert isinstance(line, CallLine)
    assert (line.source, line.timeout_ms, line.tenant, line.arguments) == ("d.py", 7, "n", {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": 1}, "id: want a text of 1 to 256 characters"),
        ({"id": ""}, "id: want a text of 1 to 256 characters"),
        ({"id": "x" * 257}, "id: want a text of 1 to 256 characters"),
        ({"source": None}, "source: want a path, here or as --source"),
        ({"source": "a\0b"}, "source: want a path, here or as --source"),
        ({"tool": None}, "tool: want the name of a tool of the source"),
        ({"arguments": []}, 'arguments: want an object, such as {"key": "value"}'),
        ({"arguments": None}, 'arguments: want an object, such as {"key": "value"}'),
        ({"timeout_ms": "5"}, "timeout_ms: want a whole number of milliseconds"),
        ({"timeout_ms": True}, "timeout_ms: want a whole number of milliseconds"),
        ({"tenant": 1}, "tenant: want a text"),
        ({"approved": True}, "'approved': unknown key; allowed: id, source, tool, arguments, timeout_ms, tenant"),
    ],
)
def test_a_line_that_says_something_else_is_refused(change: dict[str, Any], problem: str) -> None:
    """Each key with its own line; an id that could be one stays with it."""
    made = {**GOOD, **change}
    own = made["id"] if made["id"] == "a" else None
    assert refused(json.dumps(made)) == (own, "refused.request", (problem,))


@pytest.mark.parametrize(
    ("text", "reason", "begin"),
    [
        ("not json", "refused.request", "the line is not JSON: "),
        (b'{"id": "\xff"}', "refused.request", "the line is not UTF-8"),
        ("[]", "refused.request", "the line must be one JSON object"),
        ('{"id": "a", "id": "b"}', "refused.request", 'the key "id" stands twice'),
        ('{"id": "a", "arguments": {"x": NaN}}', "refused.request", "NaN is no JSON number"),
        ('{"id": "a", "arguments": ' + "[" * 200 + "]" * 200 + "}", "refused.request", "the line is nested deeper"),
        ('{"id": "' + "x" * LIMIT + '"}', "refused.request_size", "the line has more than 1000 bytes"),
    ],
)
def test_a_line_that_is_no_object_is_refused(text: str | bytes, reason: str, begin: str) -> None:
    """Without an id: there is none that could be believed."""
    id, code, lines = refused(text)
    assert (id, code, lines[0][: len(begin)]) == (None, reason, begin)


def test_no_terminal_is_driven_by_what_a_line_says() -> None:
    """Keys of the line come back as one printable line."""
    _, _, lines = refused(json.dumps({**GOOD, "\x1b[2J\n\u202e": 1}))
    assert all(line.isprintable() for line in lines)


def test_the_longest_line_passes_and_one_byte_more_does_not() -> None:
    """The end of the line does not count; what follows is read as ever."""
    under = json.dumps({**GOOD, "tool": ""})
    under = under.replace('"tool": ""', f'"tool": "{"t" * (LIMIT - len(under))}"')
    for end in ("\n", ""):
        assert [len(found.data or b"") for found in raw_lines(io.BytesIO(f"{under}{end}".encode()), LIMIT)] == [LIMIT]
    found = list(raw_lines(io.BytesIO(f"{under} \n{under}\n".encode()), LIMIT))
    assert [(line.number, line.data is None) for line in found] == [(1, True), (2, False)]


class Endless(io.RawIOBase):
    """A file of one line that would not fit in memory; ``asked`` is the most that was asked for at once."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.asked = pieces, 0

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next piece of the line."""
        self.asked = max(self.asked, (1 << 62) if size is None or size < 0 else size)
        self.pieces -= 1
        return b"x" * (size or 0) if self.pieces > 0 else b""


def test_a_line_without_an_end_is_never_held() -> None:
    """It is passed over in pieces of a bounded size."""
    file = Endless(10_000)
    (found,) = raw_lines(file, LIMIT)  # type: ignore[arg-type]  # it has all that is used of a file
    assert (found.number, found.data, file.asked <= 64 << 10) == (1, None, True)


@given(st.lists(st.text(alphabet="ab é\t", max_size=30)), st.booleans())
def test_lines_are_those_of_the_text(texts: list[str], ended: bool) -> None:
    """Numbers count every line, blank ones are none, whatever the last one ends with."""
    data = "\n".join(texts) + ("\n" if ended else "")
    wanted = [(number, line.encode()) for number, line in enumerate(data.split("\n"), 1) if line.encode().strip()]
    assert [(line.number, line.data) for line in raw_lines(io.BytesIO(data.encode()), LIMIT)] == wanted


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No line ends the reading."""
    for line in raw_lines(io.BytesIO(data), 50):
        assert isinstance(read_line(line, 50, NONE), CallLine | BadLine)


def test_a_mark_at_the_start_of_the_file_is_no_part_of_it() -> None:
    """As some editors write it: the line is as without it, to its digest; anywhere else it is a fault of the line."""
    mark, line = b"\xef\xbb\xbf", b'{"id": "a"}\n'
    assert list(raw_lines(io.BytesIO(mark + line), 100)) == list(raw_lines(io.BytesIO(line), 100))
    second = list(raw_lines(io.BytesIO(line + mark + line), 100))[1]
    assert second.data == mark + line.rstrip()
