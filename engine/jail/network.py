"""What a jail does so that its tool reaches just the places of its scope: the part of a plan that a scope makes.

Its job: an address and a port for each place, the texts by which a name leads there, the certificates to trust; what cannot be held here.
Not its job: doing it (``worker_images/enter/network.py``), where a connection goes from there (``engine/egress``).
Laws:
1. Each place of the scope has its one listener, in the scope's order, and there is no other (tests/unit/test_plan_network.py).
2. Nothing of a rule goes to the jail: no transport, no other port, no secret's name (tests/unit/test_plan_network.py).
3. What a host or a scope lacks for it is refused by name, before anything is started (tests/unit/test_plan_network.py).
"""

import ipaddress
import os
from collections.abc import Iterator
from typing import Any, Final

from engine.jail.facts import HostFacts, Way
from engine.outcome import error_for
from engine.policy.network import Scope
from engine.policy.trust import certificates

TRUST: Final = "/etc/ssl/cert.pem"  # in the jail: where OpenSSL looks by itself when it was built for /etc/ssl
READABLE: Final = "/etc"  # all that is there was written for this jail
CONNECT_ABI: Final = 4  # of Landlock, whose rules know ports from then on (landlock(7), Linux 6.7)
PLACES: Final = 32  # of one scope: a descriptor each in one message, far below SCM_MAX_FD, and an inode or two
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, Red Hat
    TRUST,  # Alpine
)
# security: a connection whose other end does not read holds 4 MiB of the kernel's memory otherwise, which counts for no limit of a process:
# a tool with some 250 of them would press every connection of the host. Least, first and most bytes of a buffer (tcp(7)); 600 MB/s remain
_SETTINGS = (
    ("/proc/sys/net/ipv4/tcp_rmem", "4096 65536 131072"),
    ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 131072"),
)
_FIRST = int(ipaddress.IPv4Address("127.1.0.1"))
_LOOPBACK = ipaddress.IPv4Network("127.0.0.0/8")
_CAPABILITIES = {"CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12}  # capabilities(7): ports below 1024, the loopback device


def refuse_unheld(scope: Scope, facts: HostFacts, namespace: int, *, walls: bool) -> None:
    """Raises HostError ``refused.network_scoped`` naming all that keeps the scope from being held."""
    lines = []
    if not walls:
        lines.append("mode host: without the wall a tool has the host's own network")
    if not namespace:
        lines.append("network_namespace: needed 0, must be 1 for a scoped network")
    if facts.landlock < CONNECT_ABI:
        lines.append(f"landlock: found level {facts.landlock}, needed {CONNECT_ABI} for a scoped network (kernel {facts.kernel})")
    if facts.way is Way.ROOT:  # an ordinary user has them all, over a network of its own
        lines += [
            f"{name} is missing: root needs it for a scoped network"
            for name, bit in _CAPABILITIES.items()
            if not facts.capabilities >> bit & 1
        ]
    if _read_only("/proc/sys"):
        lines.append("/proc/sys is mounted read-only: no jail can bound what its connections hold of the kernel's memory")
    if len(scope.destinations) > PLACES:
        lines.append(f"{len(scope.destinations)} places, and a call may reach {PLACES} at most")
    literals = [ipaddress.ip_address(one.place.host) for one in scope.destinations if one.place.literal]
    # security: a listener on 0.0.0.0 would answer for every address that has none of its own
    odd = sum(one.version == 6 or one.is_multicast or one.is_reserved or one in ipaddress.IPv4Network("0.0.0.0/8") for one in literals)
    if odd:
        lines.append(f"{odd} of the places are addresses that a loopback device cannot have: IPv6, or no host's")
    if lines:
        raise error_for("refused.network_scoped", *lines)


def order(scope: Scope) -> dict[str, Any]:
    """What the jail is told: the settings of its network, addresses of its loopback device, each listener's, files with their texts."""
    addresses = _addresses(scope)
    lines = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in addresses.items() if host != address)]
    return {
        "settings": [list(setting) for setting in _SETTINGS],
        "addresses": [host for host, address in addresses.items() if host == address and ipaddress.IPv4Address(host) not in _LOOPBACK],
        "listeners": [[addresses[one.place.host], one.place.port] for one in scope.destinations],
        "files": [
            ["/etc/hosts", "\n".join(lines) + "\n"],
            ["/etc/nsswitch.conf", "hosts: files\n"],
            ["/etc/resolv.conf", ""],
        ],
    }


def binds(scope: Scope) -> list[list[str]]:
    """The certificates to trust: the scope's own, else the first of the system's; none when there are none."""
    source = next((bundle for bundle in _BUNDLES if os.path.isfile(bundle)), None) if scope.trust is None else _own(scope)
    return [[source, TRUST, "file"]] if source else []


def ports(scope: Scope) -> list[int]:
    """Those that may be connected to, for Landlock."""
    return sorted({one.place.port for one in scope.destinations})


def _own(scope: Scope) -> str:
    trust = str(scope.trust)
    # security: a link may be turned after the profile was read, to a file that was never meant to be seen in a jail
    if os.path.realpath(trust) != trust or not os.path.isfile(trust):
        raise error_for("refused.policy", "trust: there is no file of certificates at that path, or the path leads through a link")
    certificates(trust, scope.trust_digest)
    return trust


def _read_only(place: str) -> bool:
    try:
        return bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    except OSError:
        return True


def _addresses(scope: Scope) -> dict[str, str]:
    """Host -> its address in the jail: its own when it is one, else the next of 127.1.0.0/16."""
    taken = {one.place.host for one in scope.destinations if one.place.literal}
    free = _free(taken)
    hosts = dict.fromkeys(one.place.host for one in scope.destinations)
    return {host: host if host in taken else next(free) for host in hosts}


def _free(taken: set[str]) -> Iterator[str]:
    at = _FIRST
    while True:
        # security: a place that is itself of these would be one listener with a name's, and lead where that leads
        if (address := str(ipaddress.IPv4Address(at))) not in taken:
            yield address
        at += 1
