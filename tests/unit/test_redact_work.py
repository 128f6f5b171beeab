"""However much of the data is secrets, the work is in proportion to it: counted, never timed."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.policy.shapes import ValueShapes, load_shapes
from engine.results import needles, redact
from engine.results.needles import PIECE_BYTES, Found, GivenUp
from engine.results.redact import Watch
from engine.results.sources import source_problems

SHAPES = load_shapes(Path("policies"))


class Counting(dict[str, Any]):
    """An object's members, which count how often somebody asks for one."""

    asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)


def asked_for(keys: list[str]) -> int:
    """How often a key was looked up while an object with these was made."""
    members = redact._Members()
    counting = members.members = Counting()
    for key in keys:
        members.add(key, 1)
    assert len(counting) == len(keys)
    return counting.asked


@pytest.mark.parametrize("count", [10, 1000, 20_000])
def test_keys_that_become_one_mark_are_numbered_on(count: int) -> None:
    """Two questions for each key, also where some have such a number already."""
    mark = "[redacted:orders]"
    assert asked_for([mark] * count) == 2 * count - 1
    taken = [f"{mark}~{number}" for number in range(2, count + 2)]
    assert asked_for([*taken, *[mark] * count]) <= 4 * count


class CountingPattern:
    """A pattern that counts how many bytes it is let look at."""

    def __init__(self, pattern: "re.Pattern[bytes]") -> None:
        self.pattern, self.bytes = pattern, 0

    def match(self, view: memoryview, start: int, stop: int) -> "re.Match[bytes] | None":
        """The pattern's."""
        self.bytes += stop - start
        return self.pattern.match(view, start, stop)

    def finditer(self, view: memoryview, start: int, stop: int) -> "Iterator[re.Match[bytes]]":
        """The pattern's: one pass over all that it may look at."""
        self.bytes += stop - start
        return self.pattern.finditer(view, start, stop)


def bytes_read(unit: bytes, pieces: int) -> int:
    """By patterns, at most, in that many pieces of nothing but a beginning."""
    shapes = ValueShapes(shapes=tuple(shape for shape in SHAPES.shapes if unit.decode() in shape.prefixes))
    watched = needles.Needles({}, shapes)
    counting = [(prefix, CountingPattern(pattern), shape) for prefix, pattern, shape in watched._shapes]
    watched._shapes = tuple(counting)  # type: ignore[arg-type]  # stand-ins that count
    data = (unit * (pieces * PIECE_BYTES // len(unit) + 1))[: pieces * PIECE_BYTES]
    found: list[Found] = [hit for hits in watched.hits(data) for hit in hits]
    assert found == []
    return sum(pattern.bytes for _, pattern, _ in counting)


@pytest.mark.parametrize("unit", [b"sk-", b"SK"])
def test_a_piece_is_searched_to_its_end_and_no_further(unit: bytes) -> None:
    """Sixteen pieces cost sixteen times what one does, and each no more than itself and the shape's longest match."""
    longest = max(shape.longest for shape in SHAPES.shapes)
    assert 0 < bytes_read(unit, 16) <= 16 * (PIECE_BYTES + longest)


class CountingBytes(bytes):
    """Bytes that count how many of them were counted through."""

    through = 0

    def count(self, sub: Any, start: Any = 0, end: Any = None) -> int:
        """As bytes do it."""
        CountingBytes.through += (len(self) if end is None else end) - start
        return super().count(sub, start, len(self) if end is None else end)


def test_lines_of_a_source_are_counted_on() -> None:
    """Of ten thousand places the first twenty are told, and no more of the file is gone through for lines."""
    value = "a-canary-of-the-test"
    CountingBytes.through = 0
    data = CountingBytes(f"{value}\n".encode() * 10_000)
    files: Mapping[str, bytes] = {"data.csv": data}
    lines = source_problems(files, Watch({"orders": value}, SHAPES), ())
    assert lines == [*(f"data.csv:{number}: holds the secret orders" for number in range(1, 21)), "and more"]
    assert CountingBytes.through == 20 * (len(value) + 1)


def test_of_much_data_one_hit_of_each_is_kept() -> None:
    """A hundred thousand hits are no hundred thousand objects."""
    watch = Watch({"orders": "a-canary-of-the-test"}, SHAPES)
    hits = watch.seen(b"a-canary-of-the-test ://a:bcd@ " * 20_000)
    assert [(hit.id, hit.start) for hit in hits] == [("orders", 0), ("shape:url_password", 21)]


def test_work_that_nobody_waits_for_ends() -> None:
    """Asked between pieces and between texts; the watch that it was made of goes on."""
    watch = Watch({"orders": "a-canary-of-the-test"}, SHAPES)
    asked = iter([False, False, True])
    leaving = watch.until(lambda: next(asked))
    with pytest.raises(GivenUp):
        leaving.seen(b" " * 4 * PIECE_BYTES)
    with pytest.raises(GivenUp):
        watch.until(lambda: True).value(["a"])
    assert (next(asked, "none left"), watch.seen(b" "), watch.value(["a"])[0]) == ("none left", (), ["a"])
