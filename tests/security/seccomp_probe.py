"""Run as a program by test_syscall_filter.py: loads filters the way a jail does and reports what raw system calls then answer.

Input on stdin, as JSON: {"filters": [[hex, offsets], ...]} and either "groups": [[[number, argument, ...], ...], ...] or "code": text.
Each group runs in a forked process of its own, so that neither a success nor a kill of one reaches the next.
Standard library only and no import of the engine: it runs under every interpreter that tools may run under.
"""

import ctypes
import json
import mmap
import os
import struct
import sys
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
SECCOMP = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
ZEROS = ctypes.create_string_buffer(4096)
FORKS = {56, 57, 435}  # clone, fork, clone3 of x86_64


class Fprog(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]


def load(blob: bytes, offsets: list[int]) -> None:
    """Loads one filter with the own process id written in; no_new_privs is set already."""
    code = bytearray(blob)
    for offset in offsets:
        struct.pack_into("<I", code, offset, os.getpid())
    program = Fprog(len(code) // 8, bytes(code))
    if LIBC.syscall(SECCOMP, 1, 0, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def lock(filters: list[Any]) -> None:
    """no_new_privs, then every filter in order."""
    LIBC.prctl(38, 1, 0, 0, 0)
    for blob, offsets in filters:
        load(bytes.fromhex(blob), offsets)


def value(argument: Any, pty: int) -> ctypes.c_long:
    """An argument as the kernel gets it; words stand for what only this process knows."""
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    if isinstance(argument, dict):  # struct clone_args: flags, then a SIGCHLD as the fifth word
        words = struct.pack("8Q", argument["clone_args"], 0, 0, 0, 17, 0, 0, 0)
        ctypes.memmove(ZEROS, words, len(words))
        return ctypes.c_long(ctypes.addressof(ZEROS))
    return ctypes.c_long({"buffer": ctypes.addressof(ZEROS), "self": os.getpid(), "parent": os.getppid(), "pty": pty}[argument])


def machine_code(code: bytes) -> int:
    """Runs bytes as a function, as a tool with ctypes can."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())


def attempt(call: list[Any], pty: int) -> list[int]:
    """Makes one call; result and errno."""
    if call[0] == "code":
        return [machine_code(bytes.fromhex(call[1])), 0]
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(call[0]), *(value(argument, pty) for argument in call[1:]))
    if result == 0 and call[0] in FORKS:
        os._exit(0)  # this is the child that should not have been
    return [result, ctypes.get_errno() if result == -1 else 0]


def run_group(calls: list[Any], filters: list[Any]) -> dict[str, Any]:
    """Forks, locks the child, makes the calls there; the answers so far and how it ended."""
    out, into = os.pipe()
    pty = os.openpty()
    pid = os.fork()
    if pid == 0:
        lock(filters)
        for call in calls:
            os.write(into, (json.dumps(attempt(call, pty[1])) + "\n").encode())
        os._exit(0)
    for fd in (into, *pty):
        os.close(fd)
    with open(out, "rb") as answers:
        lines = answers.read().splitlines()
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"answers": [json.loads(line) for line in lines], "ended": ended}


def main() -> None:
    """One request, one answer."""
    request = json.load(sys.stdin)
    if "code" in request:
        lock(request["filters"])
        exec(compile(request["code"], "workload", "exec"), {"__name__": "workload", "load": load, "child": request.get("child")})
        return
    json.dump([run_group(calls, request["filters"]) for calls in request["groups"]], sys.stdout)


if __name__ == "__main__":
    main()
