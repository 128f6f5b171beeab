"""``stockade run`` and ``describe``: the answer on stdout, the rest on stderr, the exit code from the table, the terminal left alone."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.commands import command, environment, stockade, tools
from tests.kit import PROJECT

pytestmark = pytest.mark.slow


def test_the_value_is_on_stdout_and_the_tools_words_are_apart(tmp_path: Path) -> None:
    """What the tool printed is shown on stderr, marked as its own."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "double", '{"number": 4}')
    assert (ended.code, ended.out, ended.err) == (0, "8\n", "the tool's stdout (its own words, not ours):\n  | doubling\n")


def test_json_is_one_document_with_the_receipt(tmp_path: Path) -> None:
    """Status, reason, value, lines, the tool's words and the receipt, and nothing on stderr."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "double", '{"number": 4}', "--json", "--tenant", "t1")
    document = ended.document
    receipt = document.pop("receipt")
    assert (ended.code, ended.err) == (0, "")
    assert document == {"status": "ok", "reason": "ok.done", "value": 8, "lines": [], "stdout": "doubling\n", "stderr": ""}
    assert (receipt["tool"], receipt["tenant"], receipt["verdict"]["reason"]) == ("double", "t1", "ok.done")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["fail"], 1, "tool_error.exception"),
        (["nothing"], 2, "refused.unknown_tool"),
        (["double", '{"number": 1}', "--timeout", "0"], 2, "refused.limits"),
        (["erase"], 3, "refused.approval"),
        (["spin", "--timeout", "300"], 4, "limit_exceeded.wall"),
        (["double", '{"number": 1}', "--worker", "wasm"], 3, "refused.image_missing"),
        (["leave"], 6, "crashed.exit"),
    ],
)
def test_each_kind_of_end_has_its_exit_code(tmp_path: Path, words: list[str], code: int, reason: str) -> None:
    """The process ends with the table's code, and the document names the reason."""
    ended = stockade(tmp_path, "run", tools(tmp_path), *words, "--json")
    assert (ended.code, ended.document["reason"], ended.document["value"]) == (code, reason, None)


def test_a_source_that_is_missing_is_exit_2(tmp_path: Path) -> None:
    """An error of loading ends like an outcome: a document, a code."""
    ended = stockade(tmp_path, "run", str(tmp_path / "none.py"), "double", "--json")
    assert (ended.code, ended.document["reason"], ended.document["receipt"]) == (2, "refused.source_missing", None)


def test_an_error_says_what_to_do(tmp_path: Path) -> None:
    """Reason, line and advice, with the tool's trace above them; nothing on stdout."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "fail")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-2:] == [
        "tool_error.exception: ValueError: on purpose",
        "  what to do: read stderr for the trimmed trace",
    ]


def test_a_stream_is_shown_as_text(tmp_path: Path) -> None:
    """Each thing that the tool lets be seen is one line on stderr; the result is on stdout."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "count", '{"upto": 2}')
    assert (ended.code, ended.out) == (0, "null\n")
    assert ended.err.splitlines() == [
        'log info: counting { "upto": 2 }',
        'event { "begin": 1 }',
        "progress 1/2 on",
        "partial 1",
        "progress 2/2 on",
        "partial 2",
    ]


def test_the_command_stream_puts_everything_on_stdout(tmp_path: Path) -> None:
    """A line each, as it comes, and the result last; with --json each is a document, the last one the whole answer."""
    ended = stockade(tmp_path, "stream", tools(tmp_path), "count", '{"upto": 2}')
    lines = [
        'log info: counting { "upto": 2 }',
        'event { "begin": 1 }',
        "progress 1/2 on",
        "partial 1",
        "progress 2/2 on",
        "partial 2",
        "null",
    ]
    assert (ended.code, ended.out.splitlines(), ended.err) == (0, lines, "")
    *items, answer = stockade(tmp_path, "stream", tools(tmp_path), "count", '{"upto": 2}', "--json").out.splitlines()
    assert [json.loads(item)["event"] for item in items] == ["log", "event", "progress", "partial", "progress", "partial"]
    assert (json.loads(answer)["reason"], json.loads(answer)["receipt"]["tool"]) == ("ok.done", "count")


