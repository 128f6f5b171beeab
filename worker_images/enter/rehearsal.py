"""A child's whole life, played in the launcher before there is any jail, so that no child does anything for the first time.

Its job: run the guest's program on a tool of our own until the interpreter has specialised its code, filled its caches, bound its symbols.
Not its job: locking (``zygote.py``); nothing of a user's is here yet.
Why: what an interpreter writes while it learns lies in pages that every child would have to copy, and unlearn with its end.
Laws:
1. It leaves no module, path, environment variable or descriptor behind, and none of the launcher's four variables either, which have done
   their work (tests/unit/test_rehearsal.py).
"""

import _socket
import gc
import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from enter import coding, kernel

ROUNDS = 10 if sys.version_info < (3, 12) else 5  # CPython 3.11 specialises code from its eighth run on, later ones from its second
_ENTRY = "sample"
_INIT, _CALL = 1, 3
_CALLS = (
    ["built", {"text": "a", "number": 2}, "rehearsal"],
    ["derived", {"name": "a", "many": [1, 2], "rest": {"b": None}}, "rehearsal"],
)


def code_of(folder: str) -> dict[str, bytes]:
    """The byte code of the sample, which is what most children load. Raises OSError when it cannot be read."""
    path = f"{folder}/{_ENTRY}.py"
    with open(path, "rb") as file:
        return {path: coding.code_of(file.read(), path).encode("latin-1")}


def rehearse(folder: str, codec: Any, serve: Callable[[int, str], None], forget: Callable[[], None]) -> None:
    """Play the lives; ``folder`` holds the sample tool, ``forget`` empties the environment. Raises OSError without descriptors."""
    path = list(sys.path)
    init = codec.pack(_INIT, ["", folder, _ENTRY, [], None, None, {"A": "b"}, {"result_bytes": 1}])

    def play(number: int) -> None:
        forget()
        _life(init + codec.pack(_CALL, _CALLS[number % len(_CALLS)]), serve)
        sys.modules.pop(_ENTRY, None)
        sys.path[:] = path

    if not kernel.can_be_immortal():
        play(0)  # what is done only the first time is of no interest
        _gather(lambda: play(1))
    for number in range(ROUNDS):
        play(number)
    forget()


def _gather(play: Callable[[], None]) -> None:
    """Have the code that a child runs lie together: running it counts references in it, and each page that holds any is copied then."""
    run: dict[CodeType, list[FunctionType]] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            run.setdefault(frame.f_code, [])

    sys.setprofile(note)
    try:
        play()
    finally:
        sys.setprofile(None)
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__ in run:
            run[one.__code__].append(one)
    gc.collect()
    kernel.fill_holes()
    for code, functions in run.items():
        for function in functions:
            function.__code__ = code.replace()


def _life(frames: bytes, serve: Callable[[int, str], None]) -> None:
    host, child = _socket.socketpair()
    try:
        host.send(frames)
        serve(child.fileno(), "/")
    finally:
        host.close()
        child.close()
