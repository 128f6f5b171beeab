"""How much work the patterns of a schema can make of one value.

Its job: how many states each pattern has at once at most, and from it an upper bound of the states a value's texts go through.
Not its job: which patterns are allowed (``authoring/patterns.py``), what is refused for its cost (``checking.py``).
Laws:
1. A repetition counts once for each copy, unless the place in the text says which copy (tests/unit/test_matching.py).
2. Every text and key is charged with what may be matched against it (tests/unit/test_matching.py).
3. A schema without patterns costs nothing here (tests/unit/test_matching.py).

A linear-time engine goes through a text once, but at each byte through all states it may be in: up to 10 ns each.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from engine.authoring.expansion import Expansion

_TEXT = 16  # what a match costs beside the text itself, in bytes of it
_TABLE = 12  # states: of so many, the sets that can be true at once fit into a table, and a byte is one step in it
_LEAST = 4  # what a byte costs then; a match has its own cost besides
_WIDEST = 4  # bytes of one character
_PER_BYTE = 16  # how often ``texts`` charges one byte of a frame at most: a text of no or one character, and a key, which counts twice
_CLASS = 4  # states of a character that may have several bytes
_UNICODE = 40  # the same for a class of some hundred ranges
_PLACES = 20_000  # looked at for the heaviest one; a recursive schema has all of them on each level
_CEILING = 1 << 40


class Matching:
    """The patterns of one schema; ``states`` is the upper bound for one value."""

    def __init__(self, schema: Mapping[str, Any], text: str) -> None:
        # each makes a validator apply what stands beside it once more
        self._times = 1 + text.count('"unevaluatedProperties":') + text.count('"unevaluatedItems":')
        self._expansion = Expansion(schema, weigh=_weight)

    @classmethod
    def of(cls, schema: Mapping[str, Any], text: str) -> "Matching | None":
        """That of a schema and its canonical text; None when there is nothing to match."""
        return cls(schema, text) if '"pattern":"' in text or '"patternProperties":' in text else None

    def states(self, value: object, *, remembered: bool = True) -> int:
        """How many states its texts and keys go through at most. ``remembered``: as in ``Expansion.applications``."""
        return self._times * self._expansion.applications(texts(value), remembered=remembered)

    def bytes_within(self, states: int, depth: int, groups: Expansion) -> int:
        """How many bytes of a frame certainly go through no more states than that, 1 at least; ``groups`` is of the same schema."""
        heaviest = 1
        for level in range(depth):
            if (level + 1) * len(groups.places) > _PLACES:
                return 1  # not looked at further
            one = [*([0] * level), 1]
            if not groups.applications(one, remembered=True):
                break  # nothing of the schema reaches so far
            heaviest = max(heaviest, self._expansion.applications(one, remembered=True))
        return max(1, states // (_PER_BYTE * self._times * heaviest))


def texts(value: object) -> list[int]:
    """How many bytes of text stand at each depth of plain data, at most; keys count at their object's depth and at the next."""
    level: list[Any] = [value]
    found: list[int] = []
    above = 0
    while level:
        objects = [item for item in level if type(item) is dict]
        keys = sum(map(_charge, chain.from_iterable(objects)))
        found.append(above + keys + sum(_charge(item) for item in level if type(item) is str))
        above = keys
        arrays = (item for item in level if type(item) is list)
        level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(arrays)]
    return found


def _charge(text: str) -> int:
    return _TEXT + (len(text) if text.isascii() else _WIDEST * len(text))


def _weight(node: dict[str, Any]) -> int:
    """The states of the patterns that stand in one sub-schema itself."""
    # a key is held to them for their own schemas, and for additionalProperties once more
    named = 2 * sum(map(pattern_states, node.get("patternProperties", ())))
    return named + (pattern_states(node["pattern"]) if "pattern" in node else 0)


def pattern_states(pattern: str) -> int:
    """What one byte of a text costs with an allowed pattern, in states it may be in at once: where no better is known, all of them."""
    sizes, last, at = [1], 0, 0  # of the groups that are open; of the part before; 1 for the search
    # from a fixed start, the place in the text says which part it is in, up to and with the first that is of no fixed length
    settled = pattern.startswith("^")
    while at < len(pattern):
        char = pattern[at]
        counts, end = _repetition(pattern, at)
        if counts and settled:
            settled = counts == [counts[0]]
            sizes[-1] += 0 if settled else last + 2
        elif counts:
            grown = min(_CEILING, (last + 1) * max(1, max(counts)))
            sizes[-1], last = sizes[-1] + grown - last, grown
        elif char in "*+?":
            sizes[-1], last, settled = sizes[-1] + 2 + (last if settled else 0), last + 2, False
        elif char == "(":
            sizes.append(2)
            last, settled, end = 0, False, _name_end(pattern, at)
        elif char == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif char == "|":
            sizes[-1], last, settled = sizes[-1] + 2, 0, False
        else:
            last, end = _part(pattern, at)
            sizes[-1] += 0 if settled else last
        at = end
    states = min(_CEILING, sum(sizes))
    return states if states > _TABLE else _LEAST


def _repetition(pattern: str, at: int) -> tuple[list[int], int]:
    """The counts of a ``{n}``, ``{n,}`` (its n twice) or ``{n,m}`` that stands there, none for anything else; where it ends."""
    end = pattern.find("}", at)
    if pattern[at] != "{" or end < 0:
        return [], at + 1
    low, comma, high = pattern[at + 1 : end].partition(",")
    if not (low + high).isdigit() or not (low + high).isascii():
        return [], at + 1
    return [int(number or low or high) for number in ((low, high) if comma else (low,))], end + 1


def _name_end(pattern: str, at: int) -> int:
    """Where a group's own parts begin: after ``?:``, a name or flags."""
    if not pattern.startswith("(?", at):
        return at + 1
    ends = [end for mark in ":>)" if (end := pattern.find(mark, at)) > 0]
    end = min(ends, default=len(pattern) - 1)
    return end if pattern[end] == ")" else end + 1


def _part(pattern: str, at: int) -> tuple[int, int]:
    """The states of one character, escape or class, and where it ends."""
    char = pattern[at]
    if char == "\\":
        braces = pattern.find("}", at) + 1 if pattern[at + 1 : at + 2] in tuple("pPuxN") and pattern[at + 2 : at + 3] == "{" else 0
        return _escape(pattern[at + 1 : at + 2]), braces or at + 2
    if char != "[":
        return (_CLASS if char == "." or not char.isascii() else 1), at + 1
    end = at + 1 + (2 if pattern[at + 1 : at + 3] == "^]" else 1 if pattern[at + 1 : at + 2] == "]" else 0)
    size = _CLASS if pattern[at + 1 : at + 2] == "^" else 1
    while end < len(pattern) and pattern[end] != "]":
        escaped = pattern[end] == "\\"
        size = max(size, _escape(pattern[end + 1 : end + 2]) if escaped else 1 if pattern[end].isascii() else _UNICODE)
        end += 2 if escaped else 1
    return size, end + 1


def _escape(letter: str) -> int:
    if letter in tuple("pP"):
        return _UNICODE
    return _CLASS if letter in tuple("WDSuxN") else 1
