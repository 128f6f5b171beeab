"""The filters in the real kernel: dangerous calls by raw number are refused, needed ones pass.

Every refusal has its control: the same call in the same process state without the filter succeeds or fails for another reason.
"""

import errno
import functools
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.jail import bpf
from engine.jail.syscalls import CHILD, JAIL, Arch, compose, load_profiles
from engine.places import data_dir

if platform.system() != "Linux" or platform.machine() != "x86_64":
    pytest.skip("unproven here: raw numbers are those of Linux on x86_64", allow_module_level=True)

PROBE = Path(__file__).with_name("seccomp_probe.py")
HIGH = 1 << 32
NAMESPACES = {"mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000}
NAMESPACES |= {"net": 0x40000000, "time": 0x80}
Call = tuple[Any, ...]


@functools.cache
def code_of(names: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    program = bpf.compile_filter(compose(load_profiles(Path(data_dir("policies")) / "syscalls"), names, Arch.X86_64))
    return program.blob.hex(), program.tgid_offsets


IN_PID_1 = (JAIL,)
IN_A_CHILD = (JAIL, CHILD)  # stacked, as a tool meets them
ALONE = (CHILD,)  # the child's filter is whole by itself


def probe(stack: Sequence[tuple[str, ...]], groups: Sequence[Sequence[Call]]) -> list[dict[str, Any]]:
    """Answers and end of each group of calls under a stack of filters."""
    request = {"filters": [code_of(names) for names in stack], "groups": groups}
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROBE], input=json.dumps(request), capture_output=True, text=True, check=True, timeout=60
    )
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def errors(stack: Sequence[tuple[str, ...]], calls: Sequence[Call]) -> list[int]:
    """The errno of each call (0: it succeeded), all in one process."""
    (group,) = probe(stack, [calls])
    assert len(group["answers"]) == len(calls), group
    return [error for _, error in group["answers"]]


