"""Images of one source each: made by importing it beforehand, found again when everything is as it was made from.

Its job: the key of such an image, making one from a base image's recipe, finding the one that may run in the base's place.
Not its job: staging and describing the source (``loading.py``), the wall around its import (``wall.py``), which base runs (``image.py``).
Laws:
1. Whatever such an image is made of names it: the base's recipe, bundle, layers, entry, and what makes it (tests/unit/test_publishing.py).
2. One runs only when it was made on this machine, for this very source, from the recipe of the base that may run; else the base does
   (tests/unit/test_publishing.py).
3. Nothing of the source runs but behind the wall (tests/security/test_publishing.py).
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from engine.authoring.canonical import digest
from engine.images import build, cache, pins, recipe
from engine.images.builder import Means
from engine.images.cache import COMPONENT, Cache, Damaged, Entry
from engine.images.image import Image
from engine.images.manifest import Manifest, Published
from engine.images.telling import Told
from engine.images.wall import wall
from engine.outcome import error_for

PROGRAM = "publish/main.py"
_SECONDS = 600  # an import that only waits uses none of the processor time by which the wall holds it
_PARTS = (PROGRAM, "wasm/sources.py")  # what decides, beside the recipe, how a source gets into an image


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A source that is staged and checked: the digests that name it, and where it lies. ``sites`` are its layers' folders by name."""

    bundle: str
    entry: str
    layers: Mapping[str, str]
    place: Path
    sites: Mapping[str, Path]

    def on(self, base: str) -> Published:
        """What an image of it says that it was made for, on the image of that recipe."""
        return Published(base=base, bundle=self.bundle, layers=self.layers, entry=self.entry)


def key_of(published: Published, worker_images: Path) -> str:
    """Names an image of a source in a cache."""
    made_by = {name: hashlib.sha256((worker_images / name).read_bytes()).hexdigest() for name in _PARTS}
    return digest({"format": recipe.FORMAT, "published": published.data, "made_by": made_by})


def publish(source: Source, base: Image, into: Cache, means: Means, told: Told) -> Entry:
    """The image of this source on that base, made unless it is there, and compiled for this machine.

    Raises refused.image_build with what went wrong, the words of the source's import among it; refused.storage.
    """
    shipped = base.shipped
    wanted = recipe.read(base.name, shipped.worker_images, shipped.engine)
    if wanted.digest != base.recipe or not _trusted(base):
        why = f"image {base.name} is made by the recipe {base.recipe}, and this version's is {wanted.digest}"
        raise error_for(
            "refused.image_build", f"{why}: a source is published on an image of this version that was built here, or is pinned"
        )
    published = source.on(base.recipe)
    key = key_of(published, shipped.worker_images)
    return build.once(key, into, shipped.worker_images, told, lambda: _make(key, source, base, wanted, into, means, told))


def _make(key: str, source: Source, base: Image, wanted: recipe.Recipe, into: Cache, means: Means, told: Told) -> None:
    worker_images, name = base.shipped.worker_images, f"{base.name} for {source.entry}"
    with cache.making(into.images) as work:
        builder, packages = build.gathered(wanted, work, into, means, told)
        made, component = work / "made", work / "out" / COMPONENT
        made.mkdir(mode=0o700)
        spec = {
            **build.spec_of(packages, work),
            "out": str(component),
            "source": str(source.place),
            "layers": {layer: str(site) for layer, site in source.sites.items()},
            "entry": source.entry,
            # security: the builder imports the source in a runtime of its own, on this machine and outside of any jail
            "wall": wall(base.shipped.policies),
        }
        told.step(f"building {name}: its source is imported once, behind a wall")
        build.run_builder(name, builder, worker_images / PROGRAM, spec, work, told, seconds=_SECONDS)
        piece = build.piece_of(name, component)
        os.rename(component, made / COMPONENT)
        known = base.entry.manifest  # what a guest offers was found out without the source, and is not asked of an image that ran it
        manifest = Manifest(
            name=base.name,
            recipe=key,
            inputs=wanted.inputs,
            packages=known.packages,
            component=piece,
            python=known.python,
            modules=known.modules,
            tools=builder.versions,
            published=source.on(base.recipe),
        )
        cache.write_record(made, manifest, built_here=True)
        cache.put(made, into.place(key))


def find(source: Source, base: Image, images: Cache) -> Image | None:
    """The image to run in the base's place, or None: there is none, it is for something else, or it is not as it was made."""
    published = source.on(base.recipe)
    key = key_of(published, base.shipped.worker_images)
    try:
        found = cache.entry(images, key)
    except (FileNotFoundError, Damaged):
        return None  # `stockade image verify` tells of it
    # security: bytes from elsewhere never stand for a source that was checked here, whatever their manifest says of it
    if not found.built_here or found.manifest.published != published or found.manifest.name != base.name or not _trusted(base):
        return None
    image = dataclasses.replace(base, digest=found.component, recipe=key, entry=found)
    return image if image.compiled else None


def _trusted(base: Image) -> bool:
    """Whether the base's recipe is one to build on: the pinned one, or that of an image that was built here and that the policy names."""
    if base.entry.built_here:
        return True
    # security: the manifest of an image from elsewhere may name any recipe; the policy that allows its bytes has not allowed those
    pin = pins.load_pins(base.shipped.policies).get(base.name)
    return pin is not None and pin.recipe == base.recipe
