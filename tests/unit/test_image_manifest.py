"""Manifests: one spelling, every field, and nothing else."""

import dataclasses
import json
from typing import Any

import pytest

from engine.authoring.canonical import canonical
from engine.images.manifest import Manifest, Piece, Published, Unsound, parse

MANIFEST = Manifest(
    name="tiny",
    recipe=f"sha256:{'1' * 64}",
    inputs={"worker_images/tiny/build.py": "2" * 64},
    packages={"six": "1.17.0"},
    component=Piece(size=8, sha256="3" * 64),
    python="3.14.0",
    modules=("json", "re"),
    tools={"componentize-py": "0.25.1"},
)


DIGEST = f"sha256:{'4' * 64}"
PUBLISHED = dataclasses.replace(MANIFEST, published=Published(base=DIGEST, bundle=DIGEST, layers={"six": DIGEST}, entry="tools"))


@pytest.mark.parametrize("manifest", [MANIFEST, PUBLISHED])
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    """Bytes and record are one, whether or not it was made for one source."""
    assert parse(manifest.bytes()) == manifest


def changed(**fields: Any) -> bytes:
    """The manifest's bytes with other fields."""
    return canonical({**json.loads(MANIFEST.bytes()), **fields})


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        MANIFEST.bytes() + b" ",
        MANIFEST.bytes().replace(b'{"component"', b'{"kind":"other","component"', 1),
        changed(more=1),
        changed(kind="layer"),
        changed(format=2),
        changed(name="../tiny"),
        changed(recipe="sha256:1"),
        changed(python=314),
        changed(python="3.14\n"),
        changed(component={"size": 8}),
        changed(component={"size": True, "sha256": "3" * 64}),
        changed(component={"size": -1, "sha256": "3" * 64}),
        changed(component={"size": 1 << 40, "sha256": "3" * 64}),
        changed(component={"size": 8, "sha256": "G" * 64}),
        changed(inputs={"a": "no hash"}),
        changed(inputs=[]),
        changed(packages={"six": 1}),
        changed(modules="json"),
        changed(modules=["\x1b[2J"]),
        changed(tools={"a" * 300: "1"}),
        changed(published=None),
        changed(published={}),
        changed(published={"base": DIGEST, "bundle": DIGEST, "layers": {"six": "1.0"}, "entry": "tools"}),
        changed(published={"base": DIGEST, "bundle": DIGEST, "layers": {}, "entry": "../tools"}),
        changed(published={"base": DIGEST, "bundle": "tools", "layers": {}, "entry": "tools"}),
        changed(published={"base": DIGEST, "bundle": DIGEST, "layers": {}, "entry": "tools", "more": 1}),
    ],
)
def test_what_is_not_exactly_a_manifest_is_none(written: bytes) -> None:
    """Doubled keys, blanks, other types and sizes, words that could drive a terminal."""
    with pytest.raises(Unsound):
        parse(written)
