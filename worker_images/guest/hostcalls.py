"""What a tool can say to the host while it runs: the object behind its ``Context`` parameter.

Its job: turn method calls into frames, and the host's replies into values.
Not its job: whether a call is allowed (the host decides), how frames are written (``wire.py``).
Laws:
1. Writing blocks when the host does not read: that is the back-pressure (tests/contract/test_streams.py).
"""

from typing import Any, Protocol

from engine.authoring import convert
from guest import wire


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


class GuestContext:
    """Handed to a tool that has a parameter annotated ``Context``."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._number = 0
        self._cancelled = False
        self.log = GuestLog(link)

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
        self._number += 1
        self._link.send(wire.HOST_CALL, [self._number, str(name), convert.to_data(dict(arguments or {}))])
        while True:
            frame = self._link.receive(wait=True)
            if frame is not None and not self._noted(frame):
                number, ok, value = frame[1]
                if number == self._number:
                    if not ok:
                        raise HostCallError(str(value))
                    return value

    @property
    def cancelled(self) -> bool:
        """Whether the host sent ``Cancel``. It does not yet: a call that is given up is ended at once."""
        while not self._cancelled and (frame := self._link.receive(wait=False)) is not None:
            self._noted(frame)
        return self._cancelled

    def _noted(self, frame: tuple[int, list[Any]]) -> bool:
        number = frame[0]
        if number == wire.CANCEL:
            self._cancelled = True
        return number != wire.HOST_REPLY


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
