"""Folders named by the digest of what they hold: written once, read-only, checked when opened.

Its job: ``store/sha256/aa/<digest>/{<inner>/..., manifest.json}``, atomically and with many processes at once.
Not its job: what a manifest says beyond its files (``bundle.py``, ``layers.py``).
Laws:
1. The digest is that of ``manifest.json``, and that holds the digest of each file (tests/unit/test_bundle.py).
2. A name appears whole or not at all; whoever comes second checks what is there (tests/unit/test_bundle.py).
3. Only the owner can reach a store: shared or foreign folders refuse (tests/security/test_staged_bytes.py).
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.authoring.canonical import canonical
from engine.outcome import error_for

MANIFEST = "manifest.json"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_TEMPORARY = ".tmp-"
_STALE_SECONDS = 600  # a writer takes its lock within moments of making its folder
_MANIFEST_BYTES = 32 << 20


class Damaged(Exception):
    """What lies there is not what its digest says; the text says what differs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sealed:
    """One published folder: its digest, where it is, and its manifest."""

    digest: str
    path: Path
    manifest: Mapping[str, Any]


def folder_of(store: Path, digest: str) -> Path:
    """Where that digest lies. Raises ValueError when it is not one."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise ValueError("a digest is sha256: and 64 hexadecimal digits")
    return store / "sha256" / match[1][:2] / match[1]


def own_folder(folder: Path) -> None:
    """Make a folder that only this user can reach, or check that it is one. Raises refused.storage."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise error_for("refused.storage", f"{folder} cannot be made: {error.strerror}") from None
    # security: in a shared folder another user could make it first and swap what is run
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise error_for("refused.storage", f"{folder} must be a folder of this user alone: chmod 700, or choose another")


def publish(store: Path, inner: str, files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Sealed:
    """Write the files below ``inner`` and seal them. What is there already is checked instead; Damaged when it differs."""
    full = {**manifest, "files": {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}}
    written = canonical(full)
    digest = "sha256:" + hashlib.sha256(written).hexdigest()
    final = folder_of(store, digest)
    for folder in (store, store / "sha256", final.parent):
        own_folder(folder)
    if not os.path.lexists(final):
        try:
            _write(final, inner, files, written)
        except OSError as error:
            raise error_for("refused.storage", f"{final.parent} cannot be written: {error.strerror}") from None
    return opened(store, digest, inner)


def _write(final: Path, inner: str, files: Mapping[str, bytes], manifest: bytes) -> None:
    # beside its final place: a rename to another parent would need a writable folder
    temporary = final.parent / f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
    temporary.mkdir(mode=0o700)
    lock = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tells `sweep` that its writer is alive
        _write_file(temporary / MANIFEST, manifest)
        (temporary / inner).mkdir(mode=0o700)
        for path, content in files.items():
            target = temporary / inner / path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_file(target, content)
        for folder, _, _ in os.walk(temporary, topdown=False):
            _close_folder(folder)
        try:
            os.rename(temporary, final)
        except OSError:
            if not os.path.lexists(final):
                raise
            discard(temporary)  # another process was first, with the same bytes
        _sync(final.parent)
    except BaseException:
        discard(temporary)
        raise
    finally:
        os.close(lock)


def _write_file(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        os.fchmod(descriptor, 0o444)  # fixed: no bit of the author's file is carried
        os.fsync(descriptor)


def _close_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o555)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def manifest_of(store: Path, digest: str) -> Sealed:
    """The folder by its manifest alone. Raises Damaged when it is missing or its manifest is not that of the digest."""
    path = folder_of(store, digest)
    try:
        written = _read(path / MANIFEST, _MANIFEST_BYTES)
    except OSError as error:
        raise Damaged(f"{digest} is not there or cannot be read: {error.strerror}") from None
    if "sha256:" + hashlib.sha256(written).hexdigest() != digest:
        raise Damaged(f"{digest}: its manifest was changed")
    return Sealed(digest=digest, path=path, manifest=json.loads(written))


def opened(store: Path, digest: str, inner: str) -> Sealed:
    """The folder with each of its files hashed. Raises Damaged when anything is missing, added, changed or writable."""
    sealed = manifest_of(store, digest)
    wanted: Mapping[str, str] = sealed.manifest["files"]
    try:
        present = _present(sealed.path)
        if present != {MANIFEST, *(f"{inner}/{path}" for path in wanted)}:
            raise Damaged(f"{digest}: files were added or are missing")
        for path, expected in wanted.items():
            if _hash(sealed.path / inner / path) != expected:
                raise Damaged(f"{digest}: {path} was changed")
    except OSError as error:
        raise Damaged(f"{digest} cannot be read: {error.strerror}") from None
    return sealed


def _present(root: Path) -> set[str]:
    """Every file below, relative; each must be sealed: a regular 0444 file or a 0555 folder."""
    present: set[str] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if folder.lstat().st_mode != stat.S_IFDIR | 0o555:
            raise Damaged(f"{folder.name} is no sealed folder any more")
        with os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif entry.stat(follow_symlinks=False).st_mode != stat.S_IFREG | 0o444:
                    raise Damaged(f"{path.relative_to(root)} is no sealed file any more")
                else:
                    present.add(path.relative_to(root).as_posix())
    return present


def _read(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        return file.read(limit + 1)[:limit]


def _hash(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def discard(folder: Path) -> None:
    """Remove a sealed or half-made folder; missing ones are fine."""
    if not os.path.lexists(folder):
        return
    for inside, _, _ in os.walk(folder):
        os.chmod(inside, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(store: Path) -> int:
    """Remove what killed writers left behind, and say how many; a living writer holds the lock of its folder."""
    removed = 0
    for left in store.glob(f"sha256/*/{_TEMPORARY}*"):
        try:
            if time.time() - left.lstat().st_mtime < _STALE_SECONDS:
                continue
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # its writer has just finished
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            discard(left)
            removed += 1
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
    return removed
