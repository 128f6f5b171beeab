"""Two commits side by side: what moved beyond noise, and which way.

Its job: the base's files in a temporary folder, the chosen cases of both in turns (A B A B), the judgement.
Not its job: the cases; the statistics (``numbers.py``).
Laws:
1. Only what became slower beyond noise makes the exit code 1; faster, or within noise, does not (tests/unit/test_bench_compare.py).
2. A series that one of the two lacks is told and never judged (tests/unit/test_bench_compare.py).

The method: each round gives one median for each of the two; Mann and Whitney's rank test over the rounds' medians, the chance of a false
alarm in all series together held below 5 % by Holm's rule; and the middle 95 % of the ratio, rounds drawn again (bootstrap), must
leave 1 out.
"""

import dataclasses
import io
import json
import math
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import harness, machine, report
from bench.case import Case
from bench.harness import Result
from bench.machine import PROJECT
from bench.numbers import LEVEL, beyond_chance, rank_test, ratio_range

BASE, NOW = "base", "now"
ROUNDS, ROUNDS_QUICK = 12, 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """One series of both, by round; ``better`` as its metric says."""

    name: str
    unit: str
    better: str
    base: tuple[float, ...]
    now: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moved:
    """What became of one pair. ``slower`` is None within noise."""

    pair: Pair
    ratio: float
    low: float
    high: float
    p: float
    slower: bool | None


def pairs(case: Case, result: Result) -> tuple[list[Pair], list[str]]:
    """The pairs that can be judged, and a line for each series that cannot."""
    made, told = [], [f"{case.name}: {line}" for line in report.missing(result)]
    sides = {side: {(one.metric, one.at): one for one in result.series(side)} for side in (BASE, NOW)}
    for key in dict.fromkeys([*sides[BASE], *sides[NOW]]):
        metric = case.metric(key[0])
        name = f"{case.name}: {metric.name}" + (f" at {report.place(key[1])}" if key[1] is not None else "")
        one, other = sides[BASE].get(key), sides[NOW].get(key)
        if metric.name not in case.compare:
            continue
        if one is None or other is None:
            told.append(f"{name}: only {NOW if one is None else BASE} has it: not judged")
            continue
        medians = [tuple(side.medians) for side in (one, other)]
        made.append(Pair(name=name, unit=metric.unit, better=metric.better, base=medians[0], now=medians[1]))
    return made, told


def judged(found: Sequence[Pair]) -> list[Moved]:
    """The judgement over all pairs together."""
    p_values = {pair.name: rank_test(pair.base, pair.now) for pair in found}
    held = beyond_chance(p_values)
    moved = []
    for pair in found:
        low, high = ratio_range(pair.base, pair.now)
        ratio = _middle(pair.now) / _middle(pair.base)
        beyond = pair.name in held and not low <= 1 <= high
        slower = (ratio > 1) == (pair.better == "lower") if beyond else None
        moved.append(Moved(pair=pair, ratio=ratio, low=low, high=high, p=p_values[pair.name], slower=slower))
    return moved


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def as_text(moved: Sequence[Moved]) -> str:
    """The judgement as a table."""
    words = {True: "SLOWER", False: "faster", None: "within noise"}
    rows = [("series", "base", "now", "now / base", "95 % of it", "p", "judgement")]
    for one in moved:
        numbers = (f"{report.figure(_middle(one.pair.base))} {one.pair.unit}", f"{report.figure(_middle(one.pair.now))} {one.pair.unit}")
        rows.append((one.pair.name, *numbers, f"{one.ratio:.3f}", f"{one.low:.3f} to {one.high:.3f}", f"{one.p:.4f}", words[one.slower]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def unprovable(rounds: int, series: int) -> list[str]:
    """A line when so few rounds cannot tell anything beyond chance, however far apart the two are."""
    least = min(1.0, 2 / math.comb(2 * rounds, rounds))
    if series and least * series > LEVEL:
        return [
            f"{rounds} rounds prove nothing of {series} series: p is {least:.4f} at best, and {LEVEL / series:.4f} is wanted; take more"
        ]
    return []


def export(commit: str, folder: Path) -> str:
    """The commit's files below the folder; its short name. The repository stays as it is. Raises SystemExit for no commit."""
    named = subprocess.run(
        ["git", "rev-parse", "--short", f"{commit}^{{commit}}"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if named.returncode:
        raise SystemExit(f"bench: there is no commit {commit!r}")
    short = named.stdout.strip()
    packed = subprocess.run(["git", "archive", "--format=tar", short], cwd=PROJECT, capture_output=True, check=True).stdout
    folder.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return short


def compare(
    chosen: Mapping[str, Case], commits: tuple[str, str], *, quick: bool, rounds: int, out: Path, note: Callable[[str], None]
) -> int:
    """Run the chosen cases that can be compared for both commits (the second empty: this tree); 1 when it is slower beyond noise."""
    found: list[Pair] = []
    told: list[str] = []
    results = []
    count = rounds or (ROUNDS_QUICK if quick else ROUNDS)
    with tempfile.TemporaryDirectory(prefix="bench-base-") as folder:
        base, now = Path(folder) / BASE, Path(folder) / NOW
        names = export(commits[0], base), export(commits[1], now) if commits[1] else f"this tree ({machine.commit(PROJECT)})"
        print(f"{BASE} is {names[0]}, {NOW} is {names[1]}; {count} rounds; {report.machine_line(machine.facts())}", flush=True)
        for case in chosen.values():
            if not case.compare:
                continue
            first = next(iter(case.subjects))
            sides = [harness.own(case, first, label=BASE, tree=base), harness.own(case, first, label=NOW, tree=now if commits[1] else None)]
            results.append(harness.run_case(case, sides, quick=quick, rounds=count, note=note))
            made, lines = pairs(case, results[-1])
            found, told = found + made, told + lines
    moved = judged(found)
    print("\n".join([*told, *unprovable(count, len(found)), as_text(moved)]))
    (out / "check.json").write_text(json.dumps(harness.document(results, quick=quick)), encoding="utf-8")
    print(f"\nseries: {(out / 'check.json').resolve()}")
    return 1 if any(one.slower for one in moved) else 0
