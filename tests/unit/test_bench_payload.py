"""What the bench's engine is, and what is told where there is no image to run."""

import os
from pathlib import Path

import pytest

from bench import bench_flood, bench_paced, payload
from bench.__main__ import subjects_of
from bench.case import OURS, PUBLISHED, WASM
from bench.measurement import Absent, Run
from bench.walls import Wall, both
from engine import Engine


def test_without_an_image_the_part_is_absent_and_says_what_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line; the native wall needs none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = Run(quick=True, folder=tmp_path)
    with pytest.raises(Absent, match=r"image python_wasm is not there: .*: `make images` makes the one that is pinned"):
        payload.engine(run, "wasm")
    assert isinstance(payload.engine(run), Engine)


def test_an_image_that_is_there_is_opened_as_an_engine_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code's descriptor is closed again before anything is measured."""
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    monkeypatch.setattr(payload, "open_image", lambda: descriptor)
    payload.engine(Run(quick=True, folder=tmp_path), "wasm")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_source_is_published_only_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the image that it would stand on, the part is absent."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert payload.published(tmp_path, "native") == payload.published(tmp_path, "wasm") == tmp_path
    with pytest.raises(Absent):
        payload.published(tmp_path, "published")


def test_a_published_tool_takes_part_when_it_is_asked_for() -> None:
    """Else its row says how to ask; a case without one has none."""
    case = bench_paced.CASE
    for asked in (True, False):
        found = {subject.name: subject for subject in subjects_of(case, rivals=False, published=asked)}
        assert (list(found), found[PUBLISHED].command is None) == ([OURS, WASM, PUBLISHED], not asked)
        assert ("--published" in found[PUBLISHED].reason) is not asked
    assert [subject.name for subject in subjects_of(bench_flood.CASE, rivals=False, published=True)] == [OURS, WASM]


def test_a_case_of_both_walls_has_its_calls_in_each(tmp_path: Path) -> None:
    """The native one first, since the others are compared with the first."""
    seen: list[Wall] = []

    async def calls(run: Run, wall: Wall) -> None:
        seen.append(wall)
        run.add("call", 1)

    subjects = both(calls)
    run = Run(quick=True, folder=tmp_path)
    for job in subjects.values():
        job(run)
    assert (list(subjects), seen) == ([OURS, WASM], ["native", "wasm"])
