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
    subjects = [harness.own(case, "stockade", label="now"), harness.own(case, "stockade", label="base", tree=PROJECT)]
    subjects.append(harness.own(case, "stockade", label="other", tree=tmp_path))
    result = harness.run_case(case, subjects, quick=True, rounds=1, note=lambda words: None)
    assert [result.problem(side) for side in ("now", "base")] == ["", ""]
    assert result.problem("other").startswith("ended with 1: ImportError: cannot import name 'Engine' from 'engine'")
    for side in ("now", "base"):
        assert {one.metric for one in result.series(side)} == {metric.name for metric in case.metrics}


@pytest.mark.slow
def test_the_command_keeps_series_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A case without its rivals: a table on stdout, three files, exit code 0."""
    code = command.main(["--quick", "--no-rivals", "--cases", "first_call", "--rounds", "1", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert (code, "== first_call: " in shown, "to reach: median of first call" in shown) == (0, True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md", "series.json"]
    kept = json.loads((tmp_path / "series.json").read_text(encoding="utf-8"))
    assert [result.subjects for result in harness.results_of(kept)] == [("stockade",)]


def test_the_cases_are_listed_with_who_takes_part(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is run for it."""
    assert command.main(["--list", "--cases", "paced,throughput"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["paced", "throughput"]


def test_an_unknown_case_is_refused() -> None:
    """With the names of those there are."""
    with pytest.raises(SystemExit, match=r"no such case: pace; there are .*paced"):
        command.main(["--list", "--cases", "pace"])
