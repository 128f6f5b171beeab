"""What the launcher must do for one worker, made from a policy and the facts of this host.

Its job: refuse what cannot be held here, by name; else the whole list of binds, rules, limits and filters.
Not its job: doing any of it (``worker_images/enter``), choosing a policy (``policy/resolve.py``).
Laws:
1. Every protection that the policy needs is in the plan, or there is no plan (tests/unit/test_plan.py).
2. What is not listed does not exist in the jail: there is no bind of a whole root (tests/unit/test_plan.py).
3. Without a scope nothing of a network is in the plan; with one, its places and no more (tests/unit/test_plan_network.py).
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import HostError
from engine.jail import bpf, network, syscalls
from engine.jail.facts import UIDS, HostFacts, Way
from engine.outcome import error_for
from engine.policy.model import Freshness, Mode
from engine.policy.network import Destination
from engine.policy.resolve import Resolved

# Landlock file rights by bit (landlock(7)); 13 came with ABI 2, 14 with 3, 15 with 5
_READ = 1 << 2 | 1 << 3
_DEVICE = 1 << 1 | 1 << 2
_SCRATCH = 1 << 1 | _READ | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | 1 << 14
_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # from ABI 5 on: 16
_DEVICES = ("null", "zero", "full", "random", "urandom")
_UID_LOCKS = "/run/stockade/uids"
_OTHERS = 4  # tasks beside a tool's own threads: its main thread, its spare sibling, pid 1, the monitor
_UNCOUNTED = 1 << 22  # PID_MAX_LIMIT: more tasks than a host can have
_STACK_BYTES = 256 << 10  # per thread; 64 of them stay below 16 MiB of address space
_NAMESPACES = ("pid", "ipc", "uts", "cgroup", "network", "mount")
_ALWAYS = (
    "user_namespace_or_root",
    "mount_namespace",
    "pid_namespace",
    "private_root",
    "no_new_privileges",
    "capabilities",
    "seccomp",
    "rlimits",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Folders of the host that a jail is built from; ``empty`` and ``mountpoint`` are empty folders of the engine's own."""

    engine: Path
    mountpoint: Path
    empty: Path
    syscalls: Path
    scratch: Path  # only without the wall: where each worker's own folder is made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """What one worker is for: its bundle's source, the folders of its layers by name, the modules to import beforehand.

    ``code`` is where the source's byte code lies, with its digest.
    """

    source: Path
    code: tuple[str, str] | None = None
    layers: tuple[tuple[str, Path], ...] = ()
    preload: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """``order`` goes to the launcher; ``root`` and ``layers`` are where the guest finds source and layers.

    ``listeners`` are where the sockets of a scoped jail lead, its doors, in the order in which they come with its report.
    """

    order: Mapping[str, Any]
    root: str
    layers: tuple[str, ...]
    needed: Mapping[str, int]
    means: Mapping[str, str]
    walls: bool
    listeners: tuple[Destination, ...] = ()


def make(resolved: Resolved, facts: HostFacts, places: Places, content: Content) -> Plan:
    """The plan. Raises HostError ``refused.cannot_enforce`` naming each protection, what was found and what is needed.

    Raises HostError ``refused.network_scoped`` with what keeps the places of a scope from being held.
    """
    walls, scope = resolved.mode is not Mode.HOST, resolved.scope
    if walls:
        _refuse_missing(resolved, facts)
    if scope is not None:
        network.refuse_unheld(scope, facts, resolved.protections.get("network_namespace", 0), walls=walls)
    filters = _filters(places.syscalls, facts.machine, scoped=scope is not None) if walls else {"jail": "", "child": "", "tgid": []}
    layers = tuple(f"/layers/{name}" for name, _ in content.layers) if walls else tuple(str(path) for _, path in content.layers)
    inside = facts.stdlib_inside if walls else facts.stdlib
    root = "/bundle" if walls else str(content.source)
    shared = _shared_binds(facts, places) if walls else []
    order = {
        "walls": walls,
        "namespaces": _namespaces(resolved, facts) if walls else [],
        "uids": [_UID_LOCKS, UIDS.start, len(UIDS)] if walls and facts.way is Way.ROOT else None,
        "uid": 1000,
        "gid": 1000,
        "mountpoint": str(places.mountpoint),
        "hostname": "jail",
        "binds": [*shared, *_own_binds(resolved, content)] if walls else [],
        "shared": len(shared),
        "devices": list(_DEVICES) if walls else [],
        "links": [list(link) for link in facts.links] if walls else [],
        "slots": {
            "count": 2 if walls else 0,
            "bytes": resolved.limits.scratch_bytes,
            "inodes": resolved.limits.scratch_inodes,
        },
        "scratch": "/tmp" if walls else str(places.scratch),  # noqa: S108 - the jail's own, a mount that nobody else sees
        "landlock": _landlock(resolved, facts, content),
        "network": None if scope is None else network.order(scope),
        "filters": filters,
        "limits": _limits(resolved, facts, walls),
        "cgroup_limits": _cgroup_limits(resolved, facts) if walls else {},
        "preload": list(content.preload),
        "python": [inside, f"{inside}/lib-dynload"],
        "root": root,
        "code": list(content.code) if content.code else None,
        "layers": list(layers),
    }
    return Plan(
        order=order,
        root=root,
        layers=layers,
        needed=dict(resolved.protections),
        means=_means(order, facts),
        walls=walls,
        listeners=() if scope is None else scope.destinations,
    )


def _refuse_missing(resolved: Resolved, facts: HostFacts) -> None:
    needed = resolved.protections
    lines = [f"{name} cannot be switched off for this worker kind: needed 0, must be 1" for name in _ALWAYS if not needed.get(name)]
    found = {
        "landlock": facts.landlock,
        "peer_pidfd": int(facts.peer_pidfd),
        "memory_cgroup": int("memory" in facts.cgroups),
        "pids_cgroup": int("pids" in facts.cgroups),
    }
    lines += [
        f"{name}: found level {level}, needed {needed.get(name, 0)} (kernel {facts.kernel})"
        for name, level in found.items()
        if level < needed.get(name, 0)
    ]
    if not facts.peer_pidfd and not lines:
        lines.append(f"peer_pidfd: found level 0, needed 1 (SO_PASSPIDFD, Linux 6.5; kernel {facts.kernel})")
    if _unbound(facts) and "pids" not in facts.cgroups:
        lines.append("rlimits: RLIMIT_NPROC does not bind root in a user namespace of its own, and no pids cgroup can be made")
    if facts.machine not in {arch.value for arch in syscalls.Arch}:
        lines.append(f"seccomp: no filter for the architecture {facts.machine}")
    if lines:
        raise HostError("refused.cannot_enforce", *lines)


def _namespaces(resolved: Resolved, facts: HostFacts) -> list[str]:
    names = [name for name in _NAMESPACES if resolved.protections.get(f"{name}_namespace")]
    return ["user", *names] if facts.way is Way.USER else names


def _shared_binds(facts: HostFacts, places: Places) -> list[list[str]]:
    """What all jails of an engine show: the launcher binds them ahead of the order that says what a jail is for."""
    stdlib = Path(facts.stdlib)
    binds = [[facts.stdlib, facts.stdlib_inside, "folder"]]
    # security: without the covers the host's installed packages are readable beside the standard library
    binds += [
        [str(places.empty), f"{facts.stdlib_inside}/{name}", "folder"]
        for name in ("site-packages", "dist-packages")
        if (stdlib / name).is_dir()
    ]
    binds += [[folder, folder, "folder"] for folder in facts.libraries]
    binds += [[str(places.engine / name), f"/guest/engine/{name}", "file"] for name in ("__init__.py", "errors.py")]
    binds.append([str(places.engine / "authoring"), "/guest/engine/authoring", "folder"])
    if Path("/usr/share/zoneinfo").is_dir():
        binds.append(["/usr/share/zoneinfo", "/usr/share/zoneinfo", "folder"])
    return binds


def _own_binds(resolved: Resolved, content: Content) -> list[list[str]]:
    binds = [[str(content.source), "/bundle", "folder"]]
    binds += [[str(path), f"/layers/{name}", "folder"] for name, path in content.layers]
    binds += [[_straight(name, path), f"/granted/{name}", "folder"] for name, path in sorted(resolved.folders.items())]
    return binds + (network.binds(resolved.scope) if resolved.scope is not None else [])


def _straight(name: str, path: str) -> str:
    """The path of a granted folder. Raises PolicyError when a link lies on it, or no folder there."""
    # security: a link may lead to what no policy may grant, / or /proc, and may be turned after somebody looked at it
    if os.path.realpath(path) != path:
        raise error_for("refused.policy", f"grants.folders.{name}: the path leads through a link: write where it leads")
    if not os.path.isdir(path):
        raise error_for("refused.policy", f"grants.folders.{name}: there is no folder at that path on this host")
    return path


def _landlock(resolved: Resolved, facts: HostFacts, content: Content) -> dict[str, Any]:
    abi = facts.landlock
    files = (1 << _FILE_BITS.get(abi, 16)) - 1 if abi else 0
    folders = [facts.stdlib_inside, *facts.libraries, "/guest", "/bundle", *(f"/layers/{name}" for name, _ in content.layers)]
    folders += [f"/granted/{name}" for name in sorted(resolved.folders)]
    if Path("/usr/share/zoneinfo").is_dir():
        folders.append("/usr/share/zoneinfo")
    if resolved.scope is not None:
        folders.append(network.READABLE)
    paths = [[folder, _READ & files] for folder in folders] + [[f"/dev/{name}", _DEVICE & files] for name in _DEVICES]
    return {
        "abi": abi,
        "files": files,
        "network": 3 if abi >= network.CONNECT_ABI else 0,  # bind and connect of TCP; nothing is allowed but what follows
        "ports": network.ports(resolved.scope) if resolved.scope is not None else [],  # to connect to
        "scope": 3 if abi >= 6 else 0,  # abstract Unix sockets and signals stay inside the domain
        "slot": _SCRATCH & files,
        "paths": paths,
    }


def _limits(resolved: Resolved, facts: HostFacts, walls: bool) -> dict[str, int]:
    limits = resolved.limits
    others = _OTHERS - 1 if facts.way is Way.ROOT else _OTHERS  # root's monitor has another uid
    return {
        "cpu_s": max(1, -(-limits.cpu_ms // 1000)),
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.scratch_bytes,
        "descriptors": limits.descriptors,
        # without the wall the uid is the user's own, and everything the user runs would count (RLIMIT_NPROC, setrlimit(2))
        "tasks": limits.threads + others if walls else _UNCOUNTED,
        "stack_bytes": _STACK_BYTES,
    }


def _unbound(facts: HostFacts) -> bool:
    """Whether the kernel does not count this worker's tasks by its uid: in a user namespace, the real root stays exempt (fork(2))."""
    return facts.way is Way.USER and not facts.tasks_bound


