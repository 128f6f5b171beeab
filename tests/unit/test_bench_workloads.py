"""The ordinary work that the walls are compared by: the same code everywhere, with the same answers."""

import json
from typing import Any

import pytest

from bench import workloads
from bench.bench_workloads import _SOURCE, CASE
from bench.workloads import IMPORTS, TEXTS, WORKLOADS


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_text_is_the_function(name: str) -> None:
    """Alone with its imports, as a rival runs it; the answer can cross as JSON."""
    space: dict[str, Any] = {}
    exec(IMPORTS + TEXTS[name], space)
    assert json.dumps(space[name]()) == json.dumps(WORKLOADS[name]())


def test_the_tool_s_source_holds_all_of_it() -> None:
    """And compiles."""
    compile(_SOURCE, "tools.py", "exec")
    assert all(text in _SOURCE for text in TEXTS.values())
    assert "TIMES" not in _SOURCE


def test_each_kind_of_work_is_a_metric() -> None:
    """Beside the mean of all."""
    assert [metric.name for metric in CASE.metrics] == ["mean", *WORKLOADS]


def test_no_work_has_an_instruction_of_its_own() -> None:
    """SHA-256 would tell of the processor."""
    assert "sha256" not in "".join(TEXTS.values())
    assert workloads.TIMES > 1
