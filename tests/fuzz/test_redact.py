"""Whatever the value and wherever it stands in whatever spelling: it is found, and of what comes out nothing is.

A few seconds by default. ``STOCKADE_FUZZ_EXAMPLES=100000 python -m pytest tests/fuzz/test_redact.py`` looks longer.
"""

import base64
import html
import itertools
import json
import os
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.encodings import LONGEST_FORM, SHORTEST_FORM, forms
from engine.policy.shapes import ValueShapes, load_shapes
from engine.results.redact import Trail, Watch
from engine.spelling import spelled

EXAMPLES = int(os.environ.get("STOCKADE_FUZZ_EXAMPLES", "300"))
SHAPES = load_shapes(Path("policies"))
NONE = ValueShapes()
# letters that spellings change, and letters of two, three and four bytes; the marks' own are left out of values
LETTERS = st.sampled_from("abcXYZ0189+/=&<>\"'\\%~ _-.:@é\u0181\u20ac\U0001f600")
VALUES = st.text(LETTERS, min_size=8, max_size=60).filter(lambda text: len(set(text)) > 3)
AROUND = st.text(st.sampled_from("abcXYZ01 \n\t\"'\\%/+=é\u20ac\U0001f600"), max_size=12)
SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    json.dumps,
    lambda text: json.dumps(text, ensure_ascii=False),
    lambda text: json.dumps(json.dumps([text])),
    repr,
    ascii,
    lambda text: repr(text.encode()),
    html.escape,
    urllib.parse.quote,
    urllib.parse.quote_plus,
    lambda text: base64.b64encode(text.encode() + b"x").decode(),
    lambda text: base64.urlsafe_b64encode(b"x" + text.encode()).decode(),
    lambda text: base64.b64encode(b"xy" + text.encode() + b"z").decode(),
    lambda text: base64.b32encode(b"xyz" + text.encode()).decode(),
    lambda text: text.encode().hex(),
)
TEXTS = AROUND
DATA: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(VALUES, st.sampled_from(SPELLINGS), AROUND, AROUND)
def test_a_value_is_found_and_put_out_of_sight(value: str, spelling: Callable[[str], str], before: str, behind: str) -> None:
    """In any spelling, whatever stands around it; and the text that comes out has no hit and is left as it is."""
    watch = Watch({"made": value}, SHAPES)
    made, counts = watch.text(before + spelling(value) + behind)
    assert counts["made"] >= 1
    assert value not in made
    assert watch.text(made)[0] == made


@settings(max_examples=EXAMPLES, deadline=None)
@given(VALUES, DATA, st.data())
def test_data_and_receipts_come_out_without_the_value(value: str, data: Any, draw: st.DataObject) -> None:
    """In a key, a text, a part of a text; the receipt is canonical JSON of which nothing is a hit."""
    watch = Watch({"made": value}, NONE)
    before = draw.draw(AROUND)
    holding = {"a": [data, {before + value: value + before}], value: data}
    made, counts = watch.value(holding)
    assert (counts["made"] >= 3, watch.value(made)[0] == made, len(made)) == (True, True, 2)
    line = watch.line(spelled(holding))
    assert (watch.look(line), spelled(json.loads(line))) == ((), line)


@settings(max_examples=EXAMPLES, deadline=None)
@given(DATA)
def test_data_without_a_value_is_left_as_it_is(data: Any) -> None:
    """The control."""
    watch = Watch({"made": "never-in-the-data"}, NONE)
    assert (watch.value(data)[0], watch.line(spelled(data))) == (data, spelled(data))


@settings(max_examples=EXAMPLES, deadline=None)
@given(VALUES, st.lists(st.integers(1, 60), max_size=8), AROUND)
def test_a_value_in_parts_is_found(value: str, cuts: list[int], before: str) -> None:
    """However it is cut."""
    trail = Trail(Watch({"made": value}, SHAPES))
    places = sorted({0, *(cut for cut in cuts if cut < len(value)), len(value)})
    found = [trail.look(before.encode(), "a")]
    found += [trail.look(value[one:other].encode(), "a") for one, other in itertools.pairwise(places)]
    assert "made" in {hit.id for hits in found for hit in hits}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=40))
def test_any_bytes_are_looked_at(data: bytes, before: bytes) -> None:
    """Hits lie in the data and before it, in order; pieces say the same as the whole."""
    watch = Watch({"made": "\0\1\2abcde"}, SHAPES)
    hits = watch.look(data, before)
    assert all(-len(before) <= hit.start < hit.end <= len(data) and hit.end > 0 for hit in hits)
    assert list(hits) == sorted(hits, key=lambda hit: (hit.start, -hit.end))
    assert tuple(hit for part in watch.slices(data) for hit in part) == watch.look(data)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.text(min_size=1, max_size=300))
def test_forms_have_their_bounds(value: str) -> None:
    """Of any text at all, lone surrogates too."""
    assert all(SHORTEST_FORM <= len(form) <= LONGEST_FORM for form in forms(value))
