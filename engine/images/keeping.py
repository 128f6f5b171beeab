"""What lies in a cache of images: an overview, a whole look through it, and the removal of what nobody needs.

Its job: each image of this version and each other one that is there, as rows; every digest again; pruning.
Not its job: printing (``faces/images.py``), making what is missing (``build.py``).
Laws:
1. A look through names every file that is wrong, not the first alone (tests/unit/test_image_keeping.py).
2. Pruning keeps what this version names and this machine uses, unless all is to go (tests/unit/test_image_keeping.py).
3. The image of a source is kept as long as the image below it is this version's (tests/unit/test_publishing.py).
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.images import cache, compiling, pins, recipe
from engine.images.build import sound
from engine.images.builder import Means, keys_in_use
from engine.images.cache import COMPILED, Cache, Damaged, Entry
from engine.images.image import Shipped
from engine.images.manifest import Published
from engine.images.publishing import key_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One image of this version, or one that lies here. ``problem`` says why it cannot be used; ``pinned`` that it may run unasked."""

    name: str
    recipe: str
    current: bool
    entry: Entry | None
    pinned: bool
    compiled: bool
    size: int
    problem: str | None

    @property
    def published(self) -> Published | None:
        """The source that it was made for, where it was made for one."""
        return self.entry.manifest.published if self.entry else None


def rows(images: Cache, shipped: Shipped) -> tuple[Row, ...]:
    """This version's images by name, then whatever else is here. Nothing is hashed but manifests."""
    wanted = {name: recipe.read(name, shipped.worker_images, shipped.engine).digest for name in recipe.names(shipped.worker_images)}
    locked = pins.load_pins(shipped.policies)
    others = [digest for digest in images.present() if digest not in wanted.values()]
    found = [_row(name, digest, images, shipped, locked.get(name), current=True) for name, digest in wanted.items()]
    rest = [_row("", digest, images, shipped, None, current=False) for digest in others]
    return (*found, *(_published_row(row, row.published, wanted, locked, shipped) if row.published else row for row in rest))


def _published_row(row: Row, source: Published, wanted: Mapping[str, str], locked: Mapping[str, pins.Pin], shipped: Shipped) -> Row:
    """The image of a source is this version's, and pinned, when the image below it is."""
    built_here, pin = row.entry is not None and row.entry.built_here, locked.get(row.name)
    return dataclasses.replace(
        row,
        current=wanted.get(row.name) == source.base and key_of(source, shipped.worker_images) == row.recipe,
        pinned=built_here and pin is not None and pin.recipe == source.base,
    )


def _row(name: str, digest: str, images: Cache, shipped: Shipped, pin: pins.Pin | None, *, current: bool) -> Row:
    entry, problem = None, None
    try:
        entry = cache.entry(images, digest)
    except FileNotFoundError:
        problem = "not built"
    except Damaged as damage:
        problem = str(damage)
    called = entry.manifest.name if entry else name
    told = pins.problem(
        name=called,
        recipe=digest,
        component=entry.component if entry else "",
        built_here=entry is None or entry.built_here,
        pin=pin,
        allowed=None,
    )
    return Row(
        name=called,
        recipe=digest,
        current=current,
        entry=entry,
        pinned=told is None,
        compiled=entry is not None and compiling.folder_of(entry, compiling.key_of(entry, shipped.worker_images)).is_dir(),
        size=_size(images.place(digest)),
        problem=problem,
    )


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def problems(row: Row, images: Cache, shipped: Shipped) -> Iterator[str]:
    """Hash every file of one image again; a line for each that is wrong."""
    try:
        entry = sound(images, row.recipe)
    except FileNotFoundError:
        return
    except Damaged as damage:
        yield str(damage)
        return
    key = compiling.key_of(entry, shipped.worker_images)
    try:
        os.close(compiling.open_code(entry, key).descriptor)
    except FileNotFoundError:
        again = f"image build {entry.manifest.name}" if row.published is None else "image publish SOURCE"
        yield f"{entry.path} is not compiled for this machine: `stockade {again}`"
    except Damaged as damage:
        yield str(damage)


def prune(images: Cache, shipped: Shipped, means: Means, *, everything: bool) -> list[Path]:
    """Remove images of other versions, code for other machines and settings, and builders that no recipe uses; gives what went."""
    recipes = (
        [] if everything else [recipe.read(name, shipped.worker_images, shipped.engine) for name in recipe.names(shipped.worker_images)]
    )
    wanted = {one.digest for one in recipes}
    if not everything:
        wanted |= {row.recipe for row in rows(images, shipped) if row.published and row.current}
    gone = [images.place(digest) for digest in images.present() if digest not in wanted]
    for digest in wanted & set(images.present()):
        with contextlib.suppress(FileNotFoundError, Damaged):
            gone += _old_code(cache.entry(images, digest), shipped)
    pinned = {one.files[one.requirements] for one in recipes}
    pinned |= {one.files["packages/requirements.txt"] for one in recipes if one.packages}
    leasts = {one.python for one in recipes} | {recipe.COLLECTING_PYTHON}
    used = keys_in_use(images, pinned, means, leasts) if recipes and any(images.builders.iterdir()) else set()
    gone += [path for path in sorted(images.builders.iterdir()) if path.name not in used]
    for path in gone:
        shutil.rmtree(path)
    return gone


def _old_code(entry: Entry, shipped: Shipped) -> list[Path]:
    used = compiling.folder_of(entry, compiling.key_of(entry, shipped.worker_images))
    folder = entry.path / COMPILED
    return [path for path in sorted(folder.iterdir()) if path != used] if folder.is_dir() else []
