"""Where in some bytes a spelling of a secret value or a shape stands: one pass of one automaton.

Its job: the automaton over the first bytes of all spellings and over the beginnings of all shapes, and the proof of each place it names.
Not its job: the spellings (``encodings.py``), what is done about a hit (``redact.py``).
Laws:
1. Every place of a spelling is named, also where spellings overlap or lie across two pieces (tests/unit/test_redact.py).
2. The time is in proportion to the data: a shape is tried once in what it read, and nothing reads further than a piece and the shape's
   longest match (tests/unit/test_redact_work.py).
3. Neither a repr nor a pickle shows a value (tests/unit/test_redact.py).
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from engine.encodings import forms
from engine.policy.shapes import PUBLISHED, ValueShapes

PIECE_BYTES = 256 << 10  # about a millisecond
_HEAD = 24  # bytes of a spelling that the automaton knows; the rest is compared where it names a place
_TABLE_BYTES = 48 << 10  # of heads, of about 100 values; past it whole tables are larger than caches, and slower than the small ones
_VARIETY = 6  # different characters behind a certain shape's beginning; with fewer it is a placeholder, such as xxxxxx
_TRIED_SINGLY = 512  # places of one shape in one piece; with more of them the pattern goes over the piece by itself


Found = tuple[int, int, str, bool]  # where it starts, where it ends as a negative number, ID, certain: sorts as it should


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hit:
    """A secret's ID, or ``shape:`` and a shape's, and where it stands. ``certain``: a value that we hold, or a certain shape."""

    id: str
    certain: bool
    start: int
    end: int


class GivenUp(Exception):
    """Nobody waits any more for what is being looked through."""


class Needles:
    """All spellings of all values, and all shapes. Immutable."""

    __slots__ = ("_finder", "_forms", "_given_up", "_longest_head", "_shapes", "reach")

    def __init__(self, secrets: Mapping[str, str], shapes: ValueShapes) -> None:
        spellings: dict[bytes, dict[bytes, str]] = defaultdict(dict)
        for name, value in secrets.items():
            for form in forms(value):
                # a replaced value is held as ID~1 and the like
                spellings[form[:_HEAD]].setdefault(form, name.partition("~")[0])  # of two secrets with one value the first is named
        # the longest first: where two begin at one place, the longer one is what stands there
        self._forms = tuple(
            (head, tuple(sorted(listed.items(), key=lambda pair: len(pair[0]), reverse=True))) for head, listed in spellings.items()
        )
        self._shapes = tuple((prefix, pattern, shape) for shape in shapes.shapes for prefix, pattern in shape.patterns)
        heads = [head for head, _ in self._forms] + [prefix for prefix, _, _ in self._shapes]
        self._longest_head = max(map(len, heads), default=0)
        longest = [len(form) for _, listed in self._forms for form, _ in listed]
        self.reach = max((*longest, *(shape.reach for shape in shapes.shapes if shape.certain)), default=0)
        way = Implementation.DFA if sum(map(len, heads)) <= _TABLE_BYTES else Implementation.ContiguousNFA
        self._given_up: Callable[[], bool] | None = None
        self._finder = BytesAhoCorasick(heads, MatchKind.Standard, way) if heads else None

    def __repr__(self) -> str:
        return f"Needles({len(self._forms)} spellings, {len(self._shapes)} shapes)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("what holds secret values is not copied")

    def until(self, given_up: Callable[[], bool]) -> "Needles":
        """The same ones; their work raises GivenUp once that says so, which is asked for each piece and each text."""
        other = object.__new__(Needles)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._given_up = given_up
        return other

    def silent(self, data: bytes | memoryview) -> bool:
        """Whether nothing in the data even begins like a hit."""
        self._ask()
        return self._finder is None or not self._finder.find_matches_as_indexes(data)

    def hits(self, data: bytes | memoryview) -> Iterator[list[Found]]:
        """The hits, piece by piece, in no order. Each is named once, in the piece where its beginning was read."""
        view = memoryview(data)
        until: dict[int, int] = {}  # by shape: where the last match of it ended
        for at in range(0, len(view) if self._finder is not None else 0, PIECE_BYTES):
            self._ask()
            yield self._piece(view, at, min(at + PIECE_BYTES, len(view)), until)

    def _ask(self) -> None:
        if self._given_up is not None and self._given_up():
            raise GivenUp

    def _piece(self, view: memoryview, seen: int, stop: int, until: dict[int, int]) -> list[Found]:
        assert self._finder is not None  # noqa: S101 - said to the type checker; ``hits`` asks
        first = max(0, seen - self._longest_head + 1)
        found: list[Found] = []
        places: dict[int, list[int]] = defaultdict(list)
        values = len(self._forms)
        for number, start, end in self._finder.find_matches_as_indexes(view[first:stop], overlapping=True):
            start += first
            if first + end <= seen:
                continue  # the piece before this one named it
            if number >= values:
                places[number - values].append(start)
                continue
            for form, name in self._forms[number][1]:
                if view[start : start + len(form)] == form:
                    found.append((start, -start - len(form), name, True))
                    break
        for number, starts in places.items():
            found.extend(self._matches(view, number, starts, until))
        return found

    def _matches(self, view: memoryview, number: int, starts: list[int], until: dict[int, int]) -> Iterator[Found]:
        prefix, pattern, shape = self._shapes[number]
        stop = min(starts[-1] + shape.longest, len(view))
        if shape.needs and shape.needs not in bytes(view[starts[0] : stop]):
            return
        name = f"shape:{shape.id}"
        for match in (_tried if len(starts) <= _TRIED_SINGLY else _swept)(pattern, view, starts, until.get(number, 0), stop):
            start, end = match.span()
            until[number] = end
            if not shape.certain or not _is_placeholder(match[0], len(prefix)):
                yield start, -end, name, shape.certain


def _is_placeholder(found: bytes, prefix: int) -> bool:
    return found in PUBLISHED or len({*found[prefix:]}) < _VARIETY


def _tried(pattern: "re.Pattern[bytes]", view: memoryview, starts: list[int], after: int, stop: int) -> "Iterator[re.Match[bytes]]":
    for start in starts:
        # security: what a match took is not tried again, or a run of beginnings would cost its length squared
        if start >= after and (match := pattern.match(view, start, stop)) is not None:
            yield match
            after = match.end()


def _swept(pattern: "re.Pattern[bytes]", view: memoryview, starts: list[int], after: int, stop: int) -> "Iterator[re.Match[bytes]]":
    """The same in C alone: from the first place to the last."""
    last = starts[-1]
    # security: without an end each piece would be searched to the end of the data, and all of it would cost its length squared
    for match in pattern.finditer(view, max(after, starts[0]), stop):
        if match.start() > last:
            break
        yield match
