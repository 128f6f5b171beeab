"""What an operator can decide, as closed lists and frozen records.

Its job: modes, permissions, protections, loosenings, grants, pool and the policy that holds them; each record refuses what is malformed.
Not its job: files (``load.py``), what one call gets of it (``resolve.py``), how a protection is enforced (``jail/plan.py``).
Laws:
1. A policy below the required protections names exactly the matching loosenings, no fewer and no more (tests/unit/test_policy_model.py).
2. No grant means "everything": an empty set grants nothing, wildcards refuse (tests/unit/test_policy_model.py).
3. No policy can fix a denied name or a value that carries a login (tests/unit/test_policy_model.py).
"""

import dataclasses
import enum
import functools
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from engine.authoring.canonical import digest
from engine.errors import PolicyError
from engine.limits import LIMIT_NAMES, Limits, parse_size, parse_time
from engine.policy.secrets import CAPABILITIES, DeniedNames, name_problem

EFFECTS = ("external", "idempotent", "read", "write")
BASELINE: Mapping[str, str] = MappingProxyType(
    {
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        # Names nothing on purpose: a worker starts no program by name. Unset or empty would be worse, because then
        # the C library and os.defpath fall back to /bin:/usr/bin, and an empty element means the scratch folder.
        "PATH": "/nonexistent",
        "TZ": "UTC",
    }
)


class Mode(enum.StrEnum):
    """Where tool code runs: behind the wall, behind it with side effects blocked, or without it."""

    REQUIRED = "required"
    FIXTURE = "fixture"
    HOST = "host"


class Permission(enum.StrEnum):
    """Which tools run: all, dangerous ones on approval, or only read-only ones."""

    AUTO = "auto"
    READONLY = "readonly"


class Freshness(enum.StrEnum):
    """What of an earlier run a call can see: nothing, what import left, or everything."""

    FRESH = "fresh"
    SNAPSHOT = "snapshot"
    WARM = "warm"


class Kind(enum.StrEnum):
    """Which kind of worker runs a source: one of two walls, or the strongest that can serve it."""

    AUTO = "auto"
    NATIVE = "native"
    WASM = "wasm"


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
    }
)

_Parse = Callable[[object], int]


def _count(value: object) -> int:
    if type(value) is not int:
        raise PolicyError("refused.policy", f"{value!r} is not a whole number")
    return value


LIMIT_KEYS: Mapping[str, tuple[str, _Parse]] = MappingProxyType(
    {
        "wall": ("wall_ms", parse_time),
        "start": ("start_ms", parse_time),
        "cpu": ("cpu_ms", parse_time),
        "memory": ("memory_bytes", parse_size),
        "scratch": ("scratch_bytes", parse_size),
        "scratch_inodes": ("scratch_inodes", _count),
        "threads": ("threads", _count),
        "descriptors": ("descriptors", _count),
        "request": ("request_bytes", parse_size),
        "result": ("result_bytes", parse_size),
        "events": ("events", _count),
        "event_bytes": ("event_bytes", parse_size),
        "log": ("log_bytes", parse_size),
    }
)  # as written in a policy, a declaration or by a caller -> field of Limits, and how its amount is written


def parse_limits(written: Mapping[str, object]) -> dict[str, int]:
    """Fields of ``Limits`` out of limits as people write them. Raises PolicyError with a line per unknown name or bad amount."""
    found: dict[str, int] = {}
    lines: list[str] = []
    for key, value in written.items():
        if key not in LIMIT_KEYS:
            lines.append(f"limits.{key}: unknown limit; allowed: {', '.join(LIMIT_KEYS)}")
            continue
        field, parse = LIMIT_KEYS[key]
        try:
            found[field] = parse(value)
            dataclasses.replace(Limits(), **{field: found[field]})  # 0, negative and absurd amounts refuse there
        except PolicyError as error:
            lines.extend(f"limits.{key}: {line}" for line in error.lines)
    if lines:
        raise PolicyError("refused.policy", *lines)
    return found


_LAYER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOLDER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_IMAGE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123 section 2.1
# The last label begins with a letter: 127.1, 0x7f.1 and 2130706433 are addresses in disguise, not names.
_HOST_PORT = re.compile(rf"(?P<host>(?:{_LABEL}\.)+(?=[a-z]){_LABEL}):(?P<port>[1-9][0-9]{{0,4}})")
_USERINFO = re.compile(r"://[^/\s?#]*@")  # RFC 3986 section 3.2.1
_NEVER_FOLDERS = frozenset({"", "dev", "proc", "run", "sys"})  # kernel interfaces and sockets of the host


