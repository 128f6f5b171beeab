"""Secret values and shapes in what leaves: what is found in which spelling, what is put in its place, and what is said not to be found."""

import base64
import copy
import gzip
import html
import json
import pickle
import secrets
import urllib.parse
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.policy.shapes import Starts, ValueShape, ValueShapes, load_shapes
from engine.results.needles import PIECE_BYTES
from engine.results.redact import Hit, Unredactable, Watch
from engine.spelling import spelled

SHAPES = load_shapes(Path("policies"))
NONE = ValueShapes()
CANARY = secrets.token_hex(12).swapcase() + "Zz/+ &<>\"'~é%" + secrets.token_hex(4)
MARK = "[redacted:orders]"
PEM = "-----BEGIN " + "PRIVATE KEY-----\n" + "\n".join(secrets.token_hex(32) for _ in range(20)) + "\n-----END " + "PRIVATE KEY-----"


def b64(value: str, before: bytes = b"", *, url: bool = False) -> str:
    encode = base64.urlsafe_b64encode if url else base64.b64encode
    return encode(before + value.encode() + b"\xfb").decode()


def b32(value: str, before: int) -> str:
    return base64.b32encode(bytes(before) + value.encode() + b"z").decode()


FOUND: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "swapped case": str.swapcase,
    "decomposed": lambda value: value.replace("é", "e\N{COMBINING ACUTE ACCENT}"),
    "UTF-16, little end first": lambda value: "".join(letter + "\0" for letter in value.replace("é", "")).rstrip("\0"),
    "base64 at 0": b64,
    "base64 at 1": lambda value: b64(value, b"a"),
    "base64 at 2": lambda value: b64(value, b"ab"),
    "base64url at 0": lambda value: b64(value, url=True),
    "base64url at 1": lambda value: b64(value, b"a", url=True),
    "base64url at 2": lambda value: b64(value, b"ab", url=True),
    "basic authentication": lambda value: "Basic " + base64.b64encode(f"user:{value}".encode()).decode(),
    "base32 at 0": lambda value: b32(value, 0),
    "base32 at 1": lambda value: b32(value, 1),
    "base32 at 2": lambda value: b32(value, 2),
    "base32 at 3": lambda value: b32(value, 3),
    "base32 at 4": lambda value: b32(value, 4),
    "hexadecimal": lambda value: value.encode().hex(),
    "hexadecimal in capitals": lambda value: value.encode().hex().upper(),
    "percent": lambda value: urllib.parse.quote(value, safe=""),
    "percent with slashes": urllib.parse.quote,
    "percent with lower digits": lambda value: (
        urllib.parse.quote(value, safe="")
        .replace("%C3%A9", "%c3%a9")
        .replace("%2F", "%2f")
        .replace("%2B", "%2b")
        .replace("%3C", "%3c")
        .replace("%3E", "%3e")
    ),
    "a form": urllib.parse.quote_plus,
    "a form of a browser": lambda value: urllib.parse.quote_plus(value, safe="*").replace("~", "%7E"),
    "encodeURIComponent": lambda value: urllib.parse.quote(value, safe="!'()*"),
    "percent for every byte": lambda value: "".join(f"%{byte:02X}" for byte in value.encode()),
    "JSON": json.dumps,
    "JSON in UTF-8": lambda value: json.dumps(value, ensure_ascii=False),
    "JSON with escaped slashes": lambda value: json.dumps(value).replace("/", "\\/"),
    "JSON for a page": lambda value: json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    "JSON in JSON": lambda value: json.dumps(json.dumps({"a": value})),
    "escapes for every character": lambda value: "".join(f"\\u{ord(letter):04x}" for letter in value),
    "escapes for every byte": lambda value: "".join(f"\\x{byte:02x}" for byte in value.encode()),
    "as Python shows it": repr,
    "as Python shows it in ASCII": ascii,
    "as Python shows its bytes": lambda value: repr(value.encode()),
    "as Python shows it in a list": lambda value: repr(["it's", value]),
    "HTML": html.escape,
    "HTML with decimal entities": lambda value: html.escape(value).replace("&#x27;", "&#39;"),
    "HTML with quotation marks": lambda value: html.escape(value, quote=False),
}

