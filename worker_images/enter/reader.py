"""The program of the process that parses sources for one load: a source in, its facts and code out, until the supervisor lets go.

Its job: cut requests from the channel, answer each with one frame.
Not its job: the facts (``parse.py``), the code (``coding.py``), its lock (``zygote.lock_parser``).
The source is not believed: the process is thrown away.
Once the code is more than a bundle can keep, none is made any more (tests/contract/test_code.py).
"""

import os
from typing import Any

from enter import coding, parse

_HEAD = 8  # two lengths of four bytes, big-endian: the name's and the source's


def serve(channel: int, codec: Any) -> None:
    """Answer requests until the channel ends."""
    left = coding.FILE_BYTES
    while (head := _exactly(channel, _HEAD)) is not None:
        name = _exactly(channel, int.from_bytes(head[:4], "big"))
        source = _exactly(channel, int.from_bytes(head[4:], "big"))
        if name is None or source is None:
            return
        shown = name.decode("utf-8", "replace")
        facts = parse.facts(source, shown)
        code = coding.code_of(source, shown) if facts["ok"] and left >= 0 else ""
        left -= len(code)
        view = memoryview(codec.pack(2, [facts, code, coding.PYTHON]))
        while view:
            view = view[os.write(channel, view) :]


def _exactly(channel: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        more = os.read(channel, size - len(data))
        if not more:
            return None
        data += more
    return bytes(data)
