"""Tries one protection by itself, in a process that is thrown away, and says what happened.

Its job: one function per protection; each brings it about as a jail does, then looks for the effect.
Not its job: whether the level is enough (``engine/faces/doctor.py``), a whole jail (``enter.py``).
Laws:
1. A level above 0 means that the effect was seen, not that a call returned well (tests/e2e/test_cli_doctor.py).
2. Nothing of an attempt outlives its process but a cgroup that could not be removed, which the next launcher sweeps.
"""

import _signal
import _socket
import os
import resource
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from enter import enter, kernel, slots

_SO_PASSPIDFD, _SCM_PIDFD = 76, 4  # unix(7), Linux 6.5
_MEMORY = 32 << 20
Found = tuple[int, str]


def attempt(details: dict[str, Any]) -> Found:
    """Level and one line for the protection named in the order. Never raises."""
    try:
        return ATTEMPTS[details["protection"]](details)
    except kernel.Step as step:
        return 0, f"step '{step.name}' failed: {step.text} (errno {step.number})"
    except OSError as error:
        return 0, f"{error.strerror} (errno {error.errno})"
    except MemoryError:
        return 0, "out of memory"


def _leave(details: dict[str, Any], *names: str) -> None:
    """Enter new namespaces as a jail's monitor does: where the user is not root, in a user namespace of its own."""
    wanted = ["user", *names] if details["user"] else list(names)
    enter.leave_host({"cgroups": [], "namespaces": wanted, "uid": details["uid"], "gid": details["gid"]})


def _nobody(details: dict[str, Any]) -> None:
    kernel.drop_bounding_set()
    enter.become_nobody({"namespaces": ["user"] if details["user"] else [], "uid": details["uid"], "gid": details["gid"]})


def _worker_uid(details: dict[str, Any]) -> Found:
    before, space = os.getuid(), os.readlink("/proc/self/ns/user")
    _leave(details)
    if not details["user"]:
        _nobody(details)
        try:
            os.setresuid(before, before, before)
        except PermissionError:
            return 1, f"root gave up its uid for {os.getuid()} and cannot return"
        return 0, "the uid could be taken back"
    mapped = os.getuid() == details["uid"] and os.readlink("/proc/self/ns/user") != space
    return int(mapped), "a user namespace of its own" if mapped else "the uid was not mapped"


def _own_processes(details: dict[str, Any]) -> Found:
    _leave(details, "pid")
    status = _waited(lambda: 0 if os.getpid() == 1 else 1)
    return int(status == 0), "the next child is process 1 and sees no other" if status == 0 else "the next child is not process 1"


def _own_mounts(details: dict[str, Any]) -> Found:
    before = os.readlink("/proc/self/ns/mnt")
    _leave(details, "mount")
    kernel.mount("make mounts private", "none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("mount a tmpfs", "probe", details["mountpoint"], "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=64k")
    same = os.readlink("/proc/self/ns/mnt") == before
    return int(not same), "the host's mounts" if same else "a mount was made where the host does not see it"


def _own_network(details: dict[str, Any]) -> Found:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    _leave(details, "network")
    client = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    client.settimeout(1)
    try:
        client.connect(listener.getsockname())
    except OSError as error:
        names = ", ".join(name for _, name in _socket.if_nameindex())
        return 1, f"a listener on the host's loopback is out of reach ({error.strerror}); interfaces: {names}"
    return 0, "a listener on the host's loopback was reached"


def _own_ipc(details: dict[str, Any]) -> Found:
    before = os.readlink("/proc/self/ns/ipc")
    _leave(details, "ipc")
    same = os.readlink("/proc/self/ns/ipc") == before
    return int(not same), "the host's queues and shared memory" if same else "queues and shared memory of its own"


def _own_name(details: dict[str, Any]) -> Found:
    _leave(details, "uts")
    kernel.set_hostname("probe")
    named = os.uname().nodename == "probe"
    return int(named), "a host name of its own" if named else "the host name did not change"


def _own_cgroup_view(details: dict[str, Any]) -> Found:
    before = os.readlink("/proc/self/ns/cgroup")
    _leave(details, "cgroup")
    with open("/proc/self/cgroup") as file:
        paths = {line.rstrip("\n").split(":", 2)[2] for line in file}
    held = os.readlink("/proc/self/ns/cgroup") != before and paths <= {"/"}
    return int(held), "cgroup paths begin anew" if held else "the host's cgroup paths can be read"


def _private_root(details: dict[str, Any]) -> Found:
    _leave(details, "uts", "mount")
    empty = {
        "mountpoint": details["mountpoint"],
        "binds": [],
        "shared": 0,
        "devices": [],
        "links": [],
        "slots": {"count": 0},
        "namespaces": ["uts"],
        "hostname": "probe",
    }
    enter.start_root(empty)
    enter.finish_root(empty)
    seen = os.listdir("/")
    try:
        os.mkdir("/new")
    except OSError as error:
        return int(
            not seen
        ), f"the old root is gone, the new one is empty and takes nothing ({error.strerror})" if not seen else "the old root shows"
    return 0, "the root can be written"


def _no_new_privileges(details: dict[str, Any]) -> Found:
    kernel.prctl("set no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    held = _status()["NoNewPrivs"] == "1"
    return int(held), "set for good" if held else "not set"


def _no_capabilities(details: dict[str, Any]) -> Found:
    _leave(details)
    _nobody(details)
    status = _status()
    left = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[name], 16)]
    return int(not left), f"not empty: {', '.join(left)}" if left else "all five sets are empty"