def _cgroup_limits(resolved: Resolved, facts: HostFacts) -> dict[str, int]:
    """Above what rlimits and tmpfs already hold for a call and its spare, so that a clean error comes first; catches the rest."""
    limits = resolved.limits
    tasks = limits.threads + _OTHERS if _unbound(facts) else 2 * limits.threads + 8
    holders = 3 if resolved.freshness is Freshness.SNAPSHOT else 2  # of memory: the process that imported for both is the third
    wanted = {"memory": holders * limits.memory_bytes + 2 * limits.scratch_bytes + (64 << 20), "pids": tasks}
    return {name: amount for name, amount in wanted.items() if name in facts.cgroups}


def _means(order: Mapping[str, Any], facts: HostFacts) -> dict[str, str]:
    """Limit -> what holds it, as the receipt says it."""
    host = dict.fromkeys(("wall", "start", "request", "result", "events", "event_bytes", "log"), "supervisor")
    kernel = {
        "cpu": "RLIMIT_CPU",
        "memory": "RLIMIT_AS",
        "scratch": "RLIMIT_FSIZE",
        "threads": "RLIMIT_NPROC",
        "descriptors": "RLIMIT_NOFILE",
    }
    if order["walls"]:
        kernel |= {"scratch": "tmpfs size", "scratch_inodes": "tmpfs nr_inodes"}
        kernel |= {"memory": "RLIMIT_AS + memory cgroup"} if "memory" in order["cgroup_limits"] else {}
        kernel |= {"threads": "RLIMIT_NPROC + pids cgroup"} if "pids" in order["cgroup_limits"] else {}
        kernel |= {"threads": "pids cgroup"} if _unbound(facts) else {}
    else:
        kernel |= {"scratch": "RLIMIT_FSIZE, each file", "scratch_inodes": "nothing", "threads": "nothing"}
    return host | kernel


