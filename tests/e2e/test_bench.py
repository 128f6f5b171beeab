"""The bench end to end: a case in fresh processes against a real engine, of this tree and as if of another."""

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import harness
from tests.kit import PROJECT


@pytest.mark.slow
def test_a_case_measures_the_engine_of_the_tree_that_is_named(tmp_path: Path) -> None:
    """Every metric has numbers, every answer was right; a tree without an engine is a failure with a line."""
    case = harness.cases()["first_call"]
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").touch()
    subjects = [harness.own(case, "stockade", label=label, tree=tree) for label, tree in (("base", PROJECT), ("other", tmp_path))]
    result = harness.run_case(case, subjects, quick=True, rounds=1, note=lambda words: None)
    assert result.problem("base") == ""
    assert result.problem("other").startswith("ended with 1: ImportError: cannot import name 'Engine' from 'engine'")
    assert {one.metric for one in result.series("base")} == {metric.name for metric in case.metrics}


@pytest.mark.slow
def test_the_command_keeps_series_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A case without its rivals: a table on stdout, three files, exit code 0."""
    code = command.main(["--quick", "--no-rivals", "--cases", "first_call", "--rounds", "1", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert (code, "== first_call: " in shown, "to reach: median of first call" in shown) == (0, True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md", "series.json"]
    kept = json.loads((tmp_path / "series.json").read_text(encoding="utf-8"))
    assert [result.subjects for result in harness.results_of(kept)] == [("stockade", "stockade-wasm", "stockade-published")]
    assert f"{tmp_path}/series.json" in shown
    assert all(f"{name} {kept[name]}" in (tmp_path / "report.md").read_text(encoding="utf-8") for name in ("mode", "date"))
    assert kept["mode"] == "quick"


def test_the_cases_are_listed_with_who_takes_part(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is run for it."""
    assert command.main(["--list", "--cases", "paced,throughput"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["paced", "throughput"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--rounds", "-1"], "argument --rounds: want a whole number from 1"),
        (["--rounds", "0"], "argument --rounds: want a whole number from 1"),
        (["--head", "HEAD"], "--head is compared with --base: name that as well"),
    ],
)
def test_words_that_mean_nothing_are_refused(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    """As usage, exit code 2."""
    with pytest.raises(SystemExit, match="2"):
        command.main(words)
    assert capsys.readouterr().err.splitlines()[-1].endswith(line)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """Before anything runs, in a line."""
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="file/out cannot be made: Not a directory"):
        command.main(["--cases", "paced", "--out", str(tmp_path / "file" / "out")])


def test_a_run_of_some_cases_leaves_that_of_all_alone() -> None:
    """It has a folder of its own, unless one is named."""
    given = [[], ["--cases", "paced,soak"], ["--cases", "paced", "--out", "there"]]
    assert [command._arguments(words).out for words in given] == [harness.OUT, harness.OUT / "paced+soak", Path("there")]


def test_an_interrupted_run_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And exit code 130."""

    def interrupted(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(harness, "run_case", interrupted)
    assert command.main(["--cases", "paced", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "bench: interrupted; the cases that were done are kept\n"


def test_an_unknown_case_is_refused() -> None:
    """With the names of those there are."""
    with pytest.raises(SystemExit, match=r"no such case: pace; there are .*paced"):
        command.main(["--list", "--cases", "pace"])
