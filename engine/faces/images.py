"""``stockade image``: the images that WebAssembly workers run, built, listed, verified, moved and removed.

Its job: from options to what ``engine/images`` does, and what is there, as text and data; how far a build has come.
Not its job: building (``images/build.py``), the rule by which an image may run (``images/pins.py``).
Laws:
1. A build tells each step as it begins, and on a terminal that time passes (tests/unit/test_image_faces.py).
2. What cannot be fetched or written is one error with the way out (tests/e2e/test_cli_image.py).
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import one_line
from engine.faces.printing import Answer, Printer, table
from engine.images import archive, compiling, keeping, pins, recipe
from engine.images import build as building
from engine.images.builder import Means
from engine.images.cache import Cache, Entry, default_folder
from engine.images.image import Shipped, current, missing
from engine.images.keeping import Row
from engine.outcome import error_for
from engine.places import data_dir

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


class Steps:
    """Tells the steps of a build: on a terminal one line that is written over with the seconds, elsewhere a line each."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._bar = not printer.as_json and sys.stderr is not None and sys.stderr.isatty()
        self._text, self._since = "", 0.0

    def step(self, text: str) -> None:
        """A step begins."""
        self.end()
        self._text, self._since = text, time.monotonic()
        if self._bar:
            self.tick()
        else:
            self._printer.event("image", {"step": one_line(text)}, f"{text} ...")

    def tick(self) -> None:
        """The step still runs."""
        if self._bar and self._text:
            self._over(f"{one_line(self._text)} ... {time.monotonic() - self._since:.0f} s")

    def end(self) -> None:
        """The step that ran is over: its line stays."""
        if self._bar and self._text:
            self._over(f"{one_line(self._text)}: {time.monotonic() - self._since:.1f} s\n")
        self._text = ""

    def _over(self, text: str) -> None:
        try:
            sys.stderr.write(f"\r{text}\x1b[K" if not text.endswith("\n") else f"\r\x1b[K{text}")
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody there to see it is no reason to stop; ValueError: closed
            self._bar = False


def shipped() -> Shipped:
    """Where this version's own files lie."""
    worker_images = data_dir("worker_images")
    return Shipped(worker_images=worker_images, engine=Path(compiling.__file__).resolve().parents[1], policies=data_dir("policies"))


def cache_at(image_dir: str | None) -> Cache:
    """The cache in that folder, or the user's own."""
    return Cache(folder=Path(os.path.abspath(image_dir)) if image_dir else default_folder())


def build(printer: Printer, name: str | None, image_dir: str | None, python: str | None, environment: Mapping[str, str]) -> Answer:
    """Build the image of that name, or all of them. Raises refused.image_build, refused.storage."""
    ours, images, steps = shipped(), cache_at(image_dir), Steps(printer)
    means = Means(environment=environment, interpreter=None if python is None else Path(python))
    locked, made = pins.load_pins(ours.policies), list[Entry]()
    try:
        for one in [name] if name else recipe.names(ours.worker_images):
            wanted = recipe.read(one, ours.worker_images, ours.engine)
            made.append(building.build(wanted, images, ours.worker_images, means, steps, pin=locked.get(one)))
    finally:
        steps.end()
    return Answer(value=[_entry_data(entry) for entry in made], text="\n".join(_entry_text(entry) for entry in made))


def show(image_dir: str | None) -> Answer:
    """What this version has recipes for, and what else lies in the cache."""
    found = keeping.rows(cache_at(image_dir), shipped())
    lines = [
        (
            _called(row) + _remarks(row),
            row.entry.component[7:19] if row.entry else "-",
            row.recipe[7:19],
            "yes" if row.pinned else "no",
            "yes" if row.compiled else "no",
            f"{row.size / (1 << 20):.1f} MiB" if row.entry else "-",
            _age(row.entry) if row.entry else one_line(row.problem),
        )
        for row in found
    ]
    head = ("image", "digest", "recipe", "pinned", "compiled", "size", "age")
    return Answer(value=[_row_data(row) for row in found], text=table(head, lines) if lines else "no images")