# number on x86_64 and arguments that are harmless where nothing stops them
DENIED: dict[str, Call] = {
    "io_uring_setup": (425, 1, "buffer"),
    "io_uring_enter": (426, -1, 0, 0, 0, 0, 0),
    "io_uring_register": (427, -1, 0, 0, 0),
    "userfaultfd": (323, 1),
    "keyctl": (250, 999),
    "add_key": (248, 0, 0, 0, 0, 0),
    "request_key": (249, 0, 0, 0, 0),
    "bpf": (321, 999, "buffer", 8),
    "ptrace": (101, 0, 0, 0, 0),
    "process_vm_readv": (310, "self", 0, 0, 0, 0, 0),
    "process_vm_writev": (311, "self", 0, 0, 0, 0, 0),
    "process_madvise": (440, -1, 0, 0, 0, 0),
    "pidfd_getfd": (438, -1, 0, 0),
    "pidfd_send_signal": (424, -1, 0, 0, 0),
    "perf_event_open": (298, 0, 0, 0, 0, 0),
    "kcmp": (312, "self", "self", 0, 0, 0),
    "mount": (165, 0, 0, 0, 0, 0),
    "umount2": (166, 0, 0),
    "pivot_root": (155, 0, 0),
    "chroot": (161, 0),
    "fsopen": (430, 0, 0),
    "move_mount": (429, -1, 0, -1, 0, 0),
    "open_tree": (428, -1, 0, 0),
    "mount_setattr": (442, -1, 0, 0, 0, 0),
    "setns": (308, -1, 0),
    "open_by_handle_at": (304, -1, 0, 0),
    "name_to_handle_at": (303, -1, 0, 0, 0, 0),
    "kexec_load": (246, 0, 99, 0, 0),
    "init_module": (175, 0, 0, 0),
    "finit_module": (313, -1, 0, 0),
    "delete_module": (176, 0, 0),
    "personality": (135, 0xFFFFFFFF),
    "execve": (59, 0, 0, 0),
    "execveat": (322, -1, 0, 0, 0, 0),
    "memfd_create": (319, "buffer", 0),
    "memfd_secret": (447, 0),
    "kill": (62, "self", 0),
    "kill parent": (62, "parent", 0),
    "tkill": (200, "self", 0),
    "rt_sigqueueinfo": (129, "self", 0, "buffer"),
    "rt_tgsigqueueinfo": (297, "self", "self", 0, "buffer"),
    "prctl": (157, 3, 0, 0, 0, 0),
    "prctl set_seccomp": (157, 22, 2, 0, 0, 0),
    "setrlimit": (160, 7, "buffer"),
    "shmget": (29, 12345, 0, 0),
    "shmat": (30, -1, 0, 0),
    "msgget": (68, 12345, 0),
    "semget": (0x40, 12345, 0, 0),
    "mq_open": (240, 0, 0, 0, 0),
    "vmsplice": (278, -1, 0, 0, 0),
    "splice": (275, -1, 0, -1, 0, 1, 0),
    "tee": (276, -1, -1, 1, 0),
    "sendfile": (40, -1, -1, 0, 1),
    "copy_file_range": (326, -1, 0, -1, 0, 1, 0),
    "modify_ldt": (154, 0, "buffer", 16),
    "iopl": (172, 0),
    "quotactl": (179, 0, 0, 0, 0),
    "fanotify_init": (300, 0, 0),
    "inotify_init1": (294, 0),
    "swapon": (167, 0, 0),
    "reboot": (169, 0, 0, 0, 0),
    "clock_settime": (227, 99, 0),
    "syslog": (103, 10, 0, 0),
    "acct": (163, 1),
    "connect": (42, -1, 0, 0),
    "bind": (49, -1, 0, 0),
    "listen": (50, -1, 0),
    "accept": (43, -1, 0, 0),
    "accept4": (288, -1, 0, 0, 0),
    "sendmmsg": (307, -1, 0, 0, 0),
    "recvmmsg": (299, -1, 0, 0, 0, 0),
    "setsockopt": (54, -1, 1, 26, 0, 0),
    "symlinkat": (266, 0, -1, 0),
    "linkat": (265, -1, 0, -1, 0, 0),
    "mknodat": (259, -1, 0, 0, 0),
    "fchownat": (260, -1, 0, 0, 0, 0),
    "getxattr": (191, 0, 0, 0, 0),
    "flock": (73, -1, 1),
    "setresuid": (117, -1, -1, -1),
    "capset": (126, 0, 0),
    "sched_setaffinity": (203, 0, 0, 0),
    "setpriority": (141, 0, 0, 19),
    "mlockall": (151, 1),
    "mincore": (27, 0, 0, 0),
    "setsid": (112,),
    "timer_create": (222, 99, 0, 0),
    "landlock_create_ruleset": (444, 0, 0, 1),
    "seccomp listener": (317, 1, 8, 0),
    "seccomp actions": (317, 2, 0, 0),
    "fork": (57,),
    "limits of pid 1": (302, "parent", 7, 0, "buffer"),
    "new limit of the parent": (302, "parent", 7, 1, 0),
    "fcntl F_SETOWN": (72, -1, 8, 0),
    "fcntl F_SETSIG": (72, -1, 10, 9),
    "fcntl F_SETLEASE": (72, -1, 1024, 0),
    "fcntl F_NOTIFY": (72, -1, 1026, 0),
    "fcntl F_SETPIPE_SZ": (72, -1, 1031, 4096),
    "fcntl F_SETOWN with a high bit": (72, -1, 8 + HIGH, 0),
    "close_range unshare": (436, 4000, 4001, 2),
    "chmod setuid": (90, 0, 0o4755),
    "sendto an address": (44, -1, "buffer", 1, 0, "buffer", 16),
    "sendto an address without low half": (44, -1, "buffer", 1, 0, HIGH, 16),
    "sendto urgent": (44, -1, "buffer", 1, 1, 0, 0),
    "recvfrom urgent": (45, -1, "buffer", 1, 1, 0, 0),
    "a number from the future": (599,),
}
ONLY_CHILD: dict[str, Call] = {
    "fork by clone": (56, 17, 0, 0, 0, 0),
    "wait4": (61, -1, 0, 1, 0),
    "waitid": (247, 0, 0, 0, 5, 0),
    "pidfd_open": (434, "self", 0),
    "own new limit": (302, 0, 7, "buffer", 0),
    "seccomp": (317, 1, 0, 0),
    "landlock_restrict_self": (446, -1, 0),
    "sendmsg": (46, -1, "buffer", 0),
    "recvmsg": (47, -1, "buffer", 0),
    "tgkill parent": (234, "parent", "parent", 0),
}
# and the kernel's own answer
ALLOWED: dict[str, tuple[Call, int]] = {
    "getpid": ((39,), 0),
    "own limits": ((302, 0, 7, 0, "buffer"), 0),
    "tgkill self": ((234, "self", "self", 0), 0),
    "F_GETFD": ((72, -1, 1), errno.EBADF),
    "sendto": ((44, -1, "buffer", 1, 0x4000, 0, 0), errno.EBADF),
    "recvfrom": ((45, -1, "buffer", 1, 0x40, 0, 0), errno.EBADF),
    "getsockname": ((51, -1, 0, 0), errno.EBADF),
    "getsockopt SO_TYPE": ((55, -1, 1, 3, 0, 0), errno.EBADF),
    "openat": ((257, -1, 0, 0), errno.EFAULT),
    "FIONBIO": ((16, -1, 0x5421, 0), errno.EBADF),
    "F_SETLK": ((72, -1, 6, 0), errno.EBADF),
    "chmod": ((90, 0, 0o1755), errno.EFAULT),
}


