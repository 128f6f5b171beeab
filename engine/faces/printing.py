"""What the command line prints, so that no tool can drive the terminal it is printed on.

Its job: one answer as text or as one JSON document, foreign text line by line, tables, a reader that went away.
Not its job: what is said (the commands), which exit code (``outcome.REASONS``).
Laws:
1. Nothing that a tool or a source wrote reaches the terminal unsanitised (tests/unit/test_printing.py).
2. With ``--json`` stdout carries exactly one JSON document, in ASCII (tests/e2e/test_cli_run.py).
3. A closed stdout ends no command and shows no traceback (tests/e2e/test_cli_run.py).
"""

import dataclasses
import functools
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from engine.errors import EngineError, one_line
from engine.outcome import REASONS, Outcome, error_for

_DRIVING = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode general categories that print nothing of their own
_UNUSUAL = re.compile(r"[^\x20-\x7e\n]")
_TAB = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """How a command ended. ``text`` is what stdout shows without ``--json``; ``stdout`` and ``stderr`` are a tool's own words.

    ``advice`` takes the place of the table's, and empty leaves it out; ``mixed``: the lines name several reasons themselves.
    """

    reason: str = "ok.done"
    value: Any = None
    lines: tuple[str, ...] = ()
    receipt: Mapping[str, Any] | None = None
    stdout: str = ""
    stderr: str = ""
    text: str = ""
    advice: str | None = None
    mixed: bool = False

    @classmethod
    def of_error(cls, error: EngineError) -> "Answer":
        """The answer of a command that an exception ended."""
        return cls(reason=error.code, lines=error.lines)

    @classmethod
    def of_outcome(cls, outcome: Outcome, receipt: Mapping[str, Any]) -> "Answer":
        """The answer of a call, with its receipt (empty: there is none)."""
        owed = receipt.get("journal") == "owed"
        return cls(
            reason=outcome.reason,
            value=outcome.value,
            lines=(*outcome.lines, "the receipt is not in the journal: the disk takes no more") if owed else outcome.lines,
            receipt=dict(receipt) or None,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            text=safe_json(outcome.value) if outcome.reason == "ok.done" else "",
        )

    @property
    def exit_code(self) -> int:
        """The table's exit code for the reason."""
        return REASONS[self.reason].exit_code

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {
            "status": str(REASONS[self.reason].status),
            "reason": self.reason,
            "value": self.value,
            "lines": list(self.lines),
            "receipt": None if self.receipt is None else dict(self.receipt),
            "stdout": self.stdout,
            "stderr": self.stderr,
        }


class Printer:
    """Prints for one command: the answer on stdout, everything else on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def answer(self, answer: Answer) -> int:
        """Print it; gives its exit code. Raises HostError ``refused.storage`` when stdout takes no more."""
        if self.as_json:
            _write(sys.stdout, ascii_json(answer.document()) + "\n")
            return answer.exit_code
        for name, foreign in (("stdout", answer.stdout), ("stderr", answer.stderr)):
            if foreign:
                self.note(f"the tool's {name} (its own words, not ours):")
                self.notes(f"  | {line}" for line in foreign_lines(foreign))
        if answer.text:
            _write(sys.stdout, answer.text + "\n")
        if answer.reason != "ok.done":
            self.notes(line if answer.mixed else f"{answer.reason}: {line}" for line in answer.lines or ("",))
            advice = REASONS[answer.reason].advice if answer.advice is None else answer.advice
            if advice and not answer.mixed:
                self.note(f"  what to do: {advice}")
        return answer.exit_code

    def event(self, kind: str, fields: Mapping[str, Any], text: str) -> None:
        """One thing that happened while a tool runs, as one line on stderr: the fields for programs, the text for people."""
        self.note(ascii_json({"event": kind, **fields}) if self.as_json else one_line(f"{kind} {text}"))

    def item(self, kind: str, fields: Mapping[str, Any], text: str) -> None:
        """The same as one line on stdout, where it is part of the answer. Raises HostError as ``answer``."""
        _write(sys.stdout, (ascii_json({"event": kind, **fields}) if self.as_json else one_line(f"{kind} {text}")) + "\n")

    def note(self, line: str) -> None:
        """One line on stderr; nobody there to read it is no reason to stop."""
        try:
            _write(sys.stderr, line + "\n")
        except EngineError:
            return  # the disk behind stderr is full: the answer may still find its way

    def notes(self, lines: Iterable[str]) -> None:
        """Several lines on stderr."""
        self.note("\n".join(lines))


def safe_json(value: Any) -> str:
    """Plain data as readable JSON: letters of all scripts stay, what could drive a terminal is escaped."""
    return _UNUSUAL.sub(_escaped, json.dumps(value, ensure_ascii=False, indent=2))


def ascii_json(value: Any) -> str:
    """Plain data as one line of JSON for programs."""
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")  # JSON itself leaves DEL as it is


def foreign_lines(text: str) -> list[str]:
    """Foreign text as lines that can be printed: indentation stays, escapes and controls do not."""
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return [_foreign_line(line) for line in lines]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Aligned columns, each cell one sanitised line."""
    cells = [[one_line(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _foreign_line(line: str) -> str:
    line = line[:4000].expandtabs(_TAB)  # security: a line of many megabytes of tabs would grow eightfold before it is cut
    indent = len(line) - len(line.lstrip(" "))
    return " " * min(indent, 200) + one_line(line)


@functools.cache
def _escape_of(character: str) -> str:
    if unicodedata.category(character) not in _DRIVING:
        return character
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def _escaped(match: re.Match[str]) -> str:
    return _escape_of(match[0])


def _write(stream: IO[str] | None, text: str) -> None:
    """Write it all now. Raises HostError when the place is full; a reader that went away is no error."""
    if stream is None:  # started with the descriptor closed
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        _let_go(stream)
        if not isinstance(error, BrokenPipeError):
            raise error_for("refused.storage", f"the output could not be written: {error.strerror}") from None


def _let_go(stream: IO[str]) -> None:
    """Point the descriptor at nothing: Python flushes once more when it ends, and would change the exit code over what is left."""
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
