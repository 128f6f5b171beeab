"""The interpreter that every jail inherits: loaded once, then made to look as if it had always lived inside.

Its job: load the guest and the carried authoring files, forget where on the host they came from, settle into a jail's paths.
Not its job: what this host is (``facts.py``), the order of entering (``enter.py``).
Laws:
1. After ``Runtime`` no loaded code object or module names a folder of the host (tests/security/test_promise_view.py).
2. The carried ``engine`` holds the listed authoring files and nothing else (tests/security/test_promise_view.py).
"""

import gc
import importlib
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import FileFinder, PathFinder
from typing import Any

from enter import rehearsal

PYTHON_ROOT, GUEST_ROOT = "/python", "/guest"
# what a tool's first lines name most; the rest is imported where the operator's list allows it
_CARRIED = ("engine", "engine.errors", *(f"engine.authoring.{name}" for name in ("tool", "schema", "derive", "convert", "canonical")))

_AUTHORING = ("Context", "Tool", "artifact", "schema", "tool")


class Runtime:
    """The codec and the guest's program, with the interpreter around them relocated."""

    kept: tuple[int, ...] = ()  # descriptors that every process below keeps
    trap_signals: tuple[int, ...] = ()  # whose handlers stay as they are

    def __init__(self, carried: str, package_folder: str) -> None:
        before = list(sys.path)
        sys.path += [carried, package_folder]
        for name in _CARRIED:
            importlib.import_module(name)
        engine = importlib.import_module("engine")
        for name in _AUTHORING:  # found once here, and not again by the first line of each tool
            setattr(engine, name, getattr(engine, name))
        from guest import loader, main, wire

        compiled = importlib.import_module("msgpack._cmsgpack")
        self.codec = wire.Codec(compiled)
        self._main, self._loader = main, loader
        self._learnt: list[Any] | None = None  # the tools, once a zygote has imported them
        # security: a layer's own msgpack must not find ours half loaded, nor a tool find the host's paths
        hidden = [sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "msgpack"]
        sys.path[:] = before
        self.stdlib = os.path.dirname(os.path.abspath(os.__file__))
        images = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self._sample = f"{images}/rehearsal"
        self._moves = [
            (self.stdlib, inside_stdlib()),
            (f"{carried}/engine", f"{GUEST_ROOT}/engine"),
            (images, GUEST_ROOT),
            (package_folder, f"{GUEST_ROOT}/packages"),
        ]
        self.own_folders = tuple(os.path.realpath(old) for old, _ in self._moves)
        self._prefix = sys.prefix
        _relocate(self._moves)
        for module in hidden:  # alive through the codec
            _relocate_module(module, _moved_by(self._moves))

    def serve(self, channel: int, home: str) -> None:
        """Run the guest's program for one call in this, by now locked, process."""
        self._main.serve(channel, self.codec, home, self._folders, self._learnt)

    def learn(self, channel: int, home: str, check: Callable[[], str | None]) -> bool:
        """Import the tool in this process, for all the children it will have; ``check`` says what keeps it from being forked then."""
        self._learnt = self._main.learn(channel, self.codec, home, self._folders, check)
        return self._learnt is not None

    def rehearse(self) -> None:
        """Play a child's life until the interpreter has learnt it; the last thing before its memory is settled."""
        folders = self._loader.Folders(self._sample, rehearsal.code_of(self._sample))
        rehearsal.rehearse(
            self._sample,
            self.codec,
            lambda channel, home: self._main.serve(channel, self.codec, home, folders),
            self._main.forget_environment,
        )
        sys.path_importer_cache.clear()  # nothing is imported from the host's folders any more

    def host_places(self) -> list[object]:
        """What still names folders of the host until a jail is settled in; it must be free to go then."""
        held = [*self._moves, self._moves, self.own_folders, self._prefix, self.stdlib, self._sample]
        return [*held, *(place for pair in self._moves for place in pair), *self.own_folders]

    def stage(self, root: str, layers: list[str], code: dict[str, bytes]) -> None:
        """Look through the folders that children import from, once for all of them; nothing in them runs."""
        sys.dont_write_bytecode = True
        self._folders = self._loader.Folders(root, {f"{root}/{name}": made for name, made in code.items()})
        self._folders.look_through(layers)

    def bound(self, plan: dict[str, Any], address: int) -> None:
        """Complete a plan's limits by the address space that this process has already."""
        limits = plan["limits"]
        limits["address_bytes"] = address + limits["memory_bytes"]

    def settle(self, path: list[str], *, walls: bool) -> None:
        """Point the interpreter at a jail's paths, or back at the host's own without the wall; imports are answered from there."""
        if walls:
            # a child could read where on the host it came from
            self._moves, self.own_folders, self._prefix, self.stdlib, self._sample = [], (), PYTHON_ROOT, inside_stdlib(), ""
        else:
            _relocate([(new, old) for old, new in self._moves])
        sys.path[:] = path
        sys.path_importer_cache.clear()
        _settle(PYTHON_ROOT if walls else self._prefix)


