"""How far a build has come, as it is told on a terminal, elsewhere and to programs."""

import io
import sys

import pytest

from engine.faces.images import Steps
from engine.faces.printing import Printer


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        """It does."""
        return True


def told(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, as_json: bool = False) -> str:
    """Two steps of a build."""
    monkeypatch.setattr(sys, "stderr", stream)
    steps = Steps(Printer(as_json=as_json))
    steps.step("one")
    steps.tick()
    steps.step("two \x1b[2J")
    steps.end()
    steps.end()
    return stream.getvalue()


def test_a_terminal_has_one_line_a_step_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of a step that is over stays; what could drive the terminal is gone."""
    text = told(monkeypatch, Terminal())
    assert [line.rsplit("\r", 1)[1].removeprefix("\x1b[K") for line in text.rstrip("\n").split("\n")] == ["one: 0.0 s", "two: 0.0 s"]
    assert "\x1b[2J" not in text


def test_elsewhere_each_step_is_a_line_as_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is written over."""
    assert told(monkeypatch, io.StringIO()) == "image one ...\nimage two ...\n"


def test_programs_get_an_event_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON object a line, also on a terminal."""
    assert told(monkeypatch, Terminal(), as_json=True) == '{"event":"image","step":"one"}\n{"event":"image","step":"two"}\n'


def test_a_terminal_that_is_gone_ends_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody there to see it is no reason to stop."""
    stream = Terminal()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    steps = Steps(Printer(as_json=False))
    steps.step("one")
    steps.tick()
    steps.end()
