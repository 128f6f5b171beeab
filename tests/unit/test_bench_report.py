"""What a run came to, as text, Markdown and a page."""

import dataclasses
from html.parser import HTMLParser
from typing import Any

import pytest

from bench import report
from bench.case import Case, Metric, Target
from bench.harness import Part, Result
from bench.measurement import Run


def _nothing(run: Run) -> None:
    """A job that is not run here."""


RATE = Metric(name="rate", about="calls a second", unit="calls/s", better="higher", per="in flight", chart="growth")
CASE = Case(
    name="paced",
    title="A call <one>",
    metrics=(Metric(name="call", about="a call", chart="distribution"), RATE),
    subjects={"stockade": _nothing},
    rivals=("floor",),
    shares=("floor", "absent"),
    targets=(
        Target(metric="call", statistic="median", bound=2.5),
        Target(metric="call", statistic="max", bound=2.5),
        Target(metric="call", statistic="median", bound=5, over="floor"),
        Target(metric="call", statistic="median", bound=0.05, under="floor"),
        Target(metric="rate", statistic="median", bound=90, at=2),
        Target(metric="rate", statistic="median", bound=0.5, at=2, under="floor"),
        Target(metric="call", statistic="p99", bound=1, over="absent"),
    ),
)
MACHINE = {"processor": "Fast <&>", "memory_gib": 24}


def _told(calls: list[float], rate: float) -> dict[str, Any]:
    series = [{"metric": "call", "at": None, "values": calls}, {"metric": "rate", "at": 2, "values": [rate]}]
    return {"series": series, "facts": {"workers": 4}, "checked": 3, "missed": 0, "wrong": []}


def _part(subject: str, told: dict[str, Any]) -> Part:
    return Part(subject=subject, round=0, told=told, calibration_ms=17.25, load=0.5)


RESULT = Result(
    case="paced",
    parts=(
        _part("stockade", _told([1.0, 2.0, 3.0], 100.0)),
        _part("floor", _told([10.0, 20.0, 30.0], 400.0)),
        _part("absent", {"absent": "not installed"}),
        _part("broken", {"failed": "ended with <1>"}),
    ),
)


def test_rows_hold_statistics_and_the_ratio_of_the_medians() -> None:
    """By metric, the place on the axis, the calibration and the load at the end."""
    calls, rates = report.tables(CASE, RESULT)
    assert calls.rows == (
        ("stockade", "", "3", "1.00", "2.00", "2.80", "2.98", "3.00", "1.00x", "17.2", "0.500"),
        ("floor", "", "3", "10.0", "20.0", "28.0", "29.8", "30.0", "10.0x", "17.2", "0.500"),
    )
    assert [(row[0], row[1], row[8]) for row in rates.rows] == [("stockade", "2", "1.00x"), ("floor", "2", "4.00x")]


def test_who_has_no_numbers_has_a_line_and_no_row() -> None:
    """Failed and absent are told apart."""
    assert report.missing(RESULT) == ["broken: FAILED: ended with <1>", "absent: absent: not installed"]
    assert {row[0] for table in report.tables(CASE, RESULT) for row in table.rows} == {"stockade", "floor"}


def test_targets_are_held_against_what_was_measured() -> None:
    """At most, at least, as ratios either way; what was not measured is not reached and not missed."""
    assert report.targets(CASE, RESULT) == [
        ("median of call, at most 2.50 ms: 2.00 reached", True),
        ("max of call, at most 2.50 ms: 3.00 NOT reached", False),
        ("median of call, at least 5.00x under floor: 10.0x reached", True),
        ("median of call, at most 0.050x of floor: 0.100x NOT reached", False),
        ("median of rate at 2, at least 90.0 calls/s: 100 reached", True),
        ("median of rate at 2, at least 0.500x of floor: 0.250x NOT reached", False),
        ("p99 of call, at least 1.00x under absent: - not measured", None),
    ]


def test_our_best_is_given_as_a_share_of_anothers() -> None:
    """Of those who have numbers; the ratio column has it the other way round, place by place."""
    assert report.shares(CASE, RESULT) == ["best rate as a share of floor's: 0.250 (100 at 2 against 400 at 2)"]


def test_a_failed_first_subject_leaves_no_ratio() -> None:
    """A ratio to nothing is no ratio."""
    result = Result(case="paced", parts=(_part("stockade", {"failed": "x"}), _part("floor", _told([1.0], 1.0))))
    assert [row[8] for table in report.tables(CASE, result) for row in table.rows] == ["", ""]


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (6860.2, "6860"), (-3.0, "-3.00")]
)
def test_figures_have_as_many_places_as_they_deserve(value: float, shown: str) -> None:
    """Three that count."""
    assert report.figure(value) == shown


def test_text_is_aligned_and_leaves_empty_columns_out() -> None:
    """A metric without an axis has no such column."""
    text = report.as_text(CASE, RESULT)
    head = next(line for line in text.splitlines() if line.startswith("subject"))
    assert head.split() == ["subject", "n", "min", "median", "p90", "p99", "max", "ratio", "calib", "ms", "load"]
    assert "   stockade: workers 4" in text.splitlines()


def test_markdown_holds_every_row_as_a_table() -> None:
    """And the machine in a line."""
    text = report.as_markdown({"paced": CASE}, [RESULT], MACHINE)
    assert "| floor |  | 3 | 10.0 | 20.0 | 28.0 | 29.8 | 30.0 | 10.0x | 17.2 | 0.500 |" in text
    assert "processor Fast <&>, memory gib 24" in text


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_asks_nothing_of_a_network_and_runs_no_script() -> None:
    """No script, no link, no picture from elsewhere; what subjects said is text."""
    page = report.as_page({"paced": CASE}, [RESULT], MACHINE)
    seen = _Seen()
    seen.feed(page)
    assert seen.tags.isdisjoint({"script", "link", "img", "iframe", "object", "image", "use", "one", "1"})
    assert seen.names.isdisjoint({"href", "src", "xlink:href", "onload", "onclick"})
    assert page.count("://") == page.count('xmlns="http://www.w3.org/2000/svg"') == 2
    assert all(words in seen.words for words in ("A call <one>", "Fast <&>", "ended with <1>"))


def test_a_target_of_another_subject_names_it() -> None:
    """That of the first one needs no name."""
    target = Target(metric="call", statistic="median", bound=25, subject="floor")
    case = dataclasses.replace(CASE, targets=(target, dataclasses.replace(target, subject="stockade")))
    assert report.targets(case, RESULT) == [
        ("floor: median of call, at most 25.0 ms: 20.0 reached", True),
        ("median of call, at most 25.0 ms: 2.00 reached", True),
    ]
