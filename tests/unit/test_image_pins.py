"""Which images may run: the lock file, and the rule."""

from pathlib import Path

import pytest

from engine.images import pins
from engine.images.pins import Pin
from tests.staged import refusal

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")


@pytest.mark.parametrize(
    ("built_here", "recipe", "component", "pin", "allowed", "problem"),
    [
        (True, ONE, TWO, Pin(recipe=ONE, component=None, reason="r"), None, None),
        (True, ONE, TWO, Pin(recipe=ONE, component=THREE, reason="r"), None, None),
        (True, TWO, TWO, Pin(recipe=ONE, component=TWO, reason="r"), None, f"image a is made by the recipe {TWO}, and pinned is {ONE}"),
        (True, ONE, TWO, None, None, "image a is pinned by no release"),
        (False, ONE, TWO, Pin(recipe=ONE, component=TWO, reason="r"), None, None),
        (
            False,
            ONE,
            TWO,
            Pin(recipe=ONE, component=THREE, reason="r"),
            None,
            f"image a was brought from elsewhere, and its bytes are {TWO}: pinned is {THREE}",
        ),
        (
            False,
            ONE,
            TWO,
            Pin(recipe=ONE, component=None, reason="r"),
            None,
            f"image a was brought from elsewhere, and its bytes are {TWO}: no bytes are pinned for it",
        ),
        (False, THREE, TWO, None, TWO, None),
        (True, ONE, TWO, Pin(recipe=ONE, component=TWO, reason="r"), THREE, f"image a is {TWO}, but the policy names {THREE}"),
    ],
)
def test_the_rule(built_here: bool, recipe: str, component: str, pin: Pin | None, allowed: str | None, problem: str | None) -> None:
    """Built here: the recipe counts. Brought: the bytes count. Named by the policy: that one and no other."""
    assert pins.problem(name="a", recipe=recipe, component=component, built_here=built_here, pin=pin, allowed=allowed) == problem


def test_a_lock_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With and without pinned bytes."""
    wanted = {"b": Pin(recipe=ONE, component=TWO, reason="tested"), "a": Pin(recipe=THREE, component=None, reason="new")}
    (tmp_path / "images.lock").write_text(pins.text_of(wanted))
    assert dict(pins.load_pins(tmp_path)) == wanted


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1", "images.lock: a: want recipe, reason, and component where the bytes are pinned"),
        (f'[a]\nrecipe = "{ONE}"', "images.lock: a: want recipe, reason, and component where the bytes are pinned"),
        (f'[a]\nrecipe = "{ONE}"\nreason = "r"\nmore = 1', "images.lock: a: want recipe, reason, and component where the bytes are pinned"),
        (f'[a]\nrecipe = "{ONE}"\nreason = " "', "images.lock: a: want texts, and a reason in words"),
        ('[a]\nrecipe = "sha256:1"\nreason = "r"', "images.lock: a: a digest is sha256: and 64 hexadecimal digits"),
        ("[a", "images.lock: not TOML: Expected ']' at the end of a table declaration (at end of document)"),
    ],
)
def test_a_lock_file_that_is_not_right_lets_no_image_run(tmp_path: Path, text: str, line: str) -> None:
    """Nothing is guessed."""
    (tmp_path / "images.lock").write_text(text)
    assert refusal(pins.load_pins, tmp_path) == ("refused.policy", (line,))


def test_a_missing_lock_file_lets_no_image_run(tmp_path: Path) -> None:
    """An installation without it is incomplete."""
    assert refusal(pins.load_pins, tmp_path) == ("refused.policy", ("images.lock: cannot be read: No such file or directory",))
