"""Attached secrets taken out of what a host answers, in the same length and on the fly.

Its job: every form of some values replaced by stars, also where it lies over the border of two portions.
Not its job: secrets that a tool was given (``engine/results``), what is attached (``attach.py``).
Laws:
1. No form of a value is left, however the bytes were portioned, and nothing else is changed (tests/unit/test_egress_mask.py).
2. Bytes that could not begin a value are not held back (tests/unit/test_egress_mask.py).
"""

import base64
import html
import json
import urllib.parse
from collections.abc import Iterable

_STAR = b"*"


class Mask:
    """Forms of some values. Without values it changes nothing."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if value for form in _forms(value.encode("utf-8"))}
        self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        self._beginnings = frozenset(form[:length] for form in forms for length in range(1, len(form)))
        self._longest = max((len(form) for form in forms), default=0)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def whole(self, data: bytes) -> bytes:
        """The bytes without any of the forms."""
        masked: bytearray | None = None
        for form in self._forms:
            at = data.find(form)
            while at >= 0:
                masked = bytearray(data) if masked is None else masked
                masked[at : at + len(form)] = _STAR * len(form)
                at = data.find(form, at + 1)
        return data if masked is None else bytes(masked)

    def held_back(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a form."""
        for length in range(min(self._longest - 1, len(data)), 0, -1):
            if data[-length:] in self._beginnings:
                return length
        return 0


class Masking:
    """One body on its way through a mask."""

    def __init__(self, mask: Mask) -> None:
        self._mask, self._held, self._starred = mask, b"", b""

    def take(self, data: bytes) -> bytes:
        """What may leave of these bytes and of those before; as long as all that came, less what is held back."""
        whole = self._held + data
        # what was held back may end one form and begin another: its stars are kept beside its bytes
        shown = self._over(self._starred, self._mask.whole(whole))
        kept = self._mask.held_back(whole)
        self._held, self._starred = whole[len(whole) - kept :], shown[len(shown) - kept :]
        return shown[: len(shown) - kept]

    def end(self) -> bytes:
        """The rest."""
        rest, self._held, self._starred = self._starred, b"", b""
        return rest

    @staticmethod
    def _over(starred: bytes, shown: bytes) -> bytes:
        if _STAR not in starred:
            return shown
        front = bytes(ord(_STAR) if was == ord(_STAR) else now for was, now in zip(starred, shown, strict=False))
        return front + shown[len(front) :]


def _forms(value: bytes) -> Iterable[bytes]:
    yield value
    yield json.dumps(value.decode("utf-8"))[1:-1].encode("ascii")
    yield html.escape(value.decode("utf-8")).encode("utf-8")
    yield value.hex().encode("ascii")
    yield value.hex().upper().encode("ascii")
    every = "".join(f"%{byte:02X}" for byte in value)
    for quoted in (urllib.parse.quote(value, safe=""), urllib.parse.quote(value), urllib.parse.quote_plus(value), every):
        yield quoted.encode("ascii")
        yield _small_hex(quoted).encode("ascii")
    for before in range(3):
        yield from _base64(value, before)


def _small_hex(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return first + "".join("%" + part[:2].lower() + part[2:] for part in rest)


def _base64(value: bytes, before: int) -> Iterable[bytes]:
    """The characters that depend on the value alone, with so many bytes before it."""
    coded = base64.b64encode(b"\0" * before + value)
    start = (8 * before + 5) // 6
    core = coded[start : 8 * (before + len(value)) // 6]
    yield core
    yield core.replace(b"+", b"-").replace(b"/", b"_")
