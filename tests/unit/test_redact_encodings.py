"""The spellings of a value: their bounds, and that each of them is one."""

import base64
import secrets

import pytest

from engine.encodings import LONGEST_FORM, PIECE, SHORTEST_FORM, forms

CANARY = secrets.token_hex(12)


def test_the_spellings_of_a_plain_value() -> None:
    """A value of letters and digits has few: most escapes change nothing in it."""
    data = CANARY.encode()
    expected = {data, data.upper(), CANARY.swapcase().encode(), data.hex().encode(), data.hex().upper().encode()}
    expected.add(CANARY.encode("utf-16-le")[:-1])
    expected.add("".join(f"%{byte:02X}" for byte in data).encode())
    expected.add("".join(f"%{byte:02x}" for byte in data).encode())
    expected.add("".join(f"\\x{byte:02x}" for byte in data).encode())
    expected.add("".join(f"\\u{byte:04x}" for byte in data).encode())
    expected.add("".join(f"\\\\u{byte:04x}" for byte in data).encode())
    assert expected <= forms(CANARY)
    rest = forms(CANARY) - expected
    assert len(rest) in (8, 9, 10, 11)  # base64 at three places (twice where the alphabets differ) and base32 at five


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("behind", range(3))
def test_base64_is_cut_at_what_its_neighbours_share(before: int, behind: int) -> None:
    """Whatever bytes stand around the value, one spelling is a part of the whole."""
    for filler in (b"\0", b"\xff", b"Q"):
        whole = base64.b64encode(filler * before + CANARY.encode() + filler * behind)
        assert any(form in whole for form in forms(CANARY) if form.isalnum())


def test_no_form_is_short() -> None:
    """Seven bytes stand in ordinary data by chance; of a value of seven only longer spellings are left."""
    assert {len(form) for form in forms("abcdefg")} & set(range(SHORTEST_FORM)) == set()
    assert (b"abcdefg" in forms("abcdefg"), b"abcdefgh" in forms("abcdefgh")) == (False, True)


def test_short_words_keep_their_case() -> None:
    """The lower case of a short value may be an ordinary word; of a longer one it is looked for."""
    assert (b"orderday" in forms("Orderday"), b"orderday-nine" in forms("Orderday-Nine")) == (False, True)


@pytest.mark.parametrize("letter", ["\U0001f600", '"', "\\", "é", "a", "\n", "'", "&", "\x01"])
@pytest.mark.parametrize("length", [8, 256, 257, PIECE, 64 << 10])
def test_the_longest_form_has_a_bound(letter: str, length: int) -> None:
    """However long the value is and however its letters are escaped; and their number is bounded by its pieces."""
    found = forms(letter * length)
    assert max(map(len, found)) <= LONGEST_FORM
    assert len(found) <= 120


@pytest.mark.parametrize("value", ["0000'\\'é", "it's \\' here", 'say "\\"', "'\"\\'\"\\\\", "a\\nb\nc'd\"e"])
def test_python_shows_a_value_in_one_of_the_forms(value: str) -> None:
    """Whichever marks it puts around it, and whatever backslashes the value itself has."""
    for other in ("", "'", '"', "'\""):
        for show in (repr, ascii, lambda text: repr(text.encode())[1:]):
            shown = show(value + "-" + other)
            assert any(form in shown.encode() for form in forms(value)), shown
