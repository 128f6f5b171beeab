"""Host codec, guest codec in plain Python, guest codec over the compiled module: the same bytes, values and refusals."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import msgpack
import msgpack.fallback
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgpack import _cmsgpack

from engine.errors import EngineBug
from engine.wire import decoding, messages
from engine.wire.framing import RemoteFault, frame
from engine.wire.messages import FROM_WORKER, TO_WORKER, HostReply, Result
from guest import wire

PLAIN, COMPILED = wire.Codec(), wire.Codec(_cmsgpack)
CODECS = [pytest.param(PLAIN, id="plain"), pytest.param(COMPILED, id="compiled")]
GUEST = Path(wire.__file__).parent

# number, fields, frame in hex: written by hand from the msgpack specification
GOLDEN: list[tuple[int, list[Any], str]] = [
    (
        wire.INIT,
        ["b", "/r", "e", ["l"], None, "d", {"A": "1"}, {"n": 300}],
        "0000001a 99 01 a162 a22f72 a165 91a16c c0 a164 81a141a131 81a16ecd012c",
    ),
    (wire.DESCRIBE, [], "00000002 91 02"),
    (wire.CALL, ["t", {"x": [1, -1, 2.5]}, "c"], "00000015 94 03 a174 81a17893 01 ff cb4004000000000000 a163"),
    (wire.HOST_REPLY, [200, False, "no"], "00000008 94 04 ccc8 c2 a26e6f"),
    (wire.CANCEL, [], "00000002 91 05"),
    (wire.READY, [None], "00000003 92 10 c0"),
    (wire.DECLARATIONS, [[{}]], "00000004 92 11 91 80"),
    (wire.PARTIAL, [True], "00000003 92 12 c3"),
    (wire.PROGRESS, [-33, 70000, "ß"], "0000000c 94 13 d0df ce00011170 a2c39f"),
    (wire.EVENT, [-0.0], "0000000b 92 14 cb8000000000000000"),
    (wire.LOG, ["info", "\0", {}], "0000000a 94 15 a4696e666f a100 80"),
    (wire.HOST_CALL, [1 << 40, "n", {}], "0000000e 94 16 cf0000010000000000 a16e 80"),
    (wire.RESULT, [[-(1 << 63), -129, -40000]], "00000014 92 17 93 d38000000000000000 d1ff7f d2ffff63c0"),
    (wire.FAILURE, ["exit", "SystemExit", ""], "00000013 94 18 a465786974 aa53797374656d45786974 a0"),
]

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT, inner, max_size=20), max_leaves=40)


def host_frame(number: int, fields: list[Any]) -> bytes:
    """The frame as the host's codec writes it; what only a worker sends is written by msgpack itself."""
    kind = TO_WORKER.get(number)
    if kind is None:
        return frame(msgpack.packb([number, *fields]))
    return frame(messages.encode(cast(Callable[..., messages.ToWorker], kind)(**dict(zip(kind.FIELDS, fields, strict=True)))))


def host_fields(payload: bytes) -> list[Any]:
    """The number and fields as the host reads them."""
    message = messages.decode(memoryview(payload), FROM_WORKER[payload[1]])
    return [message.NUMBER, *(getattr(message, name) for name in message.FIELDS)]


def host_fields_slowly(payload: bytes) -> list[Any]:
    """The same by the decoder that the host uses where the compiled one would keep every key for ever."""
    with mock.patch.object(decoding, "_unpackb", msgpack.fallback.unpackb):
        return host_fields(payload)


def shown(value: Any) -> str:
    """A value's exact types and numbers, the sign of zero included; 1, 1.0 and True differ."""
    return repr(value)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("number", "fields", "golden"), GOLDEN, ids=lambda v: str(v) if isinstance(v, int) else "")
def test_golden_frames(codec: wire.Codec, number: int, fields: list[Any], golden: str) -> None:
    """Every message has one form, and everybody writes and reads it."""
    expected = bytes.fromhex(golden)
    assert codec.pack(number, fields) == expected
    assert host_frame(number, fields) == expected
    assert shown(codec.unpack(expected[4:])) == shown([number, *fields])
    if number in FROM_WORKER:
        assert shown(host_fields(expected[4:])) == shown([number, *fields])


def test_every_message_has_a_golden_frame_and_a_name_in_the_guest() -> None:
    """Host and guest number their messages alike."""
    numbers = {kind.NUMBER: kind.__name__ for kind in (*TO_WORKER.values(), *FROM_WORKER.values())}
    assert sorted(numbers) == [number for number, _, _ in GOLDEN]
    spelled = {name.replace("_", ""): value for name, value in vars(wire).items() if name.isupper() and isinstance(value, int)}
    assert {number: spelled[name.upper()] for number, name in numbers.items()} == {number: number for number in numbers}


