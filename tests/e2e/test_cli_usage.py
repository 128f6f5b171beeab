"""What the command line does with words it does not know, with our own bugs, and how little ``--help`` costs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.faces import cli
from tests.e2e.commands import environment, stockade
from tests.kit import PROJECT

pytestmark = pytest.mark.slow


def test_help_costs_none_of_the_engine(tmp_path: Path) -> None:
    """Neither the loop nor the codec nor the validator is imported before a command needs them."""
    program = (
        "import sys, engine.faces.cli; print(sorted({'trio', 'msgpack', 'jsonschema_rs', 'psutil', 'engine.host'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, env=environment(tmp_path), capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_help_names_the_commands(tmp_path: Path) -> None:
    """The commands a user can give are listed, and asking is no error."""
    ended = stockade(tmp_path, "--help")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.split("Commands:\n")[1].splitlines()] == [
        "batch",
        "bench",
        "demo",
        "describe",
        "doctor",
        "explain",
        "image",
        "layer",
        "run",
        "stream",
    ]


@pytest.mark.parametrize(
    "words", [["run"], ["run", "a.py"], ["nonsense"], ["run", "a.py", "b", "--timeout", "soon"], ["run", "a.py", "b", "--worker", "x"]]
)
def test_a_usage_error_is_exit_2_and_with_json_one_document(tmp_path: Path, words: list[str]) -> None:
    """Usage goes to stderr; with --json stdout holds the document and nothing else."""
    plain, machine = stockade(tmp_path, *words), stockade(tmp_path, *words, "--json")
    assert (plain.code, plain.out, "Usage: stockade" in plain.err) == (2, "", True)
    assert machine.code == 2
    assert (machine.document["status"], machine.document["reason"], machine.document["value"]) == ("refused", "refused.request", None)
    assert len(machine.document["lines"]) == 1


def _break(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a wire \x1b[2Jis loose")

    monkeypatch.setattr("engine.faces.run.read_arguments", broken)


def test_a_bug_of_ours_is_one_line_and_exit_70(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """No trace, no escape of whatever was in the exception's text."""
    _break(monkeypatch)
    with pytest.raises(SystemExit) as end:
        cli.main(["run", "a.py", "b"])
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (70, "")
    assert err.splitlines()[0] == "engine_failed.bug: RuntimeError: a wire is loose; --debug shows where"
    assert "Traceback" not in err


def test_debug_adds_the_trace(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The trace goes to stderr; with --json stdout stays one document."""
    _break(monkeypatch)
    with pytest.raises(SystemExit) as end:
        cli.main(["run", "a.py", "b", "--debug", "--json"])
    out, err = capfd.readouterr()
    assert (end.value.code, json.loads(out)["reason"], "Traceback" in err) == (70, "engine_failed.bug", True)


@pytest.mark.parametrize("word", ["--policy=nonsense", "--policy=./missing.toml"])
def test_a_policy_that_cannot_be_used_is_exit_3(tmp_path: Path, word: str) -> None:
    """The operator's mistakes end like a refusal, with the reason."""
    ended = stockade(tmp_path, "run", "a.py", "b", word, "--json", "{}")
    assert (ended.code, ended.document["reason"]) == (3, "refused.policy")
