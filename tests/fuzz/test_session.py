"""Whatever bytes a worker sends, the session answers with messages or one RemoteFault: never another exception, nor memory past its bounds.

A few seconds by default. ``STOCKADE_FUZZ_EXAMPLES=100000 python -m pytest tests/fuzz/test_session.py`` looks longer.
"""

import os
import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.outcome import REASONS
from engine.wire.framing import RemoteFault, frame
from engine.wire.messages import FROM_WORKER, Call, Describe, FromWorker, Init, Ready
from engine.wire.session import Bounds, Session, State

BOUNDS = Bounds(frame_bytes=4096, result_bytes=2048, events=20, event_bytes=8192, depth=16, nodes=500, host_calls=8)
MOST_BYTES = 400_000  # what the bounds come to: one frame, 1000 items of 72 bytes, the decoder's own buffers, one fault
EXAMPLES = int(os.environ.get("STOCKADE_FUZZ_EXAMPLES", "1000"))
INIT = Init(bundle="b", root="/r", entry="e", layers=[], tool="t", declaration=None, environment={}, bounds={})

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=9))
    | st.just(msgpack.Timestamp(1, 1))
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(LEAVES, inner, max_size=5), max_leaves=20)
NUMBERS = st.sampled_from(sorted(FROM_WORKER)) | st.integers(0, 127)
LIKELY = {
    16: (st.none(),),
    17: (st.lists(VALUES, max_size=3),),
    18: (VALUES,),
    19: (st.floats(), st.none(), st.text(max_size=9)),
    20: (VALUES,),
    21: (st.sampled_from(["info", "error", "fatal"]), st.text(max_size=9), st.dictionaries(st.text(max_size=9), VALUES, max_size=3)),
    22: (st.integers(-1, 9), st.text(max_size=9), st.just({})),
    23: (VALUES,),
    24: (st.just("exit"), st.text(max_size=9), st.just("")),
}
# heads that promise much, nest deeply, or say where to look next: the parts lies are made of
HEADS = [b"\x91", b"\x81", b"\xa1a", b"\xdd\xff\xff\xff\xff", b"\xdf\0\0\x0f\xff", b"\xdb\0\0\1\0", b"\xd7\xff", b"\xcb\x7f\xf0"]
HEADS += [b"\xc9\0\0\0\1\xff", *(b"\xdd" + struct.pack(">I", count) for count in (1, 100, 4000, 1 << 31))]
RUNS = [b"\x91" * 300, b"\x81\xa1a" * 300, b"\xc0" * 300, b"\x80" * 2000, (b"\xdd" + struct.pack(">I", 3000)) * 200]
PARTS = st.binary(max_size=12) | st.sampled_from(HEADS + RUNS)


@st.composite
def likely(draw: st.DrawFn) -> bytes:
    """A frame that is nearly what a guest sends."""
    number = draw(st.sampled_from(sorted(LIKELY)))
    fields = [draw(field) for field in LIKELY[number]]
    return frame(msgpack.packb([number, *fields]))


def lying(number: int, parts: list[bytes]) -> bytes:
    """A frame with a good beginning and any inside."""
    return frame((b"\x92" + bytes([number]) + b"".join(parts))[: BOUNDS.frame_bytes])


STREAMS = st.lists(
    likely()
    | st.builds(lying, NUMBERS, st.lists(PARTS, max_size=12))
    | st.builds(frame, st.binary(min_size=2, max_size=40))
    | st.binary(max_size=20)
    | st.builds(lambda length: struct.pack(">I", length), st.integers(0, (1 << 32) - 1)),
    max_size=30,
).map(b"".join)


def listening(state: State) -> Session:
    """A session that waits for the worker in that state."""
    session = Session(BOUNDS)
    session.send(INIT)
    if state is not State.STARTING:
        session.feed(frame(msgpack.packb([Ready.NUMBER, None])))
        assert session.next() == Ready(declaration=None)
        session.send(Describe() if state is State.DESCRIBING else Call(tool="t", arguments={}, call="c"))
    return session


def drained(session: Session) -> RemoteFault | None:
    """Take every message that is there; the fault that came instead of one."""
    try:
        while (message := session.next()) is not None:
            assert isinstance(message, FromWorker)
    except RemoteFault as fault:
        return fault
    return None


def hold(session: Session, stream: bytes, piece: int) -> None:
    """Feed the stream in pieces and assert the invariant at each step."""
    for at in range(0, len(stream), piece):
        session.feed(stream[at : at + piece])
        fault = drained(session)
        if fault is not None:
            assert fault.code in REASONS
            assert fault.line.isprintable()
            assert str(drained(session)) == str(fault)
            assert len(session._buffer) == 0
            return
        assert len(session._buffer) < BOUNDS.frame_bytes + 4
    session.eof()


@pytest.mark.slow
@given(st.sampled_from([State.STARTING, State.DESCRIBING, State.RUNNING]), STREAMS, st.sampled_from([1, 7, 100, 5000]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_session_holds(state: State, stream: bytes, piece: int) -> None:
    """Messages or one fault, whatever comes, however it is cut."""
    hold(listening(state), stream, piece)


@pytest.mark.slow
@given(STREAMS)
@settings(max_examples=max(EXAMPLES // 4, 1), deadline=None)
def test_memory_holds(stream: bytes) -> None:
    """No stream makes the session take more than its bounds come to, not even for a moment."""
    hold(listening(State.RUNNING), b"", 1)  # what is made once, on first use, is not the stream's
    tracemalloc.start()
    try:
        hold(listening(State.RUNNING), stream, 5000)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
