"""The folder of this user where images lie, each by the digest of its recipe, and the code that was compiled from it.

Its job: ``images/<recipe>/{component.wasm, manifest.json, record.json, compiled/<key>/{code, manifest.json}}``: written whole or not at
all, checked when read; one writer at a time; what killed writers left is removed by the next one.
Not its job: making an image (``build.py``) or code (``compiling.py``), whether an image may run (``pins.py``).
Laws:
1. What is read is checked: kind, owner, size, and digest by the very descriptor that is handed on (tests/unit/test_image_cache.py).
2. A name appears whole or not at all; two writers are one after the other (tests/unit/test_image_cache.py).
3. Nothing is read out of a folder that others may write to (tests/security/test_image_trust.py).
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

from engine.authoring.canonical import canonical
from engine.images.manifest import MANIFEST_BYTES, Manifest, Piece, Unsound, parse
from engine.outcome import error_for

COMPONENT, MANIFEST, RECORD, COMPILED, CODE = "component.wasm", "manifest.json", "record.json", "compiled", "code"
_TEMPORARY = ".tmp-"
_HEX = re.compile(r"[0-9a-f]{64}")
_RECORD_BYTES = 4096
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_PRIVATE = "chmod go-w, or choose another with --image-dir"


class Damaged(Exception):
    """What lies in the cache is not what it should be; the text names the file and says what is wrong."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One image in the cache, its manifest checked. ``built_here``: made by this user on this machine, not brought from elsewhere."""

    path: Path
    manifest: Manifest
    built_here: bool
    since: float

    @property
    def component(self) -> str:
        """The digest of its bytes."""
        return f"sha256:{self.manifest.component.sha256}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """A folder with images and what builds them."""

    folder: Path

    @property
    def images(self) -> Path:
        """Where the images lie."""
        return self.folder / "images"

    @property
    def builders(self) -> Path:
        """Where the environments of builders lie."""
        return self.folder / "builders"

    def place(self, recipe: str) -> Path:
        """Where the image of that recipe lies, or would."""
        return self.images / recipe.removeprefix("sha256:")

    def present(self) -> tuple[str, ...]:
        """The digests of the recipes whose images lie here. Raises refused.storage where that cannot be looked at."""
        try:
            return tuple(f"sha256:{path.name}" for path in sorted(self.images.iterdir()) if _HEX.fullmatch(path.name))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise error_for("refused.storage", f"{self.images} cannot be read: {error.strerror}: name another with --image-dir") from None

    @contextlib.contextmanager
    def writing(self, waits: Callable[[], None]) -> Iterator[None]:
        """Be the one writer. ``waits`` is called once when another one is at work. Raises refused.storage where nothing can be written."""
        try:
            for folder in (self.folder, self.images, self.builders):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                check_folder(folder)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritable(self.folder, error) from None
        except Damaged as damage:
            raise error_for("refused.storage", str(damage)) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._sweep()
            yield
        except OSError as error:
            if error.errno not in _UNWRITABLE:  # too many open files, say: room in the folder would not help
                raise
            raise unwritable(self.folder, error) from None
        finally:
            os.close(lock)

    def _sweep(self) -> None:
        """Remove what killed writers left: whoever holds the lock is the only writer, so what is half-made is nobody's."""
        for left in [*self.images.glob(f"{_TEMPORARY}*"), *self.images.glob(f"*/{COMPILED}/{_TEMPORARY}*")]:
            shutil.rmtree(left, ignore_errors=True)


def default_folder() -> Path:
    """The user's own cache folder for this program (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    return Path(platformdirs.user_cache_path("stockade"))


def unwritable(folder: Path, error: OSError) -> Exception:
    """The error for a cache that cannot be written, with the ways out."""
    ways = "make room, or name another folder with --image-dir; an image made elsewhere comes in with `stockade image import`"
    return error_for("refused.storage", f"{folder} cannot be written: {error.strerror or error}: {ways}")


def is_folder(path: Path) -> bool:
    """Whether a folder is there. Raises Damaged where this user may not look: HOME can be another's."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}: name another folder with --image-dir") from None


def check_folder(folder: Path) -> None:
    """Raises Damaged when others could have put there what we would run."""
    found = folder.lstat()
    # security: native code is mapped from here; whoever can write here runs code as this user
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        raise Damaged(f"{folder} must be a folder that only this user or root can write to: {_PRIVATE}")


