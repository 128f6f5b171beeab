"""A session that hands large messages over undecoded."""

import dataclasses
from typing import Any

import msgpack
import pytest

from engine.wire.framing import RemoteFault, frame
from engine.wire.messages import Call, Declarations, Describe, Event, Failure, HostCall, HostReply, Init, Log, Partial, Progress, Result
from engine.wire.session import Bounds, Large, Session, State

LARGE = 1000
BOUNDS = Bounds(frame_bytes=1 << 21, result_bytes=8000, events=3, event_bytes=1 << 21, depth=9, nodes=9999)
INIT = Init(bundle="b", root="/", entry="t", layers=[], tool=None, declaration=None, environment={}, bounds={})


def running(large_bytes: int | None = LARGE) -> Session:
    """A session with its call sent."""
    session = Session(BOUNDS, large_bytes=large_bytes)
    session.send(INIT)
    session.feed(sent(16, None))
    session.next()
    session.send(Call(tool="t", arguments={}, call=""))
    return session


def sent(number: int, *fields: Any) -> bytes:
    """A frame of the worker's."""
    return frame(msgpack.packb([number, *fields]))


@pytest.mark.parametrize("kind", [Result, Partial, Event])
def test_a_large_message_is_handed_over(kind: Any) -> None:
    """Its kind, its bytes and the bounds, and nothing is decoded."""
    session = running()
    session.feed(sent(kind.NUMBER, ["x"] * LARGE))
    taken = session.next_or_large()
    assert isinstance(taken, Large)
    assert (taken.kind, taken.depth, taken.nodes) == (kind, 9, 9999)
    assert msgpack.unpackb(taken.payload) == [kind.NUMBER, ["x"] * LARGE]
    assert session.state is (State.ANSWERED if kind is Result else State.RUNNING)


def test_a_small_one_is_decoded_as_ever() -> None:
    """One byte below the bound, and at it."""
    session = running(1 << 13)
    session.feed(sent(20, [1] * ((1 << 13) - 6)))
    assert session.next_or_large() == Event(value=[1] * ((1 << 13) - 6))
    session.feed(sent(20, [1] * ((1 << 13) - 5)))
    assert isinstance(session.next_or_large(), Large)


@pytest.mark.parametrize(
    ("value", "handed_over"), [("x" * 9000, False), (["y" * 40] * 300, False), ([[]] * 996, False), ([[]] * 998, True)]
)
def test_a_few_long_texts_are_decoded_at_once(value: Any, handed_over: bool) -> None:
    """What costs is items, not the bytes of a text."""
    session = running(100)
    session.feed(sent(20, value))
    assert isinstance(session.next_or_large(), Large) == handed_over


@pytest.mark.parametrize(("size", "handed_over"), [((1 << 20) - 9, False), (1 << 20, True)])
def test_a_text_past_a_mebibyte_is_handed_over(size: int, handed_over: bool) -> None:
    """Its bytes alone take too long."""
    session = running(100)
    session.feed(sent(20, "x" * size))
    assert isinstance(session.next_or_large(), Large) == handed_over


def test_who_did_not_ask_gets_messages() -> None:
    """Without ``large_bytes`` everything is decoded."""
    session = running(None)
    session.feed(sent(23, ["x"] * LARGE))
    assert session.next_or_large() == Result(value=["x"] * LARGE)


def test_only_what_holds_a_value_is_handed_over() -> None:
    """The data of a log is one; words alone are text."""
    session = running()
    session.feed(sent(21, "info", "x", {"a": [1] * LARGE}) + sent(21, "info", "x" * 9000, {}) + sent(24, "exit", "x", "x" * 9000))
    taken = session.next_or_large()
    assert isinstance(taken, Large)
    assert taken.kind is Log
    assert isinstance(session.next_or_large(), Log)
    assert isinstance(session.next_or_large(), Failure)


def test_sizes_are_booked_undecoded() -> None:
    """Events, their bytes and the result's bytes count as for decoded ones."""
    large, small = running(), running(None)
    for session in (large, small):
        for data in (sent(18, ["x"] * LARGE), sent(23, "y" * LARGE)):
            session.feed(data)
            session.next_or_large()
    assert (large.events, large.event_bytes, large.result_bytes) == (small.events, small.event_bytes, small.result_bytes)
    assert large.result_bytes > LARGE


def test_bounds_hold_before_the_body() -> None:
    """A result past its bound is refused, large or not."""
    session = running()
    session.feed(sent(23, "x" * 8001)[:9])
    with pytest.raises(RemoteFault) as caught:
        session.next_or_large()
    assert caught.value.code == "limit_exceeded.result"


def test_what_came_after_a_large_message_stays() -> None:
    """The bytes behind it are the next message's."""
    session = running()
    session.feed(sent(20, ["x"] * LARGE) + sent(20, 1) + sent(20, 2)[:3])
    assert isinstance(session.next_or_large(), Large)
    assert session.next_or_large() == Event(value=1)
    session.feed(sent(20, 2)[3:])
    assert session.next_or_large() == Event(value=2)


