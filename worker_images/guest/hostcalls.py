"""What a tool can say to the host while it runs: the object behind its ``Context`` parameter, and where ``engine.http`` leads.

Its job: turn method calls into frames, and the host's replies into values.
Not its job: whether a call is allowed (the host decides), how frames are written (``wire.py``), what a request is (``engine.authoring``).
Laws:
1. Writing blocks when the host does not read: that is the back-pressure (tests/contract/test_streams.py).
2. No two host calls of one call have one number, and each gets its own reply, whichever thread asks (tests/unit/test_hostcalls.py).
"""

from _thread import RLock  # not ``threading``: one module less to import in each fresh guest
from typing import Any, Protocol

from engine.authoring import convert
from guest import wire

_OVER = "the call is over"
_OUTSIDE = "requests are made during a call alone, not while a source is imported"


class Link(Protocol):
    """The child's end of the channel, whatever it is made of."""

    def send(self, number: int, fields: list[Any]) -> None:
        """Write one frame, blocking while the host does not read. Raises ValueError when the fields are not plain data."""

    def send_last_words(self) -> None:
        """Say that memory ran out, when there is none left to say it with."""

    def receive(self, *, wait: bool) -> tuple[int, list[Any]] | None:
        """The next frame from the host; None when ``wait`` is false and there is none yet. A host that is gone ends the guest."""


class HostCallError(Exception):
    """The host refused or failed a nested call; the text is the host's."""


class Calls:
    """What one call of a tool asks of the host, whoever of it asks: numbered together, one at a time."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._number = 0
        self._cancelled = self._over = False
        self._lock = RLock()  # of who waits for a reply; a signal's handler may ask while its own thread does

    def ask(self, name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        """Whether the host did it, and the value or why not. Raises ValueError when the arguments are not plain data."""
        with self._lock:
            if self._over:
                return False, _OVER
            self._number += 1
            own = self._number
            self.link.send(wire.HOST_CALL, [own, name, arguments])
            while True:
                frame = self.link.receive(wait=True)
                if frame is not None and not self._noted(frame):
                    number, ok, value = frame[1]
                    if number == own:
                        return ok, value

    def cancelled(self) -> bool:
        """Whether a ``Cancel`` has come so far; who waits for a reply notes it, too."""
        if self._lock.acquire(blocking=False):
            try:
                while not (self._cancelled or self._over) and (frame := self.link.receive(wait=False)) is not None:
                    self._noted(frame)
            finally:
                self._lock.release()
        return self._cancelled

    def end(self) -> None:
        """Nothing is asked from here on; a thread that still waits for a reply takes it first, or it would take what comes after it."""
        with self._lock:
            self._over = True

    def _noted(self, frame: tuple[int, list[Any]]) -> bool:
        number = frame[0]
        if number == wire.CANCEL:
            self._cancelled = True
        return number != wire.HOST_REPLY


def closed(name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
    """Where ``engine.http`` leads outside a call."""
    return False, _OUTSIDE


class GuestContext:
    """Handed to a tool that has a parameter annotated ``Context``."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._link = calls, calls.link
        self.log = GuestLog(calls.link)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell the caller how far the tool is."""
        if any(isinstance(number, bool) or not isinstance(number, int | float | None) for number in (done, total)) or done is None:
            raise TypeError("progress takes a number done, a number or None as total, and a text")
        self._link.send(wire.PROGRESS, [done, total, str(message)])

    def emit(self, event: object) -> None:
        """Hand one event, any plain data, to the caller."""
        self._link.send(wire.EVENT, [convert.to_data(event)])

    def call(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """The value of a nested tool. Raises HostCallError when the host refuses it or the tool fails."""
        ok, value = self._calls.ask(str(name), convert.to_data(dict(arguments or {})))
        if not ok:
            raise HostCallError(str(value))
        return value

    @property
    def cancelled(self) -> bool:
        """Whether the host sent ``Cancel``. It does not yet: a call that is given up is ended at once."""
        return self._calls.cancelled()


class GuestLog:
    """Four levels, a message, and named plain data."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def _write(self, level: str, message: str, data: dict[str, Any]) -> None:
        self._link.send(wire.LOG, [level, str(message), convert.to_data(data)])

    def debug(self, message: str, **data: object) -> None:
        """For the tool's author."""
        self._write("debug", message, data)

    def info(self, message: str, **data: object) -> None:
        """For whoever watches."""
        self._write("info", message, data)

    def warning(self, message: str, **data: object) -> None:
        """Something to look at; the call goes on."""
        self._write("warning", message, data)

    def error(self, message: str, **data: object) -> None:
        """Something failed; the call may go on."""
        self._write("error", message, data)
