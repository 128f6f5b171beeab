"""Which images may run: those a release was tested with (``policies/images.lock``), and those that an operator names.

Its job: the lock file, read strictly and written anew; the rule by which an image is accepted.
Not its job: whether an image is what its digest says (``cache.py``).
Laws:
1. An image that was built here runs when its recipe is the pinned one (tests/unit/test_image_pins.py).
2. An image that was brought from elsewhere runs when its bytes are the pinned ones; nobody's pin is no pin (tests/unit/test_image_pins.py).
3. Where the policy names a digest, that image runs and no other (tests/unit/test_image_pins.py).
"""

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from engine.outcome import error_for

LOCK = "images.lock"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HEAD = """\
# What this release was tested with, written by `make image-lock`. An image that differs runs only where a policy names its digest.
# recipe: the digest of everything an image is made of. component: the digest of the bytes, which an image brought from elsewhere must have.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pin:
    """What the lock file says of one image. Without a component no image that was brought from elsewhere is the pinned one."""

    recipe: str
    component: str | None
    reason: str


def load_pins(policies: Path) -> Mapping[str, Pin]:
    """The pins by the name of the image. Raises refused.policy: without a lock file that can be read no image runs."""
    try:
        document = tomllib.loads((policies / LOCK).read_text(encoding="utf-8"))
    except OSError as error:
        _refuse(f"cannot be read: {error.strerror}")
    except ValueError as error:
        _refuse(f"not TOML: {error}")
    return MappingProxyType({name: _pin(name, entry) for name, entry in document.items()})


def _pin(name: str, entry: object) -> Pin:
    wanted = {"recipe", "component", "reason"}
    if not isinstance(entry, dict) or not {"recipe", "reason"} <= entry.keys() <= wanted:
        _refuse(f"{name}: want recipe, reason, and component where the bytes are pinned")
    if not all(isinstance(value, str) and value.strip() for value in entry.values()):
        _refuse(f"{name}: want texts, and a reason in words")
    if not all(_DIGEST.fullmatch(entry[key]) for key in ("recipe", "component") if key in entry):
        _refuse(f"{name}: a digest is sha256: and 64 hexadecimal digits")
    return Pin(recipe=entry["recipe"], component=entry.get("component"), reason=entry["reason"])


def _refuse(why: str) -> NoReturn:
    raise error_for("refused.policy", f"{LOCK}: {why}")


def text_of(pins: Mapping[str, Pin]) -> str:
    """The lock file that says this."""
    parts = [_HEAD]
    for name, pin in sorted(pins.items()):
        lines = [f"[{name}]", f'recipe = "{pin.recipe}"', *([f'component = "{pin.component}"'] if pin.component else [])]
        parts.append("\n".join([*lines, f'reason = "{pin.reason}"', ""]))
    return "\n".join(parts)


def problem(*, name: str, recipe: str, component: str, built_here: bool, pin: Pin | None, allowed: str | None) -> str | None:
    """Why this image may not run, or None. ``allowed`` is the digest that the policy names for it."""
    if allowed is not None:
        return None if component == allowed else f"image {name} is {component}, but the policy names {allowed}"
    if pin is None:
        return f"image {name} is pinned by no release"
    if recipe != pin.recipe:
        return f"image {name} is made by the recipe {recipe}, and pinned is {pin.recipe}"
    if built_here or component == pin.component:
        return None
    told = f"pinned is {pin.component}" if pin.component else "no bytes are pinned for it"
    return f"image {name} was brought from elsewhere, and its bytes are {component}: {told}"