def host_port_problem(pair: object) -> str | None:
    """Why this is no ``host:port`` that could be granted, or None."""
    match = _HOST_PORT.fullmatch(pair) if isinstance(pair, str) else None
    if match is None or len(match["host"]) > 253 or int(match["port"]) > 65535:
        return "want lower-case 'host.name:port' with a port from 1 to 65535; addresses, wildcards and bare names are not granted"
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grants:
    """What the operator gives a tool that asks for it; folders are given unasked. All empty = nothing. Values are not in the repr."""

    layers: frozenset[str] = frozenset()
    credentials: frozenset[str] = frozenset()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    network: frozenset[str] = frozenset()
    folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
    effects: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))
        object.__setattr__(self, "folders", MappingProxyType(dict(self.folders)))
        lines = [f"grants.layers: {x!r} is not a layer's name" for x in self.layers if not _is(_LAYER, x)]
        # not repeated: a secret pasted in place of a capability must not reach a log
        known = ", ".join(CAPABILITIES)
        lines += [f"grants.credentials: an entry is unknown; allowed: {known}" for x in self.credentials if x not in CAPABILITIES]
        lines += [_unknown("grants.effects", x, EFFECTS) for x in self.effects if x not in EFFECTS]
        lines += [f"grants.network: {problem}" for x in self.network if (problem := host_port_problem(x)) is not None]
        lines += [line for name, path in self.folders.items() for line in _folder_problems(name, path)]
        lines += [line for name, value in self.environment.items() for line in _variable_problems(name, value)]
        if lines:
            raise PolicyError("refused.policy", *sorted(lines))

    def data(self) -> dict[str, Any]:
        """Plain data, for digests."""
        sets = {name: sorted(getattr(self, name)) for name in ("layers", "credentials", "network", "effects")}
        return {**sets, "environment": dict(self.environment), "folders": dict(self.folders)}


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _unknown(key: str, value: object, allowed: tuple[str, ...]) -> str:
    return f"{key}: {value!r} is unknown; allowed: {', '.join(allowed)}"


def _folder_problems(name: object, path: object) -> list[str]:
    if not _is(_FOLDER_NAME, name):
        return [f"grants.folders: {name!r} is not a folder's name: a-z, then up to 63 of a-z, 0-9, '_' and '-'"]
    parts = path.split("/") if isinstance(path, str) else []
    # security: "..", "//" or a NUL would name another folder than the one that was read and agreed to; /proc and /run lead out
    if len(parts) < 2 or parts[0] or parts[1] in _NEVER_FOLDERS or {"", ".", ".."} & set(parts[1:]) or "\0" in str(path):
        return [f"grants.folders.{name}: want an absolute path without '.', '..', and not /, /dev, /proc, /run or /sys"]
    return []


def _variable_problems(name: object, value: object) -> list[str]:
    key = f"grants.environment.{name}"
    if (problem := name_problem(name)) is not None:
        return [f"grants.environment: {problem}"]
    if name in BASELINE:
        return [f"{key}: {', '.join(BASELINE)} are always set, to values of our own"]
    if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
        return [f"{key}: want one line of at most 4096 printable characters"]
    # security: a URL with a login under a harmless name would carry a secret past the list of names
    return [f"{key}: the value carries a login (user@host): grant a credential instead"] if _USERINFO.search(value) else []


def image_problem(name: object, value: object) -> str | None:
    """Why this names no image by its digest, or None."""
    if _is(_IMAGE, name) and _is(_DIGEST, value):
        return None
    return f"images.{name}: want the name of an image, and its digest: sha256: and 64 hexadecimal digits (`stockade image list --json`)"


_POOL_BOUNDS = (("jails", 1, 31), ("total", 1, 31), ("ready", 1, 31), ("queued", 0, 31), ("idle_ms", 1, 31), ("memory_bytes", 1, 50))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """How many jails may live: per worker key, in all, kept ready ahead of need per key; calls waiting for one; and for how long.

    ``idle_ms`` is how long an unused one stays, ``memory_bytes`` what all may hold privately before unused ones end.
    """

    jails: int = 4
    total: int = 16
    ready: int = 4
    queued: int = 64
    idle_ms: int = 60_000
    memory_bytes: int = 512 << 20

    def __post_init__(self) -> None:
        for name, lowest, highest in _POOL_BOUNDS:
            value = getattr(self, name)
            if type(value) is not int or not lowest <= value <= 1 << highest:
                key = name.removesuffix("_ms").removesuffix("_bytes")
                raise PolicyError("refused.policy", f"pool.{key}: want a whole number from {lowest} to 2^{highest}")
        if self.total < self.jails:
            raise PolicyError("refused.policy", "pool.total: want at least as many as pool.jails")


