"""An image that may run: found, checked and accepted, for whoever starts workers of it.

Its job: from a name to the one image that the release or the policy wants, and its compiled code as an open descriptor.
Not its job: making it (``build.py``), running it (``worker/``).
Laws:
1. An image runs only as it was made, and only when it is the pinned one or the one that the policy names (tests/unit/test_image_find.py).
2. Nothing is built, compiled or fetched here: what is missing is an error that says how to make it (tests/unit/test_image_find.py).
3. Of images with the digest that a policy names, the one that was built here is taken, and none where those that were brought tell
   different things of themselves (tests/unit/test_image_find.py).
"""

import contextlib
import dataclasses
from pathlib import Path

from engine.authoring.canonical import digest
from engine.errors import EngineError
from engine.images import cache, compiling, pins, recipe
from engine.images.cache import Cache, Damaged, Entry
from engine.images.compiling import Code
from engine.outcome import error_for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shipped:
    """Where a version's own files lie: the recipes, the carried part of the engine, and the pins."""

    worker_images: Path
    engine: Path
    policies: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Image:
    """One image that may run. ``digest`` names its component's bytes, ``recipe`` what it is made of; ``python`` is the guest's version."""

    name: str
    digest: str
    recipe: str
    python: str
    modules: frozenset[str]
    packages: frozenset[str]
    entry: Entry = dataclasses.field(repr=False, compare=False)
    shipped: Shipped = dataclasses.field(repr=False, compare=False)

    @property
    def compiled(self) -> bool:
        """Whether code for this machine lies there; it is looked at by ``open_code``."""
        with contextlib.suppress(OSError):
            return compiling.folder_of(self.entry, compiling.key_of(self.entry, self.shipped.worker_images)).is_dir()
        return False

    def open_code(self) -> Code:
        """Its compiled code, hashed; close its descriptor. Raises refused.image_missing where there is none, refused.image_corrupt."""
        try:
            return compiling.open_code(self.entry, compiling.key_of(self.entry, self.shipped.worker_images))
        except FileNotFoundError:
            raise uncompiled(self.name) from None
        except Damaged as damage:
            raise corrupt(self.name, damage) from None


def find(name: str, images: Cache, shipped: Shipped, *, allowed: str | None) -> Image:
    """The image of that name. ``allowed`` is the digest that the policy names for it, None where it names none.

    Raises refused.image_missing, refused.image_unpinned or refused.image_corrupt. Reads every input of the recipe: once per engine.
    """
    found = _named(name, images, allowed) if allowed is not None else current(name, images, shipped)
    pin = pins.load_pins(shipped.policies).get(name)
    why = pins.problem(
        name=name,
        recipe=found.manifest.recipe,
        component=found.component,
        built_here=found.built_here,
        pin=pin,
        allowed=allowed,
    )
    if why is not None:
        raise error_for("refused.image_unpinned", why)
    manifest = found.manifest
    return Image(
        name=name,
        digest=found.component,
        recipe=manifest.recipe,
        python=manifest.python,
        modules=frozenset(manifest.modules),
        packages=frozenset(manifest.packages),
        entry=found,
        shipped=shipped,
    )


def missing(name: str) -> EngineError:
    """The error for an image that is not there."""
    return error_for("refused.image_missing", f"image {name} is not there: `stockade image build {name}` (about a minute)")


def uncompiled(name: str) -> EngineError:
    """The error for an image without code for this machine."""
    return error_for("refused.image_missing", f"image {name} is not compiled for this machine: `stockade image build {name}`")


def corrupt(name: str, damage: Damaged) -> EngineError:
    """The error for an image that is not as it was made."""
    return error_for("refused.image_corrupt", f"image {name}: {damage}")


def current(name: str, images: Cache, shipped: Shipped) -> Entry:
    """The image of that name that this version's recipe makes, whether or not it may run. Raises refused.image_missing or image_corrupt."""
    wanted = recipe.read(name, shipped.worker_images, shipped.engine)
    try:
        found = cache.entry(images, wanted.digest)
    except FileNotFoundError:
        raise missing(name) from None
    except Damaged as damage:
        raise corrupt(name, damage) from None
    if found.manifest.name != name:
        raise corrupt(name, Damaged(f"{found.path} is image {found.manifest.name}"))
    return found


def _named(name: str, images: Cache, allowed: str) -> Entry:
    """The image with the digest that the policy names, whatever recipe it was made by."""
    found: list[Entry] = []
    for made_of in images.present():
        with contextlib.suppress(FileNotFoundError, Damaged):  # `stockade image verify` tells of it
            found.append(cache.entry(images, made_of))
    # an image of one source serves that one alone
    named = [one for one in found if one.manifest.name == name and one.component == allowed and one.manifest.published is None]
    if not named:
        raise error_for("refused.image_missing", f"image {name} with the digest {allowed}, which the policy names, is not there")
    built = [one for one in named if one.built_here]
    # security: the policy names the bytes; whoever made the file wrote the manifest, and nothing says which of two is true
    if not built and len({_said(one) for one in named}) > 1:
        why = f"{len(named)} images with the digest {allowed} were brought from elsewhere, and they tell different things of themselves"
        raise error_for("refused.image_corrupt", f"image {name}: {why}: `stockade image prune` removes those of other versions")
    return (built or named)[0]


def _said(entry: Entry) -> str:
    """What the kind of worker is chosen by."""
    manifest = entry.manifest
    return digest([manifest.python, sorted(manifest.modules), sorted(manifest.packages)])
