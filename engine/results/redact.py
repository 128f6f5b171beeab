"""Secret values and what looks like one, found in what leaves a call and put out of sight.

Its job: one pass over bytes for all spellings of all values and all shapes; marks in place of what was found, in text, plain data and
receipts; what is split over several items of one call.
Not its job: where the values come from (``egress/vault.py``), what happens to a call that let one out (``call.py``), the spellings
(``encodings.py``), the shapes (``policy/shapes.py``).
Laws:
1. Found: a value as it is, in upper, lower and swapped case (from 12 characters), in Unicode's other normal form, with CRLF, as
   UTF-16; in base64 (both alphabets) and base32 wherever it begins, in hexadecimal of one case; percent-encoded, JSON-escaped once
   and twice, with \\uXXXX or \\xXX for each character, as Python shows it, with HTML's entities; of a longer value each piece of 1024
   characters and each long line (tests/unit/test_redact.py).
2. Not found: reversed, compressed, encrypted, XORed, hexadecimal with separators or mixed case, base64 of base64, base64 broken into
   lines inside the value, base85, the codes of its characters as numbers, with characters put between (tests/unit/test_redact.py).
   A tool that means harm can always hide a value that it holds: what helps against it is that it never holds one.
3. What is found in an encoded spelling is replaced whole, and looking at what came out finds nothing (tests/fuzz/test_redact.py).
4. A value that is split over items, or inside one item over its texts, its keys, or both in turn, is found when its last part comes
   (tests/unit/test_redact_trail.py).
5. The work is in proportion to the data, whatever stands in it (tests/unit/test_redact_work.py).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import msgpack

from engine.policy.shapes import ValueShapes
from engine.results.needles import Found, Needles
from engine.results.needles import Hit as Hit
from engine.spelling import spelled

_SHORT = 64 << 10  # bytes; up to here a second pass costs less than finding out by one


class Unredactable(Exception):
    """A number's digits are a secret value: no mark can stand in place of a number. ``ids`` says whose."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        self.ids = ids
        super().__init__(f"a number holds the secret {', '.join(ids)}")


class Watch:
    """What is looked for in all that leaves: the values by their IDs, in all spellings, and the shapes. Immutable."""

    __slots__ = ("_needles", "numeric", "reach")

    def __init__(self, secrets: Mapping[str, str], shapes: ValueShapes) -> None:
        self._needles = Needles(secrets, shapes)
        self.reach = self._needles.reach  # bytes before a hit's end that may be needed to find it: of a value, or of a certain shape
        self.numeric = any(not set(value) - set("0123456789.-+e") for value in secrets.values())  # a number may be one of them

    def __repr__(self) -> str:
        return f"Watch({self._needles!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("what holds secret values is not copied")

    def until(self, given_up: Callable[[], bool]) -> "Watch":
        """The same one, for work in a thread: it raises GivenUp soon after that says so."""
        other = object.__new__(Watch)
        other._needles, other.reach, other.numeric = self._needles.until(given_up), self.reach, self.numeric
        return other

    def look(self, data: bytes | memoryview, before: bytes = b"") -> tuple[Hit, ...]:
        """The hits that end in these bytes, by where they start; with a part in ``before`` the start is below 0.

        A shape that stands inside a value is left out. For much data take ``slices``.
        """
        return _hits(self._look(data, before, uncertain=True))

    def slices(self, data: bytes | memoryview) -> Iterator[tuple[Hit, ...]]:
        """``look``, about a millisecond at a time, so that the caller can give others a turn in between."""
        for found in self._needles.hits(data):
            yield _hits(_sorted(found))

    def seen(self, data: bytes | memoryview) -> tuple[Hit, ...]:
        """The first hit of each ID: enough to judge much data by, and never more than there are IDs."""
        first: dict[str, Found] = {}
        for found in self._needles.hits(data):
            for hit in _sorted(found):
                first.setdefault(hit[2], hit)
        return _hits(first.values())

    def text(self, text: str) -> tuple[str, Counter[str]]:
        """The text with marks in place of all that was found, and how often each ID was."""
        return self._text(text)

    def value(self, value: Any) -> tuple[Any, Counter[str]]:
        """Plain data with marks in its texts and keys, and how often each ID was found. Raises Unredactable for a number."""
        counts: Counter[str] = Counter()
        return self._value(value, counts, raising=True), counts

    def numbers(self, value: Any) -> tuple[str, ...]:
        """The IDs of the values that numbers of this plain data hold; frames and ``look`` do not show digits of those."""
        counts: Counter[str] = Counter()
        for number in _numbers(value) if self.numeric else ():
            counts.update(hit.id for text in _digits(number) for hit in self.look(text.encode()))
        return tuple(sorted(counts))

    def line(self, data: bytes) -> bytes:
        """A receipt's canonical JSON with marks in it, itself canonical; the same bytes where nothing was found."""
        if not self.numeric and (self._needles.silent(data) or not self.look(data)):
            return data  # most receipts: they are not even parsed
        try:
            parsed = json.loads(data)
        except ValueError:
            parsed = None
        if not self.look(data) and not (self.numeric and self.numbers(parsed)):
            return data
        kept = self._blotted(self._value(parsed, Counter(), raising=False))
        # security: a value that is made of the JSON's own signs would stay; then nothing but whose it was is written
        if parsed is None or self.look(made := spelled(kept)):
            made = spelled({"redacted": sorted({hit.id for hit in self.look(data)})})
        return made

    def _blotted(self, value: Any) -> Any:
        """A mark in place of each text that shows a value only as it is spelled: a line break before one that begins with n."""
        if not (hits := self.look(spelled(value))):
            return value
        if isinstance(value, dict):
            made = _Members()
            for key, item in value.items():
                made.add(_mark(found[0].id) if (found := self.look(spelled(key))) else key, self._blotted(item))
            return made.members
        return [self._blotted(item) for item in value] if isinstance(value, list) else _mark(hits[0].id)

    def _look(self, data: bytes | memoryview, before: bytes, *, uncertain: bool) -> list[Found]:
        if len(data) < _SHORT and not before and self._needles.silent(data):
            return []
        cut = len(before)
        whole = b"".join((before, data)) if before else data
        found = _sorted(hit for hits in self._needles.hits(whole) for hit in hits if -hit[1] > cut and (uncertain or hit[3]))
        return [(start - cut, end + cut, name, certain) for start, end, name, certain in found] if cut else found

    def _text(self, text: str, before: bytes = b"") -> tuple[str, Counter[str]]:
        data = text.encode("utf-8", "surrogatepass")
        if not (hits := self._look(data, before, uncertain=True)):
            return text, Counter()
        made, counts = _marked(data, hits)
        return (made.decode("utf-8", "surrogatepass"), counts) if counts else (text, counts)

    def _value(self, value: Any, counts: Counter[str], *, raising: bool) -> Any:
        if isinstance(value, str):
            text, found = self._text(value)
            counts.update(found)
            return text
        if isinstance(value, dict):
            made = _Members()
            for key, item in value.items():
                made.add(self._value(key, counts, raising=raising), self._value(item, counts, raising=raising))
            return made.members
        if isinstance(value, list | tuple):
            return [self._value(item, counts, raising=raising) for item in value]
        if self.numeric and (ids := self.numbers(value)):
            counts.update(ids)
            if raising:
                raise Unredactable(ids)
            return _mark(ids[0])
        return value


