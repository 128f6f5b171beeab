"""Calls as lines of JSON: one object a line, strictly read.

Its job: the lines of a file within bounds, each as a call or as what is wrong with it.
Not its job: which ids were met before (``ids.py``), making the call (``run.py``).
Laws:
1. No line is held beyond the bound, however long it is (tests/unit/test_batch_lines.py).
2. A line is one object of known keys, or it is refused; nothing in it is guessed (tests/unit/test_batch_lines.py).
3. A line that is refused keeps no other from being read (tests/unit/test_batch_lines.py).
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import IO, Any

from engine.checking import parse_arguments
from engine.errors import RequestError, one_line
from engine.outcome import error_for

SLACK_BYTES = 64 << 10  # of a line beside its arguments
_ID = 256  # characters
_KEYS = ("id", "source", "tool", "arguments", "timeout_ms", "tenant")
_CHUNK = 64 << 10
_MARK = b"\xef\xbb\xbf"  # some editors begin a file with it; it is no part of the first line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Raw:
    """One line as it stands in the file: its number from 1, the digest of its bytes, and these, None when there are too many."""

    number: int
    digest: str
    data: bytes | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """What holds for lines that do not say it themselves."""

    source: str | None = None
    timeout_ms: int | None = None
    tenant: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallLine:
    """A line that can be called."""

    number: int
    digest: str
    id: str
    source: str
    tool: str
    arguments: dict[str, Any]
    timeout_ms: int | None
    tenant: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BadLine:
    """A line that cannot, and why. ``id`` is None when it has none that could be its own."""

    number: int
    digest: str
    id: str | None
    reason: str
    lines: tuple[str, ...]


def raw_lines(file: IO[bytes], limit: int) -> Iterator[Raw]:
    """The lines of a file that are not blank, each of at most ``limit`` bytes without its end."""
    number = 0
    while data := file.readline(limit + 2):  # one more than the longest with its end
        number += 1
        line = data.removesuffix(b"\n").removeprefix(_MARK if number == 1 else b"")
        total = hashlib.sha256(line)
        # security: a line without an end is passed over in pieces, and never held
        while not data.endswith(b"\n") and (data := file.readline(_CHUNK)):
            total.update(data.removesuffix(b"\n"))
        if line.strip() or len(line) > limit:
            yield Raw(number=number, digest=f"sha256:{total.hexdigest()}", data=line if len(line) <= limit else None)


def read_line(raw: Raw, limit: int, defaults: Defaults) -> CallLine | BadLine:
    """The call that a line asks for, or what is wrong with it."""
    found: dict[str, Any] = {}
    try:
        found = _object(raw, limit)
        call = _call(raw, found, defaults)
    except RequestError as error:
        own = found.get("id")
        return BadLine(number=raw.number, digest=raw.digest, id=own if _is_id(own) else None, reason=error.code, lines=error.lines)
    return call


def _object(raw: Raw, limit: int) -> dict[str, Any]:
    if raw.data is None:
        raise error_for("refused.request_size", f"the line has more than {limit} bytes: send less")
    try:
        return parse_arguments(raw.data, limit)
    except RequestError as error:
        raise RequestError(error.code, *(_of_line(line) for line in error.lines)) from None


def _of_line(told: str) -> str:
    """What the reader of arguments says, said of a line."""
    for theirs, ours in (("the arguments are", "the line is"), ("the arguments", "the line"), ("flatten them", "flatten it")):
        told = told.replace(theirs, ours)
    return told


def _call(raw: Raw, found: Mapping[str, Any], defaults: Defaults) -> CallLine:
    given = {"source": defaults.source, "arguments": {}, "timeout_ms": defaults.timeout_ms, "tenant": defaults.tenant, **found}
    problems = [f"{key!r}: unknown key; allowed: {', '.join(_KEYS)}" for key in found if key not in _KEYS]
    if not _is_id(given.get("id")):
        problems.append(f"id: want a text of 1 to {_ID} characters")
    if not _is_path(given["source"]):
        problems.append("source: want a path, here or as --source")
    if type(given.get("tool")) is not str:
        problems.append("tool: want the name of a tool of the source")
    if type(given["arguments"]) is not dict:
        problems.append('arguments: want an object, such as {"key": "value"}')
    if given["timeout_ms"] is not None and type(given["timeout_ms"]) is not int:
        problems.append("timeout_ms: want a whole number of milliseconds")
    if given["tenant"] is not None and type(given["tenant"]) is not str:
        problems.append("tenant: want a text")
    if problems:
        raise error_for("refused.request", *(one_line(problem) for problem in problems[:20]))
    return CallLine(number=raw.number, digest=raw.digest, **{key: given[key] for key in _KEYS})


def _is_id(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= _ID


def _is_path(value: object) -> bool:
    return type(value) is str and value != "" and "\0" not in value
