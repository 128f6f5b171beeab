"""The session: which message may come when, what counts against which bound, and that a fault is the end."""

import dataclasses
import itertools
from typing import Any

import msgpack
import pytest

from engine.errors import EngineBug
from engine.wire.framing import RemoteFault, frame
from engine.wire.messages import (
    FROM_WORKER,
    TO_WORKER,
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
from engine.wire.session import HEARS, SENDS, Bounds, Session, State

BOUNDS = Bounds(frame_bytes=4096, result_bytes=1024, events=4, event_bytes=2048, host_calls=2)
INIT = Init(bundle="b", root="/r", entry="e", layers=[], tool="t", declaration=None, environment={}, bounds={})
OPEN = [state for state in State if state not in (State.ANSWERED, State.BROKEN)]
OURS: dict[type[ToWorker], ToWorker] = {
    Init: INIT,
    Describe: Describe(),
    Call: Call(tool="t", arguments={}, call="c"),
    HostReply: HostReply(number=7, ok=True, value=None),
    Cancel: Cancel(),
}
THEIRS: dict[type[FromWorker], FromWorker] = {
    Ready: Ready(declaration=None),
    Declarations: Declarations(tools=[]),
    Partial: Partial(value=1),
    Progress: Progress(done=1, total=None, message=""),
    Event: Event(value=1),
    Log: Log(level="info", message="", data={}),
    HostCall: HostCall(number=8, name="n", arguments={}),
    Result: Result(value=1),
    Failure: Failure(kind="exit", type="SystemExit", message="1"),
}


def written(message: FromWorker | ToWorker) -> bytes:
    """The frame of any message, as a worker may write it."""
    return frame(msgpack.packb([message.NUMBER, *(getattr(message, name) for name in message.FIELDS)]))


def heard(session: Session, *messages: FromWorker) -> list[FromWorker | None]:
    """What the session makes of those messages, one by one."""
    session.feed(b"".join(map(written, messages)))
    return [session.next() for _ in messages]


def at(state: State, bounds: Bounds = BOUNDS) -> Session:
    """A session in that state; a running one has host call 7 waiting."""
    session = Session(bounds)
    if state is State.NEW:
        return session
    session.send(INIT)
    if state is State.STARTING:
        return session
    if state is State.BROKEN:
        session.feed(b"\0\0\0\0")
        with pytest.raises(RemoteFault):
            session.next()
        return session
    heard(session, Ready(declaration=None))
    if state is State.DESCRIBING:
        session.send(Describe())
    elif state is not State.READY:
        session.send(OURS[Call])
        heard(session, HostCall(number=7, name="n", arguments={}))
        if state is State.ANSWERED:
            heard(session, Result(value=1))
    assert session.state is state
    return session


def fault(session: Session) -> tuple[str, str]:
    """The fault that ``next`` raises."""
    with pytest.raises(RemoteFault) as caught:
        session.next()
    return caught.value.code, caught.value.line


def test_one_call_from_first_to_last_byte() -> None:
    """Init, Ready, Call, events, a host call with its reply, and one result; then the end of the stream is clean."""
    session = Session(BOUNDS)
    assert session.send(INIT) == written(INIT)
    assert heard(session, Ready(declaration="sha256:d")) == [Ready(declaration="sha256:d")]
    call = Call(tool="t", arguments={"x": 1}, call="c")
    assert session.send(call) == written(call)
    sent: list[FromWorker] = [Partial(value=1), Log(level="info", message="m", data={}), HostCall(number=1, name="n", arguments={})]
    assert heard(session, *sent) == sent
    reply = HostReply(number=1, ok=False, value="no")
    assert session.send(reply) == written(reply)
    assert heard(session, Result(value={"y": 2})) == [Result(value={"y": 2})]
    assert (session.state, session.next(), session.eof()) == (State.ANSWERED, None, None)


def test_describing_from_first_to_last_byte() -> None:
    """Init, Ready, Describe, Declarations."""
    session = Session(BOUNDS)
    session.send(INIT)
    heard(session, Ready(declaration=None))
    session.send(Describe())
    assert heard(session, Declarations(tools=[{}])) == [Declarations(tools=[{}])]
    assert (session.state, session.eof()) == (State.ANSWERED, None)


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(State, TO_WORKER.values())))
def test_every_message_of_ours_in_every_state(state: State, kind: type[ToWorker]) -> None:
    """We send what the table allows, and the table says what follows; anything else is our bug and changes nothing."""
    session = at(state)
    if kind in SENDS[state]:
        assert session.send(OURS[kind]) == written(OURS[kind])
        assert session.state is SENDS[state][kind]
        return
    with pytest.raises(EngineBug) as caught:
        session.send(OURS[kind])
    assert caught.value.lines == (f"the engine tried to send {kind.__name__} while {state}",)
    assert session.state is state


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(OPEN, FROM_WORKER.values())))
def test_every_message_of_theirs_in_every_state(state: State, kind: type[FromWorker]) -> None:
    """The worker may send what the table allows, and the table says what follows; anything else is a fault."""
    session = at(state)
    if kind in HEARS[state]:
        assert heard(session, THEIRS[kind]) == [THEIRS[kind]]
        assert session.state is HEARS[state][kind]
        return
    session.feed(written(THEIRS[kind]))
    assert fault(session) == ("violation.protocol", f"the worker sent {kind.__name__} while {state}")
    assert session.state is State.BROKEN


@pytest.mark.parametrize("kind", list(TO_WORKER.values()))
def test_what_only_the_host_sends_is_a_fault(kind: type[ToWorker]) -> None:
    """A worker cannot speak as the host."""
    session = at(State.RUNNING)
    session.feed(written(OURS[kind]))
    assert fault(session) == ("violation.protocol", f"the worker sent {kind.__name__}, which only the host sends")


@pytest.mark.parametrize("number", [0, 6, 15, 25, 127])
def test_an_unknown_number_is_a_fault(number: int) -> None:
    """There is no message to skip."""
    session = at(State.RUNNING)
    session.feed(frame(msgpack.packb([number, None])))
    assert fault(session) == ("violation.protocol", "the worker sent a frame that is no message")


def test_the_tables_know_every_state() -> None:
    """No state is missing, and nothing leaves an end."""
    assert set(SENDS) == set(HEARS) == set(State)
    assert {state for state in State if SENDS[state] or HEARS[state]} == set(OPEN)


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 7, 64])
def test_pieces_do_not_change_the_messages(piece: int) -> None:
    """However the stream is cut, the same messages come."""
    stream = b"".join(map(written, (THEIRS[Partial], THEIRS[HostCall], THEIRS[Result])))
    session, got = at(State.RUNNING), []
    for start in range(0, len(stream), piece):
        session.feed(stream[start : start + piece])
        while (message := session.next()) is not None:
            got.append(message)
    assert got == [THEIRS[Partial], THEIRS[HostCall], THEIRS[Result]]


def test_a_fault_is_the_end() -> None:
    """After a fault each ``next`` raises it anew, fed bytes are dropped, and nothing more is sent."""
    session = at(State.RUNNING)
    session.feed(b"\0\0\0\1")
    first = fault(session)
    session.feed(written(THEIRS[Result]))
    assert fault(session) == first
    ended = session.eof()
    assert ended is not None
    assert (ended.code, ended.line) == first
    assert session.state is State.BROKEN


def test_messages_before_a_fault_still_come() -> None:
    """A fault takes effect where it stands in the stream, not earlier."""
    session = at(State.RUNNING)
    session.feed(written(THEIRS[Partial]) + b"\0\0\0\1")
    assert session.next() == THEIRS[Partial]
    assert fault(session)[0] == "violation.protocol"


def test_what_may_not_come_is_refused_from_its_first_six_bytes() -> None:
    """The body of a frame that is refused anyway is not awaited."""
    session = at(State.STARTING)
    session.feed(written(THEIRS[Result])[:6])
    assert fault(session) == ("violation.protocol", "the worker sent Result while starting")


def test_a_wrong_number_of_fields_is_refused_from_its_first_six_bytes() -> None:
    """The array's head already says how many fields there are."""
    for head in (0x91, 0x93, 0x9F, 0xC0):
        session = at(State.RUNNING)
        session.feed(b"\0\0\1\0" + bytes((head, Result.NUMBER)))
        assert fault(session) == ("violation.protocol", "the worker sent Result with a wrong number of fields")
    session = at(State.RUNNING)
    session.feed(b"\0\0\1\0" + bytes((0x92, Result.NUMBER)))
    assert session.next() is None


def test_the_result_has_its_own_bound() -> None:
    """A result at its bound is taken and measured, one byte more is refused before its body came."""
    exact = "x" * (BOUNDS.result_bytes - 3)
    session = at(State.RUNNING)
    assert heard(session, Result(value=exact)) == [Result(value=exact)]
    assert session.result_bytes == BOUNDS.result_bytes
    session = at(State.RUNNING)
    session.feed(written(Result(value=exact + "x"))[:6])
    assert fault(session) == ("limit_exceeded.result", "the result is longer than its bound")


def test_events_are_counted_together() -> None:
    """Partials, progress, events and logs share one bound; the last one within it is taken."""
    session = at(State.RUNNING)
    within: list[FromWorker] = [THEIRS[Partial], THEIRS[Progress], THEIRS[Event], THEIRS[Log]]
    assert heard(session, *within) == within
    assert session.events == BOUNDS.events
    session.feed(written(THEIRS[Event]))
    assert fault(session) == ("limit_exceeded.events", "the worker sent more events than its bound")


def test_host_calls_and_the_result_are_no_events() -> None:
    """A worker at its bound of events may still call the host and answer."""
    session = at(State.RUNNING)
    heard(session, *[THEIRS[Event]] * BOUNDS.events)
    assert heard(session, THEIRS[HostCall], THEIRS[Result]) == [THEIRS[HostCall], THEIRS[Result]]


