"""What is printed cannot drive a terminal, and keeps what a reader needs."""

import json
import sys
import unicodedata

import pytest

from engine.errors import RequestError
from engine.faces.printing import Answer, Printer, ascii_json, foreign_lines, safe_json, table
from engine.outcome import Outcome, Status

EVERY = "".join(chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number <= 0xDFFF)
DRIVING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_readable_json_escapes_every_character_that_prints_nothing() -> None:
    """Over all of Unicode: what is left is printable or a line break of our own, and the value is the same."""
    text = safe_json([EVERY])
    assert {unicodedata.category(character) for character in text if character != "\n"} & DRIVING == set()
    assert json.loads(text) == [EVERY]


def test_readable_json_keeps_letters() -> None:
    """Letters of all scripts and symbols stay as they are."""
    assert safe_json({"ключ": "値 é 🙂"}) == '{\n  "ключ": "値 é 🙂"\n}'


def test_a_character_beyond_16_bits_is_escaped_as_a_pair() -> None:
    """A private-use or tag character becomes two escapes, as JSON wants it."""
    assert safe_json("\U000e0041") == '"\\udb40\\udc41"'


def test_json_for_programs_is_printable_ascii() -> None:
    """Over all of Unicode, DEL included, which JSON itself would leave."""
    text = ascii_json([EVERY])
    assert set(text) <= {chr(number) for number in range(0x20, 0x7F)}
    assert json.loads(text) == [EVERY]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\ntwo\n", ["one", "two"]),
        ("    four\n\ttab\n", ["    four", "    tab"]),
        ("\x1b[31mred\x1b[0m", ["red"]),
        ("\x1b]8;;http://x\x07link", ["link"]),
        ("a\rb", ["a b"]),
        ("a\x0bb\x0cc\u2028d\x85e", ["a b c d e"]),
        ("\u202eright", ["right"]),
        ("\n\n", ["", ""]),
    ],
)
def test_foreign_text_becomes_lines(text: str, lines: list[str]) -> None:
    """Only a line feed ends a line; escapes and controls are gone; indentation stays."""
    assert foreign_lines(text) == lines


def test_a_foreign_line_is_bounded_before_it_is_worked_on() -> None:
    """Tabs and spaces without end cost no more than others."""
    assert len(foreign_lines("\t" * 10_000_000 + "x")[0]) <= 200
    assert len(foreign_lines("y" * 10_000_000)[0]) <= 1000


def test_a_table_is_aligned_and_each_cell_is_one_line() -> None:
    """A cell with a line break or an escape cannot add a row."""
    text = table(("name", "what"), [("a", "x\ny\x1b[2J"), ("longer", "z")])
    assert text.split("\n") == ["name    what", "------  ----", "a       x y", "longer  z"]


def test_an_answer_has_the_documented_keys() -> None:
    """One shape for every command and every end."""
    document = Answer.of_error(RequestError("refused.arguments", "a", "b")).document()
    expected = {
        "status": "refused",
        "reason": "refused.arguments",
        "value": None,
        "lines": ["a", "b"],
        "receipt": None,
        "stdout": "",
        "stderr": "",
    }
    assert document == expected


def test_an_outcome_keeps_its_receipt_and_its_words() -> None:
    """Nothing of it is lost on the way to the document."""
    outcome = Outcome(status=Status.OK, reason="ok.done", value={"a": [1]}, stdout="out", stderr="err")
    answer = Answer.of_outcome(outcome, {"id": "1"})
    assert (answer.exit_code, answer.text) == (0, '{\n  "a": [\n    1\n  ]\n}')
    assert (answer.document()["receipt"], answer.document()["stdout"], answer.document()["stderr"]) == ({"id": "1"}, "out", "err")


def test_text_goes_to_stdout_and_everything_else_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """The reason, its lines and the advice; the tool's words with a mark before each line, so that they cannot pass for ours."""
    code = Printer(as_json=False).answer(Answer(reason="tool_error.exit", lines=("one", "two"), stdout="ok.done: fine\n", text="shown"))
    out, err = capfd.readouterr()
    assert (code, out) == (1, "shown\n")
    assert err.splitlines() == [
        "the tool's stdout (its own words, not ours):",
        "  | ok.done: fine",
        "tool_error.exit: one",
        "tool_error.exit: two",
        "  what to do: return a value instead of calling sys.exit",
    ]


def test_an_event_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """Text for people is cut to a line; for programs it is JSON."""
    Printer(as_json=False).event("log", {"message": "x"}, "a\nb\x1b[2J")
    Printer(as_json=True).event("log", {"message": "a\nb"}, "unused")
    assert capfd.readouterr().err.splitlines() == ["log a b", '{"event":"log","message":"a\\nb"}']
