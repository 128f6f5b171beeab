"""A closed graph as one read-only folder, named by the digest of its content.

Its job: publish a graph, open a bundle with every file checked.
Not its job: closing the graph (``graph.py``), how a folder is sealed (``sealed.py``), mounting it.
Laws:
1. Equal sources have one digest, wherever they lie and whoever stages them (tests/unit/test_bundle.py).
2. A bundle that is opened holds exactly the bytes of its digest (tests/security/test_staged_bytes.py).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from engine.outcome import error_for
from engine.staging import sealed
from engine.staging.graph import Graph

_FORMAT = 1  # raised when the same files would mean something else
SOURCE = "source"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """One staged source. ``files`` maps each path below ``source`` to its SHA-256 in hexadecimal digits."""

    digest: str
    path: Path
    entry: str
    standard: frozenset[str]
    externals: Mapping[str, str]
    layers: tuple[str, ...]
    includes: tuple[str, ...]
    data: tuple[str, ...]
    tools: tuple[str, ...]
    files: Mapping[str, str]

    @property
    def source(self) -> Path:
        """The folder that goes onto the guest's module path."""
        return self.path / SOURCE


def publish(graph: Graph, stage: Path) -> Bundle:
    """The graph's bundle below ``stage``, written or found there. Raises refused.storage when it cannot be, or is damaged."""
    manifest = {
        "kind": "bundle",
        "format": _FORMAT,
        "entry": graph.entry,
        "standard": sorted(graph.standard),
        "externals": dict(graph.externals),
        "layers": list(graph.layers),
        "includes": list(graph.includes),
        "data": list(graph.data),
        "tools": list(graph.tools),
    }
    try:
        return _bundle(sealed.publish(stage, SOURCE, graph.files, manifest))
    except sealed.Damaged as damage:
        raise error_for("refused.storage", f"{damage}: remove that folder and stage again") from None


def open_bundle(digest: str, stage: Path) -> Bundle:
    """The bundle of that digest, each file hashed again. Raises refused.storage when it is missing or differs."""
    try:
        return _bundle(sealed.opened(stage, digest, SOURCE))
    except (sealed.Damaged, ValueError) as damage:
        raise error_for("refused.storage", f"{damage}: stage the source again") from None


def _bundle(found: sealed.Sealed) -> Bundle:
    written = found.manifest
    if written.get("kind") != "bundle" or written.get("format") != _FORMAT:
        raise sealed.Damaged(f"{found.digest} is no bundle of this version")
    return Bundle(
        digest=found.digest,
        path=found.path,
        entry=written["entry"],
        standard=frozenset(written["standard"]),
        externals=MappingProxyType(dict(written["externals"])),
        layers=tuple(written["layers"]),
        includes=tuple(written["includes"]),
        data=tuple(written["data"]),
        tools=tuple(written["tools"]),
        files=MappingProxyType(dict(written["files"])),
    )
