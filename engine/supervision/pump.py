"""Moves the frames and the output of one child.

Its job: from the child's descriptors into the session and the captured output, one message at a time.
Not its job: what a message means (``call.py``), clocks (``deadline.py``), killing (``reaper.py``).
Laws:
1. Nothing more is read while a message waits to be taken: that is the back-pressure (tests/contract/test_streams.py).
   After two messages at most everybody else has a turn (tests/security/test_promise_ends.py).
2. Past its cap, output ends the call; the cap is on what is held, not on what is shown (tests/security/test_promise_bounded.py).
"""

import codecs
from collections.abc import Callable, Collection

import trio

from engine.wire.framing import RemoteFault
from engine.wire.messages import EncodedInit, FromWorker, ToWorker
from engine.wire.session import Bounds, Large, Session, State
from engine.worker.base import Child

# A turn of the event loop costs about 0.1 ms, most of what a quick tool takes; longer than this nobody's input waits for ours.
_MOMENT_SECONDS = 0.0004


def _never() -> bool:
    return False


class Closed(Exception):
    """The child closed its channel, or is gone; ``fault`` is what that means for the session, None after an answer."""

    def __init__(self, fault: RemoteFault | None) -> None:
        super().__init__(fault)
        self.fault = fault


class Capture:
    """One output of a tool, to a cap in bytes. Untrusted text: it is decoded with replacement, never parsed."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self._data = bytearray()
        self.total = 0

    def add(self, data: bytes) -> bool:
        """Keep what fits; says whether all of it did."""
        self.total += len(data)
        self._data += data[: max(0, self.cap - len(self._data))]
        return self.total <= self.cap

    def hold_to(self, cap: int) -> bool:
        """Have that cap from now on; says whether what was kept so far is within it."""
        self.cap = cap
        del self._data[cap:]
        return self.total <= cap

    def text(self) -> str:
        """What was kept, as text that ends with a whole character."""
        if not self._data:
            return ""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._data), final=self.total <= self.cap)


class Pump:
    """The session of one child, with its descriptors."""

    def __init__(self, child: Child, session: Session, log_bytes: int, captured: dict[str, Capture] | None = None) -> None:
        self._child, self.session = child, session
        self.captured = captured or {name: Capture(log_bytes) for name in ("stdout", "stderr")}
        self.request_bytes = 0
        self._closed = False
        self._owes_a_turn = False
        self._asked = False  # and not looked since
        self.alone: Callable[[], bool] = _never  # says whether this is the only call under way

    async def send(self, message: ToWorker | EncodedInit) -> None:
        """Write one message. That the child is gone is told by ``next``, after what it had still said."""
        data = self.session.send(message)
        self.request_bytes += len(data)
        self._asked = True
        try:
            await self._child.write(data)
        except BrokenPipeError:
            self._closed = True  # what it said before may still be there to read

    def hold_to(self, bounds: Bounds, log_bytes: int) -> None:
        """Have the bounds of the call that begins now. Raises RemoteFault when more than its cap was printed before."""
        self.session.hold_to(bounds)
        for name, capture in self.captured.items():
            if not capture.hold_to(log_bytes):
                raise RemoteFault("limit_exceeded.output", f"more than {log_bytes} bytes on {name}")

    def refuse_early(self) -> None:
        """Look at what a child that should wait has sent. Raises RemoteFault: nothing may come before the call."""
        # security: a thread of the tool's import could else answer a call that was not made yet
        if "channel" in self._child.ready() and (data := self._child.read()):
            self.session.feed(data)
            self.session.next()
            raise RemoteFault("violation.protocol", "the worker sent something before its call")

    def again(self) -> "Pump":
        """The pump of the child's next call: what it sends and prints from now on belongs to that one."""
        following = Pump(self._child, self.session.again(), self.captured["stdout"].cap)
        following._owes_a_turn = self._owes_a_turn
        return following

    def quiet(self) -> bool:
        """Whether the child has answered and is there, without a byte past its answer so far."""
        return self.session.over() and not {"channel", "gone"} & set(self._child.ready())

    async def next(self) -> FromWorker | Large:
        """The next message, undecoded when it is large. Raises RemoteFault (it broke the rules or a bound) or Closed."""
        # security: a child that is never slower than we are would else hold the event loop, and every deadline, for as long as it likes
        if self._owes_a_turn:
            await trio.lowlevel.checkpoint()
        self._owes_a_turn = True
        while (message := self.session.next_or_large()) is None:
            while not self._read(self._look()):
                if self._closed:
                    raise Closed(self.session.eof())
                await self._child.wait()
                self._owes_a_turn = False
        if self.session.state is State.ANSWERED:
            self.take_outputs()  # what it printed before its answer is bounded, however the reads fell
        return message

    def _look(self) -> Collection[str]:
        """Which descriptors have something. Once a call, when nobody else waits, the child is given a moment without the event loop."""
        alone, self.alone = self.alone, _never
        asked, self._asked = self._asked, False
        if alone() and trio.lowlevel.current_statistics().tasks_runnable == 0:
            return self._child.ready(_MOMENT_SECONDS)
        return () if asked and not self._closed else self._child.ready()  # it has only just been told what to do

    def take_outputs(self) -> None:
        """All that was printed until now. Raises RemoteFault when it is more than the cap."""
        self._take_outputs(self._child.ready(), all_of_it=True)

    def drain(self) -> str | None:
        """After the end: take the output that is still in the pipes; what the worker sent past its answer, as a line, or None."""
        for name, capture in self.captured.items():
            while data := self._child.read_output(name):
                if not capture.add(data):
                    break
        if self.session.state is not State.ANSWERED:
            return None
        try:
            if late := self._child.read():
                self.session.feed(late)
            self.session.next()
        except RemoteFault as fault:
            return fault.line
        return None

    def _read(self, ready: Collection[str]) -> bool:
        """Read once from each descriptor that has something; says whether the channel did."""
        self._take_outputs(ready, all_of_it=False)
        gone = "gone" in ready  # asked before reading: what a dead process wrote is all there
        data = self._child.read() if gone or "channel" in ready else None
        if data:
            self.session.feed(data)
            return True
        if data == b"" or gone:
            self._closed = True
        return False

    def _take_outputs(self, ready: Collection[str], *, all_of_it: bool) -> None:
        for name in ready:
            if (capture := self.captured.get(name)) is None:
                continue
            while data := self._child.read_output(name):
                if not capture.add(data):
                    raise RemoteFault("limit_exceeded.output", f"more than {capture.cap} bytes on {name}")
                if not all_of_it:
                    break
