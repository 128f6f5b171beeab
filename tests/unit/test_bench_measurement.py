"""What a measuring process tells: numbers, facts, wrong answers, and nothing that somebody printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import measurement, sources
from bench.measurement import Absent, Run
from bench.rivals import jobs
from tests.kit import PROJECT

RIVALS = sorted(path.stem for path in (PROJECT / "bench" / "rivals").glob("[a-z]*.py"))


def _ran(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    head = f"import sys\nsys.path.insert(0, {str(PROJECT)!r})\n"
    return subprocess.run([sys.executable, "-I", "-S", "-c", head + program, *arguments], capture_output=True, text=True, check=False)


def test_numbers_stand_by_metric_and_place(tmp_path: Path) -> None:
    """Series in the order they were begun, facts beside them."""
    run = Run(quick=True, folder=tmp_path)
    run.add("rate", 10, at=1)
    run.add("rate", 20, at=2)
    run.add("rate", 11, at=1)
    run.fact("workers", 4)
    run.check(1, 1)
    assert run.told() == {
        "series": [{"metric": "rate", "at": 1, "values": [10.0, 11.0]}, {"metric": "rate", "at": 2, "values": [20.0]}],
        "facts": {"workers": 4},
        "checked": 1,
        "missed": 0,
        "wrong": [],
    }


def test_a_block_is_timed_in_milliseconds(tmp_path: Path) -> None:
    """One number for each block, none for one that raised."""
    run = Run(quick=True, folder=tmp_path)
    with run.timed("call"):
        pass
    with pytest.raises(ValueError, match="no"), run.timed("call"):
        raise ValueError("no")
    (series,) = run.told()["series"]
    assert (series["metric"], len(series["values"]), series["values"][0] >= 0) == ("call", 1, True)


def test_each_wrong_answer_is_counted_and_a_few_are_told(tmp_path: Path) -> None:
    """In one line each, cut short."""
    run = Run(quick=True, folder=tmp_path)
    for number in range(8):
        run.check("x\n" * 500, number, "an answer")
    told = run.told()
    assert (told["checked"], told["missed"], len(told["wrong"])) == (8, 8, 5)
    assert all(len(line) < 400 and "\n" not in line for line in told["wrong"])


def test_quick_chooses_the_smaller_size(tmp_path: Path) -> None:
    """And full the larger."""
    assert [Run(quick=quick, folder=tmp_path).size(full=200, quick=40) for quick in (True, False)] == [40, 200]


def test_an_absent_job_tells_its_reason_alone() -> None:
    """No number of it is told, whatever was measured before."""

    def job(run: Run) -> None:
        run.add("call", 1)
        raise Absent("no\ncompiler")

    assert measurement.measure(job, quick=True) == {"absent": "no compiler"}


def test_what_is_printed_is_not_a_measurement() -> None:
    """Neither print nor a write to descriptor 1, of the process or of a child, reaches the channel."""
    program = """
import os, subprocess
from bench import measurement
def job(run):
    print('{"series": []}')
    os.write(1, b'raw')
    subprocess.run([sys.executable, "-c", "print('child')"])
    run.add("call", 2)
measurement.main({"paced": job})
"""
    done = _ran(program, "paced", "--quick")
    assert json.loads(done.stdout)["series"] == [{"metric": "call", "at": None, "values": [2.0]}]
    assert [word in done.stderr for word in ('{"series": []}', "raw", "child")] == [True, True, True]


def test_an_unknown_job_is_absent() -> None:
    """A rival that lacks a job says so."""
    done = _ran("from bench import measurement\nmeasurement.main({})", "paced")
    assert json.loads(done.stdout) == {"absent": "it has no such job"}


def test_rivals_import_nothing_but_the_standard_library() -> None:
    """Each of their files is imported by a Python without site-packages; the engine and trio are not among what is loaded."""
    names = ", ".join(f"bench.rivals.{name}" for name in RIVALS)
    done = _ran(f"import {names}\nprint([name for name in ('engine', 'trio', 'psutil') if name in sys.modules])")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_text_of_n_body_is_the_function() -> None:
    """What runs in a jail is what runs here."""
    space: dict[str, object] = {}
    exec(sources.NBODY, space)
    assert eval("nbody(50)", space) == sources.nbody(50)


@pytest.mark.parametrize("size", [10_000, 100_000, 1_000_000])
def test_records_are_about_the_size_they_say(size: int) -> None:
    """Within a tenth."""
    assert abs(sources.size_of(sources.records(size)) / size - 1) < 0.1


def test_an_error_in_one_of_many_threads_is_no_lower_rate(tmp_path: Path) -> None:
    """It ends the job; the control is a job whose calls all answer."""

    def answers(region: str) -> object:
        return measurement.lookup_policy(region)

    def fails(region: str) -> object:
        raise Absent("no wall here")

    run = Run(quick=True, folder=tmp_path)
    with pytest.raises(Absent, match="no wall here"):
        jobs.throughput(run, [answers, fails], (2,))
    jobs.throughput(run, [answers], (2,))
    assert [(series["metric"], series["at"]) for series in run.told()["series"]] == [("rate", 2)]


def test_the_version_of_what_was_measured_is_a_fact() -> None:
    """Of a package that is installed; of another there is none."""
    assert measurement.measure(lambda run: None, quick=True, package="pytest")["facts"] == {"version": pytest.__version__}
    assert measurement.measure(lambda run: None, quick=True, package="no-such-package")["facts"] == {}
