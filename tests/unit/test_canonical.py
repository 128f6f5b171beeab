"""The canonical spelling of plain data, and its digest."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.authoring.canonical import canonical, digest

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=25)


@given(DATA)
def test_it_is_the_json_of_the_standard_library(value: Any) -> None:
    """The bytes are those of json.dumps with sorted keys, no spaces and no ASCII escapes."""
    assert canonical(value) == json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@given(DATA)
def test_the_digest_is_sha256_of_the_bytes(value: Any) -> None:
    """The digest is that of hashlib over the canonical bytes."""
    assert digest(value) == "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


@given(st.dictionaries(TEXTS, SCALARS), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], random: Any) -> None:
    """Any order of the same keys has the same digest."""
    items = list(value.items())
    random.shuffle(items)
    assert digest(dict(items)) == digest(value)


def test_a_tuple_is_written_as_a_list() -> None:
    """Frozen records hold tuples where the data has lists."""
    assert canonical({"a": (1, ("x",))}) == b'{"a":[1,["x"]]}'


def test_true_is_not_one() -> None:
    """Values that Python holds for equal have different digests when JSON tells them apart."""
    assert len({digest(value) for value in (1, 1.0, True, "1", [1])}) == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "a float that is not finite"),
        (float("-inf"), "a float that is not finite"),
        (b"", "a bytes is not plain data"),
        ({1: 2}, "a key of type int is not plain data"),
        ([{"a": {1}}], "a set is not plain data"),
    ],
    ids=str,
)
def test_what_is_no_data_refuses(value: object, text: str) -> None:
    """Anything outside plain data is a ValueError that says what it met."""
    with pytest.raises(ValueError, match=f"^{text}$"):
        canonical(value)


def test_subclasses_are_not_their_base() -> None:
    """A subclass may lie about what it holds, so only exact types are written."""
    with pytest.raises(ValueError, match=r"^a Shout is not plain data$"):
        canonical(Shout("a"))


class Shout(str):
    """A text with an opinion."""

    __slots__ = ()


def test_lone_surrogates_refuse() -> None:
    """Half of a surrogate pair has no UTF-8."""
    with pytest.raises(ValueError, match="surrogates not allowed"):
        canonical(["\ud800"])


def test_depth_costs_no_stack_up_to_its_bound() -> None:
    """512 levels are written, 513 and a list that holds itself refuse."""
    value: list[Any] = []
    for _ in range(511):
        value = [value]
    assert canonical(value) == b"[" * 512 + b"]" * 512
    with pytest.raises(ValueError, match="deeper than 512"):
        canonical([value])
    value.append(value)
    with pytest.raises(ValueError, match="deeper than 512"):
        canonical(value)
