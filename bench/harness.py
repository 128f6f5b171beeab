"""Runs cases: every subject in fresh processes, one after the other, round by round, and keeps what they told.

Its job: A B A B over rounds, the calibration and the load average of each part, wrong answers and failures as failures.
Not its job: what is measured (``bench_*.py``, ``rivals/``), what is printed (``report.py``).
Laws:
1. A subject that cannot run is absent with its reason, never a number (tests/unit/test_bench_harness.py).
2. A subject that gave one wrong answer, or whose process failed, has no numbers (tests/unit/test_bench_harness.py).
3. Subjects take turns: no two parts of one subject follow each other while others are there (tests/unit/test_bench_harness.py).

A case is one file ``bench/bench_NAME.py`` that holds a ``CASE``; nothing else has to know of it::

    def _stockade(run: Run) -> None:                       # runs in a fresh process, once a round
        trio.run(_calls, run)

    async def _calls(run: Run) -> None:
        place = payload.write(run.folder, payload.LOOKUP)  # a source in the part's own temporary folder
        async with payload.engine(run) as engine:          # an Engine whose state lies in that folder as well
            await engine.load(place)
            for _ in range(run.size(full=200, quick=40)):
                with run.timed("call"):                    # milliseconds of the metric `call`
                    outcome = await engine.call("lookup_policy", {"region": "EU"})
                run.check(outcome.value, lookup_policy("EU"))   # one wrong answer: the subject has failed
            run.add("memory", 12.5, at=1)                  # any other number; `at` is the place on the x axis

    CASE = Case(
        name="name",
        title="One call, one at a time",
        metrics=(Metric(name="call", about="from request to answer", chart="distribution"), Metric(name="memory", about="...", unit="MB")),
        subjects={"stockade": _stockade},                  # the first one is what the others are compared with
        rivals=("plain_python",),                          # bench/rivals/plain_python.py must know a job of the case's name
        targets=(Target(metric="call", statistic="median", bound=0.35),),
        compare=("call",),                                 # what `make bench-check` looks at
    )

Run it alone: ``make bench ARGS="--quick --cases name"``.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.case import Case
from bench.engine_subject import TREE
from bench.machine import PROJECT
from bench.measurement import QUICK

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
HOMES = PROJECT / ".venv-rivals"
FIRST = ("paced", "throughput", "first_call", "load")
NEED_HOME = frozenset({"monty", "eryx", "sandlock"})  # rivals that are packages; others are programs that the machine may have
_LEAVE_SECONDS = 10.0  # that an interrupted part has before it is killed
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")  # the last: where images lie


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """Whose part it is: its name in the tables, and the command of its process; None when it is absent for the reason given."""

    name: str
    command: tuple[str, ...] | None
    reason: str = ""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of its environment, beside the few that all have


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """One subject's part of one round: what its process told, and how busy the machine was just before."""

    subject: str
    round: int
    told: Mapping[str, Any]
    calibration_ms: float
    load: float

    @property
    def problem(self) -> str:
        """Why there are no numbers: the failure, or the first wrong answer; empty when all is well or absent."""
        if failed := self.told.get("failed"):
            return str(failed)
        if self.told.get("missed"):
            return f"{self.told['missed']} of {self.told['checked']} answers are wrong: {self.told['wrong'][0]}"
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """All numbers of a metric that one subject gave at one place, round by round."""

    metric: str
    at: float | None
    rounds: tuple[tuple[float, ...], ...]

    @property
    def values(self) -> list[float]:
        """All of them together."""
        return [value for values in self.rounds for value in values]

    @property
    def medians(self) -> list[float]:
        """One number for each round."""
        return [statistics.median(values) for values in self.rounds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A case's parts."""

    case: str
    parts: tuple[Part, ...]

    @property
    def subjects(self) -> tuple[str, ...]:
        """Their names, in the order they ran."""
        return tuple(dict.fromkeys(part.subject for part in self.parts))

    def problem(self, subject: str) -> str:
        """Why the subject has failed; empty when it has not."""
        return next((part.problem for part in self.parts if part.subject == subject and part.problem), "")

    def absent(self, subject: str) -> str:
        """Why the subject is absent; empty when it is not."""
        return next((str(part.told["absent"]) for part in self.parts if part.subject == subject and "absent" in part.told), "")

    def series(self, subject: str) -> list[Series]:
        """The subject's numbers; none for one that failed or is absent."""
        if self.problem(subject) or self.absent(subject):
            return []
        found: dict[tuple[str, float | None], list[tuple[float, ...]]] = {}
        for part in self.parts:
            if part.subject == subject:
                for one in part.told["series"]:
                    found.setdefault((one["metric"], one["at"]), []).append(tuple(one["values"]))
        return [Series(metric=metric, at=at, rounds=tuple(rounds)) for (metric, at), rounds in found.items()]

    def one(self, subject: str, metric: str, at: float | None = None) -> Series | None:
        """One series, None where the subject has none."""
        return next((one for one in self.series(subject) if (one.metric, one.at) == (metric, at)), None)

    def busy(self, subject: str) -> tuple[float, float]:
        """Medians of the calibration and of the load average over the subject's parts."""
        own = [part for part in self.parts if part.subject == subject]
        return statistics.median(part.calibration_ms for part in own), statistics.median(part.load for part in own)


def cases() -> dict[str, Case]:
    """Every case there is, by name: what is asked for most comes first, the rest in the order of the alphabet."""
    found = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    names = [name for name in FIRST if name in found] + [name for name in found if name not in FIRST]
    return {name: importlib.import_module(f"bench.bench_{name}").CASE for name in names}


def own(case: Case, name: str, *, label: str = "", tree: Path | None = None) -> Subject:
    """A subject that the case's own file measures, with the engine of this tree or of another checkout."""
    variables = _kept("PYTHONPATH") | ({} if tree is None else {TREE: str(tree)})
    return Subject(name=label or name, command=(sys.executable, "-m", "bench.engine_subject", case.name, name), variables=variables)


def _kept(*names: str) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def rival(case: Case, name: str, homes: Path = HOMES) -> Subject:
    """A rival in its own environment, in ours when it needs none, or absent."""
    python = homes / name / "bin" / "python"
    if not (homes / name / "installed").is_file():
        if name in NEED_HOME:
            return Subject(name=name, command=None, reason="not installed: make bench-rivals")
        python = Path(sys.executable)
    return Subject(name=name, command=(str(python), "-m", f"bench.rivals.{name}", case.name))


def turns(subjects: Sequence[Subject], rounds: int) -> Iterator[tuple[int, Subject]]:
    """Whose turn it is: A B A B."""
    for number in range(rounds):
        for subject in subjects:
            yield number, subject


def run_case(case: Case, subjects: Sequence[Subject], *, quick: bool, rounds: int, note: Callable[[str], None]) -> Result:
    """All parts of a case. Who is absent, fails or answers wrongly is not asked again."""
    parts: list[Part] = []
    out: set[str] = set()
    for number, subject in turns(subjects, rounds):
        if subject.name in out:
            continue
        note(f"{case.name}: {subject.name}, round {number + 1} of {rounds}")
        calibration, load = machine.calibration(), machine.load()
        told = _part(subject, quick=quick, seconds=case.seconds)
        part = Part(subject=subject.name, round=number, told=told, calibration_ms=round(calibration, 3), load=round(load, 2))
        parts.append(part)
        if part.problem or "absent" in told:
            out.add(subject.name)
    return Result(case=case.name, parts=tuple(parts))


def _part(subject: Subject, *, quick: bool, seconds: float) -> Mapping[str, Any]:
    if subject.command is None:
        return {"absent": subject.reason}
    environment = {**_kept(*_KEPT_VARIABLES), **subject.variables}
    command = [*subject.command, *([QUICK] if quick else [])]
    # the part's temporary files lie in a folder of ours, which goes however the part ends
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder, tempfile.TemporaryFile() as said:
        environment["TMPDIR"] = folder
        process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=said, start_new_session=True)
        try:
            told, _ = process.communicate(timeout=seconds)
        except KeyboardInterrupt:
            _ask_to_end(process)
            raise
        except subprocess.TimeoutExpired:
            return {"failed": f"not done within {seconds:g} s"}
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its session: what it started and did not take out of it
                process.communicate()
        if process.returncode == 0:
            return _read(told)
        said.seek(0)
        return {"failed": f"ended with {process.returncode}: {last_words(said.read().decode('utf-8', 'replace'))}"}


