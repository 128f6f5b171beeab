"""The guest's own codec: frames of a length and a msgpack array, in plain Python, or with msgpack's C module when one is handed in.

Its job: bytes for what the child sends, values for what the host sent, and words for an author whose value cannot travel.
Not its job: the channel (``main.py``), which message may come when, belief: the host checks every byte again.
Laws:
1. Both ways of writing give the same bytes, and the host's reader the same values (tests/agreement/test_codecs.py).
2. Only None, bool, int of 64 bits, finite float, str, list and dict with str keys travel (tests/agreement/test_codecs.py).
3. Standard library only, no recursion: a wasm guest and a tool deep in its own calls run this too (tests/agreement/test_codecs.py).
"""

from _struct import Struct  # not ``struct``: one module less to import in each fresh guest
from collections.abc import Iterator
from itertools import chain
from typing import Any

INIT, DESCRIBE, CALL, HOST_REPLY, CANCEL = 1, 2, 3, 4, 5
READY, DECLARATIONS, PARTIAL, PROGRESS, EVENT, LOG, HOST_CALL, RESULT, FAILURE = 16, 17, 18, 19, 20, 21, 22, 23, 24

DEPTH = 128
NODES = 1_000_000
LONGEST = (1 << 32) - 1  # what the four bytes of a length can say

_SINGLE, _DOUBLE = Struct(">f"), Struct(">d")
_SHORT = "the frame ends inside a value"


class Codec:
    """Frames from fields and fields from payloads; ``cmsgpack`` is msgpack's compiled module, or None for plain Python."""

    def __init__(self, cmsgpack: Any = None, *, depth: int = DEPTH, nodes: int = NODES) -> None:
        self._c, self._depth, self._nodes = cmsgpack, depth, nodes

    def pack(self, number: int, fields: list[Any]) -> bytes:
        """A whole frame, its length included. Raises ValueError naming the path of what may not travel."""
        _check(fields, self._depth, self._nodes)
        message = [number, *fields]
        try:
            payload = _encode(message) if self._c is None else self._c.Packer(strict_types=True).pack(message)
        except UnicodeEncodeError:
            _check(fields, self._depth, self._nodes, texts=True)
            raise ValueError("a text changed while it was written") from None
        if len(payload) > LONGEST:
            raise ValueError("the value is 4 GiB or more")
        return b"".join((len(payload).to_bytes(4, "big"), payload))

    def unpack(self, payload: bytes) -> list[Any]:
        """The message's number and its fields. Raises ValueError when the payload holds anything but one message of data."""
        message = _decode(payload) if self._c is None else self._unpack_compiled(payload)
        if type(message) is not list or not message or type(message[0]) is not int:
            raise ValueError("the frame is no message")
        _check(message[1:], self._depth, self._nodes)
        return message

    def unpack_own(self, payload: bytes) -> list[Any]:
        """The same for what our own host sent: it looked at each value, and another walk over a large one would be felt."""
        message: list[Any] = _decode(payload) if self._c is None else self._c.unpackb(payload)
        return message

    def _unpack_compiled(self, payload: bytes) -> Any:
        try:
            return self._c.unpackb(payload, ext_hook=_no_extension, object_pairs_hook=_unique)
        except Exception as error:  # its exceptions share no base but this one
            raise ValueError(f"the frame does not decode ({type(error).__name__})") from None


def pack(type_number: int, fields: list[Any]) -> bytes:
    """A whole frame in plain Python. Raises ValueError naming the path of what may not travel."""
    return Codec().pack(type_number, fields)


def unpack(payload: bytes) -> list[Any]:
    """The message's number and its fields, in plain Python. Raises ValueError when it is no message of data."""
    return Codec().unpack(payload)


