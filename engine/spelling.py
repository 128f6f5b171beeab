"""The canonical bytes of data that is known to be plain, at the speed of the standard library's encoder.

Its job: the same bytes and digests as ``authoring/canonical.py``, which the guest carries and which therefore imports no json.
Not its job: finding out whether data is plain (``checking.data_problem``, ``wire/data.py``): that comes first.
Laws:
1. For plain data the bytes are those of ``canonical`` (tests/unit/test_spelling.py).
"""

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def spelled(value: Any) -> bytes:
    """The canonical bytes. Raises ValueError (also UnicodeEncodeError) for some data that is not plain; do not rely on which."""
    return _ENCODER.encode(value).encode("utf-8")


def digest(value: Any) -> str:
    """``sha256:`` and the hexadecimal SHA-256 of the canonical bytes."""
    return f"sha256:{hashlib.sha256(spelled(value)).hexdigest()}"