@functools.cache
def answers(stack: tuple[tuple[str, ...], ...]) -> dict[str, tuple[int, int]]:
    """Every call of the tables above, each in a process of its own: errno and how the process ended."""
    table = DENIED | ONLY_CHILD | {name: call for name, (call, _) in ALLOWED.items()}
    found = probe(stack, [[call] for call in table.values()])
    return {name: (group["answers"][0][1], group["ended"]) for name, group in zip(table, found, strict=True)}


def check_control(name: str) -> None:
    """Without a filter the call meets something else than the filter's refusal."""
    if answers(())[name][0] == errno.EPERM:
        pytest.skip(f"unproven here: {name} is refused to this user without a filter too")


@pytest.mark.parametrize("name", DENIED)
@pytest.mark.parametrize("stack", [IN_PID_1, IN_A_CHILD, ALONE], ids=["pid-1", "child", "child-alone"])
def test_a_dangerous_call_is_refused(name: str, stack: tuple[tuple[str, ...], ...]) -> None:
    """EPERM from each filter by itself and from both; the process lives on."""
    check_control(name)
    assert answers(stack)[name] == (errno.EPERM, 0)


@pytest.mark.parametrize("name", ONLY_CHILD)
def test_a_call_of_pid_1_is_refused_to_a_child(name: str) -> None:
    """Refused under the child's filter, alone and stacked; pid 1 gets the same answer as without any filter."""
    check_control(name)
    assert [answers(stack)[name] for stack in (ALONE, IN_A_CHILD, IN_PID_1)] == [(errno.EPERM, 0), (errno.EPERM, 0), answers(())[name]]


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("stack", [(), IN_PID_1, IN_A_CHILD, ALONE], ids=["control", "pid-1", "child", "child-alone"])
def test_a_needed_call_passes(name: str, stack: tuple[tuple[str, ...], ...]) -> None:
    """The kernel's own answer comes through, so the call went past the filter."""
    assert answers(stack)[name] == (ALLOWED[name][1], 0)


