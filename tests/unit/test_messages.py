"""Messages: fields, their types, and the closed set of data."""

import dataclasses
from typing import Any

import msgpack
import pytest

from engine.errors import EngineBug
from engine.wire import data, messages
from engine.wire.framing import RemoteFault
from engine.wire.messages import (
    Call,
    Cancel,
    Declarations,
    Describe,
    Event,
    Failure,
    FromWorker,
    HostCall,
    HostReply,
    Init,
    Log,
    Partial,
    Progress,
    Ready,
    Result,
    ToWorker,
)

INIT = Init(
    bundle="sha256:b",
    root="/bundle",
    entry="tool",
    layers=["x"],
    tool="t",
    declaration=None,
    environment={"A": "1"},
    bounds={"result_bytes": 9},
)
OURS: list[ToWorker] = [
    INIT,
    Describe(),
    Call(tool="t", arguments={"x": [1, None]}, call="c1"),
    HostReply(number=3, ok=True, value=[1]),
    Cancel(),
]
THEIRS: list[FromWorker] = [
    Ready(declaration="sha256:d"),
    Declarations(tools=[{"name": "t"}]),
    Partial(value=1),
    Progress(done=1, total=2.5, message="m"),
    Event(value={"a": "b"}),
    Log(level="info", message="m", data={"k": 1}),
    HostCall(number=0, name="n", arguments={}),
    Result(value={"x": [1, 2.5, None, True, "ß"]}),
    Failure(kind="exception", type="ValueError", message="m"),
]


def payload(kind: type[Any], *fields: Any) -> memoryview:
    """The payload of a message as any writer of msgpack makes it."""
    return memoryview(msgpack.packb([kind.NUMBER, *fields]))


def refusal(view: memoryview, kind: type[FromWorker], **bounds: int) -> str:
    """The line of the fault that the payload is."""
    with pytest.raises(RemoteFault) as caught:
        messages.decode(view, kind, **bounds)
    assert caught.value.code == "violation.protocol"
    assert caught.value.__context__ is None
    return caught.value.line


@pytest.mark.parametrize("message", OURS, ids=lambda m: type(m).__name__)
def test_a_message_of_ours_is_an_array_of_number_and_fields(message: ToWorker) -> None:
    """The order of the fields is the order of the class."""
    values = [getattr(message, field.name) for field in dataclasses.fields(message)]
    assert msgpack.unpackb(messages.encode(message)) == [message.NUMBER, *values]


@pytest.mark.parametrize("message", THEIRS, ids=lambda m: type(m).__name__)
def test_a_message_of_theirs_decodes_to_its_class(message: FromWorker) -> None:
    """What a guest writes is what the host holds."""
    values = [getattr(message, field.name) for field in dataclasses.fields(message)]
    assert messages.decode(payload(type(message), *values), type(message)) == message


@pytest.mark.parametrize("message", [*OURS, *THEIRS], ids=lambda m: type(m).__name__)
def test_a_class_says_its_fields_once_and_alike(message: ToWorker | FromWorker) -> None:
    """The checks of a class name its fields, in the order of its fields."""
    assert tuple(message.FIELDS) == tuple(field.name for field in dataclasses.fields(message))


def test_numbers_are_unique_and_every_class_is_known() -> None:
    """One number, one class, on either way."""
    assert {message.NUMBER: type(message) for message in OURS} == dict(messages.TO_WORKER)
    assert {message.NUMBER: type(message) for message in THEIRS} == dict(messages.FROM_WORKER)
    assert not set(messages.TO_WORKER) & set(messages.FROM_WORKER)


