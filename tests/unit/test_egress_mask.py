"""Attached secrets in answers: every form of them, in any portions, in the same length."""

import base64
import html
import json
import random
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.egress.mask import Mask, Masking

SECRET = 'ca"nary/+ key&ü=42'
RAW = SECRET.encode()
FORMS: dict[str, Callable[[], bytes]] = {
    "raw": lambda: RAW,
    "json": lambda: json.dumps(SECRET).encode()[1:-1],
    "html": lambda: html.escape(SECRET).encode(),
    "hex": lambda: RAW.hex().encode(),
    "upper hex": lambda: RAW.hex().upper().encode(),
    "percent": lambda: urllib.parse.quote(SECRET, safe="").encode(),
    "percent but for slashes": lambda: urllib.parse.quote(SECRET).encode(),
    "form": lambda: urllib.parse.quote_plus(SECRET).encode(),
    "all in percent signs": lambda: "".join(f"%{byte:02x}" for byte in RAW).encode(),
}


def portioned(mask: Mask, data: bytes, portion: int) -> bytes:
    """The data through the mask in such portions."""
    masking = Masking(mask)
    return b"".join(masking.take(data[at : at + portion]) for at in range(0, len(data), portion)) + masking.end()


@pytest.mark.parametrize("portion", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_value_becomes_stars(name: str, portion: int) -> None:
    """In its own length, and nothing around it is changed."""
    form = FORMS[name]()
    assert portioned(Mask([SECRET]), b"before " + form + b" after " + form, portion) == (
        b"before " + b"*" * len(form) + b" after " + b"*" * len(form)
    )


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("code", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_is_seen_at_every_place_in_its_groups(before: int, code: Callable[[bytes], bytes]) -> None:
    """With other bytes around the value, as in basic authentication."""
    coded = code(b"u" * before + RAW + b"tail")
    masked = portioned(Mask([SECRET]), coded, 5)
    stars = masked.count(b"*")
    assert len(masked) == len(coded)
    assert stars >= len(RAW) * 8 // 6 - 1
    assert masked.replace(b"*", b"") in (coded[: masked.index(b"*")] + coded[masked.index(b"*") + stars :],)


def test_without_values_nothing_changes() -> None:
    """The control."""
    assert not Mask([])
    assert portioned(Mask([]), RAW, 3) == RAW
    assert Mask([SECRET]).whole(b'nothing of it: ca"nary') == b'nothing of it: ca"nary'


def test_values_that_overlap_are_masked_both() -> None:
    """What begins within another one as well."""
    assert Mask(["abcdefgh", "efghijkl", "efghefgh"]).whole(b"-abcdefghijkl-efghefghefgh-") == b"-************-************-"
    assert portioned(Mask(["abcdefgh", "efghijkl"]), b"-abcdefghijkl-", 1) == b"-************-"


def test_only_what_may_begin_a_value_is_held_back() -> None:
    """So that events of a stream arrive when they are sent."""
    masking = Masking(Mask(["abcdefgh"]))
    assert [masking.take(part) for part in (b"data: 1\n\n", b"xab", b"cd", b"x")] == [b"data: 1\n\n", b"x", b"", b"abcdx"]


@given(st.lists(st.text("ab", min_size=2, max_size=5), max_size=3), st.text("ab", max_size=40), st.integers(0, 1 << 30))
def test_portions_make_no_difference(values: list[str], text: str, seed: int) -> None:
    """For values that overlap themselves and each other."""
    chance, mask, data = random.Random(seed), Mask(values), text.encode()
    masking, out, at = Masking(mask), b"", 0
    while at < len(data):
        size = chance.randint(1, 6)
        out += masking.take(data[at : at + size])
        at += size
    assert out + masking.end() == mask.whole(data)
