"""Builds one image: the same inputs once per cache, whole or not at all, and compiled for this machine.

Its job: the order of the steps, each from the bytes that the recipe's digest names; the manifest of what came out.
Not its job: each step (the modules beside this one), the builder itself (``worker_images/<image>/build.py``), pinning (``pins.py``).
Laws:
1. Two builds at once are one build: the second waits, says so, and finds the first one's result (tests/unit/test_image_build.py).
2. What is interrupted leaves nothing half, and the next one begins anew (tests/unit/test_image_build.py).
3. A builder that makes nothing, something too large or no component leaves the cache as it was (tests/unit/test_image_build.py).
4. What was brought from elsewhere and may not run is no built image: it is made here in its place (tests/unit/test_image_build.py).
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import one_line
from engine.images import cache, compiling, running
from engine.images.builder import Builder, Means, builder_for
from engine.images.cache import COMPONENT, Cache, Damaged, Entry, sha256_of
from engine.images.manifest import COMPONENT_BYTES, Manifest, Piece, Unsound, parse
from engine.images.packages import Collected, collect
from engine.images.pins import Pin, problem
from engine.images.recipe import COLLECTING_PYTHON, Recipe
from engine.images.telling import Told
from engine.outcome import error_for

PACKAGES_LOCK = "packages.json"
_SECONDS = 1200
MAGIC = b"\0asm"  # what every component begins with; the compiler would take text as well
_FACTS, _FACTS_BYTES = f"{COMPONENT}.json", 1 << 20
_MODULES = 4096
_NOTHING = Collected(folders=(), lock=b"", versions={}, modules=())


def build(recipe: Recipe, into: Cache, worker_images: Path, means: Means, told: Told, *, pin: Pin | None = None) -> Entry:
    """The image of the recipe, built unless it is there, and compiled for this machine. One from elsewhere serves when it is pinned.

    Raises refused.image_build with what is missing or went wrong, refused.storage where the cache cannot be written.
    """
    return once(recipe.digest, into, worker_images, told, lambda: _make(recipe, into, means, told), pin=pin)


def once(key: str, into: Cache, worker_images: Path, told: Told, make: Callable[[], None], *, pin: Pin | None = None) -> Entry:
    """The image with that key: made unless it is there, sound and may run, and compiled for this machine. Raises what ``make`` does."""
    with into.writing(lambda: told.step("another process is at work on the images: waiting for it")):
        try:
            found = sound(into, key)
        except FileNotFoundError:
            found = None
        except Damaged as damage:
            told.step(f"{one_line(damage)}: making it again")
            found = None
        if found is not None and (why := _foreign(found, pin)) is not None:
            told.step(f"{why}: making it here")
            found = None
        if found is None:
            make()
            found = sound(into, key)
        compiling.compile_here(found, worker_images, told)
        return found


def _foreign(found: Entry, pin: Pin | None) -> str | None:
    """Why an image that was brought from elsewhere does not stand for one that is built here; None when it does, or was built here."""
    if found.built_here:
        return None
    manifest = found.manifest
    return problem(name=manifest.name, recipe=manifest.recipe, component=found.component, built_here=False, pin=pin, allowed=None)


def sound(into: Cache, recipe: str) -> Entry:
    """The image with its component hashed as well. Raises FileNotFoundError or Damaged."""
    found = cache.entry(into, recipe)
    with contextlib.closing(cache.Checked(found.path / COMPONENT)) as component:
        component.check(found.manifest.component)
    return found


def _make(recipe: Recipe, into: Cache, means: Means, told: Told) -> None:
    with cache.making(into.images) as work:
        builder, packages = gathered(recipe, work, into, means, told)
        made = work / "made"
        made.mkdir(mode=0o700)
        if recipe.packages:
            (made / PACKAGES_LOCK).write_bytes(packages.lock)
        told.step(f"building {recipe.name}: {recipe.about}")
        spec = {**spec_of(packages, work), "out": str(work / COMPONENT), "facts": str(work / _FACTS), "prepared": None}
        run_builder(recipe.name, builder, work / "worker_images" / recipe.program, spec, work, told)
        facts = _facts(recipe, work / _FACTS)
        with contextlib.suppress(FileNotFoundError):
            os.rename(work / COMPONENT, made / COMPONENT)
        manifest = Manifest(
            name=recipe.name,
            recipe=recipe.digest,
            inputs=recipe.inputs,
            packages=packages.versions,
            component=piece_of(recipe.name, made / COMPONENT),
            python=facts["python"],
            modules=tuple(sorted({*facts["modules"], *packages.modules})),
            tools=builder.versions,
        )
        cache.write_record(made, _checked(manifest), built_here=True)
        cache.put(made, into.place(recipe.digest))


def gathered(recipe: Recipe, work: Path, into: Cache, means: Means, told: Told) -> tuple[Builder, Collected]:
    """The recipe's files laid out in the folder, its packages, and the environment of its builder. Raises refused.image_build."""
    builder = builder_for(recipe.files[recipe.requirements], recipe.python, into, means, told)
    guest = work / "worker_images"
    _lay_out(guest, recipe.files)
    _lay_out(work / "engine", recipe.carried)
    if not recipe.packages:
        return builder, _NOTHING
    collector = builder_for(recipe.files["packages/requirements.txt"], COLLECTING_PYTHON, into, means, told)
    return builder, collect(recipe.packages, guest, work, collector, means, told)


