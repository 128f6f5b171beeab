"""The standard library, the guest and the carried authoring files, as byte code in the image's memory.

Its job: collect them while an image is pre-initialised, import them from memory ever after.
Not its job: what is staged or bundled (``files.py`` shows those as files, the interpreter's own finders import them).
Laws:
1. What is imported from here says that it lies where a native jail shows it (tests/wasm/test_places.py).
2. It comes before every path: nothing staged takes the name of a module in it (tests/wasm/test_importing.py).
"""

import gc
import importlib.util
import marshal
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

STANDARD = f"/python/lib/python{sys.version_info[0]}.{sys.version_info[1]}"
GUEST = "/guest"
_PYTHON = "/python"  # where componentize-py shows the standard library
_CARRIED = ("engine", "guest", "python_wasm")
# tests, programs with a window, and what cannot be there: no module of another imports them
LEFT_OUT = frozenset(
    "test idlelib tkinter ensurepip turtledemo pydoc_data lib2to3 site-packages venv __phello__ turtle.py antigravity.py this.py "
    "config-3.14-wasm32-wasi webbrowser.py curses __pycache__".split()
)

# module -> its code (empty for a package without a file), its source (or nothing: it is not shown), whether it is a package, where it lies
Table = dict[str, tuple[bytes, bytes, bool, str]]
_TABLE: Table = {}


class Library:
    """The finder and the loader of what was collected."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's spec, None when it is not from here."""
        known = _TABLE.get(name)
        if known is None:
            return None
        code, _, package, place = known
        if not code:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [place]
            return spec
        spec = ModuleSpec(name, cls, origin=place, is_package=package)  # type: ignore[arg-type]  # a class serves as well as an object
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [place.rpartition("/")[0]]
        return spec

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """The usual kind of module."""

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        """Run the module's code."""
        exec(cls.get_code(module.__name__), vars(module))  # noqa: S102 - collected from the standard library and the image's own files

    @staticmethod
    def get_code(name: str) -> CodeType:
        """The code. Raises ImportError for a name that is not from here."""
        if name not in _TABLE:
            raise ImportError(f"no module {name!r} in the library", name=name)
        code: CodeType = marshal.loads(_TABLE[name][0])  # noqa: S302 - written by ``collect`` in this very memory
        return code

    @staticmethod
    def get_source(name: str) -> str | None:
        """The text, for tracebacks; None for what a native jail shows no text of."""
        packed = _TABLE[name][1] if name in _TABLE else b""
        return importlib.util.decode_source(zlib.decompress(packed)) if packed else None

    @staticmethod
    def is_package(name: str) -> bool:
        """Whether the module is a package."""
        return _TABLE[name][2]


def collect(root: str) -> None:
    """Compile all of the standard library, and the carried packages below the folder."""
    _collect(_PYTHON, STANDARD, "")
    for name in _CARRIED:
        _TABLE[name] = (b"", b"", True, f"{GUEST}/{name}")  # most are folders without a file of their own
        _collect(f"{root}/{name}", f"{GUEST}/{name}", f"{name}.")


def _collect(folder: str, place: str, prefix: str) -> None:
    for name in sorted(os.listdir(folder)):
        path, inside = f"{folder}/{name}", f"{place}/{name}"
        if name in LEFT_OUT:
            continue
        if name.endswith(".py"):
            _add(f"{prefix}{name[:-3]}", path, inside)
        elif os.path.isdir(path):
            _collect(path, inside, f"{prefix}{name}.")


def _add(name: str, path: str, inside: str) -> None:
    package = name.endswith(".__init__")
    with open(path, "rb") as file:
        source = file.read()
    code = code_of(source, inside)
    if code is None:
        return  # templates lie between the modules
    shown = b"" if inside.startswith((f"{GUEST}/guest/", f"{GUEST}/python_wasm/")) else zlib.compress(source, 9)
    _TABLE[name.removesuffix(".__init__")] = (code, shown, package, inside)


def install() -> None:
    """Answer imports from here, before any path is looked at, and forget the build's own paths."""
    sys.meta_path.insert(2, Library)
    sys.path[:] = [STANDARD]
    sys.path_importer_cache.clear()


def handed_over() -> Table:
    """The table, for the library that was imported out of this one."""
    sys.meta_path.remove(Library)
    return _TABLE


def take_over(table: Table) -> None:
    """Be the library from here on."""
    _TABLE.update(table)
    sys.meta_path.insert(2, Library)


def code_of(source: bytes, place: str) -> bytes | None:
    """The byte code of a bundled file, None when it is no module of this version."""
    try:
        return marshal.dumps(compile(source, place, "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return None


def names() -> list[str]:
    """The top-level modules that are from here."""
    return sorted(name for name in _TABLE if "." not in name)


def relocate() -> None:
    """Rewrite where what was loaded before the library says that it came from."""
    known: dict[CodeType, CodeType] = {}

    def rewritten(code: CodeType) -> CodeType:
        if code not in known:
            constants = tuple(rewritten(one) if isinstance(one, CodeType) else one for one in code.co_consts)
            known[code] = code.replace(co_filename=_moved(code.co_filename), co_consts=constants)
        return known[code]

    for found in gc.get_objects():
        if type(found) is FunctionType and _moved(found.__code__.co_filename) != found.__code__.co_filename:
            found.__code__ = rewritten(found.__code__)
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            _relocate_module(module)
    for name in ("executable", "_base_executable", "_stdlib_dir"):
        setattr(sys, name, "")


def _moved(place: str) -> str:
    for folder, inside in (("/python/lib/", "/python/lib/"), ("/python/", f"{STANDARD}/"), ("/0/", f"{GUEST}/")):
        if place.startswith(folder):
            return inside + place[len(folder) :]
    return f"{GUEST}{place}" if place.startswith(("/world/", "/bundled/")) else place


def _relocate_module(module: ModuleType) -> None:
    vars(module).pop("__cached__", None)
    if isinstance(file := getattr(module, "__file__", None), str):
        module.__file__ = _moved(file)
    if isinstance(path := getattr(module, "__path__", None), list):
        path[:] = [_moved(one + "/")[:-1] for one in path]
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        spec.cached = None
        spec.origin = _moved(spec.origin) if isinstance(spec.origin, str) else spec.origin
        if isinstance(spec.submodule_search_locations, list):
            spec.submodule_search_locations[:] = [_moved(one + "/")[:-1] for one in spec.submodule_search_locations]
    loader = getattr(module, "__loader__", None)
    if isinstance(getattr(loader, "path", None), str) and loader is not None:
        loader.path = _moved(loader.path)


Walk = Callable[..., Iterator[tuple[object, ...]]]


def hide_frames() -> None:
    """Have tracebacks pass over the frames of this folder: a native worker has none there."""
    import traceback

    for name in ("walk_tb", "walk_stack", "_walk_tb_with_full_positions"):
        setattr(traceback, name, _hiding(getattr(traceback, name)))


def _hiding(walk: Walk) -> Walk:
    def walked(start: object) -> Iterator[tuple[object, ...]]:
        if start is None and walk.__name__ == "walk_stack":
            start = sys._getframe(1)  # whoever asked
        return (step for step in walk(start) if not _ours(step))

    return walked


def _ours(step: tuple[Any, ...]) -> bool:
    frame = step[0]
    code = frame if isinstance(frame, CodeType) else frame.f_code
    return code.co_filename.startswith(f"{GUEST}/python_wasm/")
