"""Values from the bytes that a worker sent: the only place that decodes them.

Its job: whether a payload is sound and small enough, its values at once, or its values piece by piece.
Not its job: what the values may be (``data.py``), which message they make (``messages.py``),
when to take a rest (``supervision/values.py``).
Laws:
1. Nothing is built before the payload's structure is known to be sound and small enough (tests/security/test_wire_hostile.py).
2. A map with one key twice has no value: two readers could disagree about it (tests/security/test_wire_hostile.py).
3. A payload that ``built`` takes has the same values in pieces, on either decoder (tests/agreement/test_large.py).
"""

import sys
from collections.abc import Callable, Generator
from typing import Any

import msgpack
import msgpack.fallback

PIECE_BYTES = 16 << 10  # built in about 1 ms at worst, when each byte is an empty dict
_PIECE_ITEMS = 256  # the same for the decoder in Python


class Refused(ValueError):
    """What is wrong with a frame, in words that follow "the worker sent"."""


def _map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    # security: the library keeps the last of two equal keys, another reader may keep the first
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Refused("a map that holds one key twice")
    return made


def _no_extension(code: int, data: bytes) -> Any:
    raise Refused("an extension type, which is not data")


# security: CPython 3.12 never frees an interned string, and the C decoder interns every key: a worker could fill our memory, call by call
_KEEPS_KEYS = sys.version_info[:2] == (3, 12)
_unpackb = msgpack.fallback.unpackb if _KEEPS_KEYS else msgpack.unpackb

# The whole length of an item by its first byte; 0 where more must be read. Maps and arrays count as their head alone.
_WIDTHS = bytes(
    [1] * 0xA0  # fixint, fixmap, fixarray
    + [1 + size for size in range(32)]  # fixstr
    + [1] * 4  # nil, unused, false, true
    + [0] * 6  # bin, ext
    + [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]  # float, uint, int
    + [0] * 8  # fixext, str
    + [3, 5, 3, 5]  # array, map
    + [1] * 32  # negative fixint
)
FEW = 1000  # items: of so many at most, its bytes are what decoding a payload costs
_SLACK = 64  # a message's own head, number and fields


def require_sound(payload: memoryview, nodes: int) -> None:
    """Raise Refused unless the payload is exactly one value whose every promised item is there, and which cannot hold too many."""
    # security: the decoder sets aside what each array's head promises, 1000 nested promises of a million each in a frame of 1 MB;
    # ``skip`` goes through the same bytes and sets nothing aside, so that after it every promise is known to be kept
    try:
        scout = msgpack.Unpacker(max_buffer_size=len(payload))
        scout.feed(payload)
        scout.skip()
    except MemoryError:
        raise  # ours, and no fault of the bytes
    except Exception as error:  # the library promises no list of exceptions, and these are foreign bytes
        raise _undecoded(error) from None
    if scout.tell() != len(payload):
        raise Refused("a frame with bytes after its value")
    # security: 72 bytes of memory may stand behind one byte of the frame (an empty dict in a list)
    if len(payload) > 2 * nodes + _SLACK:
        _count_items(payload, 2 * nodes + _SLACK)


def built(payload: memoryview) -> list[Any]:
    """The values of a sound payload, a number first. Raises Refused."""
    return _built(payload, _unpackb)


def built_keeping_keys(payload: memoryview) -> list[Any]:
    """The same by the C decoder whatever it keeps: for a process that is thrown away after some hundred values. Raises Refused."""
    return _built(payload, msgpack.unpackb)


def _built(payload: memoryview, unpackb: Callable[..., Any]) -> list[Any]:
    try:
        # security: no byte of a binary or an extension is read; the library takes an extension of 2^32-1 bytes for one of none
        values = unpackb(payload, max_bin_len=0, max_ext_len=0, ext_hook=_no_extension, object_pairs_hook=_map)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # as above
        raise _undecoded(error) from None
    return _message(values)


def built_in_pieces(payload: memoryview) -> Generator[None, None, list[Any]]:
    """The same for a payload that ``built`` takes, with a yield every millisecond or so. It does not look for keys that stand twice."""
    try:
        values = yield from _item_by_item(payload, msgpack.fallback.Unpacker) if _KEEPS_KEYS else _byte_by_byte(payload)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # as above
        raise _undecoded(error) from None
    return _message(values)


def _byte_by_byte(payload: memoryview) -> Generator[None, None, Any]:
    """The C decoder keeps what it has built when its bytes end inside a value, and goes on with the next."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(payload), max_bin_len=0, max_ext_len=0, ext_hook=_no_extension)
    for at in range(0, len(payload), PIECE_BYTES):
        unpacker.feed(payload[at : at + PIECE_BYTES])
        try:
            values = unpacker.unpack()
        except msgpack.OutOfData:
            yield
            continue
        return _last(values, unpacker, payload)
    raise Refused("a frame that ends inside its value")


def _item_by_item(payload: memoryview, kind: type[msgpack.Unpacker]) -> Generator[None, None, Any]:
    """The decoder in Python starts anew when its bytes end inside a value: it is given all, and asked for one item after the other."""
    unpacker = kind(max_buffer_size=len(payload), max_bin_len=0, max_ext_len=0, ext_hook=_no_extension)
    unpacker.feed(payload)
    root: list[Any] = []
    container: Any = root
    missing, taken = 1, 0
    outer: list[tuple[Any, int]] = []
    while missing or outer:
        if not missing:
            container, missing = outer.pop()
            continue
        if (taken := taken + 1) % _PIECE_ITEMS == 0:
            yield
        missing -= 1
        key = unpacker.unpack() if type(container) is dict else None
        head = payload[unpacker.tell()]
        is_map, is_array = 0x80 <= head < 0x90 or head in (0xDE, 0xDF), 0x90 <= head < 0xA0 or head in (0xDC, 0xDD)
        value: Any = {} if is_map else [] if is_array else unpacker.unpack()
        if type(container) is dict:
            container[key] = value
        else:
            container.append(value)
        if is_map or is_array:
            outer.append((container, missing))
            container, missing = value, unpacker.read_map_header() if is_map else unpacker.read_array_header()
    return _last(root[0], unpacker, payload)


def _last(values: Any, unpacker: msgpack.Unpacker, payload: memoryview) -> Any:
    if unpacker.tell() != len(payload):
        raise Refused("a frame with bytes after its value")
    return values


def _message(values: Any) -> list[Any]:
    if type(values) is not list or not values or type(values[0]) is not int:
        raise Refused("a frame that is no message")
    return values


def _undecoded(error: Exception) -> Refused:
    return Refused(f"a frame that does not decode ({type(error).__name__})")


def holds_at_most(payload: memoryview, items: int) -> bool:
    """Whether a payload, sound or not, holds at most so many items, containers and keys included, and none that is no data."""
    try:
        _count_items(payload, items)
    except Refused:
        return False
    return True


def _count_items(payload: memoryview, most: int) -> None:
    """Raise Refused when a sound payload holds more items than that, keys included, or one that is no data."""
    at, end = 0, len(payload)
    for _ in range(most):
        if at >= end:
            return
        head = payload[at]
        width = _WIDTHS[head]
        if width == 0:
            # security: without it the inside of such an item, read as items, hides those that follow
            if not 0xD9 <= head <= 0xDB:
                raise Refused("a binary or extension type, which is not data")
            size = 1 << (head - 0xD9)
            width = 1 + size + int.from_bytes(payload[at + 1 : at + 1 + size], "big")
        at += width
    if at < end:
        raise Refused("more values than its bound")