def test_the_environment_is_not_shown() -> None:
    """A message in a trace does not print what may be a secret."""
    assert "'1'" not in repr(INIT)
    assert "/bundle" in repr(INIT)


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        (Ready, [1], "Ready whose declaration may not be this int"),
        (Declarations, [{}], "Declarations whose tools may not be this dict"),
        (Progress, [True, None, ""], "Progress whose done may not be this bool"),
        (Progress, ["1", None, ""], "Progress whose done may not be this str"),
        (Progress, [None, None, ""], "Progress whose done may not be this NoneType"),
        (Progress, [1, False, ""], "Progress whose total may not be this bool"),
        (Progress, [1, 2, None], "Progress whose message may not be this NoneType"),
        (Log, ["fatal", "m", {}], "Log whose level may not be this str"),
        (Log, [["info"], "m", {}], "Log whose level may not be this list"),
        (Log, ["info", 1, {}], "Log whose message may not be this int"),
        (Log, ["info", "m", []], "Log whose data may not be this list"),
        (HostCall, [True, "n", {}], "HostCall whose number may not be this bool"),
        (HostCall, [-1, "n", {}], "HostCall whose number may not be this int"),
        (HostCall, [1.0, "n", {}], "HostCall whose number may not be this float"),
        (HostCall, [1, 2, {}], "HostCall whose name may not be this int"),
        (HostCall, [1, "n", None], "HostCall whose arguments may not be this NoneType"),
        (Failure, ["timeout", "T", ""], "Failure whose kind may not be this str"),
        (Failure, [{}, "T", ""], "Failure whose kind may not be this dict"),
        (Failure, ["exit", 1, ""], "Failure whose type may not be this int"),
        (Failure, ["exit", "T", 1], "Failure whose message may not be this int"),
    ],
)
def test_fields_of_another_type_are_refused(kind: type[FromWorker], fields: list[Any], line: str) -> None:
    """Field types are exact, and the fault names the field and the type, not the value."""
    assert refusal(payload(kind, *fields), kind) == f"the worker sent {line}"


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_wrong_number_of_fields_is_refused(count: int) -> None:
    """There are no optional fields and no further ones."""
    assert refusal(payload(Result, *[1] * count), Result) == "the worker sent Result with a wrong number of fields"


@pytest.mark.parametrize("done", [float("inf"), float("-inf"), float("nan")])
def test_progress_is_finite(done: float) -> None:
    """No number of a message can slip past a comparison."""
    assert refusal(payload(Progress, done, None, ""), Progress) == "the worker sent a float that is not finite"


def test_a_message_under_another_number_is_refused() -> None:
    """The kind that was announced is the kind that is decoded."""
    assert refusal(payload(Event, 1), Result) == "the worker sent a frame that is no message"


@pytest.mark.parametrize("value", [(1 << 63) - 1, -(1 << 63), 0, -0.0, 1.7976931348623157e308, "", "\0", "\U0010ffff", [], {}])
def test_values_at_the_edges_of_the_set_come_through(value: Any) -> None:
    """What is data arrives unchanged, the sign of zero and the type of a number included."""
    got = messages.decode(payload(Result, value), Result)
    assert isinstance(got, Result)
    assert (repr(got.value), type(got.value)) == (repr(value), type(value))


def test_nesting_up_to_the_bound_is_data() -> None:
    """A container at the bound is inside, one more is outside."""

    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    assert messages.decode(payload(Result, nested(5)), Result, depth=5) == Result(value=nested(5))
    assert refusal(payload(Result, nested(6)), Result, depth=5) == "the worker sent data nested deeper than its bound"


def test_values_up_to_the_bound_are_data() -> None:
    """The number of values inside containers has a bound; keys and the fields themselves do not count."""
    value = {"a": 1, "b": [1, 2]}
    assert messages.decode(payload(Result, value), Result, nodes=4) == Result(value=value)
    assert refusal(payload(Result, value), Result, nodes=3) == "the worker sent more values than its bound"


def test_a_long_frame_is_counted_before_it_is_built() -> None:
    """A frame that could hold too many values is counted first, and one long text is not many values."""
    bounds = {"nodes": 100}
    many = [{"key": [1.5, 70000, -70000, 1 << 40, "x" * 40, "y" * 300, "z" * 70000, None]}] * 8
    assert messages.decode(payload(Result, many), Result, **bounds) == Result(value=many)
    assert messages.decode(payload(Result, "x" * 5000), Result, **bounds) == Result(value="x" * 5000)
    assert refusal(payload(Result, [{}] * 5000), Result, **bounds) == "the worker sent more values than its bound"


@pytest.mark.parametrize(
    "value", [b"x", (1, 2), {1: 2}, {b"k": 1}, {"a": {None: 1}}, float("nan"), float("inf"), 1 << 63, -(1 << 63) - 1, {1, 2}, 1j, object()]
)
def test_what_is_not_data_is_outside(value: Any) -> None:
    """The walk knows exact types, bounds of numbers and types of keys."""
    assert data.outside([[value]]) is not None
    assert data.outside([[1]]) is None


def test_subclasses_are_outside() -> None:
    """A str, int, dict or list with methods of its own is not plain data."""
    for base in (str, int, float, list, dict):
        made: Any = type("Own", (base,), {})()
        assert data.outside([made]) == "data of type Own"
        assert data.outside([base()]) is None


def test_a_value_that_holds_itself_is_outside() -> None:
    """Neither depth nor branching of a cycle costs more than the bounds."""
    chain: list[Any] = []
    chain.append(chain)
    assert data.outside([chain]) == "data nested deeper than its bound"
    fan: list[Any] = []
    fan.extend([fan] * 1000)
    # without the bound this would not come back: there are 1000 more at each of 128 levels
    assert data.outside([fan]) == "more values than its bound"


@pytest.mark.parametrize("value", [b"x", {1: 1}, "\ud800", {"\ud800": 1}, 1 << 64, float("nan")])
def test_sending_what_is_not_data_is_our_bug(value: Any) -> None:
    """Whatever goes to a worker was checked before it came to the wire."""
    with pytest.raises(EngineBug) as caught:
        messages.encode(Call(tool="t", arguments={"x": value}, call="c"))
    assert caught.value.code == "engine_failed.bug"
    assert messages.encode(Call(tool="t", arguments={"x": 1}, call="c"))


@pytest.mark.parametrize(
    "message",
    [
        HostReply(number=True, ok=True, value=None),
        HostReply(number=1, ok=1, value=None),  # type: ignore[arg-type]  # a wrong type on purpose
        Call(tool="t", arguments=[], call="c"),  # type: ignore[arg-type]  # a wrong type on purpose
        dataclasses.replace(INIT, layers=[1]),  # type: ignore[list-item]  # a wrong type on purpose
        dataclasses.replace(INIT, environment={"A": None}),  # type: ignore[dict-item]  # a wrong type on purpose
        dataclasses.replace(INIT, bounds={"a": -1}),
    ],
)
def test_sending_a_field_of_another_type_is_our_bug(message: ToWorker) -> None:
    """Our messages are held to their fields like theirs."""
    with pytest.raises(EngineBug) as caught:
        messages.encode(message)
    assert caught.value.code == "engine_failed.bug"
    assert "whose" in caught.value.lines[0]


def test_the_launchers_answers_are_held_to_the_same_data() -> None:
    """What the launcher writes beside the messages of a call is a number and fields; it is decoded with the same care."""
    assert messages.fields_of(msgpack.packb([0, 7, {"a": 1}])) == [7, {"a": 1}]
    wrong = [{}, [], ["a"], [0, b"x"], [0, {1: 2}]]
    for payload in (b"", b"\x92\0\xdd\xff\xff\xff\xff", *map(msgpack.packb, wrong)):
        with pytest.raises(RemoteFault) as caught:
            messages.fields_of(payload)
        assert caught.value.code == "violation.protocol"
        assert caught.value.line.startswith("the launcher sent ")


def test_an_order_is_one_frame() -> None:
    """An order holds a zero, its number, what to do, and details."""
    order = messages.order(7, "start", {"a": 1})
    assert order == (len(order) - 4).to_bytes(4, "big") + msgpack.packb([0, 7, "start", {"a": 1}])
