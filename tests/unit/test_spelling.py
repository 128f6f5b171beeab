"""The quick spelling of plain data, against the one that the guest carries."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import spelling
from engine.authoring import canonical

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(PLAIN)
def test_it_is_the_canonical_spelling(value: object) -> None:
    """Bytes and digest are those of the slow way, whatever the value."""
    assert (spelling.spelled(value), spelling.digest(value)) == (canonical.canonical(value), canonical.digest(value))


@pytest.mark.parametrize("value", ['\x00\x1f\x7f\u2028\ud7ff\U0010ffff"\\/', -0.0, 1e300, 5e-324, {"b": 1, "a": [], "\u00e9": {}}])
def test_the_odd_ones(value: object) -> None:
    """Escapes, signs, exponents and the order of keys."""
    assert spelling.spelled(value) == canonical.canonical(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", {1, 2}])
def test_what_is_not_plain_has_no_spelling(value: object) -> None:
    """It is refused, never written as something else."""
    with pytest.raises((ValueError, TypeError)):
        spelling.spelled(value)
