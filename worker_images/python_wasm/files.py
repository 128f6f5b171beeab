"""Read-only files in memory: what was staged and what the image bundles, where a native jail shows it.

Its job: answer ``open``, ``stat``, ``listdir``, ``scandir`` and their like below the roots; refuse to write anywhere.
Not its job: reading any other path (the world's own answer: there is none), importing (the interpreter's finders do, through this).
Laws:
1. A staged file reads the same as in a native jail by every way of ``os``, ``io`` and ``pathlib`` that names it: none has a number, so
   ``os.open`` says ENOTSUP, and no folder can be the current one (tests/wasm/test_files.py).
2. Nothing below the roots can be written, made or removed, and nothing made anywhere: EROFS, as a read-only file system says
   (tests/wasm/test_files.py).
3. A path is judged as it is written: ``..`` leads nowhere but to another of these roots (tests/wasm/test_files.py).
"""

import builtins
import errno
import io
import os
import posix
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Content = str | bytes  # a str holds one byte a character

_ROOTS = ("/bundle", "/layers", "/packages", "/usr/share/zoneinfo")
_WHEN = 315_532_800  # 1980-01-01, the first day that a ZIP file can name
_FILES: dict[str, Content] = {}
_FOLDERS: dict[str, list[str]] = {}
_MAKES = frozenset("wax")  # the modes that make a file where there is none
_WRITERS = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "utime", "truncate", "chmod")

Function = Callable[..., Any]


def mount(root: str, files: Mapping[str, Content]) -> None:
    """Show the files below the root, by their paths from there."""
    _folder(root)
    for name, content in files.items():
        path = f"{root}/{name}"
        _FILES[path] = content
        parent, _, last = path.rpartition("/")
        _folder(parent).append(last)


def unmount(root: str) -> None:
    """Show nothing below the root any more."""
    for kept in (_FILES, _FOLDERS):
        for path in [path for path in kept if path == root or path.startswith(root + "/")]:
            kept.pop(path)
    parent, _, last = root.rpartition("/")
    if last in _FOLDERS.get(parent, ()):
        _FOLDERS[parent].remove(last)


def _folder(path: str) -> list[str]:
    known = _FOLDERS.get(path)
    if known is None:
        known = _FOLDERS[path] = []
        parent, _, last = path.rpartition("/")
        if parent.startswith(_ROOTS):
            _folder(parent).append(last)
    return known


def _inside(path: Any) -> str | None:
    """The path as it is kept here, None for one that is not below a root or is no path."""
    if type(path) is not str:
        if isinstance(path, int):
            return None
        try:
            path = os.fsdecode(path)
        except TypeError:
            return None
    if not path or "\0" in path:
        return None  # the world's own words for it
    if path.startswith(_ROOTS) and "//" not in path and "/." not in path and not path.endswith("/"):
        return path if path in _FILES or path in _FOLDERS or path.startswith(tuple(f"{root}/" for root in _ROOTS)) else None
    whole = os.path.normpath(path if path[0] == "/" else f"{posix.getcwd()}/{path}")
    whole = whole[1:] if whole.startswith("//") else whole
    return whole if any(whole == root or whole.startswith(root + "/") for root in _ROOTS) else None