@contextlib.contextmanager
def making(parent: Path) -> Iterator[Path]:
    """A private folder for what is being made beside its final place; it is gone afterwards unless it was put there."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put(made: Path, final: Path) -> None:
    """Let a folder that is complete appear in its place; what was there before goes."""
    for path in made.iterdir():
        if path.is_file():
            _settle(path, os.O_RDONLY, 0o400)
    _settle(made, os.O_RDONLY | os.O_DIRECTORY, 0o700)
    if os.path.lexists(final):
        old = final.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        os.rename(final, old)
        shutil.rmtree(old, ignore_errors=True)
    os.rename(made, final)
    _settle(final.parent, os.O_RDONLY | os.O_DIRECTORY, 0o700)


def _settle(path: Path, flags: int, mode: int) -> None:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)  # before its name appears: after a power cut there is all of it or none
    finally:
        os.close(descriptor)


def write_record(folder: Path, manifest: Manifest, *, built_here: bool) -> None:
    """Write the manifest, and beside it what this machine knows of it."""
    written = manifest.bytes()
    (folder / MANIFEST).write_bytes(written)
    known = {"format": 1, "built_here": built_here, "manifest": {"size": len(written), "sha256": hashlib.sha256(written).hexdigest()}}
    (folder / RECORD).write_bytes(canonical(known))


def entry(cache: Cache, recipe: str) -> Entry:
    """The image of that recipe, its manifest checked and its component's size. Raises FileNotFoundError, or Damaged."""
    path = cache.place(recipe)
    if not is_folder(path):
        raise FileNotFoundError(path)
    try:
        for folder in (cache.folder, cache.images, path):
            check_folder(folder)
        with contextlib.closing(Checked(path / RECORD)) as record:
            known = json.loads(record.read(_RECORD_BYTES))
            since = record.since
        built_here, piece = known["built_here"] is True, Piece(**known["manifest"])
        with contextlib.closing(Checked(path / MANIFEST)) as file:
            manifest = parse(file.read_checked(piece, MANIFEST_BYTES))
        with contextlib.closing(Checked(path / COMPONENT)) as component:
            component.check_size(manifest.component)
    except OSError as error:
        raise Damaged(f"{path.name}/{Path(error.filename or '').name}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged(f"{path / RECORD} is not as it was written") from None
    except Unsound as unsound:
        raise Damaged(f"{path / MANIFEST}: {unsound}") from None
    if manifest.recipe != recipe:
        raise Damaged(f"{path / MANIFEST} is that of another recipe")
    return Entry(path=path, manifest=manifest, built_here=built_here, since=since)


class Checked:
    """A file of the cache that is open: a regular one, of this user or root, that nobody else may write. Raises Damaged or OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(self.descriptor)
        self.size, self.since = found.st_size, found.st_mtime
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
            self.close()
            raise Damaged(f"{path} is no regular file that only this user or root can write to")

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)

    def read(self, most: int) -> bytes:
        """All of it. Raises Damaged when it is larger."""
        if self.size > most:
            raise Damaged(f"{self.path} is larger than {most} bytes")
        return os.pread(self.descriptor, most, 0)

    def read_checked(self, piece: Piece, most: int) -> bytes:
        """All of it, when it is that piece. Raises Damaged."""
        self.check_size(piece)
        data = self.read(most)
        if hashlib.sha256(data).hexdigest() != piece.sha256:
            raise Damaged(f"{self.path} was changed")
        return data

    def check_size(self, piece: Piece) -> None:
        """Raises Damaged when it has another size than that piece."""
        if self.size != piece.size:
            raise Damaged(f"{self.path} has {self.size} bytes and not {piece.size}")

    def check(self, piece: Piece) -> None:
        """Hash all of it, by this descriptor. Raises Damaged when it is not that piece."""
        self.check_size(piece)
        if sha256_of(self.descriptor) != piece.sha256:
            raise Damaged(f"{self.path} was changed")


def sha256_of(descriptor: int) -> str:
    """The SHA-256 of a file from its beginning; it stands at its beginning again afterwards."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    os.lseek(descriptor, 0, os.SEEK_SET)
    return found
