"""Imports the tool's source: the only place that executes it.

Its job: import the entry of a bundle, find the tools it declares.
Not its job: which files there are (staged by the host), what a declaration may say (``engine.authoring``).
Laws:
1. The standard library and the guest come first on the path: nothing staged can take their names (tests/security/test_staging.py).
2. Nothing is written beside the source: it is read-only, and holds no byte code (tests/security/test_promise_fresh.py).
3. With byte code and without, a source does the same and its tracebacks show the same lines (tests/contract/test_code.py).
"""

import _imp
import importlib
import marshal
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from types import CodeType, ModuleType
from typing import Any

from engine.authoring.tool import Tool


class _Staged(SourceFileLoader):
    """Loads a staged module from the byte code that was made of it when it was staged, else from its source."""

    def __init__(self, code: Mapping[str, bytes], fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code; its source stays where tracebacks look for it."""
        made = self._code.get(self.path)
        if made is None:
            return super().get_code(fullname)
        code: CodeType = marshal.loads(made)  # noqa: S302 - made of this source in its own load, read where the source itself would run
        if code.co_filename != self.path:  # without the wall the source lies elsewhere
            _imp._fix_co_filename(code, self.path)  # type: ignore[attr-defined]  # undocumented; importlib's own way
        return code


class Folders:
    """The folders that children import from, looked through once by their zygote. Nothing that was staged runs here, or is read."""

    def __init__(self, root: str, code: Mapping[str, bytes]) -> None:
        self.root, self.code = root, code
        self._names = frozenset(os.listdir(root))

    def look_through(self, layers: list[str]) -> None:
        """Have the interpreter's own finders do so too; a child then lists no folder again, unless it changed."""
        sys.path_hooks.insert(0, self._finder)
        PathFinder.find_spec("no module has this name", [*sys.path, self.root, *layers])

    def import_entry(self, entry: str, layers: list[str]) -> ModuleType:
        """The entry module, imported from the bundle with the granted layers behind it."""
        sys.path += [self.root, *layers]
        plain = f"{entry}.py" in self._names and entry not in self._names
        if plain and entry not in sys.stdlib_module_names and entry not in sys.modules:
            return self._module(entry, f"{self.root}/{entry}.py")
        return importlib.import_module(entry)

    def _finder(self, path: str) -> FileFinder:
        if path != self.root and not path.startswith(self.root + "/"):
            raise ImportError("not of the bundle", path=path)
        return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (self._loader, SOURCE_SUFFIXES))  # type: ignore[arg-type]  # is called as one

    def _loader(self, fullname: str, path: str) -> _Staged:
        return _Staged(self.code, fullname, path)

    def _module(self, name: str, path: str) -> ModuleType:
        """As ``import`` makes it; the search for where it lies is what costs there, and that is known."""
        loader = self._loader(name, path)
        spec = ModuleSpec(name, loader, origin=path)
        spec.has_location = True
        module = ModuleType(name)
        module.__spec__, module.__loader__, module.__file__, module.__package__ = spec, loader, path, ""
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return sys.modules.get(name, module)  # a module may put another in its place


def tools_of(module: ModuleType) -> list[Tool[..., Any]]:
    """The tools in the module's namespace, then those of its loaded submodules, each once, in order of definition."""
    found: list[Tool[..., Any]] = []
    for namespace in _namespaces(module):
        for value in list(vars(namespace).values()):
            if isinstance(value, Tool) and not any(value is known for known in found):
                found.append(value)
    return found


def _namespaces(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    if not hasattr(module, "__path__"):
        return  # a plain module has none below it
    prefix = module.__name__ + "."
    for name in sorted(sys.modules):
        if name.startswith(prefix) and isinstance(sys.modules[name], ModuleType):
            yield sys.modules[name]
