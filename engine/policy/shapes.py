"""What a secret looks like when nobody told us its value: a literal beginning and a bounded run of characters behind it.

Its job: the table ``[value]`` of ``policies/denied_secrets.toml``, strictly read, as patterns whose time is bounded.
Not its job: looking for them in data (``results/redact.py``), names of variables (``secrets.py``).
Laws:
1. A pattern is made of classes with a least and a most length and of literal characters, nothing else: it cannot go back over what it
   read, and it has a longest match (tests/unit/test_value_shapes.py).
2. Unknown keys, a missing reason, an empty list and a repeated beginning refuse (tests/unit/test_value_shapes.py).
3. No certain shape stands in the sources of the project or of the standard library by chance (tests/unit/test_value_shapes.py).
"""

import dataclasses
import enum
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import PolicyError
from engine.policy.reading import file_error, read_document, said, strings

TABLE = "value"
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KEYS = frozenset({"value", "starts", "follows", "certain", "reason"})
_PREFIX_CHARACTERS = 128
_SHORTEST_PREFIX = 2  # two characters and a long run behind them
_SHORTEST_MATCH = 8  # characters; less stands in ordinary text by chance
_MOST_REPEATS = 8192
_ANYWHERE_REPEATS = 256  # a run that may begin anywhere is read again from each beginning inside it
# a class is letters, ranges and a few escapes: no nesting, and no doubled signs that a later re reads as set operations
_ITEM = re.compile(
    r"\[(?P<class>\^?(?:[^\[\]\\^]|\\[nrts\\\]\[])+)\]\{(?P<least>[0-9]{1,5}),(?P<most>[0-9]{1,5})\}|(?P<literal>[A-Za-z0-9_.:@/\"\-]+)"
)
# what documentation shows in place of a key and nobody's key is: AWS's own examples (put together: whoever scans this finds no key)
PUBLISHED = frozenset({b"AKIAIOSFODNN7EXAMPLE", b"ASIAIOSFODNN7EXAMPLE", b"AKIAI44QH8DHBEXAMPLE"})
_DOUBLED = ("--", "&&", "~~", "||")


class Starts(enum.StrEnum):
    """What may stand before a shape: anything; no letter, digit, ``_`` or ``-``; nor ``+`` and ``/``, which base64 has too."""

    ANYWHERE = "anywhere"
    WORD = "word"
    ALONE = "alone"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueShape:
    """One shape. ``certain``: what has it is a secret; else it is only likely one. Raises PolicyError for a pattern without bounds."""

    id: str
    prefixes: tuple[str, ...]
    starts: Starts
    follows: str
    certain: bool

    def __post_init__(self) -> None:
        if (problem := _problem(self)) is not None:
            raise PolicyError("refused.policy", f"{TABLE}.{self.id}: {problem}")

    @functools.cached_property
    def patterns(self) -> tuple[tuple[bytes, "re.Pattern[bytes]"], ...]:
        """Each beginning with the pattern of the whole match, to be tried where the beginning stands."""
        behind = _compiled(self.follows)
        made = []
        for prefix in self.prefixes:
            literal = re.escape(prefix.encode())
            made.append((prefix.encode(), re.compile(literal + _border(self.starts, literal) + behind)))
        return tuple(made)

    @functools.cached_property
    def longest(self) -> int:
        """The most bytes of a match."""
        return max(map(len, self.prefixes)) + sum(most for _, most in _bounds(self.follows))

    @functools.cached_property
    def needs(self) -> bytes:
        """The longest literal behind the beginning, the last of several, without which there is no match; empty when there is none."""
        return max((item["literal"] or "" for item in reversed(_items(self.follows) or ())), key=len, default="").encode()

    @functools.cached_property
    def reach(self) -> int:
        """How many bytes before its end may be needed to find a match that was not one yet some bytes sooner."""
        bounds = _bounds(self.follows)
        while len(bounds) > 1 and bounds[-1][0] == 0:
            bounds.pop()  # it is a match without this part
        return max(map(len, self.prefixes)) + sum(most for _, most in bounds[:-1]) + bounds[-1][0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueShapes:
    """All shapes, by the order of the file."""

    shapes: tuple[ValueShape, ...] = ()

    def data(self) -> dict[str, dict[str, Any]]:
        """Plain data, for digests."""
        return {
            shape.id: {"prefixes": list(shape.prefixes), "starts": str(shape.starts), "follows": shape.follows, "certain": shape.certain}
            for shape in self.shapes
        }


def load_shapes(policies: Path) -> ValueShapes:
    """The shapes of that folder's ``denied_secrets.toml``. Raises PolicyError: without a table that can be read nothing runs."""
    path = policies / "denied_secrets.toml"
    table = read_document(path).get(TABLE)
    if not isinstance(table, dict) or not table:
        raise file_error(path, [f"{TABLE}: want a table of shapes; an empty one finds nothing"])
    lines: list[str] = []
    shapes: list[ValueShape] = []
    for name, entry in table.items():
        try:
            shapes.append(_shape(name, entry))
        except PolicyError as error:
            lines.extend(error.lines)
    prefixes = [prefix for shape in shapes for prefix in shape.prefixes]
    lines += [f"{TABLE}: {prefix!r} begins two shapes" for prefix in sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1})]
    if lines:
        raise file_error(path, lines)
    return ValueShapes(shapes=tuple(shapes))


