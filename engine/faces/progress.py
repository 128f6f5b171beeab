"""How far a batch has come, on stderr.

Its job: one line that is written over on a terminal, a line now and then elsewhere; the rate and the time that is left.
Not its job: counting (``batch/run.py``), the summary (``batch.py``).
Laws:
1. A line holds numbers of ours and nothing else (tests/unit/test_batch_progress.py).
2. A stderr that takes no more ends no batch (tests/unit/test_batch_progress.py).
"""

import os
import sys
from collections import deque
from typing import Protocol

import trio

from engine.batch.tally import Tally
from engine.faces.printing import Printer

_BAR_SECONDS = 0.25
_LINE_SECONDS, _SLOWEST_SECONDS = 2.0, 10.0  # between lines: often at first, seldom in a log of hours
_WINDOW = 40  # looks back, over which the rate is taken
_WIDTH = 80


class Counts(Protocol):
    """What is looked at."""

    tally: Tally
    total: int
    finished: int

    @property
    def done(self) -> int:
        """Lines that have their outcome."""


class Progress:
    """Tells how far a batch has come. ``keep_telling`` runs beside it, ``end`` comes after it."""

    def __init__(self, printer: Printer, counts: Counts) -> None:
        self._printer, self._counts = printer, counts
        self._bar = not printer.as_json and sys.stderr is not None and sys.stderr.isatty()
        self._gone = False
        self._looks: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    async def keep_telling(self) -> None:
        """Tell again and again, until cancelled."""
        pause = _BAR_SECONDS if self._bar else _LINE_SECONDS
        while True:
            self.tell(trio.current_time())
            await trio.sleep(pause)
            pause = pause if self._bar else min(pause * 1.2, _SLOWEST_SECONDS)

    def tell(self, now: float) -> None:
        """Tell once; nothing before there is something to tell."""
        counts = self._counts
        self._looks.append((now, counts.finished))
        then, before = self._looks[0]
        if self._gone or not counts.total:
            return
        rate = (counts.finished - before) / (now - then) if now > then else 0.0
        left = (counts.total - counts.done) / rate if rate else None
        shown = (counts.done, counts.total, counts.tally.failed, rate, left)
        if self._bar:
            self._over(bar(*shown, _columns()))
        elif now > then:
            names = ("done", "total", "failed", "lines_per_second", "seconds_left")
            fields = (*shown[:3], round(rate, 1), None if left is None else round(left))
            self._printer.event("batch", dict(zip(names, fields, strict=True)), words(*shown))

    def end(self) -> None:
        """Leave the line free for what comes."""
        if self._bar and not self._gone:
            self._over("")

    def _over(self, text: str) -> None:
        try:
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody there to see it is no reason to stop; ValueError: closed
            self._gone = True


def bar(done: int, total: int, failed: int, rate: float, left: float | None, columns: int) -> str:
    """Progress as one line of at most so many columns."""
    said = words(done, total, failed, rate, left)
    room = min(columns - len(said) - 4, 30)
    if room < 5:
        return said[: columns - 1]
    full = room * done // total
    return f"[{'#' * full}{'-' * (room - full)}] {said}"


def words(done: int, total: int, failed: int, rate: float, left: float | None) -> str:
    """Progress in words."""
    bad = f", {failed} not ok" if failed else ""
    ahead = "" if left is None or done >= total else f", {_span(left)} left"
    return f"{done}/{total} lines{bad}, {rate:.1f}/s{ahead}"


def _span(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH
