"""Limits and their units."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import PolicyError
from engine.limits import KERNEL_HELD, LIMIT_NAMES, Limits, parse_size, parse_time, tighter

LIMITS = st.builds(Limits, **{name: st.integers(1, 1 << 53) for name in LIMIT_NAMES})


@pytest.mark.parametrize("value", [0, -1, (1 << 53) + 1, 1.5, float("nan"), float("inf"), True, None, "5"], ids=repr)
@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_only_finite_positive_whole_numbers_are_limits(name: str, value: object) -> None:
    """No value means "none", and a bool is no number."""
    with pytest.raises(PolicyError) as caught:
        Limits(**{name: value})  # type: ignore[arg-type]  # wrong on purpose
    assert (caught.value.code, caught.value.lines) == (
        "refused.policy",
        (f"limit {name} must be a whole number from 1 to 2^53, not {value!r}",),
    )


@pytest.mark.parametrize("value", [1, 1 << 53])
def test_the_ends_of_the_range_are_limits(value: int) -> None:
    """Control: the smallest and the largest amount are allowed."""
    assert dataclasses.asdict(Limits(**dict.fromkeys(LIMIT_NAMES, value))) == dict.fromkeys(LIMIT_NAMES, value)


@given(LIMITS, LIMITS)
def test_tighter_is_the_smaller_of_each(first: Limits, second: Limits) -> None:
    """Neither input is exceeded, and the order does not matter."""
    made = tighter(first, second)
    assert made == tighter(second, first)
    assert {name: getattr(made, name) for name in LIMIT_NAMES} == {
        name: min(getattr(first, name), getattr(second, name)) for name in LIMIT_NAMES
    }


def test_what_the_kernel_holds_are_limits() -> None:
    """Each is a field of the record."""
    assert set(LIMIT_NAMES) >= KERNEL_HELD


@pytest.mark.parametrize(
    ("text", "size"),
    [(4096, 4096), ("512", 512), ("512 B", 512), ("64 KiB", 65536), ("1MiB", 1 << 20), ("2 GiB", 2 << 30), ("0", 0)],
)
def test_sizes(text: object, size: int) -> None:
    """Whole numbers with binary units, one space or none."""
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "time"), [("200 ms", 200), ("30 s", 30_000), ("2min", 120_000)])
def test_times(text: object, time: int) -> None:
    """Whole numbers with their unit, in milliseconds."""
    assert parse_time(text) == time


@pytest.mark.parametrize(
    "text", ["64 MB", "1.5 MiB", "-1", "", "1  KiB", "KiB", "1 KiB ", "1" * 16, 1.0, True, None, [], "٣ MiB"], ids=repr
)
def test_what_is_no_size(text: object) -> None:
    """Decimal units, fractions, signs and foreign digits refuse and name the units."""
    with pytest.raises(PolicyError) as caught:
        parse_size(text)
    assert (caught.value.code, "'64 KiB'" in caught.value.lines[0]) == ("refused.policy", True)


@pytest.mark.parametrize("text", ["30", 30, "1 h", "1 S", None], ids=repr)
def test_what_is_no_time(text: object) -> None:
    """A time without its unit refuses: nobody can know whether it was seconds."""
    with pytest.raises(PolicyError) as caught:
        parse_time(text)
    assert (caught.value.code, "'200 ms'" in caught.value.lines[0]) == ("refused.policy", True)
