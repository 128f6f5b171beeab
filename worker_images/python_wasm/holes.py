"""The free places between the objects of a prepared interpreter, taken for good.

Its job: have what an instance makes lie together behind everything that is there, on few pages of its own: each page of the image that an
instance writes is a page that is copied for it.
Not its job: what is there (``shim.py``).
Why: the guest's interpreter takes every object from the C library's allocator, which gives out the hole that fits best, wherever it is.
Laws:
1. An instance that was prepared so writes to fewer pages of the image (tests/wasm/test_fresh.py).
"""

_KEPT = 400_000  # holes at most
_PROBE = 1 << 20  # bytes; no hole is as large
_SIZES = (*range(65536, 4096, -4096), *range(4096, 1024, -64), *range(1024, 0, -16))
_HEAD = 21  # bytes in front of a bytes object's content and of the block it lies in, and one behind


def fill() -> list[object]:
    """Take them; the answer holds them."""
    held: list[object] = [None] * _KEPT
    end = id(bytes(_PROBE))
    number = 0
    for size in _SIZES:
        while number < _KEPT:
            made: object = bytes(size - _HEAD) if size - _HEAD > 1 else object()
            if id(made) >= end:
                break
            held[number] = made
            number += 1
    del held[number:]
    return held
