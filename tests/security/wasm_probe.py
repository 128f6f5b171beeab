"""Run as a program by test_wasm_child.py: makes a WebAssembly runtime as the second launcher does, and lives of children as its zygotes do.

Input on stdin, as JSON: where things lie, a plan's filters and limits, and lives: what each is sent, and what is done to it. Output: how
each went. It has no jail around it: what a child is kept from is kept by its filters, its limits and its Landlock domain.
"""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQUEST = json.load(sys.stdin)
sys.path[:0] = [REQUEST["images"]]

from enter import kernel, zygote  # noqa: E402 - they lie where the request says
from wasm.runtime import Runtime  # noqa: E402 - as above

CHANNEL = 3
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def lock(runtime: Runtime, plan: dict[str, Any]) -> None:
    """What ``enter/enter.py`` and ``enter/zygote.py`` do to a child, less its namespaces."""
    kernel.landlock_enter(REQUEST["ruleset"])
    os.closerange(CHANNEL + 1 + len(runtime.kept), 1 << 20)
    limits = plan["limits"]
    for name, value in (("DATA", limits["data_bytes"]), ("AS", limits["address_bytes"]), ("FSIZE", 0), ("NOFILE", limits["descriptors"])):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    for name, tgid in (("jail", []), ("child", plan["filters"]["tgid"])):
        kernel.ChildLock(bytes.fromhex(plan["filters"][name]), tgid).load_filter()


def escape() -> dict[str, str]:
    """What whoever broke out of wasmtime would try next, in this process's own Python."""
    page = REQUEST["page"]

    def call(number: int, *arguments: int) -> None:
        if LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
            raise OSError(ctypes.get_errno(), "")

    attempts: dict[str, Callable[[], object]] = {
        "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
        "create": lambda: os.open(REQUEST["folder"] + "/made", os.O_CREAT | os.O_WRONLY),
        "list": lambda: os.listdir("/"),
        "stat": lambda: os.stat("/"),
        "socket": socket.socket,
        "socketpair": socket.socketpair,
        "fork": lambda: os.fork() or os._exit(0),
        "execute": lambda: execute(),
        "executable memory": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
        "make memory executable": lambda: call(10, page, 4096, 5),  # mprotect
        "write to code": lambda: call(10, REQUEST["code"], 4096, 3 | 4),
        "memory file": lambda: os.memfd_create("x"),
        "trace the sibling": lambda: call(101, 16, REQUEST["sibling"], 0, 0),  # PTRACE_ATTACH
        "read the sibling": lambda: call(310, REQUEST["sibling"], 0, 0, 0, 0, 0),  # process_vm_readv
        "kill the sibling": lambda: os.kill(REQUEST["sibling"], 0),
        "name the sibling": lambda: os.pidfd_open(REQUEST["sibling"]),
        "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)),
        "change user": lambda: os.setresuid(-1, -1, -1),
        "namespace": lambda: call(272, 0),  # unshare of nothing
        "load a filter": lambda: call(317, 2, 0, page),  # SECCOMP_GET_ACTION_AVAIL
    }
    return {name: attempted(attempt) for name, attempt in attempts.items()}


def execute() -> None:
    """Become another program; as the attempt that gets through ends this process, in one that is forked where it can be."""
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])  # noqa: S606 - one fixed program


def attempted(attempt: Callable[[], object]) -> str:
    """The error that it met, or nothing."""
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    except ValueError as error:  # how the module resource tells EPERM
        return str(error)
    return ""


def live(runtime: Runtime, plan: dict[str, Any], life: dict[str, Any]) -> dict[str, Any]:
    """One child from its fork to its end."""
    ours, theirs = socket.socketpair()
    pipes = [os.pipe(), os.pipe()]
    pid = os.fork()
    if pid == 0:
        child(runtime, plan, life, theirs.fileno(), [far for _, far in pipes])
    theirs.close()
    outputs: list[bytearray] = [bytearray(), bytearray()]
    told = bytearray()
    drains = [threading.Thread(target=drain, args=(near, output)) for (near, _), output in zip(pipes, outputs, strict=True)]
    for _, far in pipes:
        os.close(far)
    for thread in [] if life.get("unread") else drains:
        thread.start()
    try:
        seen = talk(ours, pid, life, told)
    except OSError:  # it ended while it was written to
        seen = {}
    if life.get("kill"):
        os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number is its own
    ours.close() if life.get("hang_up") or life.get("kill") else ours.shutdown(socket.SHUT_WR)
    _, status, _ = os.wait4(pid, 0)
    ours.close()
    for thread in drains if not life.get("unread") else []:
        thread.join()
    for near, _ in pipes:
        os.close(near)
    out, err = outputs
    ended = os.waitstatus_to_exitcode(status)
    return {"told": told.hex(), "out": out.hex(), "err": err.decode("utf-8", "replace"), "ended": ended, **seen}