def test_the_payload_is_handed_over_without_a_copy() -> None:
    """It is the buffer itself, which the session no longer has."""
    session = running()
    session.feed(sent(23, ["x"] * LARGE))
    held = session._buffer._bytes
    taken = session.next_or_large()
    assert isinstance(taken, Large)
    assert (taken.payload.obj is held, taken.payload.readonly, session._buffer._bytes is held) == (True, True, False)


def test_a_large_host_call_waits_once_it_is_confirmed() -> None:
    """Its number is known when it was decoded; the same number twice is a fault, as for small ones."""
    session = running()
    session.feed(sent(22, 7, "n", {"a": ["x"] * LARGE}))
    assert isinstance(session.next_or_large(), Large)
    session.confirm(HostCall(number=7, name="n", arguments={}))
    session.feed(sent(22, 7, "n", {"a": ["x"] * LARGE}))
    assert isinstance(session.next_or_large(), Large)
    with pytest.raises(RemoteFault, match="two waiting host calls one number"):
        session.confirm(HostCall(number=7, name="n", arguments={}))
    assert session.state is State.BROKEN


def test_a_confirmed_host_call_can_be_answered() -> None:
    """The control: its reply goes out."""
    session = running()
    session.feed(sent(22, 7, "n", {"a": ["x"] * LARGE}))
    session.next_or_large()
    session.confirm(HostCall(number=7, name="n", arguments={}))
    assert session.send(HostReply(number=7, ok=True, value=1))


def test_a_fault_of_a_large_message_ends_the_talk() -> None:
    """From then on each ``next`` raises it, and what comes is not kept."""
    session = running()
    session.feed(sent(20, ["x"] * LARGE) + sent(20, 1))
    session.next_or_large()
    session.fault(RemoteFault("violation.protocol", "first"))
    session.fault(RemoteFault("violation.protocol", "second"))
    session.feed(sent(20, 1))
    for _ in range(2):
        with pytest.raises(RemoteFault, match="first"):
            session.next_or_large()
    assert session.state is State.BROKEN


def test_a_byte_after_a_large_result_is_a_fault() -> None:
    """The first answer is the only one."""
    session = running()
    session.feed(sent(23, ["x"] * LARGE) + b"\0")
    assert isinstance(session.next_or_large(), Large)
    with pytest.raises(RemoteFault, match="after its answer"):
        session.next_or_large()


@pytest.mark.parametrize(("kind", "handed_over"), [(Result, True), (Partial, True), (Event, False)])
def test_from_its_own_bound_on_a_value_with_a_schema_is_handed_over(kind: Any, handed_over: bool) -> None:
    """Be it one short text: its patterns are what costs. What has no schema has none."""
    session = Session(BOUNDS, large_bytes=LARGE)
    session.send(INIT)
    session.feed(sent(16, None))
    session.next()
    session.hold_to(dataclasses.replace(BOUNDS, aside_bytes=100))
    session.send(Call(tool="t", arguments={}, call=""))
    session.feed(sent(18, "x" * 95))
    assert session.next_or_large() == Partial(value="x" * 95)
    session.feed(sent(kind.NUMBER, "x" * 96))
    assert isinstance(session.next_or_large(), Large) == handed_over


@pytest.mark.parametrize(
    "fields", [(24, "exit", "x", [{}] * 99), (24, "exit", "x", {"a": [1] * 99}), (19, 1, 2, [{}] * 99), (19, [1] * 99, 2, "")]
)
def test_a_message_of_scalars_with_many_values_is_refused_unbuilt(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in the place of a text is counted, not made."""
    session = running()
    monkeypatch.setattr("engine.wire.messages.decode", None)
    session.feed(sent(*fields))
    with pytest.raises(RemoteFault, match="with more values than it can have") as caught:
        session.next_or_large()
    assert caught.value.code == "violation.protocol"


def test_a_message_of_scalars_may_have_a_long_text() -> None:
    """The control: what costs is items."""
    session = running()
    session.feed(sent(19, 1, 2, "x" * 50_000) + sent(24, "exit", "x", "y" * 50_000))
    assert session.next_or_large() == Progress(done=1, total=2, message="x" * 50_000)
    assert session.next_or_large() == Failure(kind="exit", type="x", message="y" * 50_000)


@pytest.mark.parametrize(("many", "taken"), [(199_000, True), (200_000, False)])
def test_declarations_have_a_number_of_values(many: int, taken: bool) -> None:
    """They are built at once, and no source has so many."""
    session = Session(BOUNDS if not taken else dataclasses.replace(BOUNDS, nodes=1_000_000), large_bytes=LARGE)
    session.send(INIT)
    session.feed(sent(16, None))
    session.next()
    session.send(Describe())
    session.feed(sent(17, [1] * many))
    if taken:
        assert session.next_or_large() == Declarations(tools=[1] * many)
    else:
        with pytest.raises(RemoteFault, match="Declarations with more values than it can have"):
            session.next_or_large()
