"""A guest's whole life, played while an image is pre-initialised: what the interpreter learns by it is in the image.

Its job: run the guest's program on the sample tool until the interpreter has specialised its code and filled its caches.
Not its job: anything at run time; nothing of a user's is here.
Laws:
1. It leaves no module, path, file or environment variable behind (tests/wasm/test_places.py).
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from guest import loader, main, wire
from python_wasm import files, link

_ROUNDS = 6  # CPython 3.14 specialises code within its first few runs
_ENTRY, _BUNDLE = "sample", "/bundle"
_INIT: list[Any] = ["", _BUNDLE, _ENTRY, [], None, None, {"A": "b"}, {"result_bytes": 1}]
_CALLS = (
    ["built", {"text": "a", "number": 2}, "rehearsal"],
    ["derived", {"name": "a", "many": [1, 2], "rest": {"b": None}}, "rehearsal"],
)


def rehearse(place: str, folders: Callable[[str, dict[str, bytes]], loader.Folders]) -> None:
    """Play the lives, with the sample tool that lies at that place."""
    with open(place, encoding="latin-1") as file:
        source = {f"{_ENTRY}.py": file.read()}
    path, hooks = list(sys.path), list(sys.path_hooks)
    for number in range(_ROUNDS):
        files.mount(_BUNDLE, source)
        staged = folders(_BUNDLE, {})
        staged.look_through([])
        _life(staged, number)
        files.unmount(_BUNDLE)
        sys.modules.pop(_ENTRY, None)
        sys.path[:], sys.path_hooks[:] = path, hooks
        for place in [place for place in sys.path_importer_cache if place.startswith(_BUNDLE)]:
            del sys.path_importer_cache[place]
        os.environ.clear()


def _life(folders: loader.Folders, number: int) -> None:
    codec = wire.Codec()
    frames = [codec.pack(wire.INIT, _INIT), codec.pack(wire.CALL, list(_CALLS[number % len(_CALLS)]))]
    said: list[str] = []

    def emit(kind: int, data: str) -> None:
        said.append(data)

    def call(request: str) -> str:
        return frames.pop(0)[4:].decode("latin-1")

    main.serve_over(link.HostLink(codec, emit, call), "/", folders, None)
    if len(said) != 2 or codec.unpack(said[1].encode("latin-1")[4:])[0] != wire.RESULT:
        raise RuntimeError(f"the rehearsal failed: {said}")
