"""Finds the file behind a module name by looking beneath the root, and nowhere else.

Its job: the order in which an import looks (package, native, source, byte code, namespace), with native and byte code refused.
Not its job: following imports (``graph.py``). It never asks an import system: that would run the parent package.
Laws:
1. What it finds is what a plain run would import, or it refuses by name (tests/unit/test_graph.py).
2. A name of the guest or of the standard library is never taken from the source (tests/security/test_staging.py).
"""

import dataclasses
import enum

from engine.outcome import error_for
from engine.staging.sources import Kind, Tree, joined

GUEST = "engine"  # the authoring names, which the guest brings itself
_NEVER = frozenset({"sitecustomize", "usercustomize"})  # an interpreter may run them before the tool's jail is shut
_NATIVE = (".so", ".pyd", ".dll", ".dylib")
_NATIVE_TAGS = ("cpython-", "abi3", "cp3", "pypy", "graalpy")
_BYTE_CODE = (".pyc", ".pyo")
_NOT_WHOLE = frozenset({"__main__", "conftest"})  # started by name only, by nobody's import


class Place(enum.Enum):
    """Where a top-level name comes from."""

    SOURCE = "source"
    STANDARD = "standard"
    GUEST = "guest"
    ELSEWHERE = "elsewhere"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A module beneath the root; without a ``path`` it is a namespace package, which has no file."""

    module: str
    path: str | None
    folder: str | None  # where its submodules lie, when it is a package


def _is_native(name: str, stem: str) -> bool:
    for ending in _NATIVE:
        if name.startswith(stem + ".") and name.endswith(ending):
            tag = name[len(stem) + 1 : -len(ending)] if len(name) > len(stem) + len(ending) else ""
            if not tag or tag.startswith(_NATIVE_TAGS):
                return True
    return False


class Modules:
    """Modules beneath a tree; with ``only``, just that top-level package is seen."""

    def __init__(self, tree: Tree, *, standard: frozenset[str], reserved: frozenset[str], only: str | None) -> None:
        self._tree = tree
        self._standard = standard
        self._reserved = reserved | {GUEST, "__main__"}
        self.only = only
        self._stems: dict[str, dict[str, list[str]]] = {}

    def place(self, top: str, where: str) -> Place:
        """Where the name comes from. Raises refused.source_shadows when the source has its own of a name it may not have."""
        if top in _NEVER:
            raise error_for("refused.source_shadows", f"{where}: {top} belongs to the interpreter's start and is never imported")
        seen = self.only in (None, top)
        regular = self._regular(top) if seen else None
        if top in self._reserved or top in self._standard:
            if regular is not None:
                owner = "guest" if top in self._reserved else "standard library"
                raise error_for("refused.source_shadows", f"{regular} would shadow {top} of the {owner}: rename it ({where})")
            if top in (GUEST, "__main__"):
                return Place.GUEST
            return Place.STANDARD if top in self._standard else Place.ELSEWHERE
        here = seen and (regular is not None or self._find_in("", "", top) is not None)
        return Place.SOURCE if here else Place.ELSEWHERE

    def find(self, dotted: str) -> tuple[Found, ...]:
        """The module and its parents, outermost first, as far as they exist beneath the root."""
        chain: list[Found] = []
        folder: str | None = ""
        for part in dotted.split("."):
            found = None if folder is None else self._find_in(folder, chain[-1].module if chain else "", part)
            if found is None:
                break
            chain.append(found)
            folder = found.folder
        return tuple(chain)

    def below(self, package: Found) -> tuple[str, ...]:
        """Every module of a package and of the packages in it, by dotted name."""
        names: list[str] = []
        waiting = [package]
        while waiting:
            current = waiting.pop()
            if current.folder is None:
                continue
            for stem in sorted(self._index(current.folder)):
                if not stem.isidentifier() or stem.startswith("__") or stem in _NOT_WHOLE:
                    continue
                found = self._find_in(current.folder, current.module, stem)
                if found is not None:
                    waiting.append(found)
                    names.append(found.module)
            if len(names) > self._tree.bounds.modules:
                raise error_for("refused.source_limits", f"{package.module}.* holds more than {self._tree.bounds.modules} modules")
        return tuple(sorted(names))

    def _index(self, folder: str) -> dict[str, list[str]]:
        if folder not in self._stems:
            stems: dict[str, list[str]] = {}
            for name in self._tree.names(folder):
                stems.setdefault(name.partition(".")[0], []).append(name)
            self._stems[folder] = stems
        return self._stems[folder]

    def _regular(self, top: str) -> str | None:
        """A file or package at the root that a plain run would import under this name, native and byte code too."""
        names = self._index("").get(top, [])
        if top in names and self._tree.kind(top) is Kind.FOLDER:
            inits = [name for name in self._index(top).get("__init__", []) if _is_code(name, "__init__")]
            if inits:
                return joined(top, min(inits))
        return min((name for name in names if _is_code(name, top)), default=None)

    def _find_in(self, folder: str, package: str, part: str) -> Found | None:
        names = self._index(folder).get(part, [])
        module = f"{package}.{part}" if package else part
        namespace = None
        if part in names:
            path = joined(folder, part)
            kind = self._tree.kind(path)
            if kind is Kind.LINK:
                raise error_for("refused.source_path", f"{path} is a link: put the folder itself there")
            if kind is Kind.FOLDER:
                initial = self._file(path, "__init__", self._index(path).get("__init__", []))
                if initial is not None:
                    return Found(module=module, path=initial, folder=path)
                namespace = Found(module=module, path=None, folder=path)
        file = self._file(folder, part, names)
        return namespace if file is None else Found(module=module, path=file, folder=None)

    def _file(self, folder: str, stem: str, names: list[str]) -> str | None:
        """The source file of that stem; native code beside it would be imported first, so it refuses."""
        native = [name for name in names if _is_native(name, stem)]
        if native:
            raise error_for("refused.source_native", f"{joined(folder, min(native))} is native code: it may come from a layer only")
        if f"{stem}.py" in names:
            path = joined(folder, f"{stem}.py")
            kind = self._tree.kind(path)
            if kind is not Kind.FOLDER:
                self._tree.require_file(path, kind)
                return path
        compiled = [name for name in names if name in (stem + ending for ending in _BYTE_CODE)]
        if compiled:
            raise error_for("refused.source_native", f"{joined(folder, min(compiled))} is byte code without its source")
        return None


def _is_code(name: str, stem: str) -> bool:
    return name == f"{stem}.py" or name in (stem + ending for ending in _BYTE_CODE) or _is_native(name, stem)
