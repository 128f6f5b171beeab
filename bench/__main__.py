"""``python -m bench``: runs cases and reports; ``make bench``, ``make bench-check`` and ``make bench-rivals`` are its doors.

Its job: the command line, the order of things, the files below ``bench/out``.
Not its job: anything that is measured or printed in detail.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import compare, harness, install, machine, report
from bench.case import PUBLISHED, Case
from bench.harness import Result, Subject

_UNPUBLISHED = Subject(name=PUBLISHED, command=None, reason="not asked for: --published makes an image of the tool first")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="what a user of the engine pays, beside its rivals")
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions, one round: to see that all runs, and roughly where it stands"
    )
    parser.add_argument("--cases", default="", help="names of cases with commas between them; all without it")
    parser.add_argument("--rounds", type=_rounds, default=0, help="how often each subject has its turn, instead of what the case says")
    parser.add_argument("--no-rivals", action="store_true", help="leave the rivals out")
    parser.add_argument(
        "--published",
        action="store_true",
        help="measure the tool published as well: its image is made first, once, which takes minutes",
    )
    parser.add_argument("--list", action="store_true", help="the cases and who takes part, and nothing else")
    parser.add_argument(
        "--base", metavar="COMMIT", help="compare this tree, or --head, with a commit instead: exit code 1 when something became slower"
    )
    parser.add_argument("--install-rivals", action="store_true", help="make the rivals' environments, and nothing else")
    parser.add_argument("--head", metavar="COMMIT", default="", help="with --base: this commit in place of this tree")
    parser.add_argument(
        "--out",
        type=Path,
        help="the folder for the series and the report; else bench/out, and a folder of their names below it for --cases",
    )
    arguments = parser.parse_args(words)
    if arguments.head and not arguments.base:
        parser.error("--head is compared with --base: name that as well")
    arguments.out = arguments.out or (harness.OUT / "+".join(arguments.cases.split(",")) if arguments.cases else harness.OUT)
    return arguments


def _rounds(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError("want a whole number from 1")
    return int(word)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"bench: {folder} cannot be made: {error.strerror}") from None


def _chosen(names: str) -> dict[str, Case]:
    known = harness.cases()
    wanted = [name for name in names.split(",") if name] or list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"bench: no such case: {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: known[name] for name in wanted}


def subjects_of(case: Case, *, rivals: bool, published: bool) -> list[Subject]:
    """Who takes part in a case, in the order of their turns."""
    own = [harness.own(case, name) if published or name != PUBLISHED else _UNPUBLISHED for name in case.subjects]
    return own + [harness.rival(case, name) for name in (case.rivals if rivals else ())]


def note(words: str) -> None:
    """A line about how far it is, beside the answer."""
    print(words, file=sys.stderr, flush=True)


def _run(chosen: dict[str, Case], arguments: argparse.Namespace) -> int:
    results: list[Result] = []
    _made(arguments.out)
    print(report.machine_line(machine.facts()))
    for case in chosen.values():
        started = time.monotonic()
        rounds = arguments.rounds or (case.quick if arguments.quick else case.full)
        subjects = subjects_of(case, rivals=not arguments.no_rivals, published=arguments.published)
        results.append(harness.run_case(case, subjects, quick=arguments.quick, rounds=rounds, note=note))
        print(f"\n{report.as_text(case, results[-1])}   ({time.monotonic() - started:.0f} s)", flush=True)
        _keep(chosen, results, arguments)
    failed = [f"{result.case}/{subject}" for result in results for subject in result.subjects if result.problem(subject)]
    print(f"\nseries, Markdown and page: {arguments.out.resolve()}/series.json, report.md, report.html")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _keep(chosen: dict[str, Case], results: Sequence[Result], arguments: argparse.Namespace) -> None:
    """After each case, so that an interrupted run has kept what it has."""
    kept = harness.document(results, quick=arguments.quick)
    facts = {**{name: kept[name] for name in ("mode", "date")}, **kept["machine"]}
    (arguments.out / "series.json").write_text(json.dumps(kept), encoding="utf-8")
    (arguments.out / "report.md").write_text(report.as_markdown(chosen, results, facts), encoding="utf-8")
    (arguments.out / "report.html").write_text(report.as_page(chosen, results, facts), encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    try:
        return _done(_arguments(sys.argv[1:] if words is None else words))
    except KeyboardInterrupt:
        note("bench: interrupted; the cases that were done are kept")
        return 130


def _done(arguments: argparse.Namespace) -> int:
    if arguments.install_rivals:
        return install.install()
    chosen = _chosen(arguments.cases)
    if arguments.list:
        for case in chosen.values():
            print(f"{case.name}: {case.title} ({', '.join([*case.subjects, *case.rivals])})")
        return 0
    if arguments.base:
        _made(arguments.out)
        commits = (arguments.base, arguments.head)
        return compare.compare(chosen, commits, quick=arguments.quick, rounds=arguments.rounds, out=arguments.out, note=note)
    return _run(chosen, arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
