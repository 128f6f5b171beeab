"""Moves the frames and the output of one child.

Its job: from the child's descriptors into the session and the captured output, one message at a time.
Not its job: what a message means (``call.py``), clocks (``deadline.py``), killing (``reaper.py``).
Laws:
1. Nothing more is read while a message waits to be taken: that is the back-pressure (tests/contract/test_streams.py).
   Between two messages everybody else has a turn (tests/security/test_promise_ends.py).
2. Past its cap, output ends the call; the cap is on what is held, not on what is shown (tests/security/test_promise_bounded.py).
"""

import codecs

import trio

from engine.wire.framing import RemoteFault
from engine.wire.messages import FromWorker, ToWorker
from engine.wire.session import Session, State
from engine.worker.base import Child


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
        self._data += data[: self.cap - len(self._data)]
        return self.total <= self.cap

    def text(self) -> str:
        """What was kept, as text that ends with a whole character."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._data), final=self.total <= self.cap)


class Pump:
    """The session of one child, with its descriptors."""

    def __init__(self, child: Child, session: Session, log_bytes: int) -> None:
        self._child, self.session = child, session
        self.captured = {name: Capture(log_bytes) for name in ("stdout", "stderr")}
        self.request_bytes = 0
        self._closed = False

    async def send(self, message: ToWorker) -> None:
        """Write one message. That the child is gone is told by ``next``, after what it had still said."""
        data = self.session.send(message)
        self.request_bytes += len(data)
        try:
            await self._child.write(data)
        except BrokenPipeError:
            self._closed = True  # what it said before may still be there to read

    def refuse_early(self) -> None:
        """Look at what a child that should wait has sent. Raises RemoteFault: nothing may come before the call."""
        # security: a thread of the tool's import could else answer a call that was not made yet
        if data := self._child.read():
            self.session.feed(data)
            self.session.next()

    async def next(self) -> FromWorker:
        """The next message. Raises RemoteFault (it broke the rules or a bound) or Closed."""
        # security: a child that is never slower than we are would else hold the event loop, and every deadline, for as long as it likes
        await trio.lowlevel.checkpoint()
        while True:
            message = self.session.next()
            if message is not None:
                if self.session.state is State.ANSWERED:
                    self._read_outputs(all_of_it=True)  # what it printed before its answer is bounded, however the reads fell
                return message
            if not self._read():
                if self._closed:
                    raise Closed(self.session.eof())
                await self._child.wait()

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

    def _read(self) -> bool:
        """Read once from each descriptor; says whether the channel gave something."""
        self._read_outputs(all_of_it=False)
        gone = self._child.gone()  # asked before reading: what a dead process wrote is all there
        data = self._child.read()
        if data:
            self.session.feed(data)
            return True
        if data == b"" or gone:
            self._closed = True
        return False

    def _read_outputs(self, *, all_of_it: bool) -> None:
        for name, capture in self.captured.items():
            while data := self._child.read_output(name):
                if not capture.add(data):
                    raise RemoteFault("limit_exceeded.output", f"more than {capture.cap} bytes on {name}")
                if not all_of_it:
                    break
