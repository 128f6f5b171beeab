"""The pure-Python packages of an image: files in memory, imported as a granted layer is.

Its job: take them into memory while an image is pre-initialised; time zones where a native jail has them.
Not its job: choosing and checking them (whoever builds the image).
Laws:
1. They come behind the bundle and its layers: a tool's own module of that name wins (tests/wasm/test_prepared.py).
2. Their data files and what is said of their distributions are read as usual (tests/wasm/test_prepared.py).
3. Time zones are found by their names (tests/wasm/test_files.py).
"""

import os
import sys
from collections.abc import Iterator

from guest import loader
from python_wasm import files, library

ROOT = "/packages"
_ZONES = "/usr/share/zoneinfo"


def bundle(folder: str) -> None:
    """Show what lies in the folder's folders below ROOT, and have the interpreter's finders look through it."""
    found: dict[str, bytes] = {}
    for path in _files(folder):
        name = path.removeprefix(folder + "/").partition("/")[2]
        with open(path, "rb") as file:
            found[name] = file.read()
    files.mount(ROOT, found)
    code = {f"{ROOT}/{name}": library.code_of(data, f"{ROOT}/{name}") for name, data in found.items() if name.endswith(".py")}
    sys.path_hooks[:] = sys.path_hooks[1:]  # the first one is for archives, and there are none
    sys.path_importer_cache.clear()
    loader.Folders(ROOT, {place: made for place, made in code.items() if made is not None}).look_through([])


def zones(folder: str) -> None:
    """Show the time zones that lie in the folder where a native jail has those of its host."""
    import zoneinfo  # not above: when it is imported it takes the ``open`` there is, for good

    found: dict[str, bytes] = {}
    for path in _files(folder):
        with open(path, "rb") as file:
            found[path.removeprefix(folder + "/")] = file.read()
    files.mount(_ZONES, found)
    zoneinfo.reset_tzpath([_ZONES])


def _files(folder: str) -> Iterator[str]:
    if not os.path.isdir(folder):
        return
    for name in sorted(os.listdir(folder)):
        path = f"{folder}/{name}"
        if os.path.isdir(path):
            yield from _files(path)
        else:
            yield path
