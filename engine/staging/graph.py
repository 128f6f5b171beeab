"""The closed source graph of an entry: every file a run may import or read, found by parsing only.

Its job: follow imports from one script or package, take the data files it lists, refuse what is open or does not belong.
Not its job: parsing (handed in, in a restricted child), publishing (``bundle.py``), granting layers (``loading.py``).
Laws:
1. The graph is closed or refused: nothing is missing at run time in silence (tests/unit/test_graph.py).
2. The bytes in it are the bytes that were parsed, each file read once (tests/security/test_staged_bytes.py).
3. Only the entry's own root is looked at (tests/security/test_staging.py).
"""

import dataclasses
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.outcome import error_for
from engine.staging import facts, patterns, tables
from engine.staging.closing import Closing
from engine.staging.imports import Modules
from engine.staging.sources import GraphBounds, Tree

Parse = Callable[[bytes, str], Awaitable[Mapping[str, Any]]]
Aside = Callable[[Callable[[], None]], Awaitable[None]]
DEFAULT_BOUNDS = GraphBounds()
# security: `ctypes.CDLL` of a staged file would bring native code in under any name
_EXECUTABLE = b"\x7fELF"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Graph:
    """Everything staged for one entry. ``root`` is the folder's name only; ``externals`` says where each was first imported.

    ``named`` is what imports take that is not in the source, as written: ``urllib.request`` whether it is imported or taken from urllib.
    """

    root: str
    entry: str
    files: Mapping[str, bytes] = dataclasses.field(repr=False)
    externals: Mapping[str, str]
    standard: frozenset[str]
    named: frozenset[str]
    layers: tuple[str, ...]
    includes: tuple[str, ...]
    data: tuple[str, ...]
    tools: tuple[str, ...]
    written: tuple[facts.Written, ...]


async def close_graph(
    source: Path,
    parse: Parse,
    aside: Aside,
    *,
    standard: frozenset[str],
    reserved: frozenset[str] = frozenset(),
    bounds: GraphBounds = DEFAULT_BOUNDS,
    root: Path | None = None,
) -> Graph:
    """The graph of a script or a package folder; with ``root``, of a module file below it under its dotted name.

    ``aside`` runs what looks at many files away from the event loop. ``standard`` are the worker image's top-level modules, ``reserved``
    the names its guest uses. Raises a ``refused.source_*`` error.
    """
    folder, entry, only = _locate(source, root)
    with Tree(folder, bounds) as tree:
        modules = Modules(tree, standard=standard, reserved=reserved, only=only)
        closing = Closing(tree, modules)
        first = closing.start(entry)
        queue = deque([first])
        while queue:
            item = queue.popleft()
            code = tree.read(item.path, bounds.module_bytes)
            closing.keep(item.path, code)
            found = facts.check(await parse(code, item.path), item.path)
            beside = (tables.inline_table(code, item.path), tables.project_table(tree)) if item is first else ()
            queue.extend(closing.add(item, found, tuple(table for table in beside if table is not None)))
        closing.finish()
        await aside(lambda: _take_data(tree, closing))
        await aside(tree.require_unchanged)
    return _graph(folder.name, entry, closing)


def unmet(graph: Graph, layer_modules: frozenset[str], image_modules: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """One line for each import that neither the source, the standard library, these layers nor the image hold; empty when all are met."""
    lines = [
        f"{where}: {name} is neither in the source, nor standard, nor in a granted layer"
        for name, where in sorted(graph.externals.items())
        if name not in layer_modules | image_modules
    ]
    tops = {path.partition("/")[0] for path in graph.files if path.endswith(".py") and "/" in path}
    lines += [
        f"{top}/: the source and a layer both hold {top}, and only one of them can be imported: rename the folder or give it an __init__.py"
        for top in sorted(tops & layer_modules)
        if f"{top}/__init__.py" not in graph.files
    ]
    return tuple(lines)


def _locate(source: Path, root: Path | None) -> tuple[Path, str, str | None]:
    """The root folder, the entry's dotted name, and the one package that may be seen when the source is a package."""
    if source.name in ("", ".."):
        source = Path(os.path.realpath(source))
    # the folder around it is the caller's own word and is resolved once; the last step is read like any other name
    place = Path(os.path.realpath(source.parent)) / source.name
    if not os.path.lexists(place):
        raise error_for("refused.source_missing", f"there is no {source.name}: name a tool file or a package folder")
    base = place.parent if root is None else Path(os.path.realpath(root))
    if not place.is_relative_to(base) or place == base:
        raise error_for("refused.source_path", f"{source.name} is not below its root")
    if place.is_symlink():
        raise error_for("refused.source_path", f"{source.name} is a link: name what it points to")
    folder = place.is_dir()
    if not folder and place.suffix != ".py":
        raise error_for("refused.source_missing", f"{source.name} is neither a .py file nor a package folder")
    parts = list(place.relative_to(base).parts)
    parts[-1] = parts[-1] if folder else place.stem
    if parts[-1] == "__init__":
        if len(parts) == 1:
            raise error_for("refused.source_missing", "__init__.py is a part of its package: name the package's folder")
        parts.pop()
    entry = ".".join(parts)
    if not facts.is_module(entry) or not all(part.isidentifier() for part in parts):
        raise error_for("refused.source_path", f"{source.name} cannot be imported under that name: use letters, digits and underscores")
    return base, entry, entry if folder and root is None else None


def _take_data(tree: Tree, closing: Closing) -> None:
    wanted: dict[str, str] = {}
    for written in closing.written:
        for pattern in written.data:
            wanted.setdefault(pattern, written.where)
    paths: set[str] = set()
    for pattern, where in wanted.items():
        paths.update(patterns.matching(tree, pattern, where, below=closing.only))
        if len(paths) > tree.bounds.data_files:
            raise error_for("refused.source_limits", f"{where}: {pattern!r} brings more than {tree.bounds.data_files} data files")
    for path in sorted(paths):
        content = tree.read(path, tree.bounds.data_file_bytes)
        if content.startswith(_EXECUTABLE):
            raise error_for("refused.source_native", f"{path} is native code: it may come from a layer only")
        closing.keep(path, content)


def _graph(root: str, entry: str, closing: Closing) -> Graph:
    def every(key: str) -> tuple[str, ...]:
        return tuple(sorted({text for written in closing.written for text in getattr(written, key)}))

    return Graph(
        root=root,
        entry=entry,
        files=MappingProxyType(dict(sorted(closing.files.items()))),
        externals=MappingProxyType(dict(sorted(closing.externals.items()))),
        standard=frozenset(closing.standard),
        named=frozenset(closing.named),
        layers=every("layers"),
        includes=every("includes"),
        data=every("data"),
        tools=tuple(dict.fromkeys(written.tool for written in closing.written if written.tool)),
        written=tuple(closing.written),
    )