LOST: dict[str, Callable[[str], str]] = {
    "reversed": lambda value: value[::-1],
    "gzip in base64": lambda value: base64.b64encode(gzip.compress(value.encode())).decode(),
    "XOR in hexadecimal": lambda value: bytes(byte ^ 0x55 for byte in value.encode()).hex(),
    "hexadecimal with separators": lambda value: value.encode().hex(":"),
    "hexadecimal of mixed case": lambda value: "".join(d.upper() if n % 2 else d for n, d in enumerate(("z" + value).encode().hex())),
    "base64 of base64": lambda value: base64.b64encode(base64.b64encode(value.encode())).decode(),
    "base64 in lines": lambda value: base64.encodebytes(b"a" * 40 + value.encode()).decode(),
    "base85": lambda value: base64.b85encode(value.encode()).decode(),
    "codes": lambda value: json.dumps(list(value.encode())),
    "a sign between": "-".join,
    "JSON in JSON in JSON": lambda value: json.dumps(json.dumps(json.dumps(value))),
}


def watch(**held: str) -> Watch:
    return Watch(held or {"orders": CANARY}, NONE)


def shape(prefix: str, follows: str, *, starts: Starts = Starts.WORD, certain: bool = True, name: str = "made") -> ValueShapes:
    return ValueShapes(shapes=(ValueShape(id=name, prefixes=(prefix,), starts=starts, follows=follows, certain=certain),))


@pytest.mark.parametrize("spelling", FOUND)
def test_a_value_is_found_and_put_out_of_sight_in_this_spelling(spelling: str) -> None:
    """The spelling has exactly this secret in it, its text has a mark, and nothing is found in that text."""
    value = CANARY.replace("é", "") if spelling.startswith("UTF-16") else CANARY
    seeing = watch(orders=value)
    text = f"before {FOUND[spelling](value)} behind"
    assert {(hit.id, hit.certain) for hit in seeing.look(text.encode())} == {("orders", True)}
    made, counts = seeing.text(text)
    assert (made.startswith("before "), made.endswith(" behind"), MARK in made, counts) == (True, True, True, Counter(orders=1))
    assert seeing.text(made) == (made, Counter())


@pytest.mark.parametrize("spelling", LOST)
def test_a_value_is_not_found_in_this_spelling(spelling: str) -> None:
    """What is said not to be caught is not caught: nobody shall rely on it."""
    assert watch().look(LOST[spelling](CANARY).encode()) == ()


def test_a_hit_says_where_it_stands() -> None:
    """Offsets are those of the bytes, and the whole value lies between them."""
    data = b"xx" + CANARY.encode() + b"yy"
    assert watch().look(data) == (Hit(id="orders", certain=True, start=2, end=len(data) - 2),)
    assert watch().look(memoryview(data)) == watch().look(data)


def test_without_values_and_shapes_nothing_is_found() -> None:
    """The control: an empty watch lets everything pass as it is."""
    seeing = Watch({}, NONE)
    assert (seeing.look(CANARY.encode()), seeing.text(CANARY), seeing.line(b"{}"), list(seeing.slices(b"a"))) == (
        (),
        (CANARY, Counter()),
        b"{}",
        [],
    )


def test_other_text_is_left_as_it_is() -> None:
    """What only begins like a value, or is one character short of it, is no hit."""
    for text in (CANARY[:-1], CANARY[1:], CANARY[:-1] + "x", "", "\ud800", "é" * 100):
        assert watch().text(text) == (text, Counter())


def test_values_that_overlap_are_all_named_and_leave_nothing() -> None:
    """The end of one value that begins another: both marks stand there, and no part of either."""
    first, second = "abcdefgh1234", "1234ijklmnop"
    seeing = watch(first=first, second=second)
    assert seeing.text(f"<{first}ijklmnop>") == ("<[redacted:first][redacted:second]>", Counter(first=1, second=1))


def test_a_value_inside_another_leaves_nothing_of_the_longer_one() -> None:
    """A short value that is a part of a long one does not end the long one's stretch."""
    seeing = watch(inner="cdefghijk", outer="abcdefghijklmn")
    assert seeing.text("abcdefghijklmn")[0] == "[redacted:outer][redacted:inner]"


