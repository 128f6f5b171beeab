"""``policies/images.lock``, made from the recipes; ``python -m tests.house.image_lock`` writes it again (`make image-lock`).

A pin keeps its component while its recipe is the same. With ``--build`` each image is built, and its component is pinned.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from engine.images import build, pins, recipe
from engine.images.builder import Means
from engine.images.cache import Cache, default_folder
from engine.images.pins import Pin
from engine.images.telling import Nobody
from tests.house.reading import PROJECT

_REASON = "the recipe of this release, as its tests have it"


def wanted(root: Path, before: Mapping[str, Pin]) -> dict[str, Pin]:
    """A pin for each recipe of the tree."""
    found = {}
    for name in recipe.names(root / "worker_images"):
        digest = recipe.read(name, root / "worker_images", root / "engine").digest
        old = before.get(name)
        found[name] = old if old and old.recipe == digest else Pin(recipe=digest, component=None, reason=old.reason if old else _REASON)
    return found


def built(root: Path, pinned: Mapping[str, Pin], cache: Cache) -> dict[str, Pin]:
    """The same with the component of each image, which is built unless it is in the cache."""
    found = {}
    for name, pin in pinned.items():
        read = recipe.read(name, root / "worker_images", root / "engine")
        made = build.build(read, cache, root / "worker_images", Means(environment=os.environ), Nobody())
        found[name] = Pin(recipe=pin.recipe, component=made.component, reason=pin.reason)
    return found


def rewrite(root: Path, *, build_them: bool, cache: Cache) -> None:
    """Write the lock file of that tree."""
    path = root / "policies" / pins.LOCK
    pinned = wanted(root, pins.load_pins(path.parent))
    path.write_text(pins.text_of(built(root, pinned, cache) if build_them else pinned), encoding="utf-8")


if __name__ == "__main__":
    rewrite(PROJECT, build_them="--build" in sys.argv[1:], cache=Cache(folder=default_folder()))
