"""What crosses between a guest and the supervisor: bytes, never looked into.

Its job: write whole what the guest gives out, cut what the supervisor sends into frames, wait for either.
Not its job: what a frame holds (the guest reads it, the host side of the wall judges it), calling the guest (``host.py``).
Laws:
1. Writing blocks while nobody reads: that is the back-pressure (tests/unit/test_wasm_relay.py).
2. A guest is given whole frames, in order, however they arrived (tests/unit/test_wasm_relay.py).
"""

import os
import select

_READ_BYTES = 1 << 16
_HEAD = 4  # bytes of a frame's length


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it. Raises OSError when nobody will read it any more."""
    written = os.write(descriptor, data)
    if written < len(data):
        view = memoryview(data)[written:]
        while view:
            view = view[os.write(descriptor, view) :]


class Channel:
    """The child's end of its channel; one is made before there are children, and each opens its own."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._received = bytearray()

    def open(self, descriptor: int) -> None:
        """Belong to the process that holds this descriptor."""
        self._descriptor = descriptor

    def send(self, frame: bytes | memoryview) -> None:
        """Write one whole frame. Raises OSError when nobody will read it any more."""
        write(self._descriptor, frame)

    def receive(self, *, wait: bool) -> bytes | None:
        """The next frame without its length; without ``wait`` an empty one when there is none yet; None when there will be none."""
        while True:
            received = self._received
            if len(received) >= _HEAD:
                end = _HEAD + int.from_bytes(received[:_HEAD], "big")
                if len(received) >= end:
                    with memoryview(received) as view:
                        payload = bytes(view[_HEAD:end])
                    del received[:end]
                    return payload
            if not wait and not self._readable():
                return b""
            data = os.read(self._descriptor, _READ_BYTES)
            if not data:
                return None
            received += data

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))