@given(DATA)
@settings(max_examples=300, deadline=None)
def test_random_values(value: Any) -> None:
    """Whatever data it is: one form, one meaning."""
    expected = frame(messages.encode(HostReply(number=1, ok=True, value=value)))
    assert PLAIN.pack(wire.HOST_REPLY, [1, True, value]) == COMPILED.pack(wire.HOST_REPLY, [1, True, value]) == expected
    assert shown(PLAIN.unpack(expected[4:])) == shown(COMPILED.unpack(expected[4:])) == shown([4, 1, True, value])
    result = PLAIN.pack(wire.RESULT, [value])
    assert shown(host_fields(result[4:])) == shown([23, value])


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_sizes_at_every_change_of_form(size: int) -> None:
    """Texts, lists and maps change their form at the same sizes."""
    for value in ("x" * size, [None] * size, {str(i): None for i in range(size)}):
        expected = msgpack.packb([wire.RESULT, value])
        assert PLAIN.pack(wire.RESULT, [value])[4:] == COMPILED.pack(wire.RESULT, [value])[4:] == expected
        assert PLAIN.unpack(expected) == COMPILED.unpack(expected) == host_fields(expected) == [wire.RESULT, value]


@pytest.mark.parametrize("power", range(64))
def test_ints_at_every_change_of_form(power: int) -> None:
    """Ints change their form at the same values, on both sides of each power of two."""
    value = [(1 << power) - 1, -(1 << power), -(1 << power) + 1, 1 << power if power < 63 else 0]
    expected = msgpack.packb([wire.RESULT, value])
    assert PLAIN.pack(wire.RESULT, [value])[4:] == COMPILED.pack(wire.RESULT, [value])[4:] == expected
    assert PLAIN.unpack(expected) == COMPILED.unpack(expected) == host_fields(expected) == [wire.RESULT, value]


