"""Places: one spelling for each destination, and none for what has no clear one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.policy.network import Place, canonical_host, place_of

HOST = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?(\.[a-z]([a-z0-9]{0,5}))+", fullmatch=True).filter(lambda host: "--" not in host)

NO_PLACES = {
    "NUL before an allowed ending": "attacker.com\0.example.com:443",
    "NUL at the end": "api.example.com\0:443",
    "NUL in the port": "api.example.com:443\0",
    "CR LF": "api.example.com\r\nHost: attacker.com:443",
    "line break at the end": "api.example.com:443\n",
    "line break before the port": "api.example.com\n:443",
    "blank before": " api.example.com:443",
    "blank inside": "api.example .com:443",
    "no-break blank": "api.example\u00a0.com:443",
    "tab": "api\t.example.com:443",
    "zero-width blank": "api\u200b.example.com:443",
    "soft hyphen": "ap\u00adi.example.com:443",
    "right-to-left mark": "\u202eapi.example.com:443",
    "lone surrogate": "\ud800.example.com:443",
    "login": "user@api.example.com:443",
    "address with a login": "http://user:pass@api.example.com:443",
    "scheme": "https://api.example.com:443",
    "path": "api.example.com:443/x",
    "path before the port": "api.example.com/x:443",
    "query": "api.example.com?x:443",
    "percent code": "api%2eexample.com:443",
    "backslash": "api.example.com\\.attacker.com:443",
    "look-alike slash": "attacker.com\u2044.example.com:443",
    "sign that folds to a slash": "attacker.com\u2100.example.com:443",
    "two last dots": "api.example.com..:443",
    "empty label": "api..example.com:443",
    "dot before": ".example.com:443",
    "only a dot": ".:443",
    "label of 64": f"{'a' * 64}.com:443",
    "name of 254": f"{'a.' * 126}co:443",
    "name of 1000": f"{'a.' * 500}com:443",
    "hyphen first": "-a.com:443",
    "hyphen last": "a-.com:443",
    "underscore": "_dns.example.com:443",
    "broken punycode": "xn--.com:443",
    "punycode that says ASCII": "xn--abc-.com:443",
    "wildcard": "*.example.com:443",
    "wildcard alone": "*:443",
    "wildcard inside": "a*.example.com:443",
    "wildcard port": "api.example.com:*",
    "one label": "localhost:80",
    "short address": "127.1:80",
    "whole-number address": "2130706433:80",
    "hexadecimal address": "0x7f.0.0.1:80",
    "octal address": "0177.0.0.1:80",
    "address with a last dot": "127.0.0.1.:80",
    "address in wide digits": "１２７.0.0.1:80",
    "address ending like a name": "127.0.0.0x1:80",
    "bare IPv6": "::1:80",
    "IPv6 with a zone": "[fe80::1%eth0]:80",
    "IPv6 with a zone like a name": "[fe80::1%.example.com]:80",
    "IPv4 inside IPv6": "[::ffff:10.0.0.1]:80",
    "IPv4 inside IPv6 in hexadecimal": "[::ffff:a00:1]:80",
    "name in brackets": "[example.com]:80",
    "IPv4 in brackets": "[10.0.0.1]:80",
    "half a bracket": "[::1:80",
    "no port": "api.example.com",
    "empty port": "api.example.com:",
    "port 0": "api.example.com:0",
    "port 65536": "api.example.com:65536",
    "port with a zero before": "api.example.com:0443",
    "port with a sign": "api.example.com:+443",
    "port in other digits": "api.example.com:٤٤٣",
    "port with a blank": "api.example.com: 443",
    "port of a thousand digits": f"a.com:{'9' * 1000}",
    "nothing": "",
    "colon alone": ":443",
    "null": None,
    "number": 443,
    "bytes": b"api.example.com:443",
    "list": ["api.example.com:443"],
}

SPELLINGS = {
    "api.example.com:443": Place(host="api.example.com", port=443),
    "API.Example.COM:443": Place(host="api.example.com", port=443),
    "api.example.com.:443": Place(host="api.example.com", port=443),
    "api\u3002example\uff0ecom:443": Place(host="api.example.com", port=443),
    "ａｐｉ.example.com:443": Place(host="api.example.com", port=443),
    "bücher.example:1": Place(host="xn--bcher-kva.example", port=1),
    "BÜCHER.example:1": Place(host="xn--bcher-kva.example", port=1),
    "bu\u0308cher.example:1": Place(host="xn--bcher-kva.example", port=1),
    "XN--BCHER-KVA.example:1": Place(host="xn--bcher-kva.example", port=1),
    f"{'a.' * 125}com:443": Place(host=f"{'a.' * 125}com", port=443),
    f"{'a' * 63}.com:65535": Place(host=f"{'a' * 63}.com", port=65535),
    "10.0.0.1:80": Place(host="10.0.0.1", port=80),
    "[2001:DB8:0:0::1]:80": Place(host="2001:db8::1", port=80),
}


@pytest.mark.parametrize("text", NO_PLACES.values(), ids=NO_PLACES)
def test_what_has_no_clear_spelling_is_no_place(text: object) -> None:
    """It is refused before anything is compared, and the words do not repeat it."""
    with pytest.raises(ValueError) as caught:
        place_of(text)
    assert type(caught.value) is ValueError
    assert not isinstance(text, str) or len(text) < 6 or text not in str(caught.value)


@pytest.mark.parametrize(("text", "place"), SPELLINGS.items(), ids=ascii)
def test_the_spellings_of_a_destination_are_one_place(text: str, place: Place) -> None:
    """The control: what an operator or an author means, in whatever case, form and script."""
    assert place_of(text) == place


@pytest.mark.parametrize("text", ["аpple.com:443", "apple.соm:443", "exаmple.com:443"])
def test_a_look_alike_is_another_place(text: str) -> None:
    """Letters of another script stay letters of another script."""
    assert place_of(text).host.startswith("xn--") or ".xn--" in place_of(text).host
    assert place_of(text) not in {place_of("apple.com:443"), place_of("example.com:443")}


@given(HOST, st.integers(1, 65535), st.booleans())
def test_a_place_reads_back_as_itself(host: str, port: int, dotted: bool) -> None:
    """Canonical once is canonical for good, in any case and with or without a last dot."""
    place = place_of(f"{host.upper()}{'.' * dotted}:{port}")
    assert (place, place_of(str(place))) == (Place(host=host, port=port), place)


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_address_reads_back_as_itself(address: object, port: int) -> None:
    """In brackets when it has colons; an IPv4 address inside IPv6 has no place."""
    text = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
    if getattr(address, "ipv4_mapped", None) is not None:
        with pytest.raises(ValueError, match="not inside IPv6"):
            place_of(text)
        return
    place = place_of(text)
    assert (str(place), place.literal) == (text, True)


@given(st.text(max_size=300))
def test_any_text_is_a_plain_host_or_none(text: str) -> None:
    """No exception but the one that says why, and no sign in a host that a resolver or a header reads otherwise."""
    try:
        host = canonical_host(text)
    except ValueError:
        return
    assert not {*host} - {*"abcdefghijklmnopqrstuvwxyz0123456789-.:"}
    assert len(host) <= 253
