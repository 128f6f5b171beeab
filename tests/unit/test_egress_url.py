"""Addresses of requests: one reading for what is compared, connected to and asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.egress.url import LONGEST, redirected, url_of


@pytest.mark.parametrize(
    ("text", "place", "target", "written"),
    [
        ("https://api.example.test", "api.example.test:443", "/", "https://api.example.test/"),
        ("HTTP://API.Example.Test./a?b=c", "api.example.test:80", "/a?b=c", "http://api.example.test/a?b=c"),
        ("https://api.example.test:8443?x", "api.example.test:8443", "/?x", "https://api.example.test:8443/?x"),
        ("http://api.example.test:80/", "api.example.test:80", "/", "http://api.example.test/"),
        ("http://1.2.3.4/", "1.2.3.4:80", "/", "http://1.2.3.4/"),
        ("http://[2001:DB8::1]:8080/", "[2001:db8::1]:8080", "/", "http://[2001:db8::1]:8080/"),
        ("http://[::1]/", "[::1]:80", "/", "http://[::1]/"),
        ("https://bücher.test/ä?ö", "xn--bcher-kva.test:443", "/%C3%A4?%C3%B6", "https://xn--bcher-kva.test/%C3%A4?%C3%B6"),
        ("https://api.example.test/%2e%2E/a//b", "api.example.test:443", "/%2e%2E/a//b", "https://api.example.test/%2e%2E/a//b"),
        ('https://api.example.test/{"}', "api.example.test:443", "/%7B%22%7D", "https://api.example.test/%7B%22%7D"),
    ],
)
def test_an_address_has_one_reading(text: str, place: str, target: str, written: str) -> None:
    """Which is written in one way, and read again is the same."""
    found = url_of(text)
    assert (str(found.place), found.target, str(found)) == (place, target, written)
    assert url_of(written) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "api.example.test",
        "//api.example.test/",
        "https:/api.example.test/",
        "https:///a",
        "https://",
        "ftp://api.example.test/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://user@api.example.test/",
        "https://api.example.test@evil.test/",
        "https://api.example.test:443@evil.test/",
        "https://evil.test\\@api.example.test/",
        "https://api.example.test\\.evil.test/",
        "https://api.example.test#@evil.test/",
        "https://api.example.test/#a",
        "https://api.example.test/#",
        "https://api.example.test/a b",
        " https://api.example.test/",
        "https://api.example.test/\r\nHost: evil.test",
        "https://api.example.test\0.evil.test/",
        "https://api.example.test\t/",
        "https://api.exam\nple.test/",
        "https://api%2eexample.test/",
        "https://api.example.test%00.evil.test/",
        "https://api.example.test:/",
        "https://api.example.test:0/",
        "https://api.example.test:0443/",
        "https://api.example.test:65536/",
        "https://api.example.test:x/",
        "https://*.example.test/",
        "https://2130706433/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://[::1%25eth0]/",
        "https://[::ffff:1.2.3.4%x.example.test]/",
        "https://[api.example.test]/",
        "https://[::1]x/",
        "https://api.example.test/\u202e",
        "https://api.example.test/" + "a" * LONGEST,
    ],
)
def test_what_two_readers_could_take_for_two_places_is_none(text: str) -> None:
    """And the words do not repeat it."""
    with pytest.raises(ValueError) as caught:
        url_of(text)
    assert "evil" not in str(caught.value)
    assert "api" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("/b", "https://api.example.test/b"),
        ("c?d", "https://api.example.test/a/c?d"),
        ("?d", "https://api.example.test/a/b?d"),
        ("//other.example.test/x", "https://other.example.test/x"),
        ("http://other.example.test", "http://other.example.test/"),
        ("/b#part", "https://api.example.test/b"),
        ("", "https://api.example.test/a/b"),
    ],
)
def test_a_redirect_is_read_from_where_it_stands(location: str, found: str) -> None:
    """Without its fragment."""
    assert str(redirected(url_of("https://api.example.test/a/b"), location)) == found


@pytest.mark.parametrize(
    "location", ["https://u@api.example.test/", "\\\\evil.test/", "/a b", "ftp://api.example.test/", "//[x]/", "/" * 9000]
)
def test_a_redirect_to_no_address_is_none(location: str) -> None:
    """As where a tool writes it."""
    with pytest.raises(ValueError):
        redirected(url_of("https://api.example.test/a/b"), location)


@given(st.text(max_size=40))
def test_no_text_raises_anything_but_that_it_is_no_address(text: str) -> None:
    """Alone, as a host, and as a place to be redirected to."""
    base = url_of("https://api.example.test/")
    for made in (text, "https://" + text, "https://api.example.test/" + text):
        for read in (url_of, lambda one: redirected(base, one)):
            try:
                found = read(made)
            except ValueError:
                continue
            assert url_of(str(found)) == found
