"""One spelling of plain data as bytes, and its digest.

Its job: canonical JSON (sorted keys, no spaces, UTF-8, floats by repr) and SHA-256 of it, the same on every interpreter.
Not its job: saying what plain data is in words for an author (``convert.py``).
Laws:
1. The bytes are those of ``json.dumps(sort_keys=True, separators=(",", ":"), ensure_ascii=False)`` (tests/unit/test_canonical.py).
2. Equal data has equal bytes whatever the order of its keys (tests/unit/test_canonical.py).
3. Importing this file imports neither json nor hashlib (tests/house/test_guest_tree.py).
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

_DEPTH = 512  # containers around a value; four times what the wire takes, far below what memory takes
_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x20)} | {  # RFC 8259 section 7: what a string must escape
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x5C: "\\\\",
}


def canonical(value: object) -> bytes:
    """The canonical bytes of plain data. Raises ValueError for anything else, for non-finite floats and past 512 levels."""
    out: list[str] = []
    stack: list[Any] = [(value, 0)]  # what is left to write, last first: text as it is, or a value with its depth
    while stack:
        item = stack.pop()
        if type(item) is str:
            out.append(item)
            continue
        current, depth = item
        kind = type(current)
        if kind is dict or kind is list or kind is tuple:
            # security: a value that holds itself would be written until memory ends
            if depth >= _DEPTH:
                raise ValueError(f"data nested deeper than {_DEPTH} levels")
            stack.extend(_object(current, depth) if kind is dict else _array(current, depth))
        else:
            out.append(_scalar(current))
    return "".join(out).encode("utf-8")


def digest(value: object) -> str:
    """``sha256:`` and the hexadecimal SHA-256 of the canonical bytes. Raises ValueError like ``canonical``."""
    return f"sha256:{_sha256()(canonical(value)).hexdigest()}"


def _object(value: dict[Any, Any], depth: int) -> list[Any]:
    for key in value:
        if type(key) is not str:
            raise ValueError(f"a key of type {type(key).__name__} is not plain data")
    parts: list[Any] = ["}"]
    for key in sorted(value, reverse=True):
        parts += [(value[key], depth + 1), _string(key) + ":", ","]
    return [*parts[:-1], "{"] if value else ["{}"]


def _array(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    parts: list[Any] = ["]"]
    for item in reversed(value):
        parts += [(item, depth + 1), ","]
    return [*parts[:-1], "["] if value else ["[]"]


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if type(value) is str:
        return _string(value)
    if type(value) is int:
        return int.__repr__(value)
    if type(value) is float and value - value == 0.0:  # only finite floats: inf - inf and nan are not 0
        return float.__repr__(value)
    raise ValueError(f"a {type(value).__name__} is not plain data" if type(value) is not float else "a float that is not finite")


def _string(text: str) -> str:
    return '"' + text.translate(_ESCAPES) + '"'


@functools.cache
def _sha256() -> Callable[[bytes], Any]:
    """The interpreter's own SHA-256: hashlib would load OpenSSL, which no guest needs."""
    try:
        if sys.version_info >= (3, 12):
            import _sha2 as own
        else:
            import _sha256 as own
    except ImportError:
        import hashlib as own  # an interpreter built without its own: correct, only slower to load
    made: Callable[[bytes], Any] = own.sha256
    return made
