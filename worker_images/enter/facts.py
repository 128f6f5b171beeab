"""What this host is, found by looking and trying, told to the supervisor once.

Its job: identity, capabilities, Landlock's ABI, the interpreter's files, the folders of shared libraries, cgroups that can be made.
Not its job: judging any of it (``engine/jail/plan.py`` does).
Laws:
1. A fact that cannot be found out is told as absent, never as present.
"""

import _socket
import os
import resource
import sys
from typing import Any

from enter import enter, kernel
from enter.runtime import Runtime, inside_stdlib

_SO_PASSPIDFD = 76  # Linux 6.5 (unix(7)); the number is asm-generic's and x86's


def of_host(runtime: Runtime, cgroups: dict[str, str]) -> dict[str, Any]:
    """The facts as plain data."""
    return {
        "machine": os.uname().machine,
        "kernel": os.uname().release,
        "python": ".".join(map(str, sys.version_info[:3])),
        "euid": os.geteuid(),
        "capabilities": _capabilities(),
        "uid_map": _uid_map(),
        "tasks_bound": _tasks_bound(),
        "landlock": kernel.landlock_abi(),
        "peer_pidfd": _peer_pidfd(),
        "stdlib": runtime.stdlib,
        "stdlib_inside": inside_stdlib(),
        "standard_modules": sorted(sys.stdlib_module_names),
        "libraries": _libraries(runtime.own_folders),
        "links": [[os.readlink(path), path] for path in ("/lib", "/lib64", "/usr/lib64") if os.path.islink(path)],
        "cgroups": sorted(cgroups),
    }


def address_space() -> int:
    """Bytes of address space of this process, which a tool's memory limit comes on top of (proc(5), statm)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _uid_map() -> list[list[int]]:
    """First uid and count of each range that exists here; in a container's own user namespace most do not (user_namespaces(7))."""
    with open("/proc/self/uid_map") as file:
        return [[int(line.split()[0]), int(line.split()[2])] for line in file]


def _tasks_bound() -> bool:
    """Whether RLIMIT_NPROC binds this user in a user namespace of its own; tried, because it does not bind the real root (fork(2))."""
    if os.geteuid() != 0:
        return True
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            enter.leave_host({"cgroups": [], "namespaces": ["user"], "uid": 1000, "gid": 1000})
            kernel.drop_capabilities()
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            if os.fork() == 0:
                os._exit(0)
        except BlockingIOError:
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def _capabilities() -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def _peer_pidfd() -> bool:
    one, other = _socket.socketpair()
    try:
        one.setsockopt(_socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
        return True
    except OSError:
        return False
    finally:
        one.close()
        other.close()


def _libraries(own: tuple[str, ...]) -> list[str]:
    """Folders that hold the shared libraries mapped now.

    One of our own, one below such a one or around it is left out: what was loaded from there was not loaded for the tool.
    """
    found = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[5].strip() if line.count("/") else ""
            if ".so" in os.path.basename(path) and path.startswith("/"):
                found.add(os.path.dirname(path))
    return sorted(folder for folder in found if not any(_within(folder, one) or _within(one, folder) for one in own))


def _within(folder: str, other: str) -> bool:
    return folder == other or folder.startswith(other + "/")
