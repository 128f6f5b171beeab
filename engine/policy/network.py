"""Where a tool may connect to: places, the rules of a profile, and what one call gets of them.

Its job: one canonical form of ``host:port``, rules with how a connection is carried, a profile with its bounds, the scope of one call.
Not its job: profile files (``profiles.py``), holding any of it (``jail/plan.py``, ``engine/egress``).
Laws:
1. Two spellings of one destination are one place, and what has no canonical spelling is none (tests/unit/test_places_of_network.py).
2. A wildcard covers whole labels below it, never the name itself (tests/unit/test_network_profile.py).
3. A scope holds exactly the places that were asked for, each with the rule that grants it (tests/unit/test_network_profile.py).
"""

import dataclasses
import enum
import functools
import ipaddress
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import idna

from engine.errors import PolicyError

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123 section 2.1
# The last label begins with a letter: 127.1, 0x7f.1 and 2130706433 are addresses in disguise, not names.
_NAME = re.compile(rf"(?:{_LABEL}\.)+(?=[a-z]){_LABEL}")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_LONGEST = 253  # characters of a name without its last dot (RFC 1035 section 2.3.4)
_HIGHEST: Mapping[str, int] = MappingProxyType(
    {
        "connections": 1024,  # each holds two descriptors of the engine's
        "total": 1 << 20,
        "denials": 1 << 16,
        "out_bytes": 1 << 50,
        "in_bytes": 1 << 50,
        "rate_bytes": 1 << 50,
        "connect_ms": 600_000,
        "idle_ms": 3_600_000,
    }
)  # of the fields of EgressBounds
_FORM = "want 'host.name:port' with a port from 1 to 65535"


class Transport(enum.StrEnum):
    """How a connection is carried: TLS from end to end, plain HTTP whose requests are read, or plain HTTP inside and TLS outside."""

    TLS = "tls"
    HTTP = "http"
    UPGRADE = "upgrade"


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Place:
    """One destination in its one spelling: an IDNA A-label name without a last dot, or an address as ``ipaddress`` writes it."""

    host: str
    port: int

    @functools.cached_property
    def literal(self) -> bool:
        """Whether the host is an address."""
        return _address(self.host) is not None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def place_of(text: object) -> Place:
    """The place of a ``host:port``. Raises ValueError with why it is none; the words never repeat the text."""
    if not isinstance(text, str) or len(text) > _LONGEST + 8:
        raise ValueError(_FORM)
    host, colon, port = text.rpartition(":")
    if not colon or _PORT.fullmatch(port) is None or int(port) > 65535:
        raise ValueError(_FORM)
    return Place(host=canonical_host(host), port=int(port))