def _ask_to_end(process: "subprocess.Popen[bytes]") -> None:
    """Let a part clean up after itself, for a while; its session does not get the terminal's Ctrl-C."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_LEAVE_SECONDS)


def last_words(said: str) -> str:
    """The last line of a trace that says something, without the frame that groups of exceptions are drawn in and without our own path."""
    said = said.replace(f"{PROJECT}/", "")
    lines = [" ".join(line.strip(" |+-").split()) for line in said.splitlines()]
    return next((line[:200] for line in reversed(lines) if line), "nothing said")


def _read(told: bytes) -> Mapping[str, Any]:
    try:
        read = json.loads(told)
    except ValueError:
        return {"failed": "it told no JSON document"}
    return read if isinstance(read, dict) else {"failed": "it told something else than an object"}


def document(results: Sequence[Result], *, quick: bool) -> dict[str, Any]:
    """All parts of all cases and the machine's facts, as kept below ``bench/out``."""
    kept = {result.case: [dataclasses.asdict(part) for part in result.parts] for result in results}
    return {"machine": machine.facts(), "mode": "quick" if quick else "full", "date": time.strftime("%Y-%m-%d %H:%M %Z"), "cases": kept}


def results_of(read: Mapping[str, Any]) -> list[Result]:
    """The same, read again."""
    return [Result(case=name, parts=tuple(Part(**part) for part in parts)) for name, parts in read["cases"].items()]
