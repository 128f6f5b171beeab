"""One call's talk with one worker, sans-io: bytes in, messages out, and the table of which message may come when.

Its job: the two transition tables, the bounds on size and number, and that the first fault is the last word.
Not its job: moving bytes and waiting (``supervision/pump.py``), clocks (``supervision/deadline.py``), what an answer means (``call.py``).
Laws:
1. A pair of state and message that no table allows is a fault: ours an EngineBug, theirs a RemoteFault (tests/unit/test_session.py).
2. After a RemoteFault nothing is decoded again; each further ``next`` raises it anew (tests/unit/test_session.py).
3. The first answer is the only one; a single byte after it is a fault (tests/security/test_wire_order.py).
4. What may not come, or would be too much, is refused from its first six bytes, before its body is awaited (tests/unit/test_session.py).
5. A frame of ``large_bytes`` and of many items is handed over as it came; whoever decodes it says with ``confirm`` or ``fault`` what it was
   (tests/unit/test_session_large.py).
6. Each payload that is decoded here is shown to ``watch`` first, as it came (tests/unit/test_session_watch.py).
7. A message that was expected, and came so to the byte, is taken without decoding; any other is none the less what it says
   (tests/unit/test_session_known.py).

    NEW --Init--> STARTING --Ready--> READY --Describe--> DESCRIBING --Declarations--> ANSWERED
                                            --Call------> RUNNING -----Result--------> ANSWERED
    RUNNING: the worker may send Partial, Progress, Event, Log, HostCall; we may send HostReply.
    Any state between NEW and ANSWERED: the worker may send Failure, which answers; we may send Cancel, which changes nothing here.
    Any state --a fault--> BROKEN.
    ANSWERED --again--> READY: of a new session over the same channel, for a worker that serves call after call.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from engine import errors
from engine.wire import decoding, messages
from engine.wire.data import DEPTH, NODES
from engine.wire.framing import LONGEST, FrameBuffer, RemoteFault, frame
from engine.wire.messages import (
    Call,
    Cancel,
    Declarations,
    Describe,
    EncodedInit,
    Event,
    Expected,
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


class State(enum.StrEnum):
    """How far the talk is."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DESCRIBING = "describing"
    RUNNING = "running"
    ANSWERED = "answered"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one worker may send, sizes in bytes as encoded. ``events`` and ``event_bytes`` are of partials, progress, events, logs."""

    frame_bytes: int
    result_bytes: int
    events: int
    event_bytes: int
    depth: int = DEPTH
    nodes: int = NODES
    aside_bytes: int = LONGEST  # from here on a value with a schema is too costly to check at once, be it one text
    host_calls: int = 1024  # waiting for our reply at once: their numbers are remembered

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if type(value) is not int or value < 1 or self.frame_bytes > LONGEST:
                raise errors.EngineBug("engine_failed.bug", f"the wire's bound {name} is not a whole number that a frame can hold")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Large:
    """A message that is too large to be decoded at once: which one its head says it is, its payload, and the bounds it is held to."""

    kind: type[FromWorker]
    payload: memoryview = dataclasses.field(repr=False)
    depth: int
    nodes: int


# What moves the talk on, and where to. A pair that is missing is forbidden.
SENDS: Mapping[State, Mapping[type[ToWorker], State]] = MappingProxyType(
    {
        State.NEW: {Init: State.STARTING},
        State.STARTING: {Cancel: State.STARTING},
        State.READY: {Describe: State.DESCRIBING, Call: State.RUNNING, Cancel: State.READY},
        State.DESCRIBING: {Cancel: State.DESCRIBING},
        State.RUNNING: {HostReply: State.RUNNING, Cancel: State.RUNNING},
        State.ANSWERED: {},
        State.BROKEN: {},
    }
)
HEARS: Mapping[State, Mapping[type[FromWorker], State]] = MappingProxyType(
    {
        State.NEW: {},
        State.STARTING: {Ready: State.READY, Failure: State.ANSWERED},
        State.READY: {Failure: State.ANSWERED},
        State.DESCRIBING: {Declarations: State.ANSWERED, Failure: State.ANSWERED},
        State.RUNNING: {
            Partial: State.RUNNING,
            Progress: State.RUNNING,
            Event: State.RUNNING,
            Log: State.RUNNING,
            HostCall: State.RUNNING,
            Result: State.ANSWERED,
            Failure: State.ANSWERED,
        },
        State.ANSWERED: {},
        State.BROKEN: {},
    }
)
_EVENTS = frozenset({Partial, Progress, Event, Log})
_LARGE = frozenset({Partial, Event, Log, HostCall, Result})  # those that hold a value of the tool's
_WITH_SCHEMA = frozenset({Partial, Result})
# Items that a message may hold which nobody takes aside, its own list and number included: what costs is items, not the bytes of a text.
_ITEMS: Mapping[type[FromWorker], int] = MappingProxyType(
    {Declarations: 200_000, **{kind: 2 + len(kind.FIELDS) for kind in (Ready, Progress, Failure)}}
)
_CHEAP_BYTES = 1 << 20  # of text: 1 ms to decode, 3 ms to name by its digest
_HEAD_BYTES = 2  # of a payload: the array's head and the message's number; not counted as the result's
_FIXARRAY = 0x90  # msgpack's head of an array of up to 15


class Session:
    """The host's side of one call. ``send`` gives bytes to write; ``feed`` what was read, then ``next`` until it gives None."""

    def __init__(self, bounds: Bounds, *, large_bytes: int | None = None, expected: Expected | None = None) -> None:
        self._bounds, self._large_bytes, self._expected = bounds, large_bytes, expected
        self._buffer = FrameBuffer(bounds.frame_bytes)
        self._state = State.NEW
        self._fault: tuple[str, str] | None = None
        self._host_calls: set[int] = set()
        self.watch: Callable[[memoryview], Any] | None = None  # looks at a payload
        self.seen: Any = ()  # what it saw in that of the last message
        self.events = 0  # partials, progress, events and logs taken so far
        self.event_bytes = 0
        self.result_bytes = 0

    @property
    def state(self) -> State:
        """How far the talk is."""
        return self._state

    def hold_to(self, bounds: Bounds) -> None:
        """Have these bounds from now on: a child may be started before it is known which call it will serve."""
        if self._state is not State.READY:
            raise errors.EngineBug("engine_failed.bug", f"the engine tried to change the bounds while {self._state}")
        self._bounds = bounds
        self._buffer.longest = bounds.frame_bytes

    def over(self) -> bool:
        """Whether the answer is there, and not a byte after it."""
        return self._state is State.ANSWERED and not self._buffer

    def again(self) -> "Session":
        """The session of the next call of the same worker: ready, nothing counted. This one must be over."""
        if not self.over():
            raise errors.EngineBug("engine_failed.bug", f"the engine tried to go on with a worker while {self._state}")
        following = Session(self._bounds, large_bytes=self._large_bytes)
        following._state = State.READY
        return following

    def send(self, message: ToWorker | EncodedInit) -> bytes:
        """The frame to write. Raises EngineBug when the message may not be sent now, or holds what is not data."""
        kind = Init if isinstance(message, EncodedInit) else type(message)
        after = SENDS[self._state].get(kind)
        if after is None:
            raise errors.EngineBug("engine_failed.bug", f"the engine tried to send {kind.__name__} while {self._state}")
        if isinstance(message, HostReply) and message.number not in self._host_calls:
            raise errors.EngineBug("engine_failed.bug", "the engine replied to a host call that does not wait")
        if isinstance(message, EncodedInit):
            made = frame(message.payload)
        else:
            made = frame(messages.encode(message, depth=self._bounds.depth, nodes=self._bounds.nodes))
        if isinstance(message, HostReply):
            self._host_calls.remove(message.number)
        self._state = after
        return made

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what was read. Raises EngineBug when a whole frame of the longest kind waits untaken: ``next`` comes first."""
        if self._fault is not None:
            return  # nothing of a broken stream is kept
        # security: without it a worker fills our memory while its reader is slow
        if self._buffer.whole(self._bounds.frame_bytes):
            raise errors.EngineBug("engine_failed.bug", "the engine read on without taking the frames it has")
        self._buffer.feed(data)

    def next(self) -> FromWorker | None:
        """The next message, None when more bytes are needed. Raises RemoteFault, from then on always."""
        taken = self.next_or_large()
        assert not isinstance(taken, Large)  # noqa: S101 - a type fact: only who gave ``large_bytes`` is given one, and asks the other way
        return taken

    def next_or_large(self) -> FromWorker | Large | None:
        """The same, or a message of ``large_bytes`` undecoded."""
        if self._fault is not None:
            raise RemoteFault(*self._fault)
        if not self._buffer:
            return None
        try:
            return self._next()
        except RemoteFault as fault:
            self.fault(fault)
            raise

    def confirm(self, message: FromWorker) -> None:
        """Book what a large message turned out to hold. Raises RemoteFault for a host call whose number is taken."""
        try:
            self._remember(message)
        except RemoteFault as fault:
            self.fault(fault)
            raise

    def fault(self, fault: RemoteFault) -> None:
        """End the talk: this is its first fault, and its last word."""
        self._fault = self._fault or (fault.code, fault.line)
        self._state = State.BROKEN
        # security: bytes after a fault have no meaning that two readers share, so there is no going on
        self._buffer.clear()

    def eof(self) -> RemoteFault | None:
        """What the end of the stream means: None after an answer. Ask when ``next`` gave None.

        A worker that the kernel killed may leave half a frame: how its process ended says more than ``violation.protocol``.
        """
        if self._fault is not None:
            return RemoteFault(*self._fault)
        if self._buffer:
            return RemoteFault("violation.protocol", "the worker closed its channel inside a frame")
        if self._state is not State.ANSWERED:
            return RemoteFault("crashed.silent", f"the worker closed its channel while {self._state}")
        return None

    def _next(self) -> FromWorker | Large | None:
        buffer = self._buffer
        if self._state is State.ANSWERED and buffer:
            raise RemoteFault("violation.protocol", "the worker sent something after its answer")
        try:
            length = buffer.length()
        except RemoteFault:
            self._name_the_bound()
            raise
        start = None if length is None else buffer.start()
        if length is None or start is None:
            return None
        kind = self._kind(*start)
        after = HEARS[self._state][kind]
        self._measure(kind, length)
        if not buffer.whole(length):
            return None
        message = self._foreseen(length) or self._decoded(kind, length)
        self._count(kind, length)
        if not isinstance(message, Large):
            self._remember(message)
        self._state = after
        return message

    def _foreseen(self, length: int) -> FromWorker | None:
        """The message that was expected, when the first frame is that to the byte."""
        expected = self._expected
        if expected is None or len(expected.payload) != length:
            return None
        with self._buffer.payload(length) as payload:
            if payload != expected.payload:
                return None
        self._buffer.drop(length)
        return expected.message

    def _decoded(self, kind: type[FromWorker], length: int) -> FromWorker | Large:
        """What is in the first frame, which is whole and may come now."""
        buffer, self.seen = self._buffer, ()
        # security: a million maps take half a second to build, in which nobody else is served; a field of the wrong type is one way
        if length > _ITEMS.get(kind, length) and not self._holds_at_most(length, _ITEMS[kind]):
            raise RemoteFault("violation.protocol", f"the worker sent {kind.__name__} with more values than it can have")
        if self._goes_aside(kind, length):
            return Large(kind=kind, payload=buffer.take(length), depth=self._bounds.depth, nodes=self._bounds.nodes)
        view = buffer.payload(length)
        try:
            if self.watch is not None:
                self.seen = self.watch(view)
            message = messages.decode(view, kind, depth=self._bounds.depth, nodes=self._bounds.nodes)
        finally:
            view.release()
        buffer.drop(length)
        return message

    def _goes_aside(self, kind: type[FromWorker], length: int) -> bool:
        """Whether the first frame would take more than a few milliseconds here; up to 1 MiB of a few long texts does not."""
        if self._large_bytes is None or kind not in _LARGE:
            return False
        if kind in _WITH_SCHEMA and length >= self._bounds.aside_bytes:
            return True
        return length >= self._large_bytes and (length > _CHEAP_BYTES or not self._holds_at_most(length, decoding.FEW))

    def _holds_at_most(self, length: int, items: int) -> bool:
        with self._buffer.payload(length) as payload:
            return decoding.holds_at_most(payload, items)

    def _name_the_bound(self) -> None:
        """A frame of no allowed length: when it says that it is a result or an event, its own bound is the one to name."""
        start, length = self._buffer.start(), self._buffer.said()
        kind = None if start is None else messages.FROM_WORKER.get(start[1])
        if kind is not None and kind in HEARS[self._state] and length > self._bounds.frame_bytes:
            self._measure(kind, length)

    def _kind(self, head: int, number: int) -> type[FromWorker]:
        """Which message begins so, if it may come now."""
        kind = messages.FROM_WORKER.get(number)
        if kind is None:
            ours = messages.TO_WORKER.get(number)
            line = "a frame that is no message" if ours is None else f"{ours.__name__}, which only the host sends"
            raise RemoteFault("violation.protocol", f"the worker sent {line}")
        if kind not in HEARS[self._state]:
            raise RemoteFault("violation.protocol", f"the worker sent {kind.__name__} while {self._state}")
        if head != _FIXARRAY + 1 + len(kind.FIELDS):
            raise RemoteFault("violation.protocol", f"the worker sent {kind.__name__} with a wrong number of fields")
        return kind

    def _measure(self, kind: type[FromWorker], length: int) -> None:
        """Whether a message of that kind and length still fits the bounds; may be asked again while its body arrives."""
        bounds = self._bounds
        if kind is Result:
            if length - _HEAD_BYTES > bounds.result_bytes:
                raise RemoteFault("limit_exceeded.result", "the result is longer than its bound")
        elif kind in _EVENTS:
            if self.events >= bounds.events:
                raise RemoteFault("limit_exceeded.events", "the worker sent more events than its bound")
            if self.event_bytes + length > bounds.event_bytes:
                raise RemoteFault("limit_exceeded.events", "the worker sent more bytes of events than their bound")
        elif kind is HostCall and len(self._host_calls) >= bounds.host_calls:
            raise RemoteFault("limit_exceeded.events", "the worker has more host calls waiting than its bound")

    def _count(self, kind: type[FromWorker], length: int) -> None:
        """Book the size of a message that was taken."""
        if kind in _EVENTS:
            self.events += 1
            self.event_bytes += length
        elif kind is Result:
            self.result_bytes = length - _HEAD_BYTES

    def _remember(self, message: FromWorker) -> None:
        """Book the number of a host call, which waits for our reply from now on."""
        if isinstance(message, HostCall):
            if message.number in self._host_calls:
                raise RemoteFault("violation.protocol", "the worker gave two waiting host calls one number")
            self._host_calls.add(message.number)
