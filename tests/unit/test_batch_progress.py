"""Progress: one line that is written over on a terminal, a line now and then elsewhere."""

import dataclasses
import io
import json
import sys

import pytest

from engine.batch.tally import Tally
from engine.faces.printing import Printer
from engine.faces.progress import Progress, bar, words


class Terminal(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        """It is one."""
        return True


class Gone(Terminal):
    """A terminal that was closed."""

    def write(self, text: str, /) -> int:
        """Nobody there."""
        raise BrokenPipeError


@dataclasses.dataclass
class Counted:
    """How far a batch has come."""

    total: int = 0
    done: int = 0
    finished: int = 0
    tally: Tally = dataclasses.field(default_factory=Tally)


def told(printer: Printer, counts: Counted) -> None:
    """Three looks, two seconds apart, at a batch that resumes at 50 of 100 and does 10 lines a second, two of them badly."""
    progress = Progress(printer, counts)
    progress.tell(0.0)
    counts.total = 100
    for look in (1, 2):
        counts.done, counts.finished = 50 + 20 * look, 20 * look
        counts.tally.add("tool_error.exit", None)
        progress.tell(2.0 * look)
    progress.end()


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """In words for people; nothing before there is something to tell."""
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    told(Printer(as_json=False), Counted())
    assert stream.getvalue().splitlines() == [
        "batch 70/100 lines, 1 not ok, 10.0/s, 3 s left",
        "batch 90/100 lines, 2 not ok, 10.0/s, 1 s left",
    ]


def test_the_same_as_data_on_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One document a line."""
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    told(Printer(as_json=True), Counted())
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert found[1] == {"event": "batch", "done": 90, "total": 100, "failed": 2, "lines_per_second": 10.0, "seconds_left": 1}


def test_a_terminal_has_one_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins at the left and clears what stood there; the last leaves nothing."""
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    told(Printer(as_json=False), Counted())
    shown = stream.getvalue()
    assert "\n" not in shown
    assert shown.split("\r")[1:] == [f"{text}\x1b[K" for text in (bar(70, 100, 1, 10.0, 3.0, 80), bar(90, 100, 2, 10.0, 1.0, 80), "")]


def test_a_terminal_that_goes_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch goes on without."""
    monkeypatch.setattr(sys, "stderr", Gone())
    told(Printer(as_json=False), Counted())


@pytest.mark.parametrize("columns", [1, 10, 40, 80, 500])
def test_a_bar_fits_its_terminal(columns: int) -> None:
    """However narrow, and whatever the numbers."""
    for done, left in ((0, None), (999_999, 123.0), (1_000_000, 0.0)):
        assert len(bar(done, 1_000_000, 3, 812.25, left, columns)) < columns or columns == 1


def test_a_bar_shows_the_share_that_is_done() -> None:
    """Half of it for half of the lines."""
    assert bar(50, 100, 0, 5.0, 10.0, 80) == "[###############---------------] 50/100 lines, 5.0/s, 10 s left"


@pytest.mark.parametrize(("seconds", "said"), [(59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7260, "2 h 1 min")])
def test_the_time_that_is_left_in_words(seconds: float, said: str) -> None:
    """In the two largest units; nothing is left when all is done."""
    assert words(1, 2, 0, 1.0, seconds) == f"1/2 lines, 1.0/s, {said} left"
    assert words(2, 2, 0, 1.0, seconds) == "2/2 lines, 1.0/s"