def test_bytes_of_events_are_counted_together() -> None:
    """Payload bytes of events add up to one bound; the last one within it is taken, the next refused from its length."""
    half = Partial(value="x" * (BOUNDS.event_bytes // 2 - 5))
    assert len(written(half)) - 4 == BOUNDS.event_bytes // 2
    session = at(State.RUNNING)
    assert heard(session, half, half) == [half, half]
    assert session.event_bytes == BOUNDS.event_bytes
    session.feed(written(THEIRS[Event])[:6])
    assert fault(session) == ("limit_exceeded.events", "the worker sent more bytes of events than their bound")


def test_waiting_host_calls_have_a_bound() -> None:
    """Only so many host calls wait at once; a reply makes room."""
    session = at(State.RUNNING)  # one waits: 7
    heard(session, HostCall(number=1, name="n", arguments={}))
    session.send(HostReply(number=7, ok=True, value=None))
    heard(session, HostCall(number=2, name="n", arguments={}))
    session.feed(written(HostCall(number=3, name="n", arguments={})))
    assert fault(session) == ("limit_exceeded.events", "the worker has more host calls waiting than its bound")


def test_two_waiting_host_calls_have_two_numbers() -> None:
    """A reply has one receiver; a number may come again when its call was answered."""
    session = at(State.RUNNING)
    session.send(HostReply(number=7, ok=True, value=None))
    again = HostCall(number=7, name="n", arguments={})
    assert heard(session, again) == [again]
    session.feed(written(again))
    assert fault(session) == ("violation.protocol", "the worker gave two waiting host calls one number")


def test_a_reply_needs_a_waiting_call() -> None:
    """Replying twice, or to a number that never came, is our bug."""
    session = at(State.RUNNING)
    session.send(HostReply(number=7, ok=True, value=None))
    for number in (7, 1):
        with pytest.raises(EngineBug) as caught:
            session.send(HostReply(number=number, ok=True, value=None))
        assert caught.value.lines == ("the engine replied to a host call that does not wait",)


def test_a_reply_that_does_not_encode_leaves_its_call_waiting() -> None:
    """A failed send changes nothing, so that the call can still be answered."""
    session = at(State.RUNNING)
    with pytest.raises(EngineBug):
        session.send(HostReply(number=7, ok=True, value=b"bytes"))
    assert session.send(HostReply(number=7, ok=False, value="refused"))


def test_reading_on_without_taking_is_our_bug() -> None:
    """The buffer holds no more than one longest frame and one piece, or the reader is told."""
    session = at(State.RUNNING)
    session.feed(b"\0\0\x10\0\x92\x12" + b"\0" * BOUNDS.frame_bytes)
    with pytest.raises(EngineBug) as caught:
        session.feed(b"\0")
    assert caught.value.lines == ("the engine read on without taking the frames it has",)


@pytest.mark.parametrize("state", [State.NEW, State.STARTING, State.READY, State.DESCRIBING, State.RUNNING])
def test_an_end_before_the_answer_is_silence(state: State) -> None:
    """A stream that ends between frames and without an answer is no protocol fault: the process ended itself."""
    ended = at(state).eof()
    assert ended is not None
    assert (ended.code, ended.line) == ("crashed.silent", f"the worker closed its channel while {state}")


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 6])
def test_an_end_inside_a_frame_is_a_fault(cut: int) -> None:
    """Half a frame is not half an answer."""
    session = at(State.RUNNING)
    session.feed(written(THEIRS[Result])[:cut])
    assert session.next() is None
    ended = session.eof()
    assert ended is not None
    assert (ended.code, ended.line) == ("violation.protocol", "the worker closed its channel inside a frame")


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, None, 1 << 32])
def test_bounds_are_whole_numbers_that_a_frame_can_hold(bad: Any) -> None:
    """There is no value of a bound that means none."""
    with pytest.raises(EngineBug):
        Bounds(frame_bytes=bad, result_bytes=1, events=1, event_bytes=1)
    assert Bounds(frame_bytes=(1 << 32) - 1, result_bytes=1, events=1, event_bytes=1)


def held_to(**changes: int) -> Session:
    """A running session whose call has other bounds than the worker was started with."""
    session = at(State.READY)
    session.hold_to(dataclasses.replace(BOUNDS, **changes))
    session.send(OURS[Call])
    return session


def test_the_bounds_of_the_call_hold_from_then_on() -> None:
    """A child may be started before it is known which call it serves: each bound is that of the call, tighter or wider."""
    session = held_to(result_bytes=10)
    session.feed(written(Result(value="x" * 10))[:6])
    assert fault(session)[0] == "limit_exceeded.result"
    session = held_to(frame_bytes=100)
    session.feed((101).to_bytes(4, "big"))
    assert fault(session) == ("violation.protocol", "the worker sent a frame longer than its bound")
    session = held_to(frame_bytes=1 << 20, result_bytes=1 << 20)
    assert heard(session, Result(value="x" * BOUNDS.frame_bytes)) == [Result(value="x" * BOUNDS.frame_bytes)]


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_bounds_change_before_a_call_alone(state: State) -> None:
    """What was counted was counted against the old ones."""
    with pytest.raises(EngineBug) as caught:
        at(state).hold_to(BOUNDS)
    assert caught.value.lines == (f"the engine tried to change the bounds while {state}",)