@functools.cache
def _filters(folder: Path, machine: str, *, scoped: bool) -> dict[str, Any]:
    """Both filters as the launcher takes them, compiled once for a policy folder; ``scoped``: with the calls of a network."""
    profiles = syscalls.load_profiles(folder)
    arch = syscalls.Arch(machine)
    jail = _compiled(profiles, syscalls.SCOPED_JAIL if scoped else syscalls.JAIL, arch)
    child = _compiled(profiles, syscalls.SCOPED_CHILD if scoped else syscalls.CHILD, arch)
    return {"jail": jail.blob.hex(), "child": child.blob.hex(), "tgid": list(child.tgid_offsets)}


def _compiled(profiles: Mapping[str, syscalls.Profile], names: Sequence[str], arch: syscalls.Arch) -> bpf.Program:
    return bpf.compile_filter(syscalls.compose(profiles, names, arch))


def parser_order(facts: HostFacts, places: Places) -> dict[str, Any]:
    """How the process that parses sources is locked: no files, no network, 512 MiB, 20 s of CPU."""
    landlock = [(1 << _FILE_BITS.get(facts.landlock, 16)) - 1, 3 if facts.landlock >= 4 else 0, 3 if facts.landlock >= 6 else 0]
    return {
        "landlock": landlock if facts.landlock else [0, 0, 0],
        # security: no mode or time of a file, which Landlock leaves to its owner, and no process, for whoever breaks the parser
        "filter": _parser_filter(places.syscalls, facts.machine),
        "uid": UIDS.stop if facts.way is Way.ROOT else None,  # the first that no jail takes
        "cpu_s": 20,
        "address_bytes": 512 << 20,
    }


@functools.cache
def _parser_filter(folder: Path, machine: str) -> str:
    """What computing alone needs, compiled once for a policy folder."""
    return _compiled(syscalls.load_profiles(folder), ("compute",), syscalls.Arch(machine)).blob.hex()