def look_ahead(root: str, path: list[str]) -> None:
    """Look through folders of the interpreter's path while they lie below a root that is not turned over yet: they stay the same ones."""
    for place in path:
        PathFinder.find_spec("no module has this name", [root + place])
        finder = sys.path_importer_cache.pop(root + place)
        if isinstance(finder, FileFinder):
            finder.path = place
            sys.path_importer_cache[place] = finder


def inside_stdlib() -> str:
    """Where the standard library lies in a jail."""
    return f"{PYTHON_ROOT}/lib/python{sys.version_info[0]}.{sys.version_info[1]}"


def _settle(prefix: str) -> None:
    sys.prefix = sys.exec_prefix = sys.base_prefix = sys.base_exec_prefix = prefix
    sys.executable = ""
    sys.argv[:] = [""]
    sys.orig_argv[:] = []
    for name in ("_base_executable", "_stdlib_dir"):  # undocumented, and path names all the same
        setattr(sys, name, "")
    sys.modules["__main__"] = types.ModuleType("__main__")  # the launcher's own holds its control socket


def _relocate(moves: list[tuple[str, str]]) -> None:
    """Rewrite where every loaded function and module says that it came from."""
    moved = _moved_by(moves)
    known: dict[types.CodeType, types.CodeType] = {}

    def rewritten(code: types.CodeType) -> types.CodeType:
        if code not in known:
            constants = tuple(rewritten(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
            known[code] = code.replace(co_filename=moved(code.co_filename), co_consts=constants)
        return known[code]

    for found in gc.get_objects():
        if type(found) is types.FunctionType:
            found.__code__ = rewritten(found.__code__)
        elif type(found) is dict and type(found.get("__file__")) is str:  # C modules of one phase keep a copy of their first namespace
            found["__file__"] = moved(found["__file__"])
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):  # typing puts two of its classes there
            _relocate_module(module, moved)


def _moved_by(moves: list[tuple[str, str]]) -> Callable[[str], str]:
    def moved(path: str) -> str:
        for old, new in moves:
            if path == old or path.startswith(old + "/"):
                return new + path[len(old) :]
        return path

    return moved


def _relocate_module(module: types.ModuleType, moved: Callable[[str], str]) -> None:
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        module.__file__ = moved(file)
    if getattr(module, "__path__", None) is not None:  # a namespace package's own kind of list remembers more than it shows
        module.__path__ = [moved(path) for path in module.__path__]
    vars(module).pop("__cached__", None)
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        if isinstance(spec.origin, str):
            spec.origin = moved(spec.origin)
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations = [moved(path) for path in spec.submodule_search_locations]
        spec.cached = None
        frozen = spec.loader_state
        if isinstance(getattr(frozen, "filename", None), str):
            frozen.filename = moved(frozen.filename)
    loader = getattr(module, "__loader__", None)
    if loader is not None and getattr(loader, "_path", None) is not None:  # undocumented: a namespace package's loader keeps the same
        loader._path = module.__path__
    if isinstance(getattr(loader, "path", None), str) and loader is not None:
        loader.path = moved(loader.path)