@pytest.mark.parametrize("space", NAMESPACES)
@pytest.mark.parametrize("way", ["unshare", "clone", "clone with a high bit", "clone a thread", "clone3"])
def test_no_way_to_a_new_namespace(space: str, way: str) -> None:
    """unshare, clone and clone3 with each CLONE_NEW flag; clone3 answers ENOSYS so that libc falls back."""
    flag = NAMESPACES[space]
    call: Call = {
        "unshare": (272, flag),
        "clone": (56, flag | 17, 0, 0, 0, 0),
        "clone with a high bit": (56, flag | 17 | HIGH, 0, 0, 0, 0),
        "clone a thread": (56, flag | 0x3D0F00, 0, 0, 0, 0),
        "clone3": (435, {"clone_args": flag}, 64),
    }[way]
    refused = errno.ENOSYS if way == "clone3" else errno.EPERM
    assert [errors(stack, [call]) for stack in (IN_PID_1, IN_A_CHILD, ALONE)] == [[refused]] * 3
    if way == "clone a thread":
        return  # without a filter it starts a thread on our own stack: no control can be run
    if errors((), [call]) == [refused]:
        pytest.skip(f"unproven here: {way} {space} is refused to this user without a filter too")


def test_no_socket_of_any_family() -> None:
    """Families 0 to 64, four types, with and without high bits: EACCES; without a filter local and internet sockets open."""
    calls = [(41, family | high, kind, 0) for family in range(65) for kind in (1, 2, 3, 5) for high in (0, HIGH)]
    assert set(errors(IN_A_CHILD, calls)) == set(errors(IN_PID_1, calls)) == set(errors(ALONE, calls)) == {errno.EACCES}
    control = dict(zip(calls, errors((), calls), strict=True))
    assert [control[41, family, 1, 0] for family in (1, 2)] == [0, 0]


def test_socket_pairs_are_local_streams_only() -> None:
    """AF_UNIX SOCK_STREAM in its four flag forms succeeds, every other family and type is refused."""
    kinds = (1, 2, 3, 4, 5, 0x801, 0x80001, 0x80801, 0x80802, 0x1001)
    calls = [(53, family, kind, 0, "buffer") for family in range(65) for kind in kinds]
    wanted = [0 if family == 1 and kind in (1, 0x801, 0x80001, 0x80801) else errno.EPERM for _, family, kind, *_ in calls]
    assert errors(IN_PID_1, calls) == errors(IN_A_CHILD, calls) == errors(ALONE, calls) == wanted
    assert errors((), [(53, 1, 2, 0, "buffer"), (53, 1, 5, 0, "buffer")]) == [0, 0]


def test_no_characters_into_a_terminal() -> None:
    """TIOCSTI, the same with high bits set, and TIOCLINUX on a terminal: answered as on a file that is none."""
    calls: list[Call] = [(16, "pty", request, "buffer") for request in (0x5412, 0x5412 + HIGH, 0x5412 + (0xFFFF << 32), 0x541C, 0x5401)]
    assert errors(IN_PID_1, calls) == errors(IN_A_CHILD, calls) == errors(ALONE, calls) == [errno.ENOTTY] * 5
    assert errors((), [calls[0], calls[1], calls[4]])[2] == 0
    assert errno.ENOTTY not in errors((), calls[:3])


# mov eax, number; int 0x80 or syscall; ret
INT_80 = "b814000000cd80c3"  # getpid of the 32-bit table
GETPGRP = "b86f0000000f05c3"  # 111 of the 64-bit table


@pytest.mark.parametrize("call", [(0x40000000 | 39,), (0x40000000 | 520,), (0x7FFFFFFF,), (0xFFFFFFFF,), ("code", INT_80)])
def test_foreign_numbers_kill(call: Call) -> None:
    """x32 numbers and the 32-bit entry end the process by SIGSYS; without a filter the first never do."""
    assert [probe(stack, [[call]])[0] for stack in (IN_PID_1, IN_A_CHILD, ALONE)] == [{"answers": [], "ended": -signal.SIGSYS}] * 3
    assert probe((), [[call]])[0]["ended"] in (0, -signal.SIGSEGV)  # the last where the kernel has no 32-bit entry


def test_machine_code_of_its_own_meets_the_same_filter() -> None:
    """Instructions written into executable memory run, and their system call is refused like any other."""
    assert probe(IN_A_CHILD, [[("code", GETPGRP)]]) == [{"answers": [[-errno.EPERM, 0]], "ended": 0}]
    (control,) = probe((), [[("code", GETPGRP)]])
    assert control["answers"][0][0] >= 0
