"""Which addresses may be connected to: a table of disguises, and what the standard library knows of special addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.egress.address import FINAL, KINDS, own_addresses, refusal

EVERYTHING = ("0.0.0.0/0", "::/0")

REFUSED = [
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("::1", "loopback"),
    ("0:0:0:0:0:0:0:1", "loopback"),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("::", "unspecified"),
    ("10.0.0.1", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("fc00::1", "private"),
    ("fdff:ffff::1", "private"),
    ("fec0::1", "private"),
    ("100.64.0.1", "shared"),
    ("100.127.255.255", "shared"),
    ("169.254.0.1", "metadata"),
    ("169.254.169.254", "metadata"),
    ("169.254.170.2", "metadata"),
    ("168.63.129.16", "metadata"),
    ("100.100.100.200", "metadata"),
    ("192.0.0.192", "metadata"),
    ("fd00:ec2::254", "metadata"),
    ("fd00:ec2::23", "metadata"),
    ("fd20:ce::254", "metadata"),
    ("::ffff:127.0.0.1", "mapped"),
    ("::ffff:169.254.169.254", "mapped"),
    ("::ffff:a9fe:a9fe", "mapped"),
    ("::ffff:8.8.8.8", "mapped"),
    ("::ffff:0:8.8.8.8", "mapped"),
    ("::127.0.0.1", "compatible"),
    ("::8.8.8.8", "compatible"),
    ("64:ff9b::8.8.8.8", "translated"),
    ("64:ff9b::a9fe:a9fe", "translated"),
    ("64:ff9b:1::1", "translated"),
    ("2002:7f00:1::", "sixtofour"),
    ("2002:808:808::1", "sixtofour"),
    ("192.88.99.1", "sixtofour"),
    ("2001::1", "teredo"),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "teredo"),
    ("2001:10::1", "reserved"),
    ("2001:20::1", "reserved"),
    ("2001:2::1", "reserved"),
    ("2001:db8::1", "documentation"),
    ("3fff::1", "documentation"),
    ("192.0.2.1", "documentation"),
    ("198.51.100.1", "documentation"),
    ("203.0.113.1", "documentation"),
    ("198.18.0.1", "reserved"),
    ("192.0.0.1", "reserved"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("100::1", "reserved"),
    ("5f00::1", "reserved"),
    ("4000::1", "reserved"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.250", "multicast"),
    ("ff02::1", "multicast"),
    ("ff0e::1", "multicast"),
    ("fe80::1", "link_local"),
    ("fe80::1%eth0", "zone"),
    ("::ffff:10.0.0.1%api.example.com", "zone"),
    ("2606:4700::1111%x", "zone"),
    ("2130706433", "malformed"),
    ("0x7f000001", "malformed"),
    ("0177.0.0.1", "malformed"),
    ("127.1", "malformed"),
    ("127.0.0.1.", "malformed"),
    ("127.0.0.1:80", "malformed"),
    ("[::1]", "malformed"),
    ("127.0.0.1 ", "malformed"),
    ("1.1.1.1\0", "malformed"),
    ("①.1.1.1", "malformed"),
    ("", "malformed"),
    ("localhost", "malformed"),
]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "100.128.0.1", "169.253.1.1", "2606:4700:4700::1111", "2a00:1450:4001::200e"]


@pytest.mark.parametrize(("address", "kind"), REFUSED)
def test_what_is_not_public_is_refused_for_its_reason(address: str, kind: str) -> None:
    """Whichever form it is written in."""
    assert refusal(address, private=(), own=()) == kind


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_passes(address: str) -> None:
    """The control, with those next to refused networks among them."""
    assert refusal(address, private=(), own=()) is None


@pytest.mark.parametrize(("address", "kind"), REFUSED)
def test_naming_everything_lifts_only_what_may_be_named(address: str, kind: str) -> None:
    """Metadata services, disguises and what is nobody's stay refused where a named network covers them."""
    assert refusal(address, private=EVERYTHING, own=()) == (kind if kind in FINAL else None)


def test_a_named_network_lifts_itself_alone() -> None:
    """The neighbour of a named network stays refused."""
    named = ("10.1.2.0/24", "fd12::/64")
    found = [refusal(one, private=named, own=()) for one in ("10.1.2.3", "fd12::3", "10.1.3.3", "fd12:0:0:1::3", "127.0.0.1")]
    assert found == [None, None, "private", "private", "loopback"]


def test_an_address_of_this_host_is_refused_unless_it_is_named() -> None:
    """A public one too; the control is somebody else's."""
    own = ("8.8.8.8", "2606:4700::1")
    found = [refusal(one, private=(), own=own) for one in (*own, "2606:4700:0::0001", "8.8.4.4")]
    assert found == ["own", "own", "own", None]
    assert refusal("8.8.8.8", private=("8.8.8.8/32",), own=own) is None


def test_the_addresses_of_this_host_are_addresses() -> None:
    """Loopback is among them, and none has a zone."""
    found = own_addresses()
    assert "127.0.0.1" in found
    assert found == {str(ipaddress.ip_address(one)) for one in found}


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6) | st.builds(ipaddress.IPv6Address, st.integers(0, 1 << 100)))
def test_whatever_the_standard_library_calls_special_is_refused(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """And each refusal is a kind of the closed list."""
    kind = refusal(str(address), private=(), own=())
    special = address.is_private or address.is_reserved or address.is_multicast or address.is_loopback or address.is_link_local
    assert kind is not None or not (special or address.is_unspecified or not address.is_global)
    assert kind is None or kind in KINDS


@given(st.sampled_from(("10.0.0.0/8", "192.168.0.0/16", "fc00::/7", "fe80::/10", "ff00::/8")), st.data())
def test_every_address_of_a_special_network_is_refused(network: str, data: st.DataObject) -> None:
    """Not only its first ones."""
    address = data.draw(st.ip_addresses(network=network))
    assert refusal(str(address), private=(), own=()) is not None
