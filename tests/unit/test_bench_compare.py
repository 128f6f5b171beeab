"""Two commits side by side: what counts as moved."""

from pathlib import Path

import pytest

from bench import compare, harness
from bench.case import Case, Metric
from bench.compare import Pair
from bench.harness import Part, Result, Subject
from bench.machine import PROJECT
from bench.measurement import Run


def _nothing(run: Run) -> None:
    """A job that is not run here."""


CASE = Case(
    name="paced",
    title="A call",
    metrics=(Metric(name="call", about="a call"), Metric(name="rate", about="a rate", better="higher"), Metric(name="other", about="x")),
    subjects={"stockade": _nothing},
    compare=("call", "rate"),
)
BASE = (10.0, 10.2, 9.9, 10.1, 10.3, 9.8, 10.05, 9.95)


def _pair(name: str, factor: float, better: str = "lower") -> Pair:
    return Pair(name=name, unit="ms", better=better, base=BASE, now=tuple(round(value * factor + 0.001, 6) for value in BASE))


def test_each_way_of_moving_is_told() -> None:
    """Slower and faster by what the metric says is better; what did not move is noise, however it is better."""
    pairs = [_pair("slower", 1.3), _pair("faster", 0.7), _pair("same", 1.0), _pair("rate", 1.3, "higher"), _pair("drop", 0.7, "higher")]
    assert {moved.pair.name: moved.slower for moved in compare.judged(pairs)} == {
        "slower": True,
        "faster": False,
        "same": None,
        "rate": False,
        "drop": True,
    }


def test_a_ratio_stands_with_its_range() -> None:
    """In a table whose columns line up."""
    (moved,) = compare.judged([_pair("paced: call", 1.5)])
    assert moved.ratio == pytest.approx(1.5, rel=0.01)
    assert moved.low <= moved.ratio <= moved.high
    head, row = compare.as_text([moved]).splitlines()
    assert (row.index("SLOWER"), row.index("1.500")) == (head.index("judgement"), head.index("now / base"))


def test_too_few_rounds_prove_nothing() -> None:
    """Two rounds a side can never be beyond chance."""
    pair = Pair(name="a", unit="ms", better="lower", base=(1.0, 1.1), now=(5.0, 5.5))
    assert [moved.slower for moved in compare.judged([pair])] == [None]


@pytest.mark.parametrize(
    ("rounds", "series", "told"), [(1, 1, True), (3, 1, True), (4, 1, False), (4, 2, True), (12, 12, False), (1, 0, False)]
)
def test_too_few_rounds_are_told(rounds: int, series: int, told: bool) -> None:
    """What so many rounds can prove at best, of so many series."""
    assert bool(compare.unprovable(rounds, series)) is told


@pytest.mark.parametrize(("commits", "trees"), [(("a", ""), ["base", None]), (("a", "b"), ["base", "now"])])
def test_two_commits_or_one_and_this_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: tuple[str, str], trees: list[str | None]
) -> None:
    """Each side is measured in files of its own."""
    exported: list[tuple[str, str]] = []
    used: list[str | None] = []

    def own(case: Case, name: str, *, label: str, tree: Path | None) -> Subject:
        used.append(None if tree is None else tree.name)
        return Subject(name=label, command=None, reason="not asked for")

    def export(commit: str, folder: Path) -> str:
        exported.append((commit, folder.name))
        return commit

    monkeypatch.setattr(compare, "export", export)
    monkeypatch.setattr(harness, "own", own)
    compare.compare({"paced": CASE}, commits, quick=True, rounds=1, out=tmp_path, note=lambda words: None)
    assert exported == [(commit, side) for commit, side in zip(commits, ("base", "now"), strict=True) if commit]
    assert used == trees


def _result(**told: list[tuple[str, float]]) -> Result:
    parts = []
    for side, series in told.items():
        values = [{"metric": metric, "at": None, "values": [value]} for metric, value in series]
        found = {"series": values, "facts": {}, "checked": 1, "missed": 0, "wrong": []}
        parts.append(Part(subject=side, round=0, told=found, calibration_ms=1, load=0))
    return Result(case="paced", parts=tuple(parts))


def test_what_only_one_has_is_told_and_not_judged() -> None:
    """So is what the case does not compare, without a word."""
    found, told = compare.pairs(CASE, _result(base=[("call", 1.0), ("other", 1.0)], now=[("call", 2.0), ("rate", 3.0), ("other", 2.0)]))
    assert [(pair.name, pair.base, pair.now) for pair in found] == [("paced: call", (1.0,), (2.0,))]
    assert told == ["paced: rate: only now has it: not judged"]


def test_a_side_that_failed_is_told() -> None:
    """And gives no pair."""
    result = _result(now=[("call", 2.0)])
    failed = Part(subject="base", round=0, told={"failed": "ended with 1: x"}, calibration_ms=1, load=0)
    found, told = compare.pairs(CASE, Result(case="paced", parts=(failed, *result.parts)))
    assert (found, told) == ([], ["paced: base: FAILED: ended with 1: x", "paced: call: only now has it: not judged"])


def test_a_commit_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """In a line of its own, before anything runs."""
    with pytest.raises(SystemExit, match="no commit 'none-such'"):
        compare.export("none-such", tmp_path)


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="unproven: this tree is no checkout of git")
def test_a_commit_is_laid_out_beside_the_tree(tmp_path: Path) -> None:
    """Its engine is there, and this checkout has no further worktree for it."""
    compare.export("HEAD", tmp_path)
    assert (tmp_path / "engine" / "__init__.py").is_file()
    assert not (PROJECT / ".git" / "worktrees").exists() or tmp_path.name not in str(list((PROJECT / ".git" / "worktrees").iterdir()))


@pytest.mark.parametrize(("factor", "code", "word"), [(1.4, 1, "SLOWER"), (0.6, 0, "faster"), (1.0, 0, "within noise")])
def test_only_what_became_slower_makes_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], factor: float, code: int, word: str
) -> None:
    """The whole command with parts that are made up: twelve rounds of both, judged, kept."""

    def run_case(case: Case, subjects: list[Subject], *, quick: bool, rounds: int, note: object) -> Result:
        parts = []
        for number, subject in harness.turns(subjects, rounds):
            value = (10 + number / 100) * (factor if subject.name == "now" else 1.0001)
            told = {"series": [{"metric": "call", "at": None, "values": [value]}], "facts": {}, "checked": 1, "missed": 0, "wrong": []}
            parts.append(Part(subject=subject.name, round=number, told=told, calibration_ms=1, load=0))
        return Result(case=case.name, parts=tuple(parts))

    monkeypatch.setattr(compare, "export", lambda commit, folder: "abc1234")
    monkeypatch.setattr(harness, "run_case", run_case)
    got = compare.compare({"paced": CASE}, ("HEAD", ""), quick=False, rounds=0, out=tmp_path, note=lambda words: None)
    *_, last, _, kept = capsys.readouterr().out.splitlines()
    assert (got, last.endswith(word), kept) == (code, True, f"series: {tmp_path}/check.json")
    assert (tmp_path / "check.json").is_file()
