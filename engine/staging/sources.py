"""Reads files beneath one folder, and nothing else on the machine.

Its job: names, kinds and bytes below a root, each step from the root's descriptor, never through a link, never blocking.
Not its job: which files are wanted (``imports.py``, ``patterns.py``), what they mean.
The rule for links is the simple one: a link is refused wherever it would be used, even when its target lies inside.
Laws:
1. No link is followed and nothing that is not a regular file is opened (tests/security/test_staging.py).
2. A file is opened once; bytes that change while they are read, or before all are read, refuse (tests/security/test_staged_bytes.py).
3. Names in errors are relative to the root (tests/unit/test_graph.py).
"""

import dataclasses
import enum
import os
import stat
import unicodedata
from pathlib import Path
from types import TracebackType

from engine.outcome import error_for

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# security: without O_NONBLOCK a FIFO swapped in after the check stops the engine until somebody writes to it
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PART_BYTES = 255  # NAME_MAX of every Linux file system in use


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphBounds:
    """How much one source may be: a tool's own files, not a data set and not its dependencies."""

    modules: int = 2_000
    module_bytes: int = 1 << 20  # what the parser takes
    data_files: int = 2_000
    data_file_bytes: int = 16 << 20
    total_bytes: int = 64 << 20
    folder_entries: int = 20_000
    walked_entries: int = 100_000
    depth: int = 32


class Kind(enum.Enum):
    """What a name stands for, not following links."""

    MISSING = "missing"
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    SPECIAL = "special"