def _problem(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


@contextmanager
def _unmade(path: Any, makes: bool) -> Iterator[None]:
    """Where something was to be made and the world says that there is nothing: that it cannot be."""
    try:
        yield
    except FileNotFoundError:
        if not makes or not path:
            raise
        raise _problem(errno.EROFS, path) from None


def _content(inside: str, path: Any) -> bytes:
    content = _FILES.get(inside)
    if content is None:
        raise _problem(errno.EISDIR if inside in _FOLDERS else _absence(inside), path)
    return content.encode("latin-1") if isinstance(content, str) else content


def _absence(inside: str) -> int:
    above = inside.rpartition("/")[0]
    while above and above not in _FOLDERS:
        if above in _FILES:
            return errno.ENOTDIR
        above = above.rpartition("/")[0]
    return errno.ENOENT


class _Raw(io.RawIOBase):
    """The bytes of one file."""

    mode = "rb"

    def __init__(self, name: Any, content: bytes) -> None:
        self.name, self._content, self._at = name, content, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        data = self._content[self._at : self._at + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        """All that follows."""
        data, self._at = self._content[self._at :], max(self._at, len(self._content))
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go there. Raises OSError before the beginning."""
        place = offset + (0, self._at, len(self._content))[whence]
        if place < 0:
            raise _problem(errno.EINVAL, None)
        self._at = place
        return place

    def tell(self) -> int:
        """Where it is."""
        return self._at


def _open(original: Function) -> Function:
    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        inside = _inside(file) if opener is None else None
        if inside is None:
            with _unmade(file, isinstance(mode, str) and bool(set(mode) & _MAKES)):
                return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if isinstance(mode, str) and set(mode) & set("wax+"):
            raise _problem(errno.EROFS if inside not in _FOLDERS else errno.EISDIR, file)
        if mode not in ("r", "rt", "tr", "rb", "br"):
            original(0, mode, closefd=False)  # says what is wrong with it
        binary = "b" in mode
        if (binary and not encoding is errors is newline is None) or (not binary and buffering == 0):
            original(0, mode, buffering, encoding, errors, newline, False)
        raw = _Raw(file, _content(inside, file))
        if buffering == 0:
            return raw
        buffered = io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        if binary:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]  # as the built-in one does
        return text

    return open


def _file_io(original: Any) -> Any:
    class FileIO(original):  # type: ignore[misc]  # whatever class stands there
        def __new__(cls, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> Any:
            if opener is not None or _inside(file) is None:
                return super().__new__(cls, file, mode, closefd, opener)
            return open(file, mode if "b" in mode else f"{mode}b", 0)

        def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
            with _unmade(file, bool(set(mode) & _MAKES)):
                super().__init__(file, mode, closefd, opener)

    FileIO.__module__, FileIO.__qualname__ = original.__module__, original.__qualname__
    return FileIO


def _open_code(original: Function) -> Function:
    def open_code(path: str) -> Any:
        inside = _inside(path)
        return original(path) if inside is None else io.BytesIO(_content(inside, path))

    return open_code


def _status(inside: str, path: Any) -> os.stat_result:
    content = _FILES.get(inside)
    if content is None and inside not in _FOLDERS:
        raise _problem(_absence(inside), path)
    mode = stat.S_IFDIR | 0o555 if content is None else stat.S_IFREG | 0o444
    number = hash(inside) & 0x7FFF_FFFF
    return os.stat_result((mode, number, 1, 1, 0, 0, len(content or ""), _WHEN, _WHEN, _WHEN))


def _stat(original: Function) -> Function:
    def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        inside = _inside(path)
        if inside is None:
            return original(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return _status(inside, path)

    return stat


def _lstat(original: Function) -> Function:
    def lstat(path: Any, *, dir_fd: int | None = None) -> Any:
        inside = _inside(path)
        return original(path, dir_fd=dir_fd) if inside is None else _status(inside, path)

    return lstat


def _names(inside: str, path: Any) -> list[str]:
    names = _FOLDERS.get(inside)
    if names is None:
        raise _problem(errno.ENOTDIR if inside in _FILES else _absence(inside), path)
    return names


def _listdir(original: Function) -> Function:
    def listdir(path: Any = None) -> Any:
        inside = _inside("." if path is None else path)
        if inside is None:
            return original(path)
        names = list(_names(inside, path))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    return listdir


class _Entry:
    """One row of a folder, as ``os.scandir`` gives it."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name: Any = os.fsencode(name) if isinstance(folder, bytes) else name
        self.path: Any = os.path.join(folder, self.name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """What ``os.stat`` says of it."""
        return os.stat(self.path)

    def inode(self) -> int:
        """Its number."""
        return self.stat().st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.stat().st_mode)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether it is a file."""
        return not self.is_dir()

    def is_symlink(self) -> bool:
        """There are no links."""
        return False

    def is_junction(self) -> bool:
        """There are none of those either."""
        return False


class _Rows:
    """The rows of a folder, to be walked once."""

    def __init__(self, rows: list[_Entry]) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[_Entry]:
        return self

    def __next__(self) -> _Entry:
        return next(self._rows)

    def __enter__(self) -> "_Rows":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give no more."""
        self._rows = iter(())


def _scandir(original: Function) -> Function:
    def scandir(path: Any = None) -> Any:
        inside = _inside("." if path is None else path)
        if inside is None:
            return original(path)
        return _Rows([_Entry("." if path is None else os.fspath(path), name) for name in _names(inside, path)])

    return scandir


def _access(original: Function) -> Function:
    def access(path: Any, mode: int, **more: Any) -> bool:
        inside = _inside(path)
        if inside is None:
            allowed: bool = original(path, mode, **more)
            return allowed
        return (inside in _FOLDERS and not mode & os.W_OK) or (inside in _FILES and not mode & (os.W_OK | os.X_OK))

    return access


def _readlink(original: Function) -> Function:
    def readlink(path: Any, **more: Any) -> Any:
        inside = _inside(path)
        if inside is None:
            return original(path, **more)
        _status(inside, path)
        raise _problem(errno.EINVAL, path)

    return readlink


def _os_open(original: Function) -> Function:
    def open(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        inside = _inside(path)
        if inside is None:
            with _unmade(path, bool(flags & os.O_CREAT)):
                number: int = original(path, flags, mode, **more)
            return number
        if flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC):  # O_RDWR holds O_WRONLY's bit, and O_RDONLY's, which is none elsewhere
            raise _problem(errno.EROFS, path)
        _status(inside, path)
        raise _problem(errno.ENOTSUP, path)  # a file of memory has no number

    return open


def _writer(original: Function) -> Function:
    def refuse(path: Any, *more: Any, **named: Any) -> Any:
        for one in (path, *more[:1]):
            if isinstance(one, str | bytes | os.PathLike) and _inside(one) is not None:
                raise _problem(errno.EROFS, one)
        with _unmade(path, original.__name__ == "mkdir"):
            return original(path, *more, **named)

    refuse.__name__ = original.__name__
    return refuse


def put_in_front() -> None:
    """Stand before the interpreter's own functions, in every module that holds one of them."""
    made: dict[int, tuple[Function, Function]] = {}

    def replace(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        original = getattr(owner, name, None)
        if original is not None and id(original) not in made:
            made[id(original)] = (original, make(original))

    replace(builtins, "open", _open)
    replace(io, "open_code", _open_code)
    replace(io, "FileIO", _file_io)
    makers = {"stat": _stat, "lstat": _lstat, "listdir": _listdir, "scandir": _scandir, "access": _access}
    for name, make in {**makers, "readlink": _readlink, "open": _os_open, **dict.fromkeys(_WRITERS, _writer)}.items():
        replace(posix, name, make)
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", {})
        for name, value in list(space.items()):
            if id(value) in made and made[id(value)][0] is value:
                space[name] = made[id(value)][1]
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        known |= {new for old, new in made.values() if old in known}
