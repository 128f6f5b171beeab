"""A large value: the process that checks it and the building in pieces say what the event loop would have said."""

import math
from collections.abc import Generator
from typing import Any

import msgpack
import msgpack.fallback
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import spelling
from engine.checking import Checker
from engine.wire import decoding, messages
from engine.wire.framing import RemoteFault
from engine.wire.judging import Judge
from engine.wire.messages import Event, HostCall, Partial, Result

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT, inner, max_size=20), max_leaves=60)
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "string", "maxLength": 3}},
    {"type": "array", "maxItems": 2},
    {"enum": [None, True, 1]},
    {"type": "number", "minimum": 0},
]
HOSTILE = {
    "a key twice": "9217 82 a161 01 a161 02",
    "a key twice, below": "9217 91 82 a161 01 a161 02",
    "an extension": "9217 d4 00 00",
    "a timestamp": "9217 d6 ff 00000000",
    "a binary": "9217 c4 01 00",
    "an empty binary": "9217 c4 00",
    "an empty binary as key": "9217 81 c4 00 01",
    "a key that is a number": "9217 81 01 01",
    "infinity": "9217 cb 7ff0000000000000",
    "nan": "9217 cb 7ff8000000000000",
    "2**64-1": "9217 cf ffffffffffffffff",
    "bytes after it": "9217 c0 c0",
    "half of it": "9217 92 c0",
    "no text": "9217 a1 ff",
    "129 deep": "9217" + "91" * 129 + "c0",
    "5000 deep": "9217" + "91" * 5000 + "c0",
    "promises": "9217 dd ffffffff" + "c0" * 9,
    "too many values": "9217 dc 0800" + "80" * 0x800,
    "an unused form": "9217 c1",
    "another number": "92 cd0011 c0",
    "three fields": "93 17 c0 c0",
}
BOUNDS = {"depth": 128, "nodes": 1000}


def on_the_loop(payload: bytes, kind: type[messages.FromWorker], schema: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """What the loop says of it, in the words of the process."""
    try:
        message = messages.decode(memoryview(payload), kind, **BOUNDS)
    except RemoteFault as fault:
        return [("fault", fault.line)]
    value = getattr(message, "value", None)
    lines = [] if schema is None else list(Checker(schema).problems(value))
    said: list[tuple[str, Any]] = [("sound", None), ("lines", lines)]
    return [*said, ("digest", spelling.digest(value))] if kind is Result and not lines else said


def in_the_process(payload: bytes, kind: type[messages.FromWorker], schema: dict[str, Any] | None) -> list[tuple[str, Any]]:
    """What the process answers; it may have called sound what it then finds at fault."""
    text = None if schema is None else Checker(schema).text
    told = list(Judge().answers({"kind": kind.NUMBER, "schema": text, **BOUNDS}, memoryview(payload)))
    return told[1:] if [name for name, _ in told] == ["sound", "fault"] else told


def whole(pieces: Generator[None, None, Any]) -> Any:
    """What comes of the pieces."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return done.value


@settings(deadline=None)
@given(DATA, st.sampled_from(SCHEMAS), st.sampled_from([Result, Partial, Event]))
def test_the_process_says_what_the_loop_says(value: Any, schema: dict[str, Any], kind: type[messages.FromWorker]) -> None:
    """The same lines, and the same digest for a result that fits."""
    payload = msgpack.packb([kind.NUMBER, value])
    assert in_the_process(payload, kind, schema) == on_the_loop(payload, kind, schema)


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from(SCHEMAS))
def test_of_any_bytes_too(data: bytes, schema: dict[str, Any]) -> None:
    """Foreign bytes have the same fault, in the same words."""
    payload = b"\x92\x17" + data
    assert in_the_process(payload, Result, schema) == on_the_loop(payload, Result, schema)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_payloads_are_refused_in_the_same_words(name: str) -> None:
    """Each is a fault, and it is the loop's."""
    payload = bytes.fromhex(HOSTILE[name])
    told = in_the_process(payload, Result, {})
    assert (told, told[0][0]) == (on_the_loop(payload, Result, {}), "fault")


def test_other_kinds_have_no_digest() -> None:
    """A host call is checked as a message, and against no schema."""
    payload = msgpack.packb([HostCall.NUMBER, 7, "other", {"a": 1}])
    assert in_the_process(payload, HostCall, None) == [("sound", None), ("lines", [])]
    bad = msgpack.packb([HostCall.NUMBER, "7", "other", {}])
    assert in_the_process(bad, HostCall, None) == [("fault", "the worker sent HostCall whose number may not be this str")]


@settings(deadline=None)
@given(DATA)
def test_pieces_make_the_same_values(value: Any) -> None:
    """Whichever decoder, and however small the pieces."""
    payload = memoryview(msgpack.packb([Result.NUMBER, value]))
    wanted = repr(decoding.built(payload))
    assert repr(whole(decoding.built_in_pieces(payload))) == wanted
    for kind in (msgpack.Unpacker, msgpack.fallback.Unpacker):
        assert repr(whole(decoding._item_by_item(payload, kind))) == wanted


@pytest.mark.parametrize("piece", [1, 2, 7, 64])
def test_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """The C decoder goes on where its bytes ended: inside a head, a number, a text or a container."""
    monkeypatch.setattr(decoding, "PIECE_BYTES", piece)
    value = {"a": [1, -70000, 1 << 40, math.pi, None, True, "x" * 300, {"b": [[], {}, "ß" * 40]}], "c": "", "d": {"e": {}}}
    payload = memoryview(msgpack.packb([Result.NUMBER, value]))
    assert whole(decoding._byte_by_byte(payload)) == [Result.NUMBER, value]


@pytest.mark.parametrize("way", [decoding._byte_by_byte, lambda payload: decoding._item_by_item(payload, msgpack.fallback.Unpacker)])
def test_a_large_value_comes_in_many_pieces(way: Any) -> None:
    """There is a place to rest at least every few hundred items."""
    value = [{"id": number, "name": f"name {number}"} for number in range(20_000)]
    pieces = way(memoryview(msgpack.packb([Result.NUMBER, value])))
    assert sum(1 for _ in pieces) > 20


@pytest.mark.parametrize("name", ["an extension", "bytes after it", "half of it", "a binary", "no text"])
def test_what_nobody_called_sound_is_refused_in_pieces(name: str) -> None:
    """Should the process be wrong about the bytes, nothing that is no data is built of them."""
    with pytest.raises(decoding.Refused):
        whole(decoding.built_in_pieces(memoryview(bytes.fromhex(HOSTILE[name]))))
