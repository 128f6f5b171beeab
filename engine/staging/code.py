"""Byte code of a bundle, beside it: made by the parser's process, kept as bytes, handed to zygotes by place and digest.

Its job: write it, name it.
Not its job: making or reading it (``worker_images/enter/coding.py``): it is never decoded on this side.
Laws:
1. It belongs to one load of one bundle, whose sources the process that made it was given: no other bundle's worker is told of it
   (tests/contract/test_code.py).
2. Whoever reads it compares the digest that was told in memory: a file that was changed is not used (tests/contract/test_code.py).
3. A bundle without it works the same (tests/contract/test_code.py).
4. Only a regular file is read or written there, and no more of it than code can be (tests/contract/test_code.py).
"""

import dataclasses
import hashlib
import os
import stat
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
    if not code or 4 + len(head) + sum(map(len, code.values())) > MOST_BYTES:  # before it is joined: who made it may have made gigabytes
        return None
    data = b"".join((len(head).to_bytes(4, "big"), head, *code.values()))
    digest = hashlib.sha256(data).hexdigest()
    path = folder / digest
    try:
        own_folder(folder)
        _keep(path, data)
    except OSError:
        return None
    return Code(path=path, digest=digest)


def _keep(path: Path, data: bytes) -> None:
    """Write the data there unless that is what lies there already. Raises OSError."""
    # security: a pipe, a device or a link in its place would be waited for, read without end, or lead elsewhere
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileExistsError(path)
        if os.pread(descriptor, len(data) + 1, 0) == data:
            return
        # not synced, not renamed: a reader that finds only a part of it, finds another digest and does without
        os.truncate(descriptor, 0)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)
