"""Source trees for the tests of staging, closed by the real parser in this process."""

import base64
import functools
import hashlib
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from engine import errors
from engine.staging.graph import DEFAULT_BOUNDS, Graph, close_graph
from engine.staging.sources import GraphBounds
from enter import parse

STANDARD = frozenset(sys.stdlib_module_names)


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Make the files below the root, and give the root back."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


async def at_once(act: Callable[[], None]) -> None:
    """What staging does aside, here and now."""
    act()


async def parsed(source: bytes, name: str) -> Mapping[str, Any]:
    """The parser's answer, in process."""
    return parse.facts(source, name)


def close(
    source: Path,
    *,
    reserved: frozenset[str] = frozenset(),
    bounds: GraphBounds = DEFAULT_BOUNDS,
    root: Path | None = None,
    parser: Any = parsed,
) -> Graph:
    """The closed graph of the source."""
    closing = functools.partial(close_graph, source, parser, at_once, standard=STANDARD, reserved=reserved, bounds=bounds, root=root)
    return trio.run(closing)


def staged(folder: Path, files: Mapping[str, str | bytes], entry: str = "tool.py", **more: Any) -> Graph:
    """The graph of an entry in a tree made of these files."""
    return close(write(folder, files) / entry, **more)


def refusal(action: Any, *args: Any, **more: Any) -> tuple[str, tuple[str, ...]]:
    """The code and the lines that the action refuses with."""
    with pytest.raises(errors.EngineError) as caught:
        action(*args, **more)
    return caught.value.code, caught.value.lines


def digest_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record_of(files: Mapping[str, bytes], record: str) -> bytes:
    """A RECORD that names these files and itself."""
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    return "\n".join([*rows, f"{record},,", ""]).encode()


def wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "demo",
    version: str = "1.0",
    tag: str = "py3-none-any",
    record: bytes | None = None,
) -> Path:
    """A wheel made by hand of these files, with a RECORD that fits unless another is given."""
    info = f"{name}-{version}.dist-info"
    full = dict(files)
    full.setdefault(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode())
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in full.items():
            archive.writestr(zipfile.ZipInfo(member), data)  # with a fixed date, so that the same files are the same wheel
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record_of(full, f"{info}/RECORD") if record is None else record)
    return path
