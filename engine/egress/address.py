"""Whether an address may be connected to: only unicast addresses of the public internet, and what an operator named.

Its job: one pure decision about one address, with why not; the addresses of this host.
Not its job: names (``resolver.py``), which addresses a name has and in which order they are tried (``dial.py``).
Laws:
1. What is not a public unicast address is refused, in whatever form it is written (tests/unit/test_egress_address.py).
2. Addresses of metadata services, and forms that carry another address inside, are refused even where a private network is
   named that covers them (tests/unit/test_egress_address.py).
3. An address of this host is refused unless it is named (tests/unit/test_egress_address.py).
"""

import ipaddress
from collections.abc import Collection, Sequence

import psutil

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Why an address is refused. The first row is final; what the second row refuses, a rule may name as private.
FINAL = (
    "malformed",
    "zone",
    "metadata",
    "mapped",
    "compatible",
    "translated",
    "sixtofour",
    "teredo",
    "multicast",
    "unspecified",
    "link_local",
)
LIFTED = ("loopback", "private", "shared", "documentation", "reserved", "own")
KINDS = (*FINAL, *LIFTED)

_NETWORKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # 168.63.129.16 (Azure) and 192.0.0.192 (Oracle) are outside link-local; 168.63.129.16 even counts as global
    ("metadata", ("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128")),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("mapped", ("::ffff:0:0/96", "::ffff:0:0:0/96")),  # RFC 4291 section 2.5.5.2, RFC 2765 section 2.1
    ("compatible", ("::/96",)),  # RFC 4291 section 2.5.5.1; loopback and unspecified stand before it
    ("translated", ("64:ff9b::/96", "64:ff9b:1::/48")),  # RFC 6052, RFC 8215
    ("sixtofour", ("2002::/16", "192.88.99.0/24")),  # RFC 3056, RFC 7526
    ("teredo", ("2001::/32",)),  # RFC 4380
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("link_local", ("fe80::/10",)),  # needs a zone, and a zone is refused
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),  # the last: site-local, RFC 3879
    ("shared", ("100.64.0.0/10",)),  # RFC 6598
    ("documentation", ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")),
    # the IANA registries of special purposes; 2001:10::/28 and 2001:20::/28 (ORCHID) lie in 2001::/23
    ("reserved", ("192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "2001::/23")),
)
_TABLE: tuple[tuple[str, Network], ...] = tuple((kind, ipaddress.ip_network(text)) for kind, row in _NETWORKS for text in row)
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all of IPv6 that was ever given out for unicast, RFC 4291 section 2.4


def refusal(address: str, *, private: Sequence[str], own: Collection[str]) -> str | None:
    """Why that address is refused, a kind of ``KINDS``; None when it may be connected to.

    ``private``: networks that the rule names; ``own``: this host's addresses as ``own_addresses`` gives them.
    """
    # security: "::ffff:10.0.0.1%x" is another address to whoever cuts the zone off
    if "%" in address:
        return "zone"
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "malformed"
    kind = _kind(parsed)
    if kind is None and str(parsed) in own:
        kind = "own"
    return None if kind in LIFTED and named(address, private) else kind


def named(address: str, private: Sequence[str]) -> bool:
    """Whether a rule names an address: then it does not matter whose it is."""
    parsed = ipaddress.ip_address(address)
    return any(parsed in ipaddress.ip_network(network) for network in private)


def _kind(parsed: Address) -> str | None:
    for kind, network in _TABLE:
        if parsed in network:
            return kind
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _UNICAST:
        return "reserved"
    return None if parsed.is_global and not parsed.is_reserved else "reserved"


def own_addresses() -> frozenset[str]:
    """The addresses of this host's interfaces at this moment, without zones."""
    found = {one.address.split("%")[0] for addresses in psutil.net_if_addrs().values() for one in addresses}
    return frozenset(str(parsed) for text in found if (parsed := _parsed(text)) is not None)


def _parsed(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)  # an interface has hardware addresses too
    except ValueError:
        return None
