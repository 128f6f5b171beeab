"""Foreign text made safe to print, and the exceptions."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import errors


@given(st.text(), st.integers(2, 60))
def test_no_dangerous_character_survives(text: str, limit: int) -> None:
    """Whatever goes in, one bounded line without control, format, surrogate or separator characters comes out."""
    line = errors.one_line(text, limit)
    assert len(line) <= limit
    assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain text, ünïcode too", "plain text, ünïcode too"),
        ("\x1b[31mred\x1b[0m alarm", "red alarm"),
        ("\x9b2Jgone", "gone"),
        ("title\x1b]0;you are root\x07 set", "title set"),
        ("one\ntwo\r\nthree\u2028four", "one two three four"),
        ("user\u202egnp.exe", "user gnp.exe"),
        ("a\x00b\ud800c", "a b c"),
        ("  many   spaces ", "many spaces"),
        (b"bytes", "b'bytes'"),
    ],
)
def test_one_line_of_foreign_text(text: object, line: str) -> None:
    """Terminal escapes vanish whole, separators and bidi characters become spaces, runs of spaces one."""
    assert errors.one_line(text) == line


def test_a_long_text_is_cut_with_a_mark() -> None:
    """The limit counts the mark."""
    assert errors.one_line("x" * 5000) == "x" * 999 + "…"


def test_lines_of_an_error_are_sanitised() -> None:
    """An error holds its code and one clean line for each problem; without lines its code is the line."""
    error = errors.EngineError("refused.request", "a\nb", "c")
    assert (error.code, error.lines, str(error)) == ("refused.request", ("a b", "c"), "refused.request: a b; c")
    assert errors.EngineError("engine_failed.bug").lines == ("engine_failed.bug",)


def test_a_declaration_error_has_its_code() -> None:
    """It is the author's fault and always refused.declaration."""
    error = errors.DeclarationError("tool x: mend it")
    assert (error.code, error.lines, isinstance(error, errors.ToolError)) == ("refused.declaration", ("tool x: mend it",), True)