class Trail:
    """What one call let out so far, by carrier: the end of it is looked through together with what comes next.

    Looks for values and for certain shapes; an uncertain shape made of two texts is too likely a chance.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._ends: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"Trail({sorted(self._ends)})"

    def look(self, payload_text: bytes, carrier: str = "") -> tuple[Hit, ...]:
        """The hits that end in this text, of which earlier texts may be a part (then ``start`` is below 0); the text is remembered."""
        before = self._ends.get(carrier, b"")
        hits = _hits(self._watch._look(payload_text, before, uncertain=False))
        self._remember(payload_text, carrier, before)
        return hits

    def fork(self) -> "Trail":
        """Another one that goes on from here by itself."""
        other = Trail(self._watch)
        other._ends.update(self._ends)
        return other

    def text(self, text: str, carrier: str) -> tuple[str, Counter[str]]:
        """``Watch.text`` for a text that goes on where the carrier's last one ended. What went out before cannot be called back."""
        before = self._ends.get(carrier, b"")
        made, counts = self._watch._text(text, before)
        self._remember(made.encode("utf-8", "surrogatepass"), carrier, before)
        return made, counts

    def item(self, value: Any, carrier: str) -> tuple[Hit, ...]:
        """``look`` over all texts of an item joined, over its keys joined, and over both as they stand there."""
        texts, keys, both = streams(value)
        found = self.look(texts, f"{carrier} texts")
        if not keys and not self._ends.get(f"{carrier} keys"):  # no key yet: both are the texts, and their ends are the same
            self._ends[f"{carrier} both"] = self._ends[f"{carrier} texts"]
            return found
        return (*found, *self.look(keys, f"{carrier} keys"), *self.look(both, f"{carrier} both"))

    def _remember(self, text: bytes, carrier: str, before: bytes) -> None:
        keep = max(self._watch.reach - 1, 0)
        self._ends[carrier] = (before + text[max(0, len(text) - keep) :])[-keep:] if keep else b""


