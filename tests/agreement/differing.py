"""Tools whose answer depends on the kind of worker: ``cases.DIFFERENCES`` has a row for each."""

import hashlib
import importlib.util
import math
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from engine import tool


def _told(act: Any) -> str:
    try:
        return f"did it: {act()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@tool(effect="read")
def version() -> str:
    """The interpreter's version."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


@tool(effect="read")
def words_of_errors() -> list[str]:
    """The name of one error, the words of another."""
    try:
        re.compile("(")
    except re.error as error:
        name = type(error).__name__
    try:
        return [name, str(math.sqrt(-1.0))]
    except ValueError as error:
        return [name, str(error)]


@tool(effect="read")
def platform() -> str:
    """The platform."""
    return sys.platform


@tool(effect="read")
def width() -> list[int]:
    """How wide things are."""
    return [sys.maxsize, struct.calcsize("P"), struct.calcsize("l")]


@tool(effect="read")
def absent() -> str:
    """A file that is not there."""
    return _told(lambda: open("/absent").read())


@tool(effect="read")
def threads() -> str:
    """A thread."""
    return _told(threading.Thread(target=print).start)


@tool(effect="read")
def programs() -> str:
    """A program."""
    return _told(lambda: subprocess.run([sys.executable or "/bin/true"], check=False, input=b"").returncode)


@tool(effect="read")
def sockets() -> str:
    """A socket that listens."""
    return _told(lambda: socket.create_server(("127.0.0.1", 0)).close())


@tool(effect="read")
def modules() -> list[str]:
    """Which of these there are not."""
    names = ("_bz2", "_ctypes", "_hashlib", "_lzma", "_sqlite3", "_ssl", "fcntl", "json", "mmap", "pwd", "resource")
    return [name for name in names if importlib.util.find_spec(name) is None]


@tool(effect="read")
def stretched_by_openssl() -> str:
    """A key made of a word."""
    return _told(lambda: hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 10).hex()).partition(":")[0]


@tool(effect="read")
def process() -> int:
    """The process's number."""
    return os.getpid()


@tool(effect="read")
def scratch() -> str:
    """A temporary file."""
    return _told(lambda: tempfile.TemporaryFile().close()).partition(":")[0]


@tool(effect="read")
def local_time() -> list[Any]:
    """Local time where TZ says Berlin."""
    os.environ["TZ"] = "Europe/Berlin"
    getattr(time, "tzset", lambda: None)()
    return [time.localtime(0).tm_zone, time.localtime(0).tm_gmtoff]
