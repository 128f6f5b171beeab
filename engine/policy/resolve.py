"""A tool asks, the operator grants, the caller may only tighten: what one call gets.

Its job: one pure function over three frozen values, and the refusals with their codes.
Not its job: whether this host can enforce it (``jail/plan.py``), values of credentials (``staging/environ.py``).
Laws:
1. The result never exceeds what was asked, granted or left by the caller, in any limit or set (tests/unit/test_policy_resolve_laws.py).
2. Same inputs, same digest, in every process (tests/unit/test_policy_resolve.py).
3. A refusal never repeats the name of a credential, a variable or a host that was asked for (tests/unit/test_policy_resolve.py).
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from engine.authoring.canonical import digest
from engine.errors import DeclarationError, PolicyError
from engine.limits import KERNEL_HELD, LIMIT_NAMES, Limits
from engine.outcome import error_for
from engine.policy.grants import EFFECTS
from engine.policy.model import Freshness, Mode, OnSecret, Permission, Policy, Pool, loosenings_of, parse_limits
from engine.policy.network import Place, Scope, place_of
from engine.policy.secrets import CAPABILITIES, DeniedNames

_BLOCKED_IN_FIXTURE = frozenset({"write", "external"})


class Declared(Protocol):
    """What is read of a declaration."""

    @property
    def name(self) -> str:
        """The tool's name."""

    @property
    def effect(self) -> str:
        """One of ``EFFECTS``."""

    @property
    def timeout_ms(self) -> int:
        """The longest the author expects a call to take."""

    @property
    def dangerous(self) -> bool:
        """Whether each call needs approval."""

    @property
    def read_only(self) -> bool:
        """Whether it runs under the permission ``readonly``."""

    @property
    def layers(self) -> Collection[str]:
        """Layers asked for."""

    @property
    def credentials(self) -> Collection[str]:
        """Capabilities asked for."""

    @property
    def environment(self) -> Collection[str]:
        """Names of variables asked for."""

    @property
    def network(self) -> bool | Collection[str]:
        """False, True or ``host:port`` pairs."""

    @property
    def limits(self) -> Mapping[str, Any]:
        """Limits as a policy writes them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What a tool asks for. ``limits`` by field of ``Limits``; what is not asked is not bounded by the tool."""

    name: str
    effect: str
    timeout_ms: int
    dangerous: bool = True
    read_only: bool = False
    layers: frozenset[str] = frozenset()
    credentials: frozenset[str] = dataclasses.field(default=frozenset(), repr=False)
    environment: frozenset[str] = dataclasses.field(default=frozenset(), repr=False)
    network: frozenset[Place] = frozenset()
    network_unbounded: bool = False
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", MappingProxyType(dict(self.limits)))
        if self.effect not in EFFECTS:
            raise DeclarationError(f"effect: want one of {', '.join(EFFECTS)}")
        if type(self.timeout_ms) is not int or self.timeout_ms < 1:
            raise DeclarationError("timeout_ms: want a whole number of milliseconds from 1")

    @classmethod
    def of(cls, declaration: Declared) -> "Asked":
        """What a checked declaration asks for. Raises DeclarationError for what no policy could read."""
        network: object = declaration.network
        # security: null, "" or a misspelt value must not come to mean "no bound"
        if type(network) is not bool and not isinstance(network, list | tuple | set | frozenset):
            raise DeclarationError("network: want false, true or a list of 'host:port'")
        try:
            limits = parse_limits(declaration.limits)
        except PolicyError as error:
            raise DeclarationError(*error.lines) from None
        return cls(
            name=declaration.name,
            effect=str(declaration.effect),
            timeout_ms=declaration.timeout_ms,
            dangerous=declaration.dangerous is not False,
            read_only=declaration.read_only is True,
            layers=frozenset(declaration.layers),
            credentials=frozenset(declaration.credentials),
            environment=frozenset(declaration.environment),
            network=_places(() if isinstance(network, bool) else network),
            network_unbounded=network is True,
            limits=limits,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tightening:
    """What the caller brings: less time, lower limits (as a policy writes them), an approval, and what stands above the call."""

    timeout_ms: int | None = None
    limits: Mapping[str, object] = dataclasses.field(default_factory=dict)
    approved: bool = False
    ancestor_required: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", MappingProxyType(dict(self.limits)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved:
    """What one call gets, and the policy it comes from. Sets are sorted; values of variables are not in the repr."""

    policy: str
    policy_digest: str
    mode: Mode
    permission: Permission
    limits: Limits
    layers: tuple[str, ...]
    credentials: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(repr=False)
    folders: Mapping[str, str]
    protections: Mapping[str, int]
    loosenings: tuple[str, ...]
    freshness: Freshness
    pool: Pool
    clock_ms: int = 0
    denied: DeniedNames = dataclasses.field(repr=False)
    scope: Scope | None = None  # None: no network at all
    families: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: CAPABILITIES)  # names of variables by capability
    on_secret: OnSecret = OnSecret.BY_SHAPE

    def __post_init__(self) -> None:
        for name in ("environment", "folders", "protections", "families"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def network(self) -> tuple[str, ...]:
        """The places of the scope, as they are written."""
        return () if self.scope is None else tuple(str(one.place) for one in self.scope.destinations)

    @functools.cached_property
    def digest(self) -> str:
        """Names everything the call gets."""
        return digest({**self._shared(), "limits": {name: getattr(self.limits, name) for name in LIMIT_NAMES}})

    @functools.cached_property
    def worker_digest(self) -> str:
        """Like ``digest`` without the limits that the host holds: calls that agree on it may use one worker, one after the other."""
        return digest({**self._shared(), "limits": {name: getattr(self.limits, name) for name in sorted(KERNEL_HELD)}})

    def _shared(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "policy_digest": self.policy_digest,
            "mode": str(self.mode),
            "permission": str(self.permission),
            "layers": list(self.layers),
            "credentials": list(self.credentials),
            "environment": dict(self.environment),
            "scope": None if self.scope is None else self.scope.data(),
            "families": {name: list(names) for name, names in self.families.items()},
            "on_secret": str(self.on_secret),
            "folders": dict(self.folders),
            "protections": dict(self.protections),
            "loosenings": list(self.loosenings),
            "freshness": str(self.freshness),
            "clock_ms": self.clock_ms,
            "pool": dataclasses.asdict(self.pool),
        }


def resolve(policy: Policy, asked: Asked, caller: Tightening) -> Resolved:
    """What this call gets. Raises the first reason to refuse: mode, permission, effect, approval, credentials, grants, network, caller."""
    _check_mode(policy, asked, caller)
    _check_credentials(policy, asked)
    _check_grants(policy, asked)
    _check_network(asked)
    return _resolved(
        policy,
        wall=policy,
        limits=_limits(policy.limits, asked, caller),
        layers=asked.layers & policy.grants.layers,
        credentials=asked.credentials & policy.grants.credentials,
        environment={name: value for name, value in sorted(policy.grants.environment.items()) if name in asked.environment},
        folders=policy.grants.folders,
        scope=policy.network.scope(asked.network),
    )


def resolve_describe(describe: Policy, policy: Policy, layers: Collection[str], caller: Tightening) -> Resolved:
    """What reading the declarations of a source gets: the limits of ``describe``, the wall of ``policy``, and of its grants only layers.

    Layers, because a source that imports one cannot be imported without it. Raises PolicyError for a layer that is not granted.
    """
    _check_ancestor(policy, caller)
    lines = _missing("layer", layers, policy.grants.layers)
    _refuse_if(lines, "refused.not_granted", *lines)
    return _resolved(
        describe, wall=policy, limits=describe.limits, layers=frozenset(layers), credentials=frozenset(), environment={}, folders={}
    )


def _resolved(
    policy: Policy,
    *,
    wall: Policy,
    limits: Limits,
    layers: frozenset[str],
    credentials: frozenset[str],
    environment: Mapping[str, str],
    folders: Mapping[str, str],
    scope: Scope | None = None,
) -> Resolved:
    opened = frozenset() if scope is None else scope.loosenings
    return Resolved(
        policy=policy.name,
        policy_digest=policy.digest,
        mode=wall.mode,
        permission=policy.permission,
        limits=limits,
        layers=tuple(sorted(layers)),
        credentials=tuple(sorted(credentials)),
        environment=environment,
        folders=folders,
        protections=wall.protections,
        loosenings=tuple(sorted(loosenings_of(wall.mode, policy.freshness, wall.protections, opened))),
        freshness=policy.freshness,
        pool=policy.pool,
        clock_ms=wall.clock_ms,
        denied=wall.denied,
        scope=scope,
        families=wall.families,
        on_secret=wall.on_secret,
    )


def _places(written: Collection[object]) -> frozenset[Place]:
    """The places asked for, in their one spelling; the words of a refusal repeat none of them."""
    found = set()
    for text in written:
        try:
            found.add(place_of(text))
        except ValueError as error:
            raise DeclarationError(f"network: {error}") from None
    return frozenset(found)


def _refuse_if(why: object, code: str, *lines: str) -> None:
    if why:
        raise error_for(code, *lines)


def _check_ancestor(policy: Policy, caller: Tightening) -> None:
    # security: else a tool behind the wall would reach the host by calling a tool without one
    below_required = policy.mode is Mode.HOST and caller.ancestor_required
    _refuse_if(below_required, "refused.host_mode", f"policy {policy.name} has no wall, and the caller stands behind one")


def _check_mode(policy: Policy, asked: Asked, caller: Tightening) -> None:
    _check_ancestor(policy, caller)
    tool, effect = f"tool {asked.name}", f"tool {asked.name} has the effect {asked.effect}"
    unfit = policy.permission is Permission.READONLY and not asked.read_only
    _refuse_if(unfit, "refused.readonly", f"{tool} is not read-only, policy {policy.name} is")
    blocked = policy.mode is Mode.FIXTURE and asked.effect in _BLOCKED_IN_FIXTURE
    _refuse_if(blocked, "refused.side_effect", f"{effect}, which a fixture run does not perform")
    granted = asked.effect in policy.grants.effects
    _refuse_if(not granted, "refused.not_granted", f"{effect}, which policy {policy.name} does not grant")
    _refuse_if(asked.dangerous and not caller.approved, "refused.approval", f"{tool} is dangerous and this call was not approved")


def _check_credentials(policy: Policy, asked: Asked) -> None:
    # security: the asked name stays out of the text, because a tool could ask for a name that is itself a secret or a probe
    _refuse_if(len(asked.credentials) > 1, "refused.credential_ambiguous", "the tool asks for more than one credential capability")
    unlisted = asked.credentials - policy.grants.credentials
    _refuse_if(unlisted, "refused.credential_not_listed", f"the tool asks for a credential capability that {policy.name} does not list")


def _check_grants(policy: Policy, asked: Asked) -> None:
    lines = [
        f"limit {name}: asked {wanted}, granted {getattr(policy.limits, name)}"
        for name, wanted in sorted(asked.limits.items())
        if wanted > getattr(policy.limits, name)
    ]
    lines += _missing("layer", asked.layers, policy.grants.layers)
    variables = [name for name in asked.environment if name not in policy.grants.environment or policy.denied.denied(name)]
    lines += [f"environment: {len(variables)} of the names asked for are not granted"] if variables else []
    hosts = [place for place in asked.network if policy.network.rule_for(place) is None]
    lines += [f"network: {len(hosts)} of the hosts asked for are not granted"] if hosts and not asked.network_unbounded else []
    _refuse_if(lines, "refused.not_granted", *lines)


def _missing(kind: str, asked: Collection[str], granted: Collection[str]) -> list[str]:
    return [f"{kind} {name}: asked, but not granted" for name in sorted(asked) if name not in granted]


def _check_network(asked: Asked) -> None:
    _refuse_if(asked.network_unbounded, "refused.network_unbounded", f"tool {asked.name} asks for a network without bounds")


def _limits(granted: Limits, asked: Asked, caller: Tightening) -> Limits:
    found = {name: min(getattr(granted, name), asked.limits.get(name, getattr(granted, name))) for name in LIMIT_NAMES}
    found["wall_ms"] = min(found["wall_ms"], asked.timeout_ms)
    for name, wanted in _tightened(caller).items():
        ceiling = getattr(granted, name)
        _refuse_if(wanted > ceiling, "refused.limits", f"limit {name}: {wanted} is above the {ceiling} that is granted")
        found[name] = min(found[name], wanted)
    return Limits(**found)


def _tightened(caller: Tightening) -> dict[str, int]:
    """The caller's limits by field; ``timeout_ms`` is another way to say ``wall`` and the smaller of both holds."""
    try:
        found = parse_limits(caller.limits)
    except PolicyError as error:
        raise error_for("refused.limits", *error.lines) from None
    if caller.timeout_ms is not None:
        # security: type() and not isinstance, because True is an int and NaN or a text must not pass for "no timeout"
        whole = type(caller.timeout_ms) is int and caller.timeout_ms >= 1
        _refuse_if(not whole, "refused.limits", "timeout_ms: want a whole number of milliseconds from 1")
        found["wall_ms"] = min(caller.timeout_ms, found.get("wall_ms", caller.timeout_ms))
    return found