def test_a_value_that_has_a_shape_is_named_by_its_own_id() -> None:
    """The operator's name says more than the shape's; the shape alone is found where it is another value."""
    prefix, rest = "canary-", secrets.token_hex(10)
    seeing = Watch({"orders": prefix + rest}, shape(prefix, "[0-9a-f]{20,40}"))
    assert seeing.text(f"a {prefix}{rest} b {prefix}{rest[::-1]}") == (
        f"a {MARK} b [redacted:shape:made]",
        Counter({"orders": 1, "shape:made": 1}),
    )


def test_values_that_touch_have_one_mark() -> None:
    """A value said twice in a row is one stretch."""
    assert watch().text(CANARY * 3) == (MARK, Counter(orders=1))


def test_a_replaced_value_has_its_secrets_id() -> None:
    """What the vault held before stands in marks under the same ID."""
    old = secrets.token_hex(12)
    assert Watch({"orders": CANARY, "orders~1": old}, NONE).text(f"{old} {CANARY}") == (f"{MARK} {MARK}", Counter(orders=2))


@pytest.mark.parametrize(
    "at", [PIECE_BYTES - len(CANARY.encode()) - 1, PIECE_BYTES - 20, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES - 5]
)
def test_a_value_over_the_border_of_two_pieces_is_found_once(at: int) -> None:
    """Large data is looked through in pieces; a value and a shape are named once wherever they lie."""
    token = "canary-" + "abcdef" * 5
    seeing = Watch({"orders": CANARY}, shape("canary-", "[a-f]{20,40}"))
    data = b" " * at + CANARY.encode() + b" " * 100 + token.encode() + b" " * PIECE_BYTES
    expected = (
        Hit(id="orders", certain=True, start=at, end=at + len(CANARY.encode())),
        Hit(id="shape:made", certain=True, start=(begin := at + len(CANARY.encode()) + 100), end=begin + len(token)),
    )
    assert seeing.look(data) == expected
    assert tuple(hit for hits in seeing.slices(data) for hit in hits) == expected


@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_a_shape_over_the_border_of_two_pieces_is_found_once(shift: int) -> None:
    """Also where its beginning itself lies across, and a letter before it in the piece before counts."""
    seeing = Watch({}, shape("canary-", "[a-f]{20,40}"))
    at = PIECE_BYTES - shift
    token = b"canary-" + b"abcdef" * 5
    assert [(hit.start, hit.end) for hit in seeing.look(b" " * at + token + b" " * 9)] == [(at, at + len(token))]
    assert seeing.look(b" " * (at - 1) + b"x" + token + b" " * 9) == ()


def test_what_came_before_counts() -> None:
    """With a part of it in the bytes before, a hit starts below 0; one that ends there is not named again."""
    data = CANARY.encode()
    assert watch().look(data[9:], before=data[:9]) == (Hit(id="orders", certain=True, start=-9, end=len(data) - 9),)
    assert watch().look(b"more", before=data) == ()


@pytest.mark.parametrize("count", [300, 5000])
def test_many_beginnings_are_one_hit_each_and_never_overlap(count: int) -> None:
    """A run of beginnings, each of which could be the start of a match, is read once, whether there are some or very many."""
    seeing = Watch({}, shape("ab", "[ab]{20,50}", starts=Starts.ANYWHERE, certain=False))
    whole, rest = divmod(2 * count, 52)
    ends = [52] * whole + [rest] * (rest >= 22)
    assert [(hit.start, hit.end - hit.start) for hit in seeing.look(b"ab" * count)] == [(52 * at, size) for at, size in enumerate(ends)]


def test_a_long_key_is_found_by_its_lines_and_pieces() -> None:
    """A key that was indented, cut in half or wrapped anew is found; whole, it is one mark."""
    seeing = watch(key=PEM)
    middle = PEM.splitlines()[7]
    for text in (PEM, PEM.replace("\n", "\n    "), PEM[300:], json.dumps(PEM), PEM.replace("\n", "\r\n"), middle):
        assert {hit.id for hit in seeing.look(text.encode())} == {"key"}
    assert seeing.text(f"<{PEM}>") == ("<[redacted:key]>", Counter(key=1))
    assert seeing.look(PEM.splitlines()[0].encode()) == ()  # the control: the head of any key


