"""A tool that misbehaves on purpose: each attempt is real, and tells what came of it.

Outside of a jail these attempts work; the demo shows that inside they do not.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from engine import tool

_SECRET = "STOCKADE_DEMO_SECRET"  # noqa: S105 - the name of a variable

Attempt = Literal[
    "read a file outside",
    "write a file outside",
    "reach a listener on loopback",
    "fork",
    "start a program",
    "find a secret in the environment",
    "signal the engine",
    "take all memory",
    "fill the disk",
    "print without end",
    "never return",
]


@dataclass
class Target:
    """What the demo set up outside, for the attempts to go for."""

    file: str
    folder: str
    port: int
    engine_pid: int


@dataclass
class Report:
    """What came of an attempt: evidence when it got through, else what stood in its way."""

    got_through: bool
    what: str


@tool(effect="external", open_world=True)
def misbehave(attempt: Attempt, target: Target) -> Report:
    """Try something that no tool should be able to do."""
    try:
        return Report(True, ATTEMPTS[attempt](target))
    except (OSError, MemoryError) as error:
        return Report(False, getattr(error, "strerror", None) or str(error) or type(error).__name__)


def _read(target: Target) -> str:
    with open(target.file, encoding="utf-8") as file:
        return file.read()


def _write(target: Target) -> str:
    with open(target.file, "w", encoding="utf-8") as file:
        file.write("the tool was here")
    return "the file was overwritten"


def _connect(target: Target) -> str:
    with socket.create_connection(("127.0.0.1", target.port), timeout=5) as link:
        link.sendall(b"the tool was here")
    return "connected"


def _fork(_: Target) -> str:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a second process ran"


def _exec(target: Target) -> str:
    marker = f"{target.folder}/started"
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"echo started > {marker}"], {})
    os.waitpid(pid, 0)
    return "a shell ran"


def _secret(_: Target) -> str:
    if _SECRET in os.environ:
        return os.environ[_SECRET]
    for path in ("/proc/self/environ", "/proc/1/environ"):
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                found = [line for line in file.read().split("\0") if line.startswith(_SECRET)]
            if found:
                return found[0]
    raise FileNotFoundError(2, f"{len(os.environ)} variables, none of them the secret")


def _signal(target: Target) -> str:
    os.kill(target.engine_pid, 0)
    return "the engine's process can be signalled"


def _memory(_: Target) -> str:
    held = []
    for _count in range(128):
        held.append(bytearray(16 << 20))
    return f"{len(held) * 16} MiB were given"


def _disk(_: Target) -> str:
    folder = os.environ.get("TMPDIR", ".")
    try:
        for number in range(8):
            with open(f"{folder}/fill-{number}", "wb") as file:
                for _count in range(64):
                    file.write(bytes(1 << 20))
    finally:
        for number in range(8):
            if os.path.exists(f"{folder}/fill-{number}"):
                os.unlink(f"{folder}/fill-{number}")
    return "512 MiB were written"


def _print(_: Target) -> str:
    for _count in range(1 << 16):
        print("x" * 1023)
    return "64 MiB were printed"


def _spin(_: Target) -> str:
    count = 0
    while True:
        count += 1


ATTEMPTS: dict[str, Callable[[Target], str]] = {
    "read a file outside": _read,
    "write a file outside": _write,
    "reach a listener on loopback": _connect,
    "fork": _fork,
    "start a program": _exec,
    "find a secret in the environment": _secret,
    "signal the engine": _signal,
    "take all memory": _memory,
    "fill the disk": _disk,
    "print without end": _print,
    "never return": _spin,
}
