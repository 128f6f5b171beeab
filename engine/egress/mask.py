"""Attached secrets taken out of what a host answers, in the same length and on the fly.

Its job: every spelling of some values replaced by stars, also where it lies over the border of two portions.
Not its job: the spellings (``engine/encodings.py``), secrets that a tool was given (``engine/results``), what is attached (``attach.py``).
Laws:
1. No spelling of a value is left, however the bytes were portioned, and nothing else is changed (tests/unit/test_egress_mask.py).
2. How many bytes are held back does not depend on what the bytes are (tests/unit/test_egress_mask.py).
3. The time is in proportion to the data, and the memory to the spellings (tests/unit/test_egress_mask.py).
"""

from collections.abc import Iterable

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from engine.encodings import forms

_STAR = b"*"
_STEP = 256  # bytes; what is held back is a multiple of it, so that it tells little of how long a value is


class Mask:
    """Spellings of some values. Without values it changes nothing. ``lag``: the bytes of a body that are held back until its end."""

    __slots__ = ("_finder", "lag")

    def __init__(self, values: Iterable[str]) -> None:
        found = sorted({form for value in values for form in forms(value)})
        self._finder = BytesAhoCorasick(found, MatchKind.Standard, Implementation.ContiguousNFA) if found else None
        self.lag = -(-max(map(len, found)) // _STEP) * _STEP if found else 0

    def __bool__(self) -> bool:
        return self._finder is not None

    def __repr__(self) -> str:
        return f"Mask({self.lag} bytes held back)"

    def whole(self, data: bytes) -> bytes:
        """The bytes without any of the spellings."""
        return starred(data, self.places(data))

    def places(self, data: bytes) -> list[tuple[int, int]]:
        """Where they begin and end, also those that overlap."""
        if self._finder is None:
            return []
        return [(start, end) for _, start, end in self._finder.find_matches_as_indexes(data, overlapping=True)]


def starred(data: bytes, places: Iterable[tuple[int, int]]) -> bytes:
    """The data with those places covered."""
    covered: bytearray | None = None
    for start, end in places:
        covered = bytearray(data) if covered is None else covered
        covered[start:end] = _STAR * (end - start)
    return data if covered is None else bytes(covered)


class Masking:
    """One body on its way through a mask."""

    def __init__(self, mask: Mask) -> None:
        self._mask, self._held = mask, b""
        self._over = 0  # how many of the bytes held back belong to a spelling that began before them

    def take(self, data: bytes) -> bytes:
        """What may leave of these bytes and of those before: all but the last ``lag`` ones."""
        whole = self._held + data
        # security: a number that followed from the bytes would let a tool guess a value letter by letter
        cut = max(0, len(whole) - self._mask.lag)
        places = [(0, self._over), *self._mask.places(whole)]
        self._over = max([0, self._over - cut, *(end - cut for start, end in places if start < cut)])
        self._held = whole[cut:]
        return starred(whole[:cut], [(start, min(end, cut)) for start, end in places if start < min(end, cut)])

    def end(self) -> bytes:
        """The rest."""
        rest = starred(self._held, [(0, self._over), *self._mask.places(self._held)])
        self._held, self._over = b"", 0
        return rest