def spec_of(packages: Collected, work: Path) -> dict[str, Any]:
    """What every builder is told of what was gathered in the folder."""
    return {
        "guest": str(work / "worker_images"),
        "engine": str(work / "engine"),
        "packages": [str(folder) for folder in packages.folders],
    }


def _lay_out(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def run_builder(
    name: str, builder: Builder, program: Path, spec: Mapping[str, Any], work: Path, told: Told, *, seconds: float = _SECONDS
) -> None:
    """Run a program of the builder's to its end. Raises refused.image_build with its last words, refused.storage for a full disk."""
    (work / "spec.json").write_text(json.dumps(dict(spec)))
    (work / "tmp").mkdir(mode=0o700)
    # nothing of ours reaches the builder; what it makes must not depend on chance or on today's date
    environment = {
        "HOME": str(work),
        "TMPDIR": str(work / "tmp"),
        "PATH": str(builder.python.parent),
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": "315532800",  # the first date that zip files know
    }
    try:
        running.run([builder.python, program, work / "spec.json"], environment=environment, folder=work, seconds=seconds, tick=told.tick)
    except running.Failed as failed:
        # the builder's own words for a full disk; ours have an errno
        if os.strerror(errno.ENOSPC) in " ".join(failed.lines):
            raise cache.unwritable(work.parent, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) from None
        raise error_for("refused.image_build", *(f"building {name}: {one_line(line)}" for line in failed.lines)) from None


def _facts(recipe: Recipe, path: Path) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            facts = json.loads(file.read(_FACTS_BYTES))
        python, modules = facts["python"], facts["modules"]
        if not isinstance(python, str) or not isinstance(modules, list) or len(modules) > _MODULES:
            raise ValueError
        if not all(isinstance(module, str) for module in modules):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise error_for("refused.image_build", f"building {recipe.name}: the builder did not say what it made") from None
    return dict(facts)


def piece_of(name: str, component: Path) -> Piece:
    """What was made, as a manifest has it. Raises refused.image_build for nothing, something too large, and what is no component."""
    unfit = error_for("refused.image_build", f"building {name}: what was made is no component, or too large")
    try:
        descriptor = os.open(component, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise error_for("refused.image_build", f"building {name}: the builder made nothing") from None
    except OSError:  # ELOOP: a link
        raise unfit from None
    try:
        found = os.fstat(descriptor)
        # security: a source whose import broke out may leave anything in this place
        if not stat.S_ISREG(found.st_mode) or found.st_size > COMPONENT_BYTES or os.pread(descriptor, len(MAGIC), 0) != MAGIC:
            raise unfit
        return Piece(size=found.st_size, sha256=sha256_of(descriptor))
    finally:
        os.close(descriptor)


def _checked(manifest: Manifest) -> Manifest:
    try:
        return parse(manifest.bytes())
    except Unsound as unsound:
        raise error_for("refused.image_build", f"building {manifest.name}: what the builder says of it: {unsound}") from None
