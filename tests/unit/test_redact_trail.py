"""A secret that leaves in parts: over several items, over the texts of one item, over pieces of output."""

import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.policy.shapes import Starts, ValueShape, ValueShapes, load_shapes
from engine.results.redact import MOST_TEXTS, Hit, Trail, Watch, joined

CANARY = secrets.token_hex(12).swapcase() + "Zz" + secrets.token_hex(4)
NONE = ValueShapes()
WATCH = Watch({"orders": CANARY}, NONE)
MARK = "[redacted:orders]"


def found(*items: Any, carrier: str = "partial", watch: Watch = WATCH) -> list[list[str]]:
    """The IDs that each of the items brought."""
    trail = Trail(watch)
    return [[hit.id for hit in trail.item(item, carrier)] for item in items]


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


def test_keys_and_texts_in_turn_are_not_joined() -> None:
    """What is said not to be caught: one half in a key, the other in its value."""
    assert found({CANARY[:9]: CANARY[9:]}) == [[]]


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
        assert found("can", "ary-abc", "d" * 16, "dd", watch=Watch({}, ValueShapes(shapes=(made,))))[:4] == [[], [], [], ids]


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
    """Texts without keys, or keys without texts."""
    item = {"a": ["b", {"c": "d"}, ("e",)], "f": 1, "g": "h"}
    assert (joined(item), joined(item, keys=True), joined("x"), joined(1), joined([])) == (b"bdeh", b"acfg", b"x", b"", b"")


def test_of_very_many_texts_both_ends_are_joined() -> None:
    """A split inside either end is found, also over its border to the next item; one in the middle is not."""
    half = MOST_TEXTS // 2
    numbers = [str(number) for number in range(MOST_TEXTS + 10)]
    assert joined(numbers) == "".join(numbers[:half] + numbers[-half:]).encode()
    assert joined({number: number for number in numbers}, keys=True) == joined(numbers)
    assert found(["x"] * MOST_TEXTS + [CANARY[:9]], [CANARY[9:]] + ["x"] * MOST_TEXTS) == [[], ["orders"]]
    assert found(["x"] * MOST_TEXTS + list(CANARY) + ["x"] * MOST_TEXTS) == [[]]


def test_a_trail_shows_no_text() -> None:
    """A part of a value stands in what it remembers."""
    trail = Trail(WATCH)
    trail.look(CANARY[:9].encode(), "log")
    assert repr(trail) == "Trail(['log'])"