def child(runtime: Runtime, plan: dict[str, Any], life: dict[str, Any], channel: int, outputs: list[int]) -> None:
    """Lock this process and be a guest in it, or whoever broke out of one."""
    status = 70
    try:
        zygote.quiet_signals() if life.get("reset_signals") else quiet(runtime)
        os.dup2(channel, CHANNEL)
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
        lock(runtime, plan) if life.get("locked", True) else None
        if life.get("escape"):
            os.write(CHANNEL, json.dumps(escape()).encode())
        else:
            runtime.serve(CHANNEL, "/")
        status = 0
    finally:
        os._exit(status)


def quiet(runtime: Runtime) -> None:
    """Every handler but those that make traps is reset."""
    for number in set(range(1, 32)) - {9, 19, *runtime.trap_signals}:
        signal.signal(number, signal.SIG_DFL)


def talk(ours: socket.socket, pid: int, life: dict[str, Any], told: bytearray) -> dict[str, Any]:
    """Send what is to be sent, take what is told until as much came as was wanted, look at the process meanwhile."""
    frames = [bytes.fromhex(frame) for frame in life.get("frames", [])]
    sender = threading.Thread(target=send, args=(ours, b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)))
    sender.start()
    while len(told) < life.get("wanted", 0):
        data = ours.recv(1 << 16)
        if not data:
            break
        told += data
    if not life.get("kill"):
        sender.join()
    if not life.get("look"):
        return {}
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    executable = sorted(line.split()[0] for line in maps if "x" in line.split()[1])
    own = sorted(line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "x" in line.split()[1])
    writable = [line for line in maps if "w" in line.split()[1] and "x" in line.split()[1]]
    return {
        "new code": [place for place in executable if place not in own],
        "writable code": writable,
        "descriptors": sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def send(ours: socket.socket, data: bytes) -> None:
    """Write it while what comes back is read; a child that ends first does not get all of it."""
    with contextlib.suppress(OSError):
        ours.sendall(data)


def drain(near: int, output: bytearray) -> None:
    """Read an output to its end."""
    while data := os.read(near, 1 << 16):
        output += data


def main() -> None:
    """All lives, one after the other."""
    os.environ["TOKIO_WORKER_THREADS"] = "1"
    os.environ["RUST_BACKTRACE"] = "0"
    os.dup2(os.open("/dev/null", os.O_RDONLY), CHANNEL)
    runtime = Runtime(REQUEST["packages"], REQUEST["packages"], REQUEST["image"])
    runtime.rehearse()
    runtime.settle(list(sys.path), walls=False)
    runtime.stage(REQUEST["source"], [], {})
    plan = REQUEST["plan"]
    runtime.bound(plan, 1 << 30)
    plan["limits"] |= REQUEST.get("limits", {})
    if REQUEST.get("seeded"):  # what the launcher must not do
        REQUEST["held"] = runtime._native.new_wasi()
    page = mmap.mmap(-1, 4096)
    page[0] = 0
    REQUEST["page"] = ctypes.addressof(ctypes.c_char.from_buffer(page))
    code = next(line for line in Path("/proc/self/maps").read_text().splitlines() if "libc" in line and "r-xp" in line)
    REQUEST["code"] = int(code.split("-")[0], 16)
    kernel.prctl("promise", kernel.PR_SET_NO_NEW_PRIVS, 1)
    handled = tuple(REQUEST["landlock"])
    REQUEST["ruleset"] = kernel.landlock_ruleset((handled[0], handled[1], handled[2]), [])
    sibling = os.fork()
    if sibling == 0:
        select.select([], [], [])
    REQUEST["sibling"] = sibling
    try:
        lives = [live(runtime, plan, life) for life in REQUEST["lives"]]
    finally:
        os.kill(sibling, signal.SIGKILL)
        os.waitpid(sibling, 0)
    json.dump({"lives": lives, "kept": list(runtime.kept), "limits": plan["limits"]}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # as the launcher: tidying up would free what is sealed


if __name__ == "__main__":
    main()