def odd(part: str) -> bool:
    """Whether one part of a path could mean something else on another system, or fool a reader."""
    if part in ("", ".", "..") or part != part.strip() or part.endswith(".") or len(os.fsencode(part)) > _PART_BYTES:
        return True
    # control, format (bidi, zero width), surrogate, unassigned, separators: Unicode general categories, UAX #44
    return any(char in '/\\:"<>|' or unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp") for char in part)


def joined(folder: str, name: str) -> str:
    """The path of a name in a folder; the root is the empty string."""
    return f"{folder}/{name}" if folder else name


def _kind_of(found: os.stat_result) -> Kind:
    kinds = {stat.S_IFREG: Kind.FILE, stat.S_IFDIR: Kind.FOLDER, stat.S_IFLNK: Kind.LINK}
    return kinds.get(stat.S_IFMT(found.st_mode), Kind.SPECIAL)


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Tree:
    """One folder and what lies below it, as ``a/b/c`` paths. A context manager: it holds the root's descriptor."""

    def __init__(self, root: Path, bounds: GraphBounds) -> None:
        self.bounds = bounds
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._names: dict[str, frozenset[str]] = {}
        self.walked = 0  # names that patterns have looked at, all patterns together
        try:
            self._root = os.open(root, _FOLDER)
        except OSError as error:
            raise error_for("refused.source_missing", f"the folder of the source cannot be opened: {error.strerror}") from None

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._root)

    def kind(self, path: str) -> Kind:
        """What lies there. Raises refused.source_path when a folder on the way is a link."""
        parent = self._open_parent(path)
        if parent is None:
            return Kind.MISSING
        try:
            found = self._lstat(parent, path)
        finally:
            os.close(parent)
        return Kind.MISSING if found is None else _kind_of(found)

    def names(self, folder: str) -> frozenset[str]:
        """All names in a folder. Raises refused.source_limits when there are too many to look through."""
        if folder not in self._names:
            self._names[folder] = self._list(folder)
        return self._names[folder]

    def read(self, path: str, limit: int) -> bytes:
        """The bytes of a regular file of at most ``limit`` bytes. Raises refused.source_path, _limits or _changed."""
        parent = self._open_parent(path)
        if parent is None:
            raise error_for("refused.source_changed", f"{path} is gone")
        try:
            found = self._lstat(parent, path)
            if found is None:
                raise error_for("refused.source_changed", f"{path} is gone")
            self.require_file(path, _kind_of(found))
            return self._read(parent, path, found, limit)
        except OSError as error:
            raise error_for("refused.source_path", f"{path} cannot be read: {error.strerror}") from None
        finally:
            os.close(parent)

    def require_file(self, path: str, kind: Kind) -> None:
        """Raises refused.source_path unless the kind is a regular file."""
        if kind is Kind.LINK:
            raise error_for("refused.source_path", f"{path} is a link: put the file itself there")
        if kind is not Kind.FILE:
            raise error_for("refused.source_path", f"{path} is not a regular file")

    def require_unchanged(self) -> None:
        """Raises refused.source_changed when a file that was read is not the same any more."""
        for path, stamp in self._stamps.items():
            parent = self._open_parent(path)
            try:
                found = None if parent is None else self._lstat(parent, path)
            finally:
                if parent is not None:
                    os.close(parent)
            if found is None or _stamp(found) != stamp:
                raise error_for("refused.source_changed", f"{path} changed while it was staged")

    def _read(self, parent: int, path: str, found: os.stat_result, limit: int) -> bytes:
        descriptor = os.open(path.rpartition("/")[2], _FILE, dir_fd=parent)
        with open(descriptor, "rb", buffering=0) as file:
            opened = os.fstat(descriptor)
            self.require_file(path, _kind_of(opened))
            if opened.st_size > limit:
                raise error_for("refused.source_limits", f"{path} is larger than {limit} bytes")
            data = bytearray()
            while len(data) <= opened.st_size and (piece := file.read(opened.st_size + 1 - len(data))):
                data += piece
            # security: a writer in between would make the bytes that run others than the bytes that were checked
            if not _stamp(found) == _stamp(opened) == _stamp(os.fstat(descriptor)) or len(data) != opened.st_size:
                raise error_for("refused.source_changed", f"{path} changed while it was staged")
        self._stamps[path] = _stamp(opened)
        return bytes(data)

    def _list(self, folder: str) -> frozenset[str]:
        descriptor = self._open_folder(folder)
        if descriptor is None:
            return frozenset()
        names: set[str] = set()
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    names.add(entry.name)
                    if len(names) > self.bounds.folder_entries:
                        raise error_for("refused.source_limits", f"{folder or '.'} holds more than {self.bounds.folder_entries} names")
        except OSError as error:
            raise error_for("refused.source_path", f"{folder or '.'} cannot be listed: {error.strerror}") from None
        finally:
            os.close(descriptor)
        return frozenset(names)

    def _lstat(self, parent: int, path: str) -> os.stat_result | None:
        try:
            return os.stat(path.rpartition("/")[2], dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise error_for("refused.source_path", f"{path} cannot be read: {error.strerror}") from None

    def _open_parent(self, path: str) -> int | None:
        return self._open_folder(path.rpartition("/")[0])

    def _open_folder(self, folder: str) -> int | None:
        """A descriptor of the folder, or None when it does not exist; every step starts where the last one ended."""
        parts = folder.split("/") if folder else []
        if len(parts) > self.bounds.depth:
            raise error_for("refused.source_limits", f"{folder} is deeper than {self.bounds.depth} folders")
        current = os.dup(self._root)
        try:
            for count, part in enumerate(parts, 1):
                following = self._step(current, part, "/".join(parts[:count]))
                os.close(current)
                current = -1
                if following is None:
                    return None
                current = following
        except BaseException:
            if current >= 0:
                os.close(current)
            raise
        return current

    def _step(self, current: int, part: str, path: str) -> int | None:
        # security: `..` from a name that an attacker chose would leave the root
        if odd(part):
            raise error_for("refused.source_path", f"{path} has an odd name: use letters, digits, dashes, dots and underscores")
        found = self._lstat(current, part)
        if found is None or _kind_of(found) in (Kind.FILE, Kind.SPECIAL):
            return None
        if _kind_of(found) is Kind.LINK:
            raise error_for("refused.source_path", f"{path} is a link: put the folder itself there")
        try:
            return os.open(part, _FOLDER, dir_fd=current)
        except OSError as error:
            raise error_for("refused.source_path", f"{path} cannot be opened: {error.strerror}") from None