def nested(levels: int) -> Any:
    """That many lists in one another."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def itself() -> Any:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


class Text(str):
    """A str of its own class."""


OUTSIDE: list[tuple[Any, str]] = [
    ({"a": [1, b"x"]}, "$.a[1] is of type bytes, which is not data"),
    ({"a b": (1,)}, "$['a b'] is of type tuple, which is not data"),
    ({"a": {"b": {1}}}, "$.a.b is of type set, which is not data"),
    (Text("x"), "$ is of type Text, which is not data"),
    (1j, "$ is of type complex, which is not data"),
    ([[], float("nan")], "$[1] is a float that is not finite"),
    (float("inf"), "$ is a float that is not finite"),
    (float("-inf"), "$ is a float that is not finite"),
    ([1 << 63], "$[0] is an int that does not fit 64 bits"),
    (-(1 << 63) - 1, "$ is an int that does not fit 64 bits"),
    ({"x": {1: 2}}, "$.x has a key that is no str of plain Unicode"),
    ({"x": {b"k": 2}}, "$.x has a key that is no str of plain Unicode"),
    ({"x": {"\udfff": 2}}, "$.x has a key that is no str of plain Unicode"),
    ({"x": ["\ud800"]}, "$.x[0] is a str with a lone surrogate"),
    (nested(129), "data is nested deeper than 128"),
    (itself(), "data is nested deeper than 128"),
    ([[[0] * 1000] * 1000] * 2, "there are more values than the wire takes"),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("value", "line"), [pytest.param(value, line, id=line) for value, line in OUTSIDE])
def test_what_is_not_data_is_refused_by_its_path(codec: wire.Codec, value: Any, line: str) -> None:
    """The author reads where the value is that may not travel; the host refuses to send it as well."""
    with pytest.raises(ValueError) as caught:
        codec.pack(wire.RESULT, [value])
    assert str(caught.value) == line
    with pytest.raises(EngineBug):
        messages.encode(HostReply(number=1, ok=True, value=value))


@pytest.mark.parametrize("value", [nested(128), [[0] * 998] * 1001, (1 << 63) - 1, -(1 << 63), "\ud7ff\ue000", "\0"])
def test_what_is_just_data_is_taken_by_all(value: Any) -> None:
    """The bounds lie at the same place for everybody."""
    expected = frame(messages.encode(HostReply(number=1, ok=True, value=value)))
    assert PLAIN.pack(wire.HOST_REPLY, [1, True, value]) == COMPILED.pack(wire.HOST_REPLY, [1, True, value]) == expected
    payload = PLAIN.pack(wire.RESULT, [value])[4:]
    assert PLAIN.unpack(payload) == COMPILED.unpack(payload) == host_fields(payload)


FOREIGN = [
    pytest.param("", id="nothing"),
    pytest.param("c0", id="no array"),
    pytest.param("90", id="no number"),
    pytest.param("92a117c0", id="number as text"),
    pytest.param("9217", id="cut short"),
    pytest.param("9217c0c0", id="a second value"),
    pytest.param("9217c1", id="unused form"),
    pytest.param("9217c40161", id="bin"),
    pytest.param("9217d40161", id="extension"),
    pytest.param("9217d6ff00000001", id="timestamp"),
    pytest.param("9217c70cffffffffffffffffffffffffff", id="timestamp out of range"),
    pytest.param("9217ddffffffff", id="promise of an array"),
    pytest.param("9217dfffffffff", id="promise of a map"),
    pytest.param("9217dbffffffff", id="promise of a text"),
    pytest.param("9217a2ff00", id="no UTF-8"),
    pytest.param("9217a3eda080", id="surrogate"),
    pytest.param("92178101c0", id="key is int"),
    pytest.param("921781c40161c0", id="key is bin"),
    pytest.param("92178190c0", id="key is array"),
    pytest.param("921782a161c0a161c2", id="key twice"),
    pytest.param("9217cb7ff0000000000000", id="infinity"),
    pytest.param("9217ca7fc00000", id="short nan"),
    pytest.param("9217cfffffffffffffffff", id="2**64-1"),
    pytest.param("9217" + "91" * 129 + "c0", id="129 deep"),
    pytest.param("9217" + "91" * 5000 + "c0", id="5000 deep"),
]


@pytest.mark.parametrize("text", FOREIGN)
def test_foreign_bytes_are_refused_by_all(text: str) -> None:
    """What one reader refuses, no other one reads."""
    payload = bytes.fromhex(text)
    for patched in (decoding._unpackb, msgpack.fallback.unpackb):
        with mock.patch.object(decoding, "_unpackb", patched), pytest.raises(RemoteFault):
            messages.decode(memoryview(payload), Result)
    for codec in (PLAIN, COMPILED):
        with pytest.raises(ValueError):
            codec.unpack(payload)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9217ca3fc00000", 1.5),
        ("9217d90161", "a"),
        ("9217dc000101", [1]),
        ("9217de0001a16101", {"a": 1}),
        ("9217cf0000000000000001", 1),
        ("9217d3ffffffffffffffff", -1),
    ],
)
def test_longer_forms_mean_the_same_to_all(text: str, value: Any) -> None:
    """A value in a longer form than needed is read alike by everybody."""
    payload = bytes.fromhex(text)
    assert shown(PLAIN.unpack(payload)) == shown(COMPILED.unpack(payload)) == shown(host_fields(payload)) == shown([23, value])


def verdicts(payload: bytes) -> list[str]:
    """What each reader makes of a payload: the value, or a refusal."""
    said = []
    for read in (PLAIN.unpack, COMPILED.unpack, host_fields, host_fields_slowly):
        try:
            said.append(shown(read(payload)))
        except (ValueError, RemoteFault):
            said.append("refused")
    return said


@given(DATA, st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_mean_the_same_to_all(value: Any, draw: st.DataObject) -> None:
    """A frame with a few bytes changed is refused by all readers or by none, and then has one meaning."""
    payload = bytearray(PLAIN.pack(wire.RESULT, [value])[4:])
    for _ in range(draw.draw(st.integers(1, 3))):
        payload[draw.draw(st.integers(2, len(payload) - 1))] = draw.draw(st.integers(0, 255))
    said = verdicts(bytes(payload))
    assert said == [said[0]] * 4


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_random_bytes_mean_the_same_to_all(tail: bytes) -> None:
    """Any bytes at all are refused by all readers or by none."""
    said = verdicts(b"\x92\x17" + tail)
    assert said == [said[0]] * 4


@pytest.mark.parametrize("piece", [1, 3, 4, 100])
def test_the_guest_reads_the_hosts_stream_in_any_pieces(piece: int) -> None:
    """The guest's reader cuts frames where the host ended them."""
    stream = b"".join(bytes.fromhex(golden) for _, _, golden in GOLDEN)
    reader, payloads = wire.Reader(), []
    for at in range(0, len(stream), piece):
        reader.feed(stream[at : at + piece])
        payloads += list(reader)
    assert [PLAIN.unpack(payload) for payload in payloads] == [[number, *fields] for number, fields, _ in GOLDEN]


@pytest.mark.parametrize("length", [0, 1, 65])
def test_the_guests_reader_has_bounds(length: int) -> None:
    """A length outside the bounds is refused before its bytes came."""
    reader = wire.Reader(64)
    reader.feed(length.to_bytes(4, "big"))
    with pytest.raises(ValueError, match="length"):
        reader.next()


@pytest.mark.slow
def test_the_guest_needs_nothing_but_the_standard_library() -> None:
    """The guest's codec imports and works without msgpack and without the engine, and its depth costs no stack."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.setrecursionlimit(60)\n"
        "import wire\n"
        "value = 1\n"
        "for _ in range(128): value = [value]\n"
        "got = wire.unpack(wire.pack(wire.RESULT, [value])[4:])\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in ('msgpack', 'engine', 'struct', 'json')))"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", program, str(GUEST)], capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(ran.stdout) == []


@pytest.mark.parametrize("codec", CODECS)
def test_four_bytes_are_the_longest_length(codec: wire.Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that four bytes cannot measure is refused, not sent with a shorter length."""
    monkeypatch.setattr(wire, "LONGEST", 5)
    assert len(codec.pack(wire.RESULT, ["ab"])) == 4 + 5
    with pytest.raises(ValueError, match="4 GiB"):
        codec.pack(wire.RESULT, ["abc"])
