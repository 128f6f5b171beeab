"""What lies beside an image and says what it is: as bytes, and as a record that was checked.

Its job: one spelling of a manifest, and a strict reading of it, because one may come out of a file that somebody sent.
Not its job: files (``cache.py``), whether an image may run (``pins.py``).
Laws:
1. A manifest has one spelling: other bytes that say the same refuse (tests/unit/test_image_manifest.py).
2. Every field is there, of its type and within its bounds, and no other (tests/unit/test_image_manifest.py).
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from engine.authoring.canonical import canonical

MANIFEST_BYTES = 4 << 20
COMPONENT_BYTES = 512 << 20
_FORMAT = 1
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[\w.+/: -]{1,256}", re.ASCII)
_FIELDS = frozenset({"kind", "format", "name", "recipe", "inputs", "packages", "component", "python", "modules", "tools"})
_ENTRY = re.compile(r"[\w.]{1,256}")


class Unsound(Exception):
    """These bytes are no manifest; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """A file as its manifest knows it: size, and SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """The one source that an image was made for: the recipe below it, the bundle, the layers by name, the module that is imported."""

    base: str
    bundle: str
    layers: Mapping[str, str]
    entry: str

    @property
    def data(self) -> dict[str, Any]:
        """Its fields, for a manifest and for a key."""
        return {"base": self.base, "bundle": self.bundle, "layers": dict(self.layers), "entry": self.entry}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an image is: its recipe's digest with every input, its component, and what a guest of it offers.

    ``python`` is the guest's version, ``modules`` the top-level names that can be imported, ``packages`` the versions of those carried,
    ``tools`` the versions of what made it. ``published`` is there when it was made for one source; ``recipe`` is then its own key.
    """

    name: str
    recipe: str
    inputs: Mapping[str, str]
    packages: Mapping[str, str]
    component: Piece
    python: str
    modules: tuple[str, ...]
    tools: Mapping[str, str]
    published: Published | None = None

    def bytes(self) -> bytes:
        """Its one spelling."""
        return canonical(
            {
                **({} if self.published is None else {"published": self.published.data}),
                "kind": "image",
                "format": _FORMAT,
                "name": self.name,
                "recipe": self.recipe,
                "inputs": dict(self.inputs),
                "packages": dict(self.packages),
                "component": {"size": self.component.size, "sha256": self.component.sha256},
                "python": self.python,
                "modules": list(self.modules),
                "tools": dict(self.tools),
            }
        )


def parse(written: bytes) -> Manifest:
    """The record of these bytes. Raises Unsound."""
    try:
        found = json.loads(written)
        # security: two spellings would let two readers see two things, as doubled keys do
        if not isinstance(found, dict) or canonical(found) != written:
            raise Unsound("it is not spelt as manifests are")
    except (ValueError, RecursionError):
        raise Unsound("it is not JSON") from None
    if found.keys() - {"published"} != _FIELDS or found["kind"] != "image" or found["format"] != _FORMAT:
        raise Unsound("it is no manifest of an image of this version")
    component = found["component"]
    if not isinstance(component, dict) or component.keys() != {"size", "sha256"} or not _is(_SHA256, component["sha256"]):
        raise Unsound("component: want size and sha256")
    if type(component["size"]) is not int or not 0 < component["size"] <= COMPONENT_BYTES:
        raise Unsound(f"component.size: want 1 to {COMPONENT_BYTES} bytes")
    if not isinstance(found["modules"], list) or not all(_is(_WORD, module) for module in found["modules"]):
        raise Unsound("modules: want a list of names")
    return Manifest(
        name=_text(found, "name", _NAME),
        recipe=_text(found, "recipe", _DIGEST),
        inputs=_words(found, "inputs", _SHA256),
        packages=_words(found, "packages", _WORD),
        component=Piece(size=component["size"], sha256=component["sha256"]),
        python=_text(found, "python", _WORD),
        modules=tuple(found["modules"]),
        tools=_words(found, "tools", _WORD),
        published=_published(found["published"]) if "published" in found else None,
    )


def _published(found: object) -> Published:
    if not isinstance(found, dict) or found.keys() != {"base", "bundle", "layers", "entry"}:
        raise Unsound("published: want base, bundle, layers and entry")
    return Published(
        base=_text(found, "base", _DIGEST),
        bundle=_text(found, "bundle", _DIGEST),
        layers=_words(found, "layers", _DIGEST),
        entry=_text(found, "entry", _ENTRY),
    )


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _text(found: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = found[key]
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise Unsound(f"{key}: not as it should be")
    return value


def _words(found: Mapping[str, Any], key: str, values: re.Pattern[str]) -> Mapping[str, str]:
    value = found[key]
    if not isinstance(value, dict) or not all(_is(_WORD, name) and _is(values, word) for name, word in value.items()):
        raise Unsound(f"{key}: not as it should be")
    return MappingProxyType(value)
