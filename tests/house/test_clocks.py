"""No test asserts how long something took: a slow machine is no fault. What time costs is measured in ``bench/``."""

from pathlib import Path

import pytest

from tests.house.reading import PROJECT, sources, uses, within, write

CLOCKS = tuple(f"time.{name}{unit}" for name in ("monotonic", "perf_counter", "process_time", "thread_time") for unit in ("", "_ns"))
ALLOWED = {"tests/moments.py"}  # it waits for processes, until a bound that only a hang reaches


def readers(root: Path) -> set[str]:
    """The files of tests that read a clock for lengths of time; what a tool's source in a text does is not theirs."""
    files = sources(root, "tests")
    return {file.name for file in files if any(within(dotted, clock) for _, dotted in uses(file) for clock in CLOCKS)}


def test_no_test_reads_a_clock() -> None:
    """But for the one place that bounds waits."""
    assert readers(PROJECT) == ALLOWED


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("import time\nassert time.perf_counter() < 1", True),
        ("from time import monotonic", True),
        ("from time import process_time_ns as now\nnow()", True),
        ("import time\nTOOL = 'time.monotonic()'\ntime.time()", False),
    ],
)
def test_a_clock_is_seen(tmp_path: Path, source: str, seen: bool) -> None:
    """However it is named; the control reads none."""
    assert readers(write(tmp_path, **{"tests/test_it.py": source})) == ({"tests/test_it.py"} if seen else set())
