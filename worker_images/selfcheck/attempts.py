"""Attempts on the wall from inside, each of which must fail.

Its job: try, and tell what happened in one line; what got through is told as such and never used.
Not its job: judging: the host counts the attempts and looks for their effects itself.
"""

import ctypes
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from engine import tool

_MIB = 1 << 20
T = TypeVar("T")


class GotThrough(Exception):
    """The attempt did what the wall should have kept from it; the text is the evidence."""


@dataclass
class Tried:
    """One attempt and its end."""

    name: str
    held: bool
    how: str


@dataclass
class Outside:
    """What the host tells of itself, for the attempts to look for."""

    pid: int
    hostname: str
    file: str
    memory_mib: int
    scratch_mib: int


@tool(effect="read")
def try_all(outside: Outside) -> list[Tried]:
    """Try every way out, one after the other."""
    return [_tried(name, attempt, outside) for name, attempt in ATTEMPTS.items()]


def _tried(name: str, attempt: Callable[[Outside], str], outside: Outside) -> Tried:
    try:
        return Tried(name, True, attempt(outside))
    except GotThrough as evidence:
        return Tried(name, False, str(evidence))
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Tried(name, True, text)


def _socket(_: Outside) -> str:
    kinds = ((socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM))
    return _all_refused(lambda kind: socket.socket(*kind), [*kinds, (socket.AF_UNIX, socket.SOCK_DGRAM)])


def _fork(_: Outside) -> str:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    raise GotThrough("a process was made")


def _exec(_: Outside) -> str:
    paths = ("/bin/sh", "/usr/bin/env", "/usr/bin/python3", "/proc/self/exe")
    return _all_refused(lambda path: os.execv(path, [path]), paths)  # noqa: S606 - it must not start


def _read_outside(outside: Outside) -> str:
    paths = (outside.file, "/etc/passwd", "/etc/hostname", "/proc/self/environ", "/proc/1/environ", "/sys/kernel/notes", "/dev/mem")
    return _all_refused(_read, paths)


def _list_outside(_: Outside) -> str:
    expected = {"python", "guest", "bundle", "layers", "granted", "dev", "tmp", "lib", "lib64", "usr"}
    seen = set(os.listdir("/"))
    if seen - expected:
        raise GotThrough(f"the root holds {sorted(seen - expected)}")
    return f"the root holds {', '.join(sorted(seen))}"


def _climb(_: Outside) -> str:
    os.chdir("/" + "../" * 40)
    if os.path.exists("proc") or os.path.exists("root"):
        raise GotThrough("a folder above the root was reached")
    return "above the root is the root"


def _write_outside(outside: Outside) -> str:
    folders = ("/", "/bundle", "/guest", "/python", "/dev", "/tmp", os.path.dirname(outside.file))
    return _all_refused(lambda folder: _write(f"{folder}/written-by-the-selfcheck"), folders)


def _signal(outside: Outside) -> str:
    return _all_refused(lambda pid: os.kill(pid, 0), (outside.pid, 1, os.getppid() or 1, -1))


def _see_others(_: Outside) -> str:
    if os.path.exists("/proc"):
        raise GotThrough("/proc is there")
    return "there is no /proc"


def _raise_limits(_: Outside) -> str:
    names = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_FSIZE")
    return _all_refused(_raise, names)


def _raise(name: str) -> None:
    number = getattr(resource, name)
    soft, hard = resource.getrlimit(number)
    resource.setrlimit(number, (soft, resource.RLIM_INFINITY if hard == resource.RLIM_INFINITY else hard + 1))


def _kernel(_: Outside) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    calls: dict[str, Callable[[], int]] = {
        "unshare": lambda: libc.unshare(0x10000000),
        "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
        "chroot": lambda: libc.chroot(b"."),
        "ptrace": lambda: libc.ptrace(16, 1, None, None),
        "setuid": lambda: libc.setuid(0),
        "bpf": lambda: libc.syscall(321 if os.uname().machine == "x86_64" else 280, 0, None, 0),
    }
    passed = [name for name, call in calls.items() if call() >= 0]
    if passed:
        raise GotThrough(f"the kernel did: {', '.join(passed)}")
    return f"refused: {', '.join(calls)}"


def _identity(outside: Outside) -> str:
    if 0 in (os.getuid(), os.geteuid(), os.getgid()):
        raise GotThrough("the worker is root")
    if os.uname().nodename == outside.hostname:
        raise GotThrough("the host's name shows")
    return f"uid {os.getuid()}, host name {os.uname().nodename}"


def _environment(_: Outside) -> str:
    expected = {"LANG", "LC_ALL", "PATH", "TZ", "HOME", "TMPDIR", "LC_CTYPE"}
    if set(os.environ) - expected:
        raise GotThrough(f"variables: {sorted(set(os.environ) - expected)}")
    return f"only {', '.join(sorted(os.environ))}"


def _memory(outside: Outside) -> str:
    held = []
    for count in range(outside.memory_mib + 64):
        try:
            held.append(bytearray(_MIB))
        except MemoryError:
            return f"ended after {count} MiB of {outside.memory_mib}"
    raise GotThrough(f"{len(held)} MiB were given, {outside.memory_mib} are allowed")


def _scratch(outside: Outside) -> str:
    written = 0
    try:
        for number in range(4):
            with open(f"{os.environ['TMPDIR']}/fill-{number}", "wb", buffering=0) as file:
                for _ in range(outside.scratch_mib):
                    written += file.write(bytes(_MIB)) or 0
    except OSError as error:
        if 0 < written <= outside.scratch_mib * _MIB:
            return f"ended after {written / _MIB:g} MiB of {outside.scratch_mib}: {error.strerror}"
    raise GotThrough(f"{written / _MIB:g} MiB were taken, {outside.scratch_mib} are allowed")


def _threads(_: Outside) -> str:
    stop = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _number in range(500):
            thread = threading.Thread(target=stop.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return f"ended after {len(started)} threads"
    finally:
        stop.set()
        for thread in started:
            thread.join()
    raise GotThrough(f"{len(started)} threads were started")


def _descriptors(_: Outside) -> str:
    held: list[int] = []
    try:
        while len(held) < 5000:
            held.append(os.dup(1))
    except OSError:
        return f"ended after {len(held)} descriptors"
    finally:
        for descriptor in held:
            os.close(descriptor)
    raise GotThrough(f"{len(held)} descriptors were given")


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(1)


def _write(path: str) -> None:
    with open(path, "w") as file:
        file.write("x")


def _all_refused(act: Callable[[T], object], targets: Iterable[T]) -> str:
    """Do it to each; one that works is evidence, and the reasons of the others are the answer."""
    reasons: dict[str, None] = {}
    for target in targets:
        try:
            act(target)
        except (OSError, ValueError) as error:
            reasons[getattr(error, "strerror", None) or str(error)] = None
        else:
            raise GotThrough(f"it worked for {target}")
    return ", ".join(reasons)


ATTEMPTS: dict[str, Callable[[Outside], str]] = {
    "make a socket": _socket,
    "fork": _fork,
    "start a program": _exec,
    "read outside": _read_outside,
    "list outside": _list_outside,
    "climb above the root": _climb,
    "write outside": _write_outside,
    "signal others": _signal,
    "see other processes": _see_others,
    "raise a limit": _raise_limits,
    "call the kernel": _kernel,
    "be somebody": _identity,
    "read the environment": _environment,
    "take memory": _memory,
    "fill the scratch folder": _scratch,
    "start threads": _threads,
    "open descriptors": _descriptors,
}
