"""Byte code of a bundle, beside it: made by the parser's process, kept as bytes, handed to zygotes by place and digest.

Its job: write it, name it.
Not its job: making or reading it (``worker_images/enter/coding.py``): it is never decoded on this side.
Laws:
1. It belongs to one load of one bundle, whose sources the process that made it was given: no other bundle's worker is told of it
   (tests/contract/test_code.py).
2. Whoever reads it compares the digest that was told in memory: a file that was changed is not used (tests/contract/test_code.py).
3. A bundle without it works the same (tests/contract/test_code.py).
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from engine.staging.sealed import own_folder

MOST_BYTES = 4 << 20  # for all of a bundle's code; a zygote holds it in memory, and large sources import only parts of themselves


@dataclasses.dataclass(frozen=True, kw_only=True)
class Code:
    """Where a bundle's code lies, and the SHA-256 of that file in hexadecimal digits."""

    path: Path
    digest: str


def publish(code: Mapping[str, bytes], python: str, folder: Path) -> Code | None:
    """The code below ``folder``, written or found there; None when there is none, or it cannot be kept.

    ``python`` is the version line of the interpreter that made it.
    """
    head = "\n".join((python, *(f"{len(made)} {path}" for path, made in code.items()))).encode()
    data = b"".join((len(head).to_bytes(4, "big"), head, *code.values()))
    if not code or len(data) > MOST_BYTES:
        return None
    digest = hashlib.sha256(data).hexdigest()
    path = folder / digest
    try:
        own_folder(folder)
        if not path.exists() or path.read_bytes() != data:
            _write(path, data)
    except OSError:
        return None
    return Code(path=path, digest=digest)


def _write(path: Path, data: bytes) -> None:
    # not synced, not renamed: a reader that finds only a part of it, finds another digest and does without
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
