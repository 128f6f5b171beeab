"""Running cases: turns, fresh processes, and what has no numbers."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bench import harness, machine
from bench.case import Case, Metric
from bench.harness import Part, Result, Series, Subject
from bench.measurement import Run


def _nothing(run: Run) -> None:
    """A job that is not run here."""


CASE = Case(name="a", title="A", metrics=(Metric(name="call", about="a call"),), subjects={"ours": _nothing}, rivals=("monty",), seconds=20)
WELL = {"series": [{"metric": "call", "at": None, "values": [1.0, 3.0]}], "facts": {}, "checked": 2, "missed": 0, "wrong": []}


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "calibration", lambda: 1.0)
    monkeypatch.setattr(machine, "load", lambda: 0.5)


def _says(name: str, text: str) -> Subject:
    return Subject(name=name, command=(sys.executable, "-I", "-S", "-c", text))


def _tells(name: str, told: object) -> Subject:
    return _says(name, f"print({json.dumps(told)!r})")


def _run(*subjects: Subject, rounds: int = 2, case: Case = CASE) -> Result:
    return harness.run_case(case, subjects, quick=True, rounds=rounds, note=lambda words: None)


def test_subjects_take_turns() -> None:
    """A B A B, each part with how busy the machine was."""
    result = _run(_tells("a", WELL), _tells("b", WELL))
    assert [(part.subject, part.round, part.calibration_ms, part.load) for part in result.parts] == [
        ("a", 0, 1.0, 0.5),
        ("b", 0, 1.0, 0.5),
        ("a", 1, 1.0, 0.5),
        ("b", 1, 1.0, 0.5),
    ]
    assert result.series("a") == [Series(metric="call", at=None, rounds=((1.0, 3.0), (1.0, 3.0)))]
    assert (result.series("a")[0].values, result.series("a")[0].medians) == ([1.0, 3.0, 1.0, 3.0], [2.0, 2.0])


def test_every_part_is_a_process_of_its_own() -> None:
    """No two parts have the same process id."""
    told = "import json, os\nprint(json.dumps({'series': [{'metric': 'call', 'at': None, 'values': [os.getpid()]}], 'missed': 0}))"
    values = _run(_says("a", told), rounds=3).series("a")[0].values
    assert len(set(values)) == 3


def test_one_wrong_answer_takes_all_numbers_away() -> None:
    """It is a failure with its words, and the subject is not asked again."""
    wrong = {**WELL, "missed": 1, "wrong": ["an answer: 1 where 2 is right"]}
    result = _run(_tells("a", wrong), _tells("b", WELL))
    assert result.problem("a") == "1 of 2 answers are wrong: an answer: 1 where 2 is right"
    assert (result.series("a"), len(result.parts), len(result.series("b")[0].rounds)) == ([], 3, 2)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise SystemExit(3)", "ended with 3: nothing said"),
        ("raise ValueError('no  such\\tthing')", "ended with 1: ValueError: no such thing"),
        (f"raise OSError({str(harness.HERE / 'x.py')!r})", "ended with 1: OSError: bench/x.py"),
        ("raise ExceptionGroup('all', [OSError('inner')])", "ended with 1: OSError: inner"),
        ("print('words')", "it told no JSON document"),
        ("print('[]')", "it told something else than an object"),
        ("", "it told no JSON document"),
    ],
)
def test_a_process_that_fails_has_no_numbers(text: str, problem: str) -> None:
    """The reason is one line."""
    result = _run(_says("a", text))
    assert (result.problem("a"), result.series("a"), len(result.parts)) == (problem, [], 1)


def test_a_part_that_does_not_end_is_ended() -> None:
    """After the case's time, with what it started."""
    case = Case(name="a", title="A", metrics=CASE.metrics, subjects={}, seconds=0.2)
    result = _run(_says("a", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"), case=case)
    assert result.problem("a") == "not done within 0.2 s"


def test_an_absent_subject_is_told_with_its_reason() -> None:
    """Whether it was known before, or told by its process."""
    result = _run(Subject(name="a", command=None, reason="not installed"), _tells("b", {"absent": "no compiler"}))
    assert [(result.absent(name), result.problem(name), result.series(name)) for name in ("a", "b")] == [
        ("not installed", "", []),
        ("no compiler", "", []),
    ]


def test_a_rival_runs_in_its_own_environment_or_is_absent(tmp_path: Path) -> None:
    """A package needs its environment, whole; a program of the machine does without."""
    assert harness.rival(CASE, "monty", tmp_path).command is None
    (tmp_path / "monty").mkdir()
    assert harness.rival(CASE, "monty", tmp_path).reason == "not installed: make bench-rivals"
    (tmp_path / "monty" / "installed").touch()
    command = harness.rival(CASE, "monty", tmp_path).command
    assert command == (str(tmp_path / "monty" / "bin" / "python"), "-m", "bench.rivals.monty", "a")
    assert harness.rival(CASE, "plain_python", tmp_path).command == (sys.executable, "-m", "bench.rivals.plain_python", "a")


def test_what_is_kept_can_be_read_again() -> None:
    """As JSON, with facts that name no host and no path."""
    result = _run(_tells("a", WELL))
    kept = json.loads(json.dumps(harness.document([result], quick=True)))
    assert harness.results_of(kept) == [result]
    assert all("/" not in str(value) for value in kept["machine"].values())


def test_how_busy_it_was_is_the_median_of_a_subjects_parts() -> None:
    """Of its own parts alone."""
    parts = tuple(Part(subject=name, round=0, told=WELL, calibration_ms=ms, load=ms / 10) for name, ms in (("a", 1), ("b", 9), ("a", 3)))
    assert Result(case="a", parts=parts).busy("a") == (2, 0.2)


def test_every_case_is_whole() -> None:
    """Its name is its file's, what it compares and must reach are its metrics, its rivals have files, the first subject has a name."""
    for name, case in harness.cases().items():
        metrics = {metric.name for metric in case.metrics}
        rivals = {path.stem for path in (harness.HERE / "rivals").glob("*.py")}
        assert case.name == name
        assert {*case.compare, *(target.metric for target in case.targets)} <= metrics
        assert set(case.rivals) <= rivals
        assert next(iter(case.subjects)) == "stockade"


def test_a_metric_that_is_not_there_is_an_error() -> None:
    """A slip of the pen in a case is found when it is asked for."""
    assert CASE.metric("call").about == "a call"
    with pytest.raises(KeyError):
        CASE.metric("cal")


def test_an_interrupted_part_is_asked_to_end_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cleans up after itself, and the folder of its temporary files goes; the interrupt is raised again."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mark = tmp_path / "mark"
    begun = "import pathlib, tempfile, signal\ntempfile.mkdtemp()\ntry:\n print(flush=True)\n signal.pause()\n"
    body = f"{begun}finally: pathlib.Path({str(mark)!r}).touch()"
    waited = subprocess.Popen.communicate

    def communicate(process: "subprocess.Popen[bytes]", *given: Any, **more: Any) -> Any:
        if more.get("timeout") == 60:
            assert process.stdout is not None
            process.stdout.readline()
            raise KeyboardInterrupt
        return waited(process, *given, **more)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        harness._part(Subject(name="one", command=(sys.executable, "-c", body)), quick=True, seconds=60)
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]
