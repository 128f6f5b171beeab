"""Native code out of an image's component: compiled on this machine, for this machine, and never brought from elsewhere.

Its job: what code depends on, as a key; compiling by a process of its own; code that was checked, as an open descriptor.
Not its job: compiling itself (``worker_images/wasm/compile.py``), loading code (``worker_images/wasm/host.py``).
Laws:
1. Another component, wasmtime, setting, processor or machine has other code (tests/unit/test_image_compiling.py).
2. The descriptor that is handed out is the one that was hashed (tests/unit/test_image_compiling.py).
3. No code comes out of an exported file (tests/security/test_image_archives.py).
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from engine.authoring.canonical import canonical, digest
from engine.images import running
from engine.images.cache import (
    CODE,
    COMPILED,
    COMPONENT,
    MANIFEST,
    Checked,
    Damaged,
    Entry,
    check_folder,
    is_folder,
    making,
    put,
    sha256_of,
)
from engine.images.manifest import Piece
from engine.images.telling import Told
from engine.outcome import error_for

_SECONDS = 1200
_LIMITS = {"CPU": 3600, "CORE": 0, "NOFILE": 64, "FSIZE": 1 << 30, "DATA": 6 << 30}  # setrlimit(2); compiling takes 0.5 GiB
_CODE_BYTES = 1 << 30
_MANIFEST_BYTES = 16 << 10
_FEATURES = ("flags", "Features")  # what a processor can do, in /proc/cpuinfo of x86 and of ARM


@dataclasses.dataclass(frozen=True, kw_only=True)
class Code:
    """Compiled code that was checked: who gets it closes the descriptor. Trusted input: it is mapped and run as it is."""

    descriptor: int
    size: int
    sha256: str
    key: str


def key_of(entry: Entry, worker_images: Path) -> dict[str, str]:
    """All that compiled code depends on, word by word. Raises refused.image_build when wasmtime is not installed."""
    try:
        version = metadata.version("wasmtime")
    except metadata.PackageNotFoundError:
        raise error_for("refused.image_build", "wasmtime is not installed: install stockade again, with what it depends on") from None
    parts = [(worker_images / "wasm" / name).read_bytes() for name in ("configuration.py", "compile.py")]
    return {
        "component": entry.manifest.component.sha256,
        "wasmtime": version,
        "settings": hashlib.sha256(b"\0".join(parts)).hexdigest(),
        "machine": platform.machine(),
        "cpu": hashlib.sha256(_features().encode()).hexdigest(),
    }


def _features() -> str:
    """The processor's features, sorted: code uses those that the compiler found."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in _FEATURES:
                return " ".join(sorted(value.split()))
    return "unknown"


def folder_of(entry: Entry, key: Mapping[str, str]) -> Path:
    """Where the code for that key lies, or would."""
    return entry.path / COMPILED / digest(dict(key)).removeprefix("sha256:")


def compile_here(entry: Entry, worker_images: Path, told: Told) -> None:
    """Compile the image for this machine, unless sound code lies there. The caller is the cache's writer. Raises refused.image_build."""
    key = key_of(entry, worker_images)
    with contextlib.suppress(FileNotFoundError, Damaged):
        os.close(open_code(entry, key).descriptor)
        return
    told.step(f"compiling {entry.manifest.name} for this machine")
    with making(entry.path / COMPILED) as made:
        wanted = json.dumps({"limits": _LIMITS, "sha256": entry.manifest.component.sha256})
        program = worker_images / "wasm" / "compile.py"
        # security: it reads a file that may have been made elsewhere; it sees no variable of ours and is bounded
        command: list[str | Path] = [sys.executable, "-I", program, entry.path / COMPONENT, made / CODE, wanted]
        try:
            running.run(command, environment={}, seconds=_SECONDS, tick=told.tick)
        except running.Failed as failed:
            raise error_for("refused.image_build", *(f"compiling {entry.manifest.name}: {line}" for line in failed.lines)) from None
        with open(made / CODE, "rb") as file:
            piece = {"size": os.fstat(file.fileno()).st_size, "sha256": sha256_of(file.fileno())}
        (made / MANIFEST).write_bytes(canonical({"format": 1, "key": key, "code": piece}))
        put(made, folder_of(entry, key))


def open_code(entry: Entry, key: Mapping[str, str]) -> Code:
    """The code for that key, hashed. Raises FileNotFoundError when it was never compiled, Damaged when it is not what was made."""
    folder = folder_of(entry, key)
    if not is_folder(folder):
        raise FileNotFoundError(folder)
    try:
        for part in (folder.parent, folder):
            check_folder(part)
        with contextlib.closing(Checked(folder / MANIFEST)) as file:
            known = json.loads(file.read(_MANIFEST_BYTES))
        piece = Piece(**known["code"])
        if known["format"] != 1 or known["key"] != dict(key) or not 0 < piece.size <= _CODE_BYTES:
            raise Damaged(f"{folder / MANIFEST} is not as it was written")
        code = Checked(folder / CODE)
    except OSError as error:
        raise Damaged(f"{error.filename}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged(f"{folder / MANIFEST} is not as it was written") from None
    try:
        code.check(piece)
    except BaseException:
        code.close()
        raise
    return Code(descriptor=code.descriptor, size=piece.size, sha256=piece.sha256, key=folder.name)