def _shape(name: str, entry: object) -> ValueShape:
    if _ID.fullmatch(name) is None:
        raise PolicyError("refused.policy", f"{TABLE}: a shape is named by a-z, 0-9 and '_'")
    if not isinstance(entry, Mapping) or entry.keys() != _KEYS:
        raise PolicyError(
            "refused.policy", f"{TABLE}.{name}: want {{ value = [...], starts, follows, certain, reason }}, these keys and no other"
        )
    said(f"{TABLE}.{name}: the reason", entry["reason"])
    prefixes = strings(f"{TABLE}.{name}", entry["value"])
    if not isinstance(entry["starts"], str) or entry["starts"] not in list(Starts):
        raise PolicyError("refused.policy", f"{TABLE}.{name}: starts: want one of {', '.join(Starts)}")
    if not isinstance(entry["follows"], str):
        raise PolicyError("refused.policy", f"{TABLE}.{name}: follows: want a pattern")
    if not isinstance(entry["certain"], bool):
        raise PolicyError("refused.policy", f"{TABLE}.{name}: certain: want true or false")
    return ValueShape(id=name, prefixes=tuple(prefixes), starts=Starts(entry["starts"]), follows=entry["follows"], certain=entry["certain"])


def _problem(shape: ValueShape) -> str | None:
    """Why this cannot be a shape, or None."""
    for prefix in shape.prefixes:
        if not prefix.isascii() or not prefix.isprintable() or not _SHORTEST_PREFIX <= len(prefix) <= _PREFIX_CHARACTERS:
            return f"a beginning is {_SHORTEST_PREFIX} to {_PREFIX_CHARACTERS} printable ASCII characters"
    # security: a pattern without bounds, or one that goes back, would let a tool stop the engine with its own answer
    if not shape.prefixes or not shape.follows or not shape.follows.isascii() or (found := _items(shape.follows)) is None:
        return "follows: want classes with bounds, such as [A-Za-z0-9]{20,40}, and literal letters between them"
    for item in found:
        if item["class"] is not None and not _is_class(item["class"]):
            return f"follows: [{item['class']}] is not a class"
    bounds = _bounds(shape.follows)
    if any(least > most or most > _MOST_REPEATS for least, most in bounds):
        return f"follows: want {{least,most}} with most up to {_MOST_REPEATS}"
    if shape.starts is Starts.ANYWHERE and len(bounds) > 1 and any(most > _ANYWHERE_REPEATS for _, most in bounds):
        return f"follows: a shape of several parts that starts anywhere has runs of up to {_ANYWHERE_REPEATS}"
    if min(map(len, shape.prefixes)) + sum(least for least, _ in bounds) < _SHORTEST_MATCH:
        return f"a match has at least {_SHORTEST_MATCH} characters"
    return None


def _items(follows: str) -> "list[re.Match[str]] | None":
    found, at = [], 0
    while at < len(follows):
        item = _ITEM.match(follows, at)
        if item is None:
            return None
        found.append(item)
        at = item.end()
    return found


def _is_class(text: str) -> bool:
    if any(doubled in text for doubled in _DOUBLED):
        return False
    try:
        re.compile(f"[{text}]".encode())
    except re.error:
        return False
    return True


def _bounds(follows: str) -> list[tuple[int, int]]:
    """The least and the most length of each part."""
    return [
        (int(item["least"]), int(item["most"])) if item["literal"] is None else (len(item["literal"]),) * 2
        for item in _items(follows) or ()
    ]


def _compiled(follows: str) -> bytes:
    # possessive: what a class took is never given back, so the time is the length of the match
    parts = [
        f"[{item['class']}]{{{item['least']},{item['most']}}}+" if item["literal"] is None else re.escape(item["literal"])
        for item in _items(follows) or ()
    ]
    return "".join(parts).encode()


def _border(starts: Starts, literal: bytes) -> bytes:
    """Looks back over the beginning at what stands before it."""
    if starts is Starts.ANYWHERE:
        return b""
    more = b"+/" if starts is Starts.ALONE else b""
    # a letter before it is no letter of a word when it ends an escape, or the length of a text in a frame (MessagePack str 8, 16, 32)
    escapes = (rb"\\[nrtbf0]", rb"\\u[0-9A-Fa-f]{4}", rb"\\x[0-9A-Fa-f]{2}", rb"%[0-9A-Fa-f]{2}")
    lengths = (rb"\xd9[\x00-\xff]", rb"\xda[\x00-\xff]{2}", rb"\xdb[\x00-\xff]{4}")
    looks = [b"(?<![A-Za-z0-9_" + more + b"-]" + literal + b")", *(b"(?<=" + end + literal + b")" for end in (*escapes, *lengths))]
    return b"(?>" + b"|".join(looks) + b")"  # atomic: none of the others is tried when what follows is missing