def verify(name: str | None, image_dir: str | None) -> Answer:
    """Hash every file of one image, or of all, again; all faults are told at once. Raises refused.image_corrupt."""
    images, ours = cache_at(image_dir), shipped()
    chosen = [
        row for row in keeping.rows(images, ours) if (row.current and row.name == name) or (name is None and row.problem != "not built")
    ]
    if name is not None:
        recipe.read(name, ours.worker_images, ours.engine)  # an unknown name refuses
        if chosen[0].problem == "not built":
            raise missing(name)
    if wrong := [f"image {_exactly(row)}: {line}" for row in chosen for line in keeping.problems(row, images, ours)]:
        raise error_for("refused.image_corrupt", *wrong)
    text = "\n".join(f"{_exactly(row)}: every file is as it was made" for row in chosen) or "no images"
    return Answer(value=[_row_data(row) for row in chosen], text=text)


def export(name: str, file: str, image_dir: str | None) -> Answer:
    """Write an image that may run to one file. Raises refused.image_missing, refused.image_corrupt, refused.storage."""
    ours, images = shipped(), cache_at(image_dir)
    entry = current(name, images, ours)
    size = archive.export(entry, Path(file))
    text = f"{_entry_text(entry)}\n{file}: {size / (1 << 20):.1f} MiB; bring it in with `stockade image import`"
    return Answer(value={**_entry_data(entry), "file": file, "bytes": size}, text=text)


def bring(printer: Printer, file: str, image_dir: str | None) -> Answer:
    """Take an image out of a file and compile it for this machine. Raises refused.image_corrupt, refused.storage, refused.image_build."""
    ours, images, steps = shipped(), cache_at(image_dir), Steps(printer)
    try:
        with images.writing(lambda: steps.step("another process is at work on the images: waiting for it")):
            entry = archive.bring(Path(file), images, ours.worker_images, steps)
    finally:
        steps.end()
    row = next(row for row in keeping.rows(images, ours) if row.recipe == entry.manifest.recipe)
    lines = [_entry_text(entry)]
    if not row.pinned:
        lines.append(
            f'nobody pins its bytes: it runs where a policy says [images] {row.name} = {{ value = "{entry.component}", reason = "..." }}'
        )
    return Answer(value={**_entry_data(entry), "pinned": row.pinned}, text="\n".join(lines))


def prune(everything: bool, image_dir: str | None, environment: Mapping[str, str]) -> Answer:
    """Remove what no recipe of this version names, and code for other machines or settings."""
    ours, images = shipped(), cache_at(image_dir)
    with images.writing(lambda: None):
        gone = keeping.prune(images, ours, Means(environment=environment), everything=everything)
    names = [str(path.relative_to(images.folder)) for path in gone]
    return Answer(value={"removed": names}, text="\n".join(f"removed {name}" for name in names) or "nothing to remove")


def _entry_data(entry: Entry) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        "name": manifest.name,
        "digest": entry.component,
        "recipe": manifest.recipe,
        "python": manifest.python,
        "packages": dict(manifest.packages),
        "bytes": manifest.component.size,
        "built_here": entry.built_here,
    }


def _called(row: Row) -> str:
    return row.name if row.published is None else f"{row.name} for {one_line(row.published.entry)} {row.published.bundle[7:19]}"


def _exactly(row: Row) -> str:
    """With the digest: several images of one name may lie here."""
    return f"{_called(row)} {row.entry.component[7:19]}" if row.entry else row.name or row.recipe


def _remarks(row: Row) -> str:
    remarks = [] if row.current else ["of another version"]
    remarks += ["brought from elsewhere"] if row.entry and not row.entry.built_here else []
    return f" ({', '.join(remarks)})" if remarks else ""


def _row_data(row: Row) -> dict[str, Any]:
    known = _entry_data(row.entry) if row.entry else {"name": row.name, "recipe": row.recipe}
    known |= {"published": row.published.data} if row.published else {}
    return {**known, "current": row.current, "pinned": row.pinned, "compiled": row.compiled, "size": row.size, "problem": row.problem}


def _entry_text(entry: Entry) -> str:
    carried = ", ".join(f"{name} {version}" for name, version in entry.manifest.packages.items())
    return f"image {entry.manifest.name}: Python {entry.manifest.python}, {entry.component}" + (f", with {carried}" if carried else "")


def _age(entry: Entry) -> str:
    seconds = max(0, time.time() - entry.since)
    return next((f"{seconds / unit:.0f} {word}" for unit, word in _UNITS if seconds >= unit), f"{seconds:.0f} s")
