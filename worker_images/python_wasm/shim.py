"""What the image exports: take the staged source, be the worker of one call.

Its job: make an instance look as a native child does, then run the guest's own program in it.
Not its job: that program (``guest/``), the wall around it (the process that instantiates it).
Laws:
1. A call ends as it does in a native worker (tests/agreement/test_walls.py).
2. Instances share no randomness (tests/wasm/test_fresh.py).
3. An image that was prepared with one source refuses every other (tests/wasm/test_prepared.py).
"""

import gc
import importlib
import json
import os
import sys
import types
from typing import Any

from wit_world.imports import host  # type: ignore[import-not-found]  # made by componentize-py of world.wit

from engine.authoring.tool import Tool
from guest import loader, main, wire
from python_wasm import files, holes, library, link, loop, packages, rehearsal, streams

_BUNDLE = "/bundle"
_ENGINE = ("Context", "Tool", "artifact", "http", "schema", "tool")
# what tools import most: an import that is already done costs an instance nothing
_BEFOREHAND = """
    _strptime abc argparse array ast asyncio base64 binascii bisect calendar cmath codecs collections collections.abc configparser
    contextlib contextvars copy csv dataclasses datetime decimal difflib email.message email.parser email.utils encodings.ascii
    encodings.cp1252 encodings.idna encodings.latin_1 encodings.utf_16 encodings.utf_8_sig enum fnmatch fractions functools glob gzip
    hashlib heapq hmac html html.entities html.parser importlib.metadata importlib.resources inspect io ipaddress itertools json
    locale logging math mimetypes numbers operator os pathlib pickle pkgutil posixpath pprint queue random re reprlib secrets select
    shlex shutil signal sqlite3 stat statistics string struct tempfile textwrap threading time timeit tomllib traceback types typing
    unicodedata urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo
"""


class _State:
    """Of this instance, and of the image that it was made from."""

    source: dict[str, Any] | None = None
    text = ""
    folders: loader.Folders | None = None
    learnt: list[Tool[..., Any]] | None = None
    holes: list[object] | None = None


class WitWorld:
    """The two exports."""

    def load(self, request: str) -> str:
        """Take the staged source; "" or what is wrong."""
        _be_new()
        if _State.source is None:
            _stage(json.loads(request))
        elif request != _State.text and json.loads(request) != _State.source:
            _State.folders = None
            return "the image was prepared with another source"
        return ""

    def call(self, request: str) -> str:
        """Be the worker of one call; "" when it has ended."""
        if _State.folders is None:
            return "nothing was loaded"
        try:
            with_host = link.HostLink(wire.Codec(), host.emit, host.call)
            main.serve_over(with_host, json.loads(request)["home"], _State.folders, _State.learnt)
        except link.Gone:
            pass
        return ""


class _Folders(loader.Folders):
    """The bundle, with the image's packages behind everything that was granted."""

    def import_entry(self, entry: str, layers: list[str]) -> types.ModuleType:
        """As in a native jail, whose packages are layers alone."""
        return super().import_entry(entry, [*layers, packages.ROOT])


def _stage(source: dict[str, Any]) -> None:
    files.mount(_BUNDLE, source["files"])
    for name, content in source["layers"].items():
        files.mount(f"/layers/{name}", content)
    _State.folders = _Folders(_BUNDLE, {})
    _State.folders.look_through([f"/layers/{name}" for name in source["layers"]])


def _be_new() -> None:
    """What pre-initialisation froze, and no two instances may have in common. The runtime itself seeded ``random``."""
    import logging
    import time

    main.forget_environment()
    logging._startTime = time.time_ns()  # type: ignore[attr-defined]  # undocumented; from it records count their age
    sys.argv[:] = [""]


def prepare(root: str, table: library.Table) -> None:
    """Make the interpreter that all instances start from; the last thing before its memory is kept."""
    library.take_over(table)
    library.relocate()
    files.put_in_front()
    for name in _BEFOREHAND.split():
        importlib.import_module(name)
    _carry()
    packages.bundle(f"{root}/packages")
    packages.zones(f"{root}/zones")
    library.hide_frames()
    loop.install()
    _settle()
    rehearsal.rehearse(f"{root}/sample.py", _Folders)
    if os.path.exists(f"{root}/prepared.json"):
        _import_beforehand(f"{root}/prepared.json")
    streams.install(host.emit)
    gc.collect()
    _State.holes = holes.fill()
    gc.freeze()


def _import_beforehand(place: str) -> None:
    """Import one source for all instances. What it prints meanwhile is the builder's."""
    with open(place, encoding="utf-8") as file:
        source = json.load(file)
    entry = source.pop("entry")
    _stage(source)
    assert _State.folders is not None  # noqa: S101 - a type fact: it was just set
    module = _State.folders.import_entry(entry, [f"/layers/{name}" for name in source["layers"]])
    _State.learnt = loader.tools_of(module)
    _State.source, _State.text = source, json.dumps(source, ensure_ascii=False, separators=(",", ":"))


def _carry() -> None:
    engine = importlib.import_module("engine")
    for name in ("engine.errors", *(f"engine.authoring.{name}" for name in ("tool", "schema", "derive", "convert", "canonical"))):
        importlib.import_module(name)
    for name in _ENGINE:  # found once here, and not again by the first line of each tool
        setattr(engine, name, getattr(engine, name))


def _settle() -> None:
    sys.path[:] = [library.STANDARD]
    sys.dont_write_bytecode = True
    sys.argv[:] = [""]
    sys.orig_argv[:] = []
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.clear()
