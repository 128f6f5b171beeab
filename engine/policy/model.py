"""What an operator can decide, as closed lists and frozen records.

Its job: modes, permissions, limits as they are written, the pool, and the policy that holds all of it.
It refuses what does not fit together.
Not its job: files (``load.py``), grants (``grants.py``), protections (``protections.py``), network rules (``network.py``), what one
call gets of it (``resolve.py``).
Laws:
1. A policy below the required protections names exactly the matching loosenings, no fewer and no more (tests/unit/test_policy_model.py).
2. No policy can fix a denied name, or hand a variable over as a credential that steers programs (tests/unit/test_policy_model.py).
3. A rule attaches no secret that the policy does not have (tests/unit/test_policy_model.py).
4. A policy without a profile grants no destination (tests/unit/test_policy_model.py).
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
from engine.policy.families import family_problems
from engine.policy.grants import Grants
from engine.policy.network import NO_NETWORK, Profile
from engine.policy.protections import LOOSENINGS, PROTECTIONS
from engine.policy.secrets import CAPABILITIES, DeniedNames, SecretSource, secret_id_problem


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


class OnSecret(enum.StrEnum):
    """What becomes of an answer in which a secret was found: as certain as the find is, always refused, or always redacted."""

    BY_SHAPE = "by_shape"
    REFUSE = "refuse"
    REDACT = "redact"


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


_IMAGE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def image_problem(name: object, value: object) -> str | None:
    """Why this names no image by its digest, or None."""
    if isinstance(name, str) and _IMAGE.fullmatch(name) and isinstance(value, str) and _DIGEST.fullmatch(value):
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


def loosenings_of(
    mode: Mode, freshness: Freshness, protections: Mapping[str, int], network: frozenset[str] = frozenset()
) -> frozenset[str]:
    """The loosenings that these settings amount to, those of network rules among them: exactly those must be named."""
    found = {*network} | ({"state_kept_in_snapshot"} if freshness is Freshness.SNAPSHOT else set())
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
    network: Profile = NO_NETWORK  # without rules: no destination is granted
    secrets: Mapping[str, SecretSource] = dataclasses.field(default_factory=dict, repr=False)  # by id; values are the vault's alone
    families: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: CAPABILITIES)  # names of variables by capability
    on_secret: OnSecret = OnSecret.BY_SHAPE

    def __post_init__(self) -> None:
        for name in ("protections", "images", "secrets", "families"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "loosenings", tuple(sorted(set(self.loosenings))))
        lines = self._protection_problems() or self._loosening_problems()
        # security: without this a policy file could hand a signing key or LD_PRELOAD to a worker under another spelling
        lines += [
            f"grants.environment.{name}: a name of this shape may not be fixed (policies/denied_secrets.toml says why); rename it"
            for name in sorted(self.grants.environment)
            if self.denied.denied(name)
        ]
        lines += [line for name, value in self.images.items() if (line := image_problem(name, value)) is not None]
        lines += self._secret_problems()
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
            "network": self.network.data(),
            "secrets": {name: source.data() for name, source in self.secrets.items()},
            "families": {name: list(names) for name, names in self.families.items()},
            "on_secret": str(self.on_secret),
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

    def _secret_problems(self) -> list[str]:
        lines = [f"secrets: {problem}" for name in self.secrets if (problem := secret_id_problem(name)) is not None]
        attached = {one.secret for rule in self.network.rules for one in rule.attach}
        lines += [
            f"secrets.{name}: the profile {self.network.name} attaches it, so it must be named" for name in attached - self.secrets.keys()
        ]
        lines += family_problems(self.families, self.denied, frozenset(self.grants.environment))
        # not repeated: a secret pasted in place of a capability must not reach a log
        known = ", ".join(sorted(self.families))
        lines += [f"grants.credentials: an entry is unknown; allowed: {known}" for x in self.grants.credentials if x not in self.families]
        return sorted(lines)

    def _loosening_problems(self) -> list[str]:
        known = ", ".join(LOOSENINGS)
        lines = [f"loosenings: {name!r} is unknown; allowed: {known}" for name in self.loosenings if name not in LOOSENINGS]
        needed = loosenings_of(self.mode, self.freshness, self.protections, self.network.loosenings)
        unnamed = sorted(needed - {*self.loosenings})
        lines += [f"loosenings.{name}: must be named in this file, because {LOOSENINGS[name]}" for name in unnamed]
        stale = sorted({*self.loosenings} & LOOSENINGS.keys() - needed)
        return lines + [f"loosenings.{name}: nothing in this policy needs it; remove it" for name in stale]
