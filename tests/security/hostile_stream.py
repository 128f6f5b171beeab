"""A session whose tool runs, and what it makes of the bytes that a hostile worker writes."""

import tracemalloc
from typing import Any

import msgpack

from engine.wire.framing import RemoteFault, frame
from engine.wire.messages import Call, FromWorker, Init, Result
from engine.wire.session import Bounds, Session, State

LONGEST = 4 << 20
BOUNDS = Bounds(frame_bytes=LONGEST, result_bytes=LONGEST, events=100, event_bytes=64 << 20)


def running(bounds: Bounds = BOUNDS) -> Session:
    """A session whose tool runs."""
    session = Session(bounds)
    session.send(Init(bundle="b", root="/r", entry="e", layers=[], tool="t", declaration=None, environment={}, bounds={}))
    session.feed(frame(msgpack.packb([16, None])))
    session.next()
    session.send(Call(tool="t", arguments={}, call="c"))
    return session


def answers(stream: bytes, bounds: Bounds = BOUNDS) -> tuple[list[FromWorker], str | None]:
    """The messages of a stream, and the code and line of its fault."""
    session, got = running(bounds), []
    session.feed(stream)
    try:
        while (message := session.next()) is not None:
            got.append(message)
    except RemoteFault as fault:
        assert session.state is State.BROKEN
        return got, f"{fault.code}: {fault.line}"
    return got, None


def refusal(stream: bytes, bounds: Bounds = BOUNDS) -> str:
    """The fault of a stream that holds no message."""
    got, fault = answers(stream, bounds)
    assert got == []
    assert fault is not None
    return fault


def cost(stream: bytes, bounds: Bounds = BOUNDS) -> tuple[str | None, int]:
    """The fault of a stream, and the most memory that was taken on the way, the stream's own copy included."""
    session, fault = running(bounds), None
    tracemalloc.start()
    try:
        session.feed(stream)
        session.next()
    except RemoteFault as caught:
        fault = str(caught)
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return fault, taken


def result(inside: bytes) -> bytes:
    """A frame that says it is a result, with those bytes as its value."""
    return frame(b"\x92\x17" + inside)


def value(stream: bytes) -> Any:
    """What the one result of a stream holds."""
    got, fault = answers(stream)
    assert fault is None
    assert [type(message) for message in got] == [Result]
    assert isinstance(got[0], Result)
    return got[0].value
