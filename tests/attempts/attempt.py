"""Staged beside an attempt: makes it, and says what came of it as a pair of plain data."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

try:
    # a WebAssembly worker refuses a source that imports it by name, as it has none
    ctypes = vars(sys.modules["builtins"])["__imp" + "ort__"]("ctypes")
    LIBC = ctypes.CDLL(None, use_errno=True)
    LIBC.syscall.restype = ctypes.c_long
    BUFFER = ctypes.create_string_buffer(8192)
except ImportError:
    pass


def tried(act: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``["done", value]``, the errno's name for a system error, else the exception's: ``["refused", name]``."""
    try:
        value = act(*arguments)
    except OSError as error:
        return ["refused", errno.errorcode.get(error.errno or 0, type(error).__name__)]
    except BaseException as error:
        return ["refused", type(error).__name__]
    return ["done", value if isinstance(value, int | str | list | dict) else str(value)]


def raw(number: int, *arguments: Any) -> int:
    """A system call by its number. Raises OSError."""
    ctypes.set_errno(0)
    made = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(LIBC.syscall(ctypes.c_long(number), *made))
    if result == -1:
        raise OSError(ctypes.get_errno(), "raw")
    return result


def read(path: str) -> str:
    """The first of a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 4096).decode("latin-1")
    finally:
        os.close(descriptor)


def write(path: str) -> str:
    """Creates or changes a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o644)
    try:
        os.write(descriptor, b"written by the attempt")
    finally:
        os.close(descriptor)
    return "written"
