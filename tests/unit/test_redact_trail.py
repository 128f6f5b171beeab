"""A secret that leaves in parts: over several items, over the texts of one item, over pieces of output."""

import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.policy.shapes import Starts, ValueShape, ValueShapes, load_shapes
from engine.results.redact import Hit, Trail, Watch, blotted, remains, streams

CANARY = secrets.token_hex(12).swapcase() + "Zz" + secrets.token_hex(4)
NONE = ValueShapes()
WATCH = Watch({"orders": CANARY}, NONE)
MARK = "[redacted:orders]"


def found(*items: Any, carrier: str = "partial", watch: Watch = WATCH) -> list[list[str]]:
    """The IDs that each of the items brought."""
    trail = Trail(watch)
    return [sorted({hit.id for hit in trail.item(item, carrier)}) for item in items]


@pytest.mark.parametrize("at", [1, 8, len(CANARY) - 1])
def test_a_value_over_two_texts_is_found_with_the_second(at: int) -> None:
    """The hit starts before the text."""
    trail = Trail(WATCH)
    assert trail.look(b"x" + CANARY[:at].encode()) == ()
    assert trail.look(CANARY[at:].encode() + b"y") == (Hit(id="orders", certain=True, start=-at, end=len(CANARY) - at),)
    assert trail.look(b"more") == ()


def test_a_value_of_one_character_per_item_is_found_with_the_last() -> None:
    """Item after item, in texts and in keys."""
    assert found(*CANARY) == [[]] * (len(CANARY) - 1) + [["orders"]]
    assert found(*({"n": 1, "t": letter} for letter in CANARY)) == [[]] * (len(CANARY) - 1) + [["orders"]]
    assert found(*({letter: 1} for letter in CANARY)) == [[]] * (len(CANARY) - 1) + [["orders"]]


@pytest.mark.parametrize(
    "item",
    [
        list(CANARY),
        {"a": CANARY[:9], "b": [{"c": CANARY[9:]}]},
        [{"c": letter} for letter in CANARY],
        {CANARY[:9]: 1, CANARY[9:]: 2},
        {"a": {CANARY[:9]: {CANARY[9:]: 1}}},
        [CANARY[:9], 1, None, 2.5, CANARY[9:]],
        [CANARY.encode().hex()[:9], CANARY.encode().hex()[9:]],
    ],
)
def test_a_value_over_the_texts_of_one_item_is_found(item: Any) -> None:
    """In the order in which the texts stand there, keys by themselves."""
    assert found(item) == [["orders"]]


@pytest.mark.parametrize(
    "item",
    [{CANARY[:9]: CANARY[9:]}, [CANARY[:9], {CANARY[9:]: 1}], {"a": {CANARY[:5]: [CANARY[5:9], {CANARY[9:20]: {CANARY[20:]: 1}}]}}],
)
def test_a_value_over_keys_and_texts_in_turn_is_found(item: Any) -> None:
    """As they stand there, one behind the other; also with a part of it in an earlier item that had no key."""
    assert found(item) == [["orders"]]
    assert found(["a", CANARY[:9]], {CANARY[9:]: 1}) == [[], ["orders"]]
    assert found({"a": CANARY[:9]}, {CANARY[9:]: 1}) == [[], ["orders"]]


def test_carriers_do_not_mix() -> None:
    """Halves in two carriers are no value in either; each carrier goes on where it ended."""
    trail = Trail(WATCH)
    half, rest = CANARY[:9].encode(), CANARY[9:].encode()
    assert [trail.look(half, "log"), trail.look(rest, "progress"), trail.look(half, "progress")] == [(), (), ()]
    assert [hit.id for hit in trail.look(rest, "log")] == ["orders"]


def test_what_is_remembered_is_enough_for_the_longest_spelling_and_bounded() -> None:
    """However much went out before."""
    trail = Trail(WATCH)
    spelt = "".join(f"\\u{ord(letter):04x}" for letter in CANARY).encode()
    assert trail.look(b"x" * 100_000 + spelt[:-1]) == ()
    assert len(trail._ends[""]) == WATCH.reach - 1
    assert [hit.id for hit in trail.look(spelt[-1:])] == ["orders"]