def streams(value: Any) -> tuple[bytes, bytes, bytes]:
    """The texts of plain data, its keys, and both in turn, in the order in which they stand there and with nothing between them."""
    texts: list[str] = []
    keys: list[str] = []
    both: list[str] = []
    waiting = [value]
    while waiting:
        top = waiting.pop()
        if isinstance(top, str):
            texts.append(top)
            both.append(top)
        elif isinstance(top, dict):
            waiting.extend(one for key, item in reversed(top.items()) for one in (item, _Key(key)))
        elif isinstance(top, list | tuple):
            waiting.extend(reversed(top))
        elif type(top) is _Key:
            keys.append(top.text)
            both.append(top.text)
    made = ("".join(parts).encode("utf-8", "surrogatepass") for parts in (texts, keys, both))
    return next(made), next(made), next(made)


def remains(watch: Watch, value: Any) -> tuple[str, ...]:
    """The IDs of what plain data certainly holds: as it would be sent, joined, or in a number."""
    packed = msgpack.packb(value, unicode_errors="surrogatepass")
    found = {hit.id for hit in (*watch.seen(packed), *Trail(watch).item(value, "")) if hit.certain}
    return tuple(sorted({*found, *watch.numbers(value)}))


def blotted(value: Any, name: str, *, keys: bool) -> Any:
    """The same data with a mark in place of each text, and of each key if that is wanted."""
    if isinstance(value, str):
        return _mark(name)
    if isinstance(value, dict):
        made = _Members()
        for key, item in value.items():
            made.add(_mark(name) if keys else key, blotted(item, name, keys=keys))
        return made.members
    return [blotted(item, name, keys=keys) for item in value] if isinstance(value, list | tuple) else value


class _Key:
    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class _Members:
    """An object that is being made: two keys may have become one mark, and no entry may go missing for it."""

    __slots__ = ("_next", "members")

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}
        self._next: dict[str, int] = {}  # by key: the first number behind it that was not tried

    def add(self, key: str, value: Any) -> None:
        made = key
        while made in self.members:
            # security: counted on from the last one; from the first each time, equal marks would cost their number squared
            self._next[key] = number = self._next.get(key, 1) + 1
            made = f"{key}~{number}"
        self.members[made] = value


def _numbers(value: Any) -> Iterator[int | float]:
    waiting = [value]
    while waiting:
        top = waiting.pop()
        if isinstance(top, dict):
            waiting.extend(top.values())
        elif isinstance(top, list | tuple):
            waiting.extend(top)
        elif isinstance(top, int | float) and not isinstance(top, bool):
            yield top


def _digits(number: float) -> set[str]:
    if isinstance(number, float) and number.is_integer():
        return {repr(number), str(int(number))}
    return {repr(number)}


def _mark(name: str) -> str:
    return f"[redacted:{name}]"


def _hits(found: Iterable[Found]) -> tuple[Hit, ...]:
    return tuple(Hit(id=name, certain=certain, start=start, end=-end) for start, end, name, certain in found)


def _sorted(found: Iterable[Found]) -> list[Found]:
    """By where they start; a shape inside a value is left out, because the value's name says more."""
    reached, kept = -1, []
    for hit in sorted(found):
        if not hit[2].startswith("shape:"):
            reached = max(reached, -hit[1])
        elif -hit[1] <= reached:
            continue
        kept.append(hit)
    return kept


def _marked(data: bytes, found: list[Found]) -> tuple[bytes, Counter[str]]:
    """The data with marks in place of each stretch of hits, and how often each ID's mark stands in it."""
    parts: list[bytes] = []
    counts: dict[str, int] = {}
    marks: dict[str, bytes] = {}
    at, size = 0, len(data)
    for start, end, names in _stretches(found):
        start = _whole(data, start) if start > at else at
        end = _whole(data, end, onward=1) if end < size else size
        parts.append(data[at:start])
        for name in [name for name in names if not name.startswith("shape:")] or names if len(names) > 1 else names:
            if name not in counts:
                counts[name], marks[name] = 0, _mark(name).encode()
            parts.append(marks[name])
            counts[name] += 1
        at = end
    parts.append(data[at:])
    return b"".join(parts), Counter(counts)


def _stretches(found: list[Found]) -> Iterator[tuple[int, int, list[str]]]:
    """Hits that overlap, or of one secret that touch, are one stretch with the names of all of them."""
    start, end, names = 0, 0, list[str]()
    for begins, ends, name, _ in found:
        if names and (begins < end or (begins == end and names == [name])):
            end = max(end, -ends)
            names += [name] if name not in names else []
            continue
        if names:
            yield start, end, names
        start, end, names = begins, -ends, [name]
    if names:
        yield start, end, names


def _whole(data: bytes, at: int, onward: int = -1) -> int:
    """The place, moved off the inside of a character."""
    while 0 < at < len(data) and data[at] & 0xC0 == 0x80:
        at += onward
    return at
