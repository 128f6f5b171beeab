"""What an image is made of: ``worker_images/<name>/recipe.toml`` and every file that it names.

Its job: strict reading of recipes, the bytes of every file that goes in, the digest that names the whole.
Not its job: making anything of it (``build.py``), what a release was tested with (``pins.py``).
Laws:
1. Whatever can change the image changes the digest: the recipe, each file that goes in, each pin of the builder and of a package
   (tests/unit/test_image_recipe.py).
2. What is hashed is what is used: a build gets the bytes that were read here, not the files (tests/unit/test_image_build.py).
3. Unknown keys, links and names that lead elsewhere refuse (tests/unit/test_image_recipe.py).
"""

import dataclasses
import functools
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from engine.authoring.canonical import digest
from engine.outcome import error_for

FORMAT = 1  # of recipes and of what is made of them: another one makes every image another one
RECIPE = "recipe.toml"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PACKAGE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_PATTERN = re.compile(r"(?:[A-Za-z0-9_-]+/)*[A-Za-z0-9_*.-]+")
_PYTHON = re.compile(r"3\.[1-9][0-9]")
_STRINGS = ("about", "program", "requirements", "python")
_LISTS = ("files", "engine")
_FILE_BYTES = 4 << 20
# what the step that collects packages is made of; its recipes are beside it
_COLLECTING = ("packages/collect.py", "packages/requirements.txt")
COLLECTING_PYTHON = (3, 12)  # pyodide-build 0.39 needs it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """A package that the image carries. ``without`` are the native files of its wheel that are left out, for its own Python fallback."""

    name: str
    without: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One image as it would be built from these files. ``files`` are below ``worker_images/``, ``carried`` below ``engine/``."""

    name: str
    about: str
    program: str
    requirements: str
    python: tuple[int, int]
    packages: tuple[Package, ...]
    files: Mapping[str, bytes] = dataclasses.field(repr=False)
    carried: Mapping[str, bytes] = dataclasses.field(repr=False)

    @functools.cached_property
    def inputs(self) -> Mapping[str, str]:
        """The SHA-256 of every file that goes in, by its path in the project."""
        parts = (("worker_images", self.files), ("engine", self.carried))
        return MappingProxyType({f"{at}/{path}": hashlib.sha256(data).hexdigest() for at, part in parts for path, data in part.items()})

    @functools.cached_property
    def digest(self) -> str:
        """Names the recipe, and the image in a cache."""
        return digest({"format": FORMAT, "name": self.name, "inputs": dict(self.inputs)})


def names(images: Path) -> tuple[str, ...]:
    """The images that this version has a recipe for."""
    return tuple(sorted(path.parent.name for path in images.glob(f"*/{RECIPE}") if _NAME.fullmatch(path.parent.name)))


def read(name: str, images: Path, engine: Path) -> Recipe:
    """The recipe of that name, out of the folders ``worker_images`` and ``engine``. Raises refused.request for an unknown name."""
    if name not in names(images):
        raise error_for("refused.request", f"there is no image {name!r}; there are: {', '.join(names(images)) or 'none'}")
    own = f"{name}/{RECIPE}"
    written = _read(images, own)
    try:
        document = tomllib.loads(written.decode("utf-8"))
    except ValueError as error:
        _refuse(own, f"not TOML: {error}")
    fields = _fields(own, document)
    packages = tuple(_package(own, entry) for entry in document.get("packages", []))
    if len({package.name for package in packages}) != len(packages):
        _refuse(own, "packages: a name is there twice")
    collecting = [*_COLLECTING, *(f"packages/{package.name}/meta.yaml" for package in packages)] if packages else []
    major, minor = fields["python"].split(".")
    return Recipe(
        name=name,
        about=fields["about"],
        program=fields["program"],
        requirements=fields["requirements"],
        python=(int(major), int(minor)),
        packages=packages,
        files=_gathered(own, images, [own, fields["program"], fields["requirements"], *fields["files"], *collecting]),
        carried=_gathered(own, engine, fields["engine"]),
    )


def _fields(own: str, document: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := sorted(document.keys() - {*_STRINGS, *_LISTS, "packages"}):
        _refuse(own, f"{unknown[0]}: unknown key; allowed: {', '.join((*_STRINGS, *_LISTS, 'packages'))}")
    for key in _STRINGS:
        if not isinstance(document.get(key), str) or not document[key]:
            _refuse(own, f"{key}: want a text")
    for key in ("program", "requirements"):
        if _PATTERN.fullmatch(document[key]) is None or ".." in document[key] or "*" in document[key]:
            _refuse(own, f"{key}: want a relative path")
    if _PYTHON.fullmatch(document["python"]) is None:
        _refuse(own, "python: want the least version that can run the builder, such as 3.11")
    for key in _LISTS:
        value = document.get(key)
        if not isinstance(value, list) or not all(
            isinstance(item, str) and _PATTERN.fullmatch(item) and ".." not in item for item in value
        ):
            _refuse(own, f"{key}: want a list of relative paths, with * in the last part alone")
    return {key: document[key] for key in (*_STRINGS, *_LISTS)}


def _package(own: str, entry: object) -> Package:
    entry = entry if isinstance(entry, dict) else {}
    name, without = entry.get("name"), entry.get("without", [])
    if not isinstance(name, str) or _PACKAGE.fullmatch(name) is None or entry.keys() - {"name", "without", "reason"}:
        _refuse(own, "packages: each has a name, and where native files are left out: without and reason")
    if not isinstance(without, list) or not all(isinstance(path, str) and path for path in without):
        _refuse(own, f"packages.{name}: without is a list of paths in the wheel")
    reason = entry.get("reason")
    if without and not (isinstance(reason, str) and reason.strip()):
        _refuse(own, f"packages.{name}: the reason must say in words why it works without these files")
    return Package(name=name, without=tuple(without))


def _gathered(own: str, folder: Path, patterns: list[str]) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for pattern in patterns:
        matches = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
        if not matches:
            _refuse(own, f"{pattern} is not there")
        for path in matches:
            found[path] = _read(folder, path)
    return MappingProxyType(dict(sorted(found.items())))


def _read(folder: Path, path: str) -> bytes:
    try:
        descriptor = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                _refuse(path, "is not a regular file")
            data = file.read(_FILE_BYTES + 1)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}")
    if len(data) > _FILE_BYTES:
        _refuse(path, f"is larger than {_FILE_BYTES} bytes")
    return data


def _refuse(path: str, why: str) -> NoReturn:
    raise error_for("refused.image_build", f"worker_images/{path}: {why}")