def canonical_host(host: str) -> str:
    """The one spelling of a name or of an address, IPv6 in brackets. Raises ValueError with why it has none."""
    if host.startswith("[") and host.endswith("]"):
        found = _address(host[1:-1])
        # security: "%zone" after an address passes for a part of a name where the end is compared
        if not isinstance(found, ipaddress.IPv6Address) or "%" in host:
            raise ValueError("want an IPv6 address without a zone between brackets")
        # security: ::ffff:10.0.0.1 is 10.0.0.1, and would pass for another place than it
        if found.ipv4_mapped is not None:
            raise ValueError("an IPv4 address is written as one, not inside IPv6")
        return str(found)
    if (found := _address(host)) is not None and found.version == 4:
        return str(found)
    # security: a NUL, a blank or a look-alike dot would be cut or folded by whoever resolves it, and not by whoever compares it
    if not host.isprintable() or any(c.isspace() for c in host):
        raise ValueError("a host's name has neither blanks nor characters that are not printed")
    if "*" in host:
        raise ValueError("wildcards are for profiles, and there only with their loosening: name each host")
    try:
        name = idna.encode(host.removesuffix("."), uts46=True, std3_rules=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError):
        raise ValueError("the host's name has no form that a name server takes (IDNA 2008)") from None
    if len(name) > _LONGEST or _NAME.fullmatch(name) is None:
        raise ValueError("want a name of at least two labels whose last one begins with a letter; short forms of addresses are none")
    return name


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attachment:
    """A secret that the host's side adds to each request: to that header or that query parameter, in a form with one ``{}``."""

    secret: str
    header: str | None = None
    query: str | None = None
    form: str = "{}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One entry of a profile. ``wildcard``: the names below the place's host, not that one. ``private``: networks named as allowed."""

    place: Place
    wildcard: bool = False
    transport: Transport = Transport.TLS
    upstream_port: int
    attach: tuple[Attachment, ...] = ()
    private: tuple[str, ...] = ()

    def covers(self, place: Place) -> bool:
        """Whether this entry is about that place."""
        if place.port != self.place.port:
            return False
        return place.host.endswith("." + self.place.host) and not place.literal if self.wildcard else place.host == self.place.host

    def data(self) -> dict[str, Any]:
        """Plain data, for digests."""
        attach = [dataclasses.asdict(one) for one in self.attach]
        plain = {"place": str(self.place), "transport": str(self.transport), "attach": attach, "private": list(self.private)}
        return {**dataclasses.asdict(self), **plain}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EgressBounds:
    """What the connections of one call may take together; times in ms, sizes in bytes."""

    connections: int = 16  # at once
    total: int = 256
    denials: int = 64  # then the call ends
    out_bytes: int = 64 << 20
    in_bytes: int = 256 << 20
    rate_bytes: int = 1 << 30  # a second, both ways together
    connect_ms: int = 10_000  # until the other side is connected, and from the start to the end of what a client says first
    idle_ms: int = 30_000

    def __post_init__(self) -> None:
        for name, highest in _HIGHEST.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= highest:
                raise PolicyError("refused.policy", f"bounds.{name}: want a whole number from 1 to {highest}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Destination:
    """One place that a call may reach, and the rule that grants it."""

    place: Place
    rule: Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """What one call may reach, in order of place. ``trust`` is a file of certificates in PEM form, None for the system's."""

    profile: str
    destinations: tuple[Destination, ...]
    bounds: EgressBounds
    trust: str | None = None
    trust_digest: str | None = None  # of that file's content when the policy was read

    @property
    def loosenings(self) -> frozenset[str]:
        """Those that its rules amount to."""
        return _loosenings(one.rule for one in self.destinations)

    def data(self) -> dict[str, Any]:
        """Plain data, for digests."""
        places = [{"place": str(one.place), "rule": one.rule.data()} for one in self.destinations]
        bounds = dataclasses.asdict(self.bounds)
        return {"profile": self.profile, "places": places, "bounds": bounds, "trust": self.trust, "trust_digest": self.trust_digest}

    def of(self, place: Place) -> Destination | None:
        """The destination of that place."""
        return next((one for one in self.destinations if one.place == place), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """A named set of rules. Without rules it grants nothing: that is the profile ``none``."""

    name: str = "none"
    rules: tuple[Rule, ...] = ()
    bounds: EgressBounds = EgressBounds()
    trust: str | None = None
    trust_digest: str | None = None  # of that file's content: another content is another policy

    def rule_for(self, place: Place) -> Rule | None:
        """The rule that grants that place: an exact one before a wildcard, the longest wildcard before a shorter one."""
        found = [rule for rule in self.rules if rule.covers(place)]
        return max(found, key=lambda rule: (not rule.wildcard, len(rule.place.host)), default=None)

    def scope(self, places: Iterable[Place]) -> Scope | None:
        """What a call gets that asks for these, all of which are granted; None when it asks for nothing."""
        found = [(place, self.rule_for(place)) for place in sorted({*places})]
        kept = tuple(Destination(place=place, rule=rule) for place, rule in found if rule is not None)
        if not kept:
            return None
        return Scope(profile=self.name, destinations=kept, bounds=self.bounds, trust=self.trust, trust_digest=self.trust_digest)

    @property
    def loosenings(self) -> frozenset[str]:
        """Those that its rules amount to."""
        return _loosenings(self.rules)

    def data(self) -> Mapping[str, Any]:
        """Plain data, for digests."""
        rules = sorted((rule.data() for rule in self.rules), key=lambda data: (data["place"], data["wildcard"]))
        bounds = dataclasses.asdict(self.bounds)
        return {"name": self.name, "rules": rules, "bounds": bounds, "trust": self.trust, "trust_digest": self.trust_digest}


NO_NETWORK = Profile()


def _loosenings(rules: Iterable[Rule]) -> frozenset[str]:
    listed = [*rules]
    wildcards = {"network_wildcards"} if any(rule.wildcard for rule in listed) else set()
    return frozenset(wildcards | ({"network_private_destinations"} if any(rule.private for rule in listed) else set()))
