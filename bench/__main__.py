"""``python -m bench``: runs cases and reports; ``make bench``, ``make bench-check`` and ``make bench-rivals`` are its doors.

Its job: the command line, the order of things, the files below ``bench/out``.
Not its job: anything that is measured or printed in detail.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import compare, harness, install, machine, report
from bench.case import Case
from bench.harness import Result, Subject


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="what a user of the engine pays, beside its rivals")
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions, one round: to see that all runs, and roughly where it stands"
    )
    parser.add_argument("--cases", default="", help="names of cases with commas between them; all without it")
    parser.add_argument("--rounds", type=int, default=0, help="how often each subject has its turn, instead of what the case says")
    parser.add_argument("--no-rivals", action="store_true", help="leave the rivals out")
    parser.add_argument("--list", action="store_true", help="the cases and who takes part, and nothing else")
    parser.add_argument(
        "--base", metavar="COMMIT", help="compare this tree with a commit instead: exit code 1 when something became slower"
    )
    parser.add_argument("--install-rivals", action="store_true", help="make the rivals' environments, and nothing else")
    parser.add_argument("--out", type=Path, default=harness.OUT, help="the folder for the series and the report")
    return parser.parse_args(words)


def _chosen(names: str) -> dict[str, Case]:
    known = harness.cases()
    wanted = [name for name in names.split(",") if name] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"bench: no such case: {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: known[name] for name in wanted}


def subjects_of(case: Case, *, rivals: bool) -> list[Subject]:
    """Who takes part in a case, in the order of their turns."""
    return [harness.own(case, name) for name in case.subjects] + [harness.rival(case, name) for name in (case.rivals if rivals else ())]


def note(words: str) -> None:
    """A line about how far it is, beside the answer."""
    print(words, file=sys.stderr, flush=True)


def _run(chosen: dict[str, Case], arguments: argparse.Namespace) -> int:
    results: list[Result] = []
    print(report.machine_line(machine.facts()))
    for case in chosen.values():
        started = time.monotonic()
        rounds = arguments.rounds or (case.quick if arguments.quick else case.full)
        subjects = subjects_of(case, rivals=not arguments.no_rivals)
        results.append(harness.run_case(case, subjects, quick=arguments.quick, rounds=rounds, note=note))
        print(f"\n{report.as_text(case, results[-1])}   ({time.monotonic() - started:.0f} s)", flush=True)
        _keep(chosen, results, arguments)
    failed = [f"{result.case}/{subject}" for result in results for subject in result.subjects if result.problem(subject)]
    print(f"\nseries, Markdown and page: {arguments.out.name}/series.json, report.md, report.html")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _keep(chosen: dict[str, Case], results: Sequence[Result], arguments: argparse.Namespace) -> None:
    """After each case, so that an interrupted run has kept what it has."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = harness.document(results, quick=arguments.quick)
    (arguments.out / "series.json").write_text(json.dumps(kept), encoding="utf-8")
    (arguments.out / "report.md").write_text(report.as_markdown(chosen, results, kept["machine"]), encoding="utf-8")
    (arguments.out / "report.html").write_text(report.as_page(chosen, results, kept["machine"]), encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    arguments = _arguments(sys.argv[1:] if words is None else words)
    if arguments.install_rivals:
        return install.install()
    chosen = _chosen(arguments.cases)
    if arguments.list:
        for case in chosen.values():
            print(f"{case.name}: {case.title} ({', '.join([*case.subjects, *case.rivals])})")
        return 0
    if arguments.base:
        return compare.compare(chosen, arguments.base, quick=arguments.quick, rounds=arguments.rounds, out=arguments.out, note=note)
    return _run(chosen, arguments)


if __name__ == "__main__":
    sys.exit(main())
