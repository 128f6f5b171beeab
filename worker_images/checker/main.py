"""The program of the process that checks large values for the supervisor, locked before it reads the first of them.

Its job: load what checking takes, have itself locked, answer orders on its channel until the supervisor lets go.
Not its job: what is checked and how (``engine/wire/judging.py``), the lock (``enter/zygote.py``), starting it
(``engine/worker/checker.py``).
Laws:
1. It is exec'd with an empty environment and one inherited descriptor, and dies with the supervisor (tests/contract/test_checker.py).
2. No byte of a worker is read before it is locked: no files, no network, no processes (tests/contract/test_checker.py).
"""

import gc
import os
import sys
from typing import Any

_IMAGES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CHANNEL = 3


def main() -> None:
    """``main.py SUPERVISOR CARRIED PACKAGES CHANNEL``: the pid to die with, two folders to load from, the channel's descriptor."""
    supervisor, folders, channel = int(sys.argv[1]), sys.argv[2:4], int(sys.argv[4])
    if channel != _CHANNEL:
        os.dup2(channel, _CHANNEL)
    os.closerange(_CHANNEL + 1, 1 << 20)
    sys.path += [_IMAGES, *folders]
    from engine.wire import messages
    from engine.wire.judging import Judge
    from enter import enter, zygote

    enter.die_with(supervisor, "die with the supervisor")
    zygote.quiet_signals()
    _rehearse(Judge(), messages)
    first = _frame()
    if first is None:
        return
    number, _, lock = messages.fields_of(first)
    zygote.lock_parser(lock, supervisor)
    gc.disable()  # what is built here holds no cycles, and a collector that walks a million values takes as long as building them
    _write(messages.order(number, "locked", {}))
    judge = Judge()
    while (order := _frame()) is not None:
        number, _, details = messages.fields_of(order)
        payload = _exactly(details["bytes"])
        if payload is None:
            return
        for what, told in judge.answers(details, memoryview(payload)):
            _write(messages.order(number, what, {"told": told}))


def _rehearse(judge: Any, messages: Any) -> None:
    """Once through every path: what Python or a library loads only when it is needed could not be read later."""
    schema = '{"type":"array","items":{"type":"string","pattern":"^a$"}}'
    details = {"kind": messages.Result.NUMBER, "depth": 9, "nodes": 99, "schema": schema}
    for payload in (
        b"\x92\x17\x91\xa1a",
        b"\x92\x17\x91\xa1b",
        b"\x92\x17\x81\xa1a\xcb\x7f\xf0\0\0\0\0\0\0",
        b"\x92\x17\xc4\x01a",
        b"\x92\x17\xa2\xc3(",
    ):
        for _ in judge.answers(details, memoryview(payload)):
            continue


def _frame() -> bytes | None:
    """The next order's payload, None when the supervisor has let go."""
    head = _exactly(4)
    return None if head is None else _exactly(int.from_bytes(head, "big"))


def _exactly(size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = os.readv(_CHANNEL, [view])
        if not got:
            return None
        view = view[got:]
    return data  # type: ignore[return-value]  # read-only use; a copy of 8 MiB is what is saved


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_CHANNEL, view) :]


if __name__ == "__main__":
    main()
