"""The staged source and its layers as one text, which each child hands to its guest: a guest has no files.

Its job: read what a jail shows of them, once for all its children, before it is locked.
Not its job: choosing what is staged (the engine), importing it (the guest).
Laws:
1. A layer that holds native code is refused by name: a guest cannot load it (tests/unit/test_wasm_sources.py).
2. Only regular files are read, and never more than ``MOST`` bytes of them (tests/unit/test_wasm_sources.py).
"""

import json
import os
import stat
from collections.abc import Iterator, Sequence

from enter.enter import named
from enter.kernel import Step

MOST = 32 << 20  # of all files together: each child's guest holds them in its own memory
_NATIVE = (".so", ".pyd", ".dylib", ".dll")
_ELF = b"\x7fELF"
_STEP = "read the source"


def text_of(root: str, layers: Sequence[str]) -> bytes:
    """``{"files": {path: text}, "layers": {name: {path: text}}}`` as JSON, each text one character a byte. Raises Step.

    Spelled as an image that was made for this source spells it (``python_wasm/shim.py``), which then has only to compare.
    """
    left = [MOST]
    try:
        found = {
            "files": _tree(root, left, pure=False),
            "layers": {os.path.basename(layer): _tree(layer, left, pure=True) for layer in layers},
        }
    except OSError as error:
        raise named(_STEP, error) from None
    return json.dumps(found, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()  # as shim.py spells it


def _tree(folder: str, left: list[int], *, pure: bool) -> dict[str, str]:
    found = {}
    for path in _files(folder):
        data = _regular(path, left[0])
        if data is None:
            continue
        name = path[len(folder) + 1 :]
        if pure and (name.endswith(_NATIVE) or data[:4] == _ELF):
            raise Step("read the layers", 0, f"{os.path.basename(folder)}/{name} is native code, which a WebAssembly worker cannot load")
        left[0] -= len(data)
        if left[0] < 0:
            raise Step(_STEP, 0, f"source and layers together hold more than {MOST >> 20} MiB, which is what a WebAssembly worker takes")
        found[name] = data.decode("latin-1")
    return found


def _files(folder: str) -> Iterator[str]:
    """Every file below a folder in order of name; byte code of the host's interpreter is of no use to the guest's."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for entry in listed:
            if not entry.is_dir(follow_symlinks=False):
                yield entry.path
        waiting += [entry.path for entry in reversed(listed) if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__"]


def _regular(path: str, most: int) -> bytes | None:
    """What a regular file holds, one byte more than allowed at most; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if os.path.islink(path):
            return None
        raise error
    with open(descriptor, "rb") as file:
        return file.read(most + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
