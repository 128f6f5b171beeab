"""The files that a batch writes: lines of JSON, each whole or not there.

Its job: open or make one for this batch alone, cut a torn end, read what stands in it, append.
Not its job: what the lines say (``run.py``).
Laws:
1. A line is one write; what a kill or a full disk left of one is cut off before another follows (tests/unit/test_batch_files.py).
2. A file is one batch's at a time (tests/unit/test_batch_files.py).
3. A file that a batch did not write is not touched, nor one that has another name, nor what a link leads to
   (tests/unit/test_batch_files.py).
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import one_line
from engine.outcome import error_for

_LONGEST = 1 << 30  # bytes of a line; more was not written here
_BLOCK = 64 << 10
_HEAD = b'{"id":'  # how each line begins
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO)  # the host's doing; all else is how the file was named


class LineFile:
    """One file of lines, open for appending. Use ``opened`` to get one."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    @property
    def name(self) -> str:
        """The file as it was named, for messages."""
        return one_line(self._path)

    @classmethod
    def opened(cls, path: Path, *, go_on: bool) -> "LineFile":
        """The file, made when it is not there. Raises RequestError when it is and ``go_on`` is false, or when it is no file of ours."""
        # security: a link that stands there would have us write to, or cut, the file of another
        how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | (0 if go_on else os.O_EXCL)
        named = one_line(path)
        try:
            descriptor = os.open(path, how, 0o600)  # closed to others: it holds what tools returned
        except FileExistsError:
            raise error_for("refused.request", f"{named} is there already: --resume goes on with it, else name another") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            code = "refused.storage" if getattr(error, "errno", None) in _NO_ROOM else "refused.request"
            raise error_for(code, f"{named} cannot be written: {_why(error)}") from None
        made = cls(path, descriptor)
        try:
            made._claim()
        except BaseException:
            os.close(descriptor)
            raise
        return made

    def _claim(self) -> None:
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise error_for("refused.request", f"{self.name} is no file: outcomes go into one that can be gone on with")
        if found.st_nlink > 1:  # security: the same file under another name, which may be another's
            raise error_for("refused.request", f"{self.name} has another name as well: name a file of its own")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise error_for("refused.request", f"another batch is writing to {self.name}") from None

    def records(self) -> Iterator[dict[str, Any]]:
        """The objects on its whole lines, in order. Raises RequestError at the first that no batch wrote."""
        with open(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            number = 0
            while (line := file.readline(_LONGEST)).endswith(b"\n"):
                number += 1
                yield self._object(line, number)
            if len(line) == _LONGEST:
                self._foreign(number + 1)

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            self._foreign(number)
        if type(found) is not dict:
            self._foreign(number)
        return found

    def _foreign(self, number: int) -> NoReturn:
        raise error_for("refused.request", f"{self.name} line {number} was not written by a batch: name another file")

    def cut(self) -> bool:
        """Cut off half a line at the end; says whether there was one. Raises RequestError when it is no line of a batch."""
        end = start = os.fstat(self._descriptor).st_size
        while start > 0:
            start = max(0, start - _BLOCK)
            at = os.pread(self._descriptor, min(_BLOCK, end - start), start).rfind(b"\n")
            if at >= 0:
                start += at + 1
                break
        if start < end:
            self._require_ours(start)
            os.ftruncate(self._descriptor, start)
        return start < end

    def _require_ours(self, start: int) -> None:
        head = os.pread(self._descriptor, len(_HEAD), start)
        # after whole lines any beginning of one is ours; where nothing is before it, less than the head tells nothing
        if not (head == _HEAD or (start > 0 and _HEAD.startswith(head))):
            raise error_for("refused.request", f"the end of {self.name} was not written by a batch: name another file")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. Raises HostError ``refused.storage`` when the disk does not take it; then nothing of it is in the file."""
        line = json.dumps(record, separators=(",", ":")).replace("\x7f", "\\u007f").encode() + b"\n"
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise error_for("refused.storage", f"{self.name} takes no more: {error.strerror}") from None
        if written != len(line):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise error_for("refused.storage", f"{self.name} takes no more: the disk took only half a line")

    def append_durably(self, record: Mapping[str, Any]) -> None:
        """The same, and on the disk when this returns: it holds even when the machine loses its power."""
        self.append(record)
        self.keep()

    def keep(self) -> None:
        """See that all of it is on the disk."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise error_for("refused.storage", f"{self.name} is not on the disk: {error.strerror}") from None

    def keep_name(self) -> None:
        """See that the file's name is on the disk as well."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self) -> None:
        """Remove it from its folder, unless another file has its name by now."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.lstat(), os.fstat(self._descriptor)):
                self._path.unlink()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)


def _why(error: Exception) -> str:
    if getattr(error, "errno", None) == errno.ELOOP:
        return "it is a link"
    return getattr(error, "strerror", None) or str(error)