def test_a_stream_with_json_is_one_document_a_line_on_stderr(tmp_path: Path) -> None:
    """Programs read the same as lines of JSON."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "count", '{"upto": 1}', "--json")
    assert [json.loads(line) for line in ended.err.splitlines()] == [
        {"event": "log", "level": "info", "message": "counting", "data": {"upto": 1}},
        {"event": "event", "value": {"begin": 1}},
        {"event": "progress", "done": 1, "total": 1, "message": "on"},
        {"event": "partial", "value": 1},
    ]
    assert ended.document["reason"] == "ok.done"


def test_no_tool_drives_the_terminal(tmp_path: Path) -> None:
    """Escapes, controls and bidi marks of its words and of its value do not come through; letters and indentation do."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "drive")
    assert (ended.code, ended.out) == (0, '"\\u001b[2Jletters \u00e9\\u202e\\u007f"\n')
    assert [line for line in ended.err.splitlines() if line.startswith("  |")] == ["  |   shown", "  | below"]
    assert not [character for character in ended.out + ended.err if character != "\n" and not character.isprintable()]


def test_json_of_such_a_tool_is_ascii(tmp_path: Path) -> None:
    """The document holds its words whole, and no byte that a terminal acts on."""
    ended = stockade(tmp_path, "run", tools(tmp_path), "drive", "--json")
    assert ended.document["value"] == "\x1b[2Jletters \u00e9\u202e\x7f"
    assert ended.document["stdout"] == "  \x1b[2J\x1b]0;owned\x07shown\x9b31m\u202e\n"
    assert not [character for character in ended.out if not " " <= character <= "~" and character != "\n"]


@pytest.mark.parametrize("machine", [[], ["--json"]])
def test_a_reader_that_goes_away_leaves_no_trace(tmp_path: Path, machine: list[str]) -> None:
    """As in ``| head``: the pipe is closed long before all was written."""
    words = command("run", tools(tmp_path), "large", *machine)
    with subprocess.Popen(words, cwd=PROJECT, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 0)


def test_a_full_disk_is_no_success(tmp_path: Path) -> None:
    """What could not be written was not answered."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("run", tools(tmp_path), "double", '{"number": 1}'),
            cwd=PROJECT,
            env=environment(tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, b"Traceback" in done.stderr, b"No space left" in done.stderr) == (5, False, True)


def test_closed_standard_descriptors_do_no_harm(tmp_path: Path) -> None:
    """Started without stdin, stdout and stderr it works and ends as always, and no channel of ours takes their numbers."""
    words = " ".join(f"'{word}'" for word in command("run", tools(tmp_path), "double", '{"number": 1}'))
    done = subprocess.run(["/bin/sh", "-c", f"{words} <&- >&- 2>&-"], cwd=PROJECT, env=environment(tmp_path), timeout=60, check=False)
    assert done.returncode == 0


def test_describe_shows_what_tools_say(tmp_path: Path) -> None:
    """Names, effects and digests of all tools, without a call."""
    ended = stockade(tmp_path, "describe", tools(tmp_path), "--json")
    found = {made["name"]: (made["effect"], made["dangerous"], made["digest"][:7]) for made in ended.document["value"]}
    assert ended.code == 0
    assert found["double"] == ("read", False, "sha256:")
    assert found["erase"] == ("write", True, "sha256:")


def test_describe_as_text_has_a_paragraph_for_each_tool(tmp_path: Path) -> None:
    """The first line names the tool, its effect and its time."""
    ended = stockade(tmp_path, "describe", tools(tmp_path))
    assert "erase (write, dangerous; up to 30000 ms)\n  Dangerous.\n  input " in ended.out
    assert "count (read, read_only, streams; up to 30000 ms)" in ended.out


def test_describe_of_a_broken_source_says_why(tmp_path: Path) -> None:
    """A failing import ends with the tool error's code and the trace's lines."""
    (tmp_path / "broken.py").write_text("from engine import tool\n1 / 0\n")
    ended = stockade(tmp_path, "describe", str(tmp_path / "broken.py"), "--json")
    assert (ended.code, ended.document["reason"]) == (1, "tool_error.import")
    assert "ZeroDivisionError" in ended.document["lines"][0]
