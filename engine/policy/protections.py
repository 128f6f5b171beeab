"""What a worker's wall is made of, and the names of all that opens it.

Its job: the closed tables of protections and of loosenings.
Not its job: which loosening a policy needs (``model.py``), how a protection is enforced (``jail/plan.py``).
Laws:
1. Every loosening is reached by some setting, and means what an operator reads in policies/README.md (tests/unit/test_policy_model.py).
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protection:
    """A kernel feature relied on: the level ``required`` needs, the highest there is, the loosening below needed, the one at 0."""

    needed: int
    highest: int
    below: str | None
    absent: str | None


def _row(needed: int, highest: int, below: str | None = None, absent: str | None = None) -> Protection:
    return Protection(needed=needed, highest=highest, below=below, absent=absent or below)


PROTECTIONS: Mapping[str, Protection] = MappingProxyType(
    {
        "user_namespace_or_root": _row(1, 1, "worker_is_the_engines_user"),
        "pid_namespace": _row(1, 1, "host_processes_in_reach"),
        "mount_namespace": _row(1, 1, "host_mounts_in_reach"),
        "network_namespace": _row(1, 1, "host_network_in_reach"),
        "ipc_namespace": _row(1, 1, "host_shared_memory_in_reach"),
        "uts_namespace": _row(1, 1, "host_name_in_reach"),
        "cgroup_namespace": _row(1, 1, "host_cgroups_in_reach"),
        "private_root": _row(1, 1, "host_files_in_reach"),
        "no_new_privileges": _row(1, 1, "setuid_programs_raise_privileges"),
        "capabilities": _row(1, 1, "kernel_capabilities_kept"),
        "seccomp": _row(1, 1, "every_kernel_call_allowed"),
        "landlock": _row(6, 7, "landlock_below_6", "no_landlock_at_all"),  # ABI 6 = Linux 6.12 (signal scope), 7 = 6.15
        "rlimits": _row(1, 1, "no_kernel_limits_at_all"),
        "peer_pidfd": _row(1, 1, "processes_believed_by_number"),  # SO_PASSPIDFD, Linux 6.5
        "memory_cgroup": _row(0, 1),
        "pids_cgroup": _row(0, 1),
    }
)
NEEDED: Mapping[str, int] = MappingProxyType({name: row.needed for name, row in PROTECTIONS.items()})
NO_WALL: Mapping[str, int] = MappingProxyType(dict.fromkeys(PROTECTIONS, 0))

LOOSENINGS: Mapping[str, str] = MappingProxyType(
    {
        "host_mode_without_any_wall": "tool code runs as an ordinary process with all that the engine's user can do",
        "state_kept_in_snapshot": "what the tool did while it was imported is shared by all later calls of its worker",
        "state_kept_warm": "each call finds what earlier calls of the same tenant left in the same process",
        "worker_is_the_engines_user": "the worker keeps the engine's user id and what belongs to it",
        "host_processes_in_reach": "tool code sees the processes of the host and can signal some of them",
        "host_mounts_in_reach": "tool code stands in the mount tree of the host",
        "host_network_in_reach": "tool code stands in the network of the host, loopback services included",
        "host_shared_memory_in_reach": "tool code can attach System V and POSIX queues and memory of the host",
        "host_name_in_reach": "tool code learns the name of the host",
        "host_cgroups_in_reach": "tool code learns the cgroup paths of the host",
        "host_files_in_reach": "tool code sees the file tree of the host as far as its user may read it",
        "setuid_programs_raise_privileges": "a setuid program started by tool code gains its owner's privileges",
        "kernel_capabilities_kept": "tool code keeps capabilities that the engine had",
        "every_kernel_call_allowed": "tool code may try every kernel call there is, old and faulty ones too",
        "landlock_below_6": "children are not scoped from signalling each other, or some file rights are not held",
        "no_landlock_at_all": "writes are held by the private root alone, and signals by the call filter alone",
        "no_kernel_limits_at_all": "memory, CPU time and files are watched from outside, after the fact",
        "processes_believed_by_number": "an exit may be believed of a process that took over a number",
        "network_wildcards": "tool code may connect to any name below one that is listed, whoever owns it",
        "network_private_destinations": "tool code may reach private addresses that are listed, the host's own among them if they are",
    }
)
