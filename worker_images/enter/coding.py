"""Byte code of staged sources: made in the parser's process, handed from jail to children as bytes.

Its job: compile one source that was parsed, in the process that can do nothing else; find what was made again for a zygote.
Not its job: keeping it (``engine/staging/code.py``), running it (``guest/loader.py``); it is never decoded here.
Laws:
1. Code is made of a source by a process that ran nothing of it; without code the source itself is compiled (tests/contract/test_code.py).
2. Code whose digest or interpreter is not the expected one is not used (tests/contract/test_code.py).
3. A source that the compiler warns about has no code, so that each import still warns (tests/contract/test_code.py).
"""

import marshal
import os
import stat
import sys
import warnings

if sys.version_info >= (3, 12):
    from _sha2 import sha256
else:
    from _sha256 import sha256

FILE_BYTES = 4 << 20  # of all code of one bundle; a zygote holds it in memory
PYTHON = f"{sys.implementation.cache_tag} {sys.hexversion:x}"  # whose code it is
_FOLDER = "/bundle/"  # where the source lies inside a jail; elsewhere the loader corrects it


def code_of(source: bytes, name: str) -> str:
    """The code of a source as text of one character a byte (the wire knows no bytes), empty when there is none to be had."""
    try:
        with warnings.catch_warnings(action="error"):
            made = marshal.dumps(compile(source, _FOLDER + name, "exec", dont_inherit=True))
    except Exception:  # its import will say what is wrong with it, to its author
        return ""
    return made.decode("latin-1") if len(made) <= FILE_BYTES else ""


def read(place: list[str] | None) -> dict[str, bytes]:
    """Path below the bundle -> code, from the file that was written when it was staged; empty when that is not what was written."""
    if place is None:
        return {}
    path, digest = place
    try:
        data = _regular(path)
    except OSError:
        return {}
    # security: what lies there is run under the source's digest, so it must be what was made of that source
    if sha256(data).hexdigest() != digest:
        return {}
    start = 4 + int.from_bytes(data[:4], "big")
    python, *files = data[4:start].decode().split("\n")
    if python != PYTHON:
        return {}
    found = {}
    for line in files:
        size, _, name = line.partition(" ")
        found[name] = data[start : start + int(size)]
        start += int(size)
    return found


def _regular(path: str) -> bytes:
    """What a regular file holds, and of anything else nothing. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)  # security: a folder's as well, which a first process would keep, and a snapshot's tool find in it