def test_a_certain_shape_in_parts_is_found_and_an_uncertain_one_is_not() -> None:
    """Two texts make something that is only likely a secret too often by chance."""
    for certain, ids in ((True, ["shape:made"]), (False, [])):
        made = ValueShape(id="made", prefixes=("canary-",), starts=Starts.WORD, follows="[a-f]{20,400}", certain=certain)
        assert found("can", "ary-abcde", "f" * 14, "ff", watch=Watch({}, ValueShapes(shapes=(made,))))[:4] == [[], [], [], ids]


def test_the_shipped_shapes_are_found_in_parts() -> None:
    """A key in PEM, line by line."""
    shapes = load_shapes(Path("policies"))
    lines = ["-----BEGIN " + "PRIVATE KEY-----\n", *(secrets.token_hex(32) + "\n" for _ in range(3))]
    assert ["shape:private_key"] in found(*lines, watch=Watch({}, shapes))
    assert Watch({}, shapes).reach < 256


def test_printed_text_that_goes_on_is_redacted() -> None:
    """Of a value that began in the last piece of output the rest has a mark; the beginning is out."""
    trail = Trail(WATCH)
    assert trail.text("a " + CANARY[:9], "stdout") == ("a " + CANARY[:9], Counter())
    assert trail.text(CANARY[9:] + " b " + CANARY, "stdout") == (f"{MARK} b {MARK}", Counter(orders=2))
    assert trail.text(CANARY[9:], "stdout") == (CANARY[9:], Counter())


def test_the_texts_of_an_item_are_joined_in_their_order() -> None:
    """Texts without keys, keys without texts, both in turn."""
    item = {"a": ["b", {"c": "d"}, ("e",)], "f": 1, "g": "h"}
    assert streams(item) == (b"bdeh", b"acfg", b"abcdefgh")
    assert (streams("x"), streams(1), streams([])) == ((b"x", b"", b"x"), (b"", b"", b""), (b"", b"", b""))


def test_of_very_many_texts_all_are_joined() -> None:
    """A value in the middle of ten thousand is found."""
    assert found(["x"] * 5000 + list(CANARY) + ["x"] * 5000) == [["orders"]]
    assert found(["x"] * 5000 + [CANARY[:9]], [CANARY[9:]] + ["x"] * 5000) == [[], ["orders"]]


def test_another_trail_goes_on_by_itself() -> None:
    """What it is shown, the first one does not remember."""
    trail = Trail(WATCH)
    trail.look(CANARY[:9].encode())
    other = trail.fork()
    assert [hit.id for hit in other.look(CANARY[9:].encode())] == ["orders"]
    assert [hit.id for hit in trail.look(CANARY[9:].encode())] == ["orders"]


@pytest.mark.parametrize("item", [CANARY, {CANARY: 1}, [*CANARY], {CANARY[:9]: CANARY[9:]}, [ord(letter) for letter in CANARY]])
def test_what_remains_is_named(item: Any) -> None:
    """Whole, in parts, in codes as a frame holds them; of what only looks like it, nothing."""
    assert (remains(WATCH, ["a", item]), remains(WATCH, ["a", CANARY[1:]])) == (("orders",), ())


def test_blotted_data_keeps_its_shape_and_all_its_entries() -> None:
    """Texts alone, or keys as well."""
    item = {"a": ["b", 1, None], "c": {"d": "e"}}
    assert blotted(item, "orders", keys=False) == {"a": [MARK, 1, None], "c": {"d": MARK}}
    assert blotted(item, "orders", keys=True) == {MARK: [MARK, 1, None], f"{MARK}~2": {MARK: MARK}}


def test_a_trail_shows_no_text() -> None:
    """A part of a value stands in what it remembers."""
    trail = Trail(WATCH)
    trail.look(CANARY[:9].encode(), "log")
    assert repr(trail) == "Trail(['log'])"