class Reader:
    """Cuts what was received into payloads: ``feed``, then ``next`` (or iterate) until nothing is left."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._received = bytearray()
        self._longest = longest

    def feed(self, data: bytes) -> None:
        """Append what was received."""
        self._received += data

    def next(self) -> bytes | None:
        """The next whole payload, None when more must be received. Raises ValueError for a length that no frame has."""
        received = self._received
        if len(received) < 4:
            return None
        length = int.from_bytes(received[:4], "big")
        if not 2 <= length <= self._longest:
            raise ValueError("no frame has this length")
        if len(received) < 4 + length:
            return None
        with memoryview(received) as view:
            payload = bytes(view[4 : 4 + length])
        del received[: 4 + length]
        return payload

    def __iter__(self) -> Iterator[bytes]:
        while (payload := self.next()) is not None:
            yield payload


def _check(fields: list[Any], depth: int, nodes: int, *, texts: bool = False) -> None:
    """Raise ValueError with the path of the first value found that is outside the closed set; ``texts`` looks into texts too."""
    if not texts and _plain(fields, depth, nodes):
        return
    waiting: list[tuple[Any, Any, int]] = [(fields, None, 0)]  # container, its path as (path of its parent, key), containers around it
    nodes += len(fields)
    while waiting:
        container, path, around = waiting.pop()
        nodes -= len(container)
        if nodes < 0:
            raise ValueError("there are more values than the wire takes")
        if type(container) is dict:
            for key in container:
                if type(key) is not str or (texts and _lone_surrogate(key)):
                    raise ValueError(f"{_shown(path)} has a key that is no str of plain Unicode")
        for key, value in container.items() if type(container) is dict else enumerate(container):
            kind = type(value)
            if kind is list or kind is dict:
                if around == depth:
                    raise ValueError(f"data is nested deeper than {depth}")
                waiting.append((value, (path, key), around + 1))
            elif kind is float:
                if value != value or value in (float("inf"), float("-inf")):
                    raise ValueError(f"{_shown((path, key))} is a float that is not finite")
            elif kind is int:
                if not -0x8000_0000_0000_0000 <= value < 0x8000_0000_0000_0000:
                    raise ValueError(f"{_shown((path, key))} is an int that does not fit 64 bits")
            elif kind is str:
                if texts and _lone_surrogate(value):
                    raise ValueError(f"{_shown((path, key))} is a str with a lone surrogate")
            elif value is not None and kind is not bool:
                raise ValueError(f"{_shown((path, key))} is of type {kind.__name__}, which is not data")


def _plain(fields: list[Any], depth: int, nodes: int) -> bool:
    """Whether all is inside, without a path to say where it is not: five times as fast."""
    level: list[Any] = [fields]
    left = nodes + len(fields)
    for _ in range(depth + 1):
        below: list[Any] = []
        for container in level:
            left -= len(container)
            if left < 0:
                return False
            if type(container) is dict:
                for key in container:
                    if type(key) is not str:
                        return False
                container = container.values()
            for value in container:
                kind = type(value)
                if kind is str:
                    continue
                if kind is int:
                    if not -0x8000_0000_0000_0000 <= value < 0x8000_0000_0000_0000:
                        return False
                elif kind is float:
                    if value - value != 0.0:
                        return False
                elif kind is dict or kind is list:
                    below.append(value)
                elif value is not None and kind is not bool:
                    return False
        if not below:
            return True
        level = below
    return False


def _lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _shown(path: Any) -> str:
    """``$.rows[3].name``: the path inside its field of the message."""
    keys: list[Any] = []
    while path is not None:
        path, key = path
        keys.append(key)
    keys.pop() if keys else None  # which field it was says nothing to an author
    return "$" + "".join(_step(key) for key in reversed(keys))


def _step(key: Any) -> str:
    if type(key) is int:
        return f"[{key}]"
    return f".{key}" if key.isidentifier() and key.isascii() and len(key) <= 60 else f"[{key[:60]!a}]"


def _encode(message: list[Any]) -> bytearray:
    """The shortest msgpack form of a checked value."""
    out = bytearray()
    open_containers: list[Iterator[Any]] = [iter((message,))]
    while open_containers:
        for value in open_containers[-1]:
            kind = type(value)
            if kind is str:
                data = value.encode()
                out += _head(len(data), 0xA0, 32, b"\xd9\xda\xdb")
                out += data
            elif kind is int:
                out += _integer(value)
            elif kind is float:
                out += b"\xcb" + _DOUBLE.pack(value)
            elif kind is dict:
                out += _head(len(value), 0x80, 16, b"\0\xde\xdf")
                open_containers.append(chain.from_iterable(value.items()))
                break
            elif kind is list:
                out += _head(len(value), 0x90, 16, b"\0\xdc\xdd")
                open_containers.append(iter(value))
                break
            elif value is None or kind is bool:
                out.append(0xC0 if value is None else 0xC3 if value else 0xC2)
            else:
                raise ValueError(f"a value of type {kind.__name__} came in while the message was written")
        else:
            open_containers.pop()
    return out  # no copy: a long one would be felt in a guest of little memory


def _head(size: int, short: int, below: int, longer: bytes) -> bytes:
    """The head of a str, map or array: in one byte when ``size`` is ``below``, else its size after a mark of ``longer``."""
    if size < below:
        return bytes((short | size,))
    if size < 0x100 and longer[0]:
        return bytes((longer[0], size))
    if size < 0x10000:
        return longer[1:2] + size.to_bytes(2, "big")
    return longer[2:3] + size.to_bytes(4, "big")


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return bytes((value & 0xFF,))
    if value > 0:
        power = 0 if value < 1 << 8 else 1 if value < 1 << 16 else 2 if value < 1 << 32 else 3
        return bytes((0xCC + power,)) + value.to_bytes(1 << power, "big")
    power = 0 if value >= -1 << 7 else 1 if value >= -1 << 15 else 2 if value >= -1 << 31 else 3
    return bytes((0xD0 + power,)) + value.to_bytes(1 << power, "big", signed=True)


def _decode(payload: bytes) -> Any:
    """The one value in the payload. Raises ValueError for anything that is not exactly one."""
    at = 0
    root: list[Any] = []
    container: Any = root
    missing = 1  # items still to come in ``container``; a map's keys count
    key: str | None = None  # of the value that comes next, when ``container`` is a map
    outer: list[tuple[Any, int, str | None]] = []
    while True:
        head, value, at = _item(payload, at)
        if type(container) is dict and key is None:
            if head is not None or type(value) is not str:
                raise ValueError("a map has a key that is no str")
            if value in container:
                raise ValueError("a map holds one key twice")
            key = value
            missing -= 1
            continue
        if key is not None:
            container[key] = value
            key = None
        else:
            container.append(value)
        missing -= 1
        if head is not None:
            if head > len(payload) - at:
                raise ValueError(_SHORT)  # every item takes a byte: do not set aside what cannot come
            outer.append((container, missing, key))
            container, missing, key = value, head, None
        while not missing:
            if not outer:
                if at != len(payload):
                    raise ValueError("bytes follow the frame's value")
                return root[0]
            container, missing, key = outer.pop()


def _item(payload: bytes, at: int) -> tuple[int | None, Any, int]:
    """How many items a container announces (None for a scalar), the empty container or the scalar, and where the next item begins."""
    if at >= len(payload):
        raise ValueError(_SHORT)
    head = payload[at]
    at += 1
    if head < 0x80:
        return None, head, at
    if head >= 0xE0:
        return None, head - 0x100, at
    if head < 0x90:
        return 2 * (head & 15), {}, at
    if head < 0xA0:
        return head & 15, [], at
    if head < 0xC0:
        return None, *_text(payload, at, head & 31)
    if head in (0xC0, 0xC2, 0xC3):
        return None, (None, None, False, True)[head - 0xC0], at
    if head in (0xCA, 0xCB):
        form = _DOUBLE if head == 0xCB else _SINGLE
        data, at = _bytes(payload, at, form.size)
        return None, form.unpack(data)[0], at
    if 0xCC <= head <= 0xD3:
        data, at = _bytes(payload, at, 1 << (head & 3))
        return None, int.from_bytes(data, "big", signed=head >= 0xD0), at
    if head < 0xD9:
        raise ValueError("the frame holds bytes, an extension or an unused form: not data")
    data, at = _bytes(payload, at, 1 << (head - 0xD9) if head < 0xDC else 2 << (head & 1))
    size = int.from_bytes(data, "big")
    if head < 0xDC:
        return None, *_text(payload, at, size)
    return (size, [], at) if head < 0xDE else (2 * size, {}, at)


def _bytes(payload: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(payload):
        raise ValueError(_SHORT)
    return payload[at:end], end


def _text(payload: bytes, at: int, size: int) -> tuple[str, int]:
    data, at = _bytes(payload, at, size)
    return data.decode(), at  # a UnicodeDecodeError is a ValueError


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a map holds one key twice")
    return made


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError("an extension is not data")
