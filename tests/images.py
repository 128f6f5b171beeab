"""A tiny image for tests: its builder is a script of a few lines, its compiler copies; nothing is fetched or installed."""

import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from engine.images import build, cache, recipe
from engine.images.builder import Builder, Means
from engine.images.cache import Cache, Entry
from engine.images.image import Shipped
from engine.images.pins import Pin, text_of
from tests.kit import PROJECT

COMPONENT = b"\0asm\x0d\0\1\0"  # the smallest component there is: nothing but its head
MEANS = Means(environment={})
RECIPE = """\
about = "tiny"
program = "tiny/build.py"
requirements = "tiny/requirements.txt"
python = "3.11"
files = ["tiny/*.py", "guest/*.py"]
engine = ["errors.py"]
"""
# what each builder below begins with: `spec` is what it was given, `done` writes the component and its facts
HEAD = """
import json, os, sys, time
spec = json.load(open(sys.argv[1]))
def done(data=b"\\0asm\\x0d\\0\\1\\0"):
    open(spec["out"], "wb").write(data)
    json.dump({"python": "3.14.0", "modules": ["json", "re"]}, open(spec["facts"], "w"))
"""
COMPILE = """
import shutil, sys
shutil.copy(sys.argv[1], sys.argv[2])
"""


class Heard:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.ticks = 0

    def step(self, text: str) -> None:
        """A step begins."""
        self.steps.append(text)

    def tick(self) -> None:
        """It still runs."""
        self.ticks += 1


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A project with one image, and a cache."""

    shipped: Shipped
    cache: Cache

    @property
    def recipe(self) -> recipe.Recipe:
        """The recipe as its files are now."""
        return recipe.read("tiny", self.shipped.worker_images, self.shipped.engine)

    def write(self, path: str, text: str) -> None:
        """A file of the project."""
        place = self.shipped.worker_images.parent / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def builder(self, text: str) -> None:
        """Another builder."""
        self.write("worker_images/tiny/build.py", HEAD + text)

    def pin(self, component: str | None = None) -> None:
        """Pin the recipe as it is now."""
        pin = Pin(recipe=self.recipe.digest, component=component, reason="tested")
        self.write("policies/images.lock", text_of({"tiny": pin}))

    def build(self, told: Heard | None = None) -> Entry:
        """Build it."""
        return build.build(self.recipe, self.cache, self.shipped.worker_images, MEANS, told or Heard())

    def left(self) -> list[str]:
        """What lies in the cache besides its lock and the folders that are always there, three levels deep."""
        paths = [*self.cache.images.glob("*"), *self.cache.images.glob("*/compiled/*"), *self.cache.builders.glob("*")]
        return sorted(path.relative_to(self.cache.folder).as_posix() for path in paths)


def tiny(folder: Path, *, real_compiler: bool = False) -> Tiny:
    """The project below the folder. Its builder makes the smallest component."""
    root = folder / "project"
    made = Tiny(
        Shipped(worker_images=root / "worker_images", engine=root / "engine", policies=root / "policies"),
        Cache(folder=folder / "cache"),
    )
    made.builder("done()\n")
    made.write("worker_images/tiny/recipe.toml", RECIPE)
    made.write("worker_images/tiny/requirements.txt", "")
    made.write("worker_images/guest/main.py", "x = 1\n")
    made.write("engine/errors.py", "")
    made.write("policies/images.lock", "")
    if real_compiler:
        shutil.copytree(PROJECT / "worker_images" / "wasm", root / "worker_images" / "wasm")
    else:
        made.write("worker_images/wasm/compile.py", COMPILE)
        made.write("worker_images/wasm/configuration.py", "")
    return made


def without_installing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder runs in this interpreter."""
    monkeypatch.setattr(build, "builder_for", lambda *_: Builder(python=Path(sys.executable), versions={"tool": "1.0"}))


def spoil(path: Path, data: bytes | None = None) -> None:
    """Change one byte of a file of the cache, or all of them."""
    path.chmod(0o600)
    old = path.read_bytes()
    path.write_bytes(bytes([old[0] ^ 1]) + old[1:] if data is None else data)
    path.chmod(0o400)


def record(entry: Entry) -> dict[str, object]:
    """What the machine knows of an image."""
    found = json.loads((entry.path / cache.RECORD).read_bytes())
    assert isinstance(found, dict)
    return found


def digest(data: bytes) -> str:
    """As the project writes digests."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
