"""An operator's files, read carefully, and the form that every entry of them has.

Its job: bounded reading of regular files, strict TOML, ``{ value = ..., reason = "..." }``, lists of texts and amounts.
Not its job: which keys there are (``load.py``, ``profiles.py``), what a value means (``model.py``).
Laws:
1. A FIFO, a device, a huge or deeply nested file refuses at once, with the file's name (tests/unit/test_policy_load.py).
2. Every entry has a reason in words (tests/unit/test_policy_load.py).
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import PolicyError

NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")  # of a policy, a profile, a credential family
_FILE_BYTES = 256 << 10  # a policy is written by hand; more is a mistake or an attack on the parser


def read_document(path: Path) -> dict[str, Any]:
    """The TOML document in that file. Raises PolicyError with file and line."""
    try:
        text = read_bytes(path, _FILE_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise file_error(path, [f"is not UTF-8 text (byte {error.start})"]) from None
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or int() refusing thousands of digits
        where = re.search(r"\(at line ([0-9]+), column [0-9]+\)", str(error))
        line = int(where[1]) if where else text.count("\n") + 1
        raise PolicyError("refused.policy", f"{path}:{line}: not TOML: {str(error).split(' (at ')[0]}") from None
    except RecursionError:
        raise file_error(path, ["is nested too deeply"]) from None


def read_bytes(path: Path, most: int) -> bytes:
    """All of a regular file of at most that many bytes. Raises PolicyError naming the file."""
    try:
        # security: O_NONBLOCK and the type check, because a FIFO or a device in place of the file would hang the engine
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise file_error(path, ["is not a regular file"])
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise file_error(path, [f"cannot be read: {error.strerror or type(error).__name__}"]) from None
    if len(data) > most:
        raise file_error(path, [f"is larger than {most} bytes"])
    return data


def file_error(path: Path, lines: list[str]) -> PolicyError:
    """The error with that file's name before each line."""
    return PolicyError("refused.policy", *(f"{path}: {line}" for line in lines))


def value_of(key: str, entry: object) -> object:
    """The value of one entry. Raises PolicyError when it is not a value with a reason in words."""
    if not isinstance(entry, dict) or entry.keys() != {"value", "reason"}:
        raise PolicyError("refused.policy", f'{key}: want {{ value = ..., reason = "..." }} with these two keys and no other')
    said(f"{key}: the reason", entry["reason"])
    return entry["value"]


def said(what: str, text: object) -> None:
    """Raises PolicyError when the text says nothing."""
    if not isinstance(text, str) or not text.strip():
        raise PolicyError("refused.policy", f"{what} must say in words why")


def strings(key: str, value: object) -> list[str]:
    """A list of different non-empty texts. Raises PolicyError naming the key."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise PolicyError("refused.policy", f"{key}: want a list of non-empty texts; [] grants nothing")
    if len(set(value)) != len(value):
        raise PolicyError("refused.policy", f"{key}: the same text is listed twice")
    return value


def amount(key: str, value: object, parse: Callable[[object], int]) -> int:
    """The amount as that function reads it. Raises PolicyError naming the key."""
    try:
        return parse(value)
    except PolicyError as error:
        raise PolicyError("refused.policy", *(f"{key}: {line}" for line in error.lines)) from None