def loosenings_of(mode: Mode, freshness: Freshness, protections: Mapping[str, int]) -> frozenset[str]:
    """The loosenings that these settings amount to: exactly those must be named."""
    found = {"state_kept_in_snapshot"} if freshness is Freshness.SNAPSHOT else set()
    found |= {"state_kept_warm"} if freshness is Freshness.WARM else set()
    if mode is Mode.HOST:
        return frozenset(found | {"host_mode_without_any_wall"})
    lowered = [(row, protections[name]) for name, row in PROTECTIONS.items() if protections[name] < row.needed]
    names = {row.below if level else row.absent for row, level in lowered}
    return frozenset(found | {name for name in names if name is not None})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """One operator's decision, whole: what stands in a file and all it extends. ``denied`` are the names it may never hand over."""

    name: str
    mode: Mode
    permission: Permission
    limits: Limits
    protections: Mapping[str, int]
    grants: Grants
    loosenings: tuple[str, ...]
    pool: Pool
    freshness: Freshness
    worker: Kind = Kind.AUTO
    image: str = "python_wasm"  # of wasm workers
    clock_ms: int = 0  # the steps in which a worker sees time pass; 0: as it does
    denied: DeniedNames = dataclasses.field(repr=False)
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)  # digest by name, in place of what the release pins

    def __post_init__(self) -> None:
        object.__setattr__(self, "protections", MappingProxyType(dict(self.protections)))
        object.__setattr__(self, "images", MappingProxyType(dict(self.images)))
        object.__setattr__(self, "loosenings", tuple(sorted(set(self.loosenings))))
        lines = self._protection_problems() or self._loosening_problems()
        # security: without this a policy file could hand a signing key or LD_PRELOAD to a worker under another spelling
        lines += [
            f"grants.environment.{name}: a name of this shape may not be fixed (policies/denied_secrets.toml says why); rename it"
            for name in sorted(self.grants.environment)
            if self.denied.denied(name)
        ]
        lines += [line for name, value in self.images.items() if (line := image_problem(name, value)) is not None]
        if lines:
            raise PolicyError("refused.policy", *lines)

    @functools.cached_property
    def digest(self) -> str:
        """Names the whole content; reasons and file layout do not count."""
        return digest(self.data())

    def data(self) -> dict[str, Any]:
        """Plain data, for digests."""
        return {
            "name": self.name,
            "mode": str(self.mode),
            "permission": str(self.permission),
            "freshness": str(self.freshness),
            "worker": str(self.worker),
            "image": self.image,
            "clock_ms": self.clock_ms,
            "limits": {name: getattr(self.limits, name) for name in LIMIT_NAMES},
            "protections": dict(self.protections),
            "grants": self.grants.data(),
            "loosenings": list(self.loosenings),
            "pool": dataclasses.asdict(self.pool),
            "denied": self.denied.data(),
            "images": dict(self.images),
        }

    def _protection_problems(self) -> list[str]:
        if self.protections.keys() != PROTECTIONS.keys():
            return [f"protections: each of these needs a level: {', '.join(PROTECTIONS)}"]
        lines = [
            f"protections.{name}: want a whole number from 0 to {row.highest}, not {self.protections[name]!r}"
            for name, row in PROTECTIONS.items()
            if type(self.protections[name]) is not int or not 0 <= self.protections[name] <= row.highest
        ]
        if self.mode is Mode.HOST and any(self.protections.values()):
            lines.append("protections: the mode host has no wall and cannot hold any; leave them out")
        return lines

    def _loosening_problems(self) -> list[str]:
        lines = [_unknown("loosenings", name, tuple(LOOSENINGS)) for name in self.loosenings if name not in LOOSENINGS]
        needed = loosenings_of(self.mode, self.freshness, self.protections)
        unnamed = sorted(needed - {*self.loosenings})
        lines += [f"loosenings.{name}: must be named in this file, because {LOOSENINGS[name]}" for name in unnamed]
        stale = sorted({*self.loosenings} & LOOSENINGS.keys() - needed)
        return lines + [f"loosenings.{name}: nothing in this policy needs it; remove it" for name in stale]
