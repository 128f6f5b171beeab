"""What a run of the bench came to, for a reader: tables as text and as Markdown, and one page with pictures.

Its job: rows with ratios, what was to be reached and whether it was, who is absent and why.
Not its job: pictures (``picture.py``), running (``harness.py``).
Laws:
1. A subject without numbers has a line with the reason and no figure (tests/unit/test_bench_report.py).
2. Ratios are of one run, case and place on the axis (tests/unit/test_bench_report.py).
3. The page asks nothing of a network and runs no script (tests/unit/test_bench_report.py).
"""

import dataclasses
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import picture
from bench.case import Case, Metric, Target
from bench.harness import Result
from bench.numbers import summary

HEAD = ("subject", "at", "n", "min", "median", "p90", "p99", "max", "ratio", "calib ms", "load")
_MARKS = {True: "reached", False: "NOT reached", None: "not measured"}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #1b1b1b; background: #fff; }
table { border-collapse: collapse; font-size: 13px; margin: .6em 0 1.2em; }
td, th { padding: .15em .7em; text-align: right; border-bottom: 1px solid #ddd; } td:first-child, th:first-child { text-align: left; }
h2 { margin-top: 2em; } figure { margin: 1em 0; } .missed { color: #a30000; } figcaption, .small { font-size: 13px; color: #555; }
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of one metric, with its title."""

    title: str
    rows: tuple[tuple[str, ...], ...]


def figure(value: float) -> str:
    """A number with as many places as it deserves."""
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def place(at: float | None) -> str:
    """A place on the x axis, as a reader writes it."""
    return "" if at is None else f"{at:,.0f}" if at == int(at) else f"{at:g}"


def tables(case: Case, result: Result) -> list[Table]:
    """One table for each metric that anybody has numbers of."""
    made = []
    for metric in case.metrics:
        rows = tuple(_rows(metric, result))
        if rows:
            axis = f", by {metric.per}" if metric.per else ""
            made.append(Table(title=f"{metric.name}: {metric.about}, {metric.unit}, {metric.better} is better{axis}", rows=rows))
    return made


def _rows(metric: Metric, result: Result) -> Iterator[tuple[str, ...]]:
    base = {one.at: summary(one.values).median for one in result.series(result.subjects[0]) if one.metric == metric.name}
    for subject in result.subjects:
        calibration, load = result.busy(subject)
        for one in result.series(subject):
            if one.metric == metric.name:
                found = summary(one.values)
                ratio = f"{figure(found.median / base[one.at])}x" if base.get(one.at) else ""
                numbers = [figure(getattr(found, name)) for name in ("min", "median", "p90", "p99", "max")]
                yield (subject, place(one.at), str(found.count), *numbers, ratio, figure(calibration), figure(load))


def missing(result: Result) -> list[str]:
    """A line for each subject that has no numbers: absent, or failed."""
    lines = [f"{subject}: FAILED: {problem}" for subject in result.subjects if (problem := result.problem(subject))]
    return lines + [f"{subject}: absent: {reason}" for subject in result.subjects if (reason := result.absent(subject))]


def reached(target: Target, result: Result) -> float | None:
    """The figure that stands against a target, None when it was not measured."""
    mine = _statistic(target, result, target.subject)
    if mine is None or not (other := target.over or target.under):
        return mine
    theirs = _statistic(target, result, other)
    if theirs is None:
        return None
    return theirs / mine if target.over else mine / theirs


def _statistic(target: Target, result: Result, subject: str) -> float | None:
    one = result.one(subject, target.metric, target.at)
    return None if one is None else float(getattr(summary(one.values), target.statistic))


def targets(case: Case, result: Result) -> list[tuple[str, bool | None]]:
    """What the case is to reach, each with its figure and whether it holds."""
    told = []
    for target in case.targets:
        metric = case.metric(target.metric)
        at_least = (metric.better == "higher") != bool(target.over)
        got = reached(target, result)
        holds = None if got is None else (got >= target.bound if at_least else got <= target.bound)
        ratio = "x" if target.over or target.under else ""
        unit = f" under {target.over}" if target.over else f" of {target.under}" if target.under else f" {metric.unit}"
        where = f" at {place(target.at)}" if target.at is not None else ""
        whose = f"{target.subject}: " if target.subject != result.subjects[0] else ""
        bound = f"{'at least' if at_least else 'at most'} {figure(target.bound)}{ratio}{unit}"
        words = f"{whose}{target.statistic} of {metric.name}{where}, {bound}"
        told.append((f"{words}: {'-' if got is None else figure(got) + ratio} {_MARKS[holds]}", holds))
    return told


def as_text(case: Case, result: Result) -> str:
    """A case for a terminal."""
    lines = [f"== {case.name}: {case.title}"]
    for table in tables(case, result):
        lines += ["", table.title, *_aligned([HEAD, *table.rows])]
    lines += [f"   {line}" for line in missing(result)]
    lines += [f"   to reach: {line}" for line, _ in targets(case, result)]
    lines += [f"   {line}" for line in [*shares(case, result), *facts(result)]]
    return "\n".join(lines) + "\n"


def shares(case: Case, result: Result) -> list[str]:
    """Our best value of a growing metric as a share of others' best, each at the place where it is best."""
    lines = []
    for metric in (metric for metric in case.metrics if metric.per and metric.better == "higher"):
        best = {subject: max(_growth(metric, result, subject), key=lambda point: point[1], default=None) for subject in result.subjects}
        ours = best.get(result.subjects[0])
        for other in case.shares:
            if ours is not None and (theirs := best.get(other)) is not None:
                at = f"{figure(ours[1])} at {place(ours[0])} against {figure(theirs[1])} at {place(theirs[0])}"
                lines.append(f"best {metric.name} as a share of {other}'s: {ours[1] / theirs[1]:.3f} ({at})")
    return lines


def facts(result: Result) -> list[str]:
    """What the subjects told beside their numbers, from their last round."""
    found = {part.subject: part.told.get("facts", {}) for part in result.parts}
    return [f"{subject}: " + ", ".join(f"{name} {value}" for name, value in told.items()) for subject, told in found.items() if told]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    used = [column for column in range(len(HEAD)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    return ["  ".join(row[c].ljust(widths[c]) if c == 0 else row[c].rjust(widths[c]) for c in used).rstrip() for row in rows]


def as_markdown(cases: Mapping[str, Case], results: Sequence[Result], machine: Mapping[str, Any]) -> str:
    """All of it as Markdown."""
    lines = ["# Bench", "", machine_line(machine), ""]
    for result in results:
        case = cases[result.case]
        lines += [f"## {case.title}", ""]
        for table in tables(case, result):
            lines += [table.title, "", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
            lines += [f"| {' | '.join(row)} |" for row in table.rows] + [""]
        notes = [*missing(result), *(f"to reach: {line}" for line, _ in targets(case, result)), *shares(case, result), *facts(result)]
        lines += [f"- {note}" for note in notes] + [""]
    return "\n".join(lines)


def machine_line(machine: Mapping[str, Any]) -> str:
    """The machine in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items())


def as_page(cases: Mapping[str, Case], results: Sequence[Result], machine: Mapping[str, Any]) -> str:
    """All of it as one HTML page: tables, and the pictures as SVG within it."""
    body = ["<h1>Bench</h1>", f'<p class="small">{html.escape(machine_line(machine))}</p>']
    for result in results:
        case = cases[result.case]
        body += [f'<h2 id="{html.escape(case.name)}">{html.escape(case.title)}</h2>']
        body += [f"<figure>{svg}</figure>" for svg in _pictures(case, result)]
        for table in tables(case, result):
            head = "".join(f"<th>{html.escape(word)}</th>" for word in HEAD)
            rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
            body += [f"<p>{html.escape(table.title)}</p><table><tr>{head}</tr>{rows}</table>"]
        notes = [(line, "missed" if "FAILED" in line else "") for line in missing(result)]
        notes += [(f"to reach: {line}", "missed" if holds is False else "") for line, holds in targets(case, result)]
        notes += [(line, "") for line in [*shares(case, result), *facts(result)]]
        body += ["<ul>", *(f'<li class="{mark}">{html.escape(line)}</li>' for line, mark in notes), "</ul>"]
    head = f'<meta charset="utf-8"><title>Bench</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{chr(10).join(body)}</body></html>\n'


def _pictures(case: Case, result: Result) -> Iterator[str]:
    for metric in case.metrics:
        what, y = f"{case.title}: {metric.about}", f"{metric.name}, {metric.unit}"
        if metric.chart == "distribution":
            found = [(subject, result.one(subject, metric.name)) for subject in result.subjects]
            curves = [picture.Line(name=name, points=tuple(picture.distribution(one.values))) for name, one in found if one]
            x = "share of calls that took no longer"
            yield picture.draw(picture.Picture(title=what, x=x, y=y, lines=tuple(curves), percentiles=True))
        elif metric.chart == "growth":
            grown = [picture.Line(name=subject, points=_growth(metric, result, subject), dots=True) for subject in result.subjects]
            yield picture.draw(picture.Picture(title=what, x=metric.per, y=y, lines=tuple(line for line in grown if line.points)))


def _growth(metric: Metric, result: Result, subject: str) -> tuple[tuple[float, float], ...]:
    found = [(one.at, summary(one.values).median) for one in result.series(subject) if one.metric == metric.name and one.at is not None]
    return tuple(sorted(found))