def _filter(details: dict[str, Any]) -> Found:
    kernel.prctl("set no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).close()  # it must work before, or its refusal says nothing
    kernel.seccomp(bytes.fromhex(details["filter"]))
    try:
        _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    except PermissionError:
        return 1, f"a filter of {len(details['filter']) // 16} instructions refuses a socket"
    return 0, "the filter was loaded and a socket was made"


def _landlock(details: dict[str, Any]) -> Found:
    abi = kernel.landlock_abi()
    if not abi:
        return 0, "the kernel has no Landlock, or does not run it"
    kernel.prctl("set no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    os.kill(os.getppid(), 0)  # it must work before, or its refusal says nothing
    ruleset = kernel.landlock_ruleset(tuple(details["landlock"]))
    kernel.landlock_enter(ruleset)
    try:
        os.listdir("/")
    except PermissionError:
        pass  # as it must be
    else:
        return 0, "the domain was entered and / was read"
    if abi < 6:
        return abi, f"ABI {abi}: files are held, signals are not (Linux 6.12)"
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return abi, f"ABI {abi}: neither / nor the parent's process is in reach"
    return 5, "files are held, but the parent could be signalled"


def _limits(details: dict[str, Any]) -> Found:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    try:
        bytearray(2 * _MEMORY)
        return 0, "twice the address space that was allowed was given"
    except MemoryError:
        pass  # as it must be
    try:
        for _ in range(17):
            os.dup(0)
        return 0, "more descriptors than allowed were given"
    except OSError:
        return 1, "address space and descriptors end at their limits"


def _peer_pidfd(details: dict[str, Any]) -> Found:
    ours, theirs = _socket.socketpair()
    try:
        ours.setsockopt(_socket.SOL_SOCKET, _SO_PASSPIDFD, 1)
    except OSError:
        return 0, "the kernel does not tell who sends (SO_PASSPIDFD, Linux 6.5)"
    theirs.send(b"x")
    _, ancillary, _, _ = ours.recvmsg(1, _socket.CMSG_SPACE(4))
    held = any(level == _socket.SOL_SOCKET and kind == _SCM_PIDFD for level, kind, _ in ancillary)
    return int(held), "the kernel hands over the sender itself" if held else "no sender came with the message"


def _memory_cgroup(details: dict[str, Any]) -> Found:
    def grow() -> int:
        held = [b"\1" * (1 << 20) for _ in range(2 * _MEMORY >> 20)]
        return 1 if held else 0

    status = _in_cgroup("memory", _MEMORY, grow)
    if status is None:
        return 0, "no cgroup that limits memory can be made here"
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == _signal.SIGKILL
    return int(killed), "a process was ended at the limit" if killed else "a process grew to twice the limit (swap?)"


def _pids_cgroup(details: dict[str, Any]) -> Found:
    def fork() -> int:
        try:
            if os.fork() == 0:
                os._exit(0)
        except BlockingIOError:
            return 0
        return 1

    status = _in_cgroup("pids", 1, fork)
    if status is None:
        return 0, "no cgroup that limits processes can be made here"
    return int(status == 0), "a second process was refused" if status == 0 else "a second process was made"


def _in_cgroup(controller: str, limit: int, act: Callable[[], int]) -> int | None:
    """The wait status of a child that did it inside a cgroup with that limit; None where none can be made."""
    folders = slots.find_cgroups()
    if controller not in folders:
        return None
    made = slots.make_cgroups(folders, {controller: limit}, "0")

    def inside() -> int:
        for place, _ in made:
            with open(f"{place}/cgroup.procs", "w") as file:
                file.write("0")
        return act()

    try:
        return _waited(inside)
    finally:
        slots.give_back(made)


def _waited(act: Callable[[], int]) -> int:
    """The wait status of a child that ends with what the function gives."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = act()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def _status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


ATTEMPTS: Mapping[str, Callable[[dict[str, Any]], Found]] = MappingProxyType(
    {
        "user_namespace_or_root": _worker_uid,
        "pid_namespace": _own_processes,
        "mount_namespace": _own_mounts,
        "network_namespace": _own_network,
        "ipc_namespace": _own_ipc,
        "uts_namespace": _own_name,
        "cgroup_namespace": _own_cgroup_view,
        "private_root": _private_root,
        "no_new_privileges": _no_new_privileges,
        "capabilities": _no_capabilities,
        "seccomp": _filter,
        "landlock": _landlock,
        "rlimits": _limits,
        "peer_pidfd": _peer_pidfd,
        "memory_cgroup": _memory_cgroup,
        "pids_cgroup": _pids_cgroup,
    }
)
