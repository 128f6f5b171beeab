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
from engine.encodings import LONGEST_FORM, forms

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


def test_the_mask_knows_every_spelling_that_the_watch_looks_for() -> None:
    """In its own length, in one piece and byte by byte."""
    mask = Mask([SECRET])
    for form in forms(SECRET):
        assert mask.whole(b"<" + form + b">") == b"<" + b"*" * len(form) + b">"
        assert portioned(mask, b"<" + form + b">", 1) == b"<" + b"*" * len(form) + b">"


def test_values_that_overlap_are_masked_both() -> None:
    """What begins within another one as well."""
    assert Mask(["abcdefgh", "efghijkl", "efghefgh"]).whole(b"-abcdefghijkl-efghefghefgh-") == b"-************-************-"
    assert portioned(Mask(["abcdefgh", "efghijkl"]), b"-abcdefghijkl-", 1) == b"-************-"


PORTIONS = (1, 3, 700, 1, 2, 90, 5000, 1)


@pytest.mark.parametrize("beginning", [b"", b"a", b"abc", b"abcdefg", b"abcdefgh", b"abcdefghabcdefgh"])
def test_what_is_held_back_does_not_depend_on_the_bytes(beginning: bytes) -> None:
    """However much of a value an answer guesses: the same number leaves after every portion, and all of it in the end."""
    masking, left, came = Masking(mask := Mask(["abcdefgh"])), 0, 0
    for size in PORTIONS:
        came += size
        left += len(masking.take((b"x" * size + beginning)[-size:]))
        assert left == max(0, came - mask.lag)
    assert left + len(masking.end()) == sum(PORTIONS)


def test_what_is_held_back_tells_little_of_how_long_a_value_is() -> None:
    """It is the same for values of common lengths."""
    assert {Mask(["k3y-" + "x7" * half]).lag for half in (4, 8, 12, 16)} == {256}


def test_a_mask_is_as_large_as_its_spellings() -> None:
    """The longest value that is attached: what is held back is bounded, and a repr shows nothing of it."""
    value = "".join(f"{number:04x}" for number in range(1024))
    mask = Mask([value])
    assert mask.lag <= LONGEST_FORM
    assert "0123" not in repr(mask)
    assert set(mask.whole(value.encode())) == set(b"*")


@given(st.lists(st.text("ab", min_size=8, max_size=12), max_size=3), st.text("ab", max_size=900), st.integers(0, 1 << 30))
def test_portions_make_no_difference(values: list[str], text: str, seed: int) -> None:
    """For values that overlap themselves and each other."""
    chance, mask, data = random.Random(seed), Mask(values), text.encode()
    masking, out, at = Masking(mask), b"", 0
    while at < len(data):
        size = chance.randint(1, 60)
        out += masking.take(data[at : at + size])
        at += size
    assert out + masking.end() == mask.whole(data)


@given(st.text("ab", min_size=8, max_size=8), st.text("ab", min_size=300, max_size=600), st.lists(st.integers(1, 9), min_size=1))
def test_a_value_over_a_border_becomes_stars(value: str, text: str, sizes: list[int]) -> None:
    """Every place of it, wherever the portions end."""
    mask, data = Mask([value]), text.encode()
    wanted = bytearray(data)
    for form in forms(value):
        at = data.find(form)
        while at >= 0:
            wanted[at : at + len(form)] = b"*" * len(form)
            at = data.find(form, at + 1)
    masking, out, at = Masking(mask), b"", 0
    while at < len(data):
        for size in sizes:
            out += masking.take(data[at : at + size])
            at += size
    assert out + masking.end() == bytes(wanted)