def test_of_a_long_value_each_piece_is_found() -> None:
    """Of 5000 characters no 2048 in a row can leave."""
    value = secrets.token_hex(2500)
    seeing = watch(long=value)
    assert all(seeing.look(value[at : at + 2048].encode()) for at in range(0, 5000 - 2048, 500))
    assert seeing.text(f"<{value}>") == ("<[redacted:long]>", Counter(long=1))


def test_plain_data_has_marks_in_texts_and_keys() -> None:
    """Keys, nested lists and texts; what was not found is what it was."""
    value = {CANARY: [1, None, True, 2.5, {"a": f"x{CANARY}y"}], "b": "c"}
    assert watch().value(value) == ({MARK: [1, None, True, 2.5, {"a": f"x{MARK}y"}], "b": "c"}, Counter(orders=2))


def test_no_entry_goes_missing_when_keys_become_one() -> None:
    """Two keys that differ only in the spelling of the secret are two marks."""
    assert watch().value({CANARY: 1, CANARY.upper(): 2, MARK: 3})[0] == {MARK: 1, f"{MARK}~2": 2, f"{MARK}~3": 3}


@pytest.mark.parametrize("number", [314159265358979, -314159265358979, 314159265358979.0])
def test_a_number_that_is_a_secret_cannot_be_redacted(number: float) -> None:
    """No mark can stand in place of a number: it is named, and asking for a mark raises."""
    seeing = watch(account="314159265358979")
    assert (seeing.numeric, seeing.numbers({"a": [number]}), seeing.numbers([True, 1, 2.5])) == (True, ("account",), ())
    with pytest.raises(Unredactable) as caught:
        seeing.value({"a": [number]})
    assert caught.value.ids == ("account",)
    assert seeing.value({"a": [1]}) == ({"a": [1]}, Counter())


def test_numbers_are_not_looked_at_when_no_secret_is_one() -> None:
    """Values with letters cannot be the digits of a number."""
    assert (watch().numeric, watch().numbers([314159265358979])) == (False, ())


def test_a_receipt_stays_canonical() -> None:
    """Marks in its texts, keys and numbers; the same bytes where nothing was found."""
    seeing = watch(orders=CANARY, account="314159265358979")
    receipt = {CANARY: 1, "a": [f"<{CANARY}>", 314159265358979], "b": {"c": 1.5}}
    expected = {MARK: 1, "a": [f"<{MARK}>", "[redacted:account]"], "b": {"c": 1.5}}
    assert seeing.line(spelled(receipt)) == spelled(expected)
    assert seeing.line(b'{"a":1}') == b'{"a":1}'


def test_a_receipt_shows_no_value_that_its_own_escapes_make() -> None:
    """A line break is spelled with an n: the text before a value's second letter would show it all."""
    value = "n" + secrets.token_hex(12)
    assert watch(orders=value).line(spelled({"a": "\n" + value[1:], "b": "c"})) == spelled({"a": MARK, "b": "c"})


def test_a_receipt_of_which_nothing_can_be_kept_says_whose_it_was() -> None:
    """A value that is made of JSON's own signs, or a line that is no JSON: the IDs alone are written."""
    signs = '"aaa":"bbbb"'
    assert watch(orders=signs).line(b"{" + signs.encode() + b"}") == b'{"redacted":["orders"]}'
    assert watch().line(b"no JSON " + CANARY.encode()) == b'{"redacted":["orders"]}'


def test_no_half_of_a_character_is_left() -> None:
    """A spelling that ends inside a character takes the character with it."""
    value = "\u0181abcdefg"  # in UTF-16 its first byte is the second one of the letter below in UTF-8
    text = "\u00c1\x01" + "\0".join("abcdefg")
    assert watch(orders=value).text(f"<{text}>") == (f"<{MARK}>", Counter(orders=1))


def test_a_watch_shows_no_value() -> None:
    """Neither a repr nor a copy of it."""
    seeing = watch()
    assert CANARY not in repr(seeing) + repr(seeing._needles)
    for taken in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            taken(seeing)
        with pytest.raises(TypeError):
            taken(seeing._needles)


def test_the_shipped_shapes_leave_their_marks_alone() -> None:
    """A mark is never a hit, so looking twice changes nothing."""
    for kind in SHAPES.shapes:
        mark = f"[redacted:shape:{kind.id}]"
        assert Watch({}, SHAPES).text(f"://{mark}@ {mark}") == (f"://{mark}@ {mark}", Counter())
