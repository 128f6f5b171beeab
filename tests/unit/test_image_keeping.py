"""What lies in a cache: listed, looked through, pruned."""

import os
from pathlib import Path

import pytest

from engine.images import compiling, keeping
from tests import images
from tests.images import Tiny, spoil, tiny


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny image that was not built yet."""
    images.without_installing(monkeypatch)
    return tiny(tmp_path)


def rows(project: Tiny) -> list[tuple[str, bool, bool, bool, str | None]]:
    """The rows without their digests and sizes."""
    return [(row.name, row.current, row.pinned, row.compiled, row.problem) for row in keeping.rows(project.cache, project.shipped)]


def wrong(project: Tiny) -> list[str]:
    """Every problem of every row, by the name of its file."""
    found = [keeping.problems(row, project.cache, project.shipped) for row in keeping.rows(project.cache, project.shipped)]
    return [line for lines in found for line in lines]


def test_an_image_is_listed_before_and_after_it_was_built(project: Tiny) -> None:
    """Not built, built, pinned; then another version's, beside what is this one's."""
    assert rows(project) == [("tiny", True, False, False, "not built")]
    project.build()
    assert rows(project) == [("tiny", True, False, True, None)]
    project.pin()
    assert rows(project) == [("tiny", True, True, True, None)]
    project.write("worker_images/guest/main.py", "x = 2\n")
    assert rows(project) == [("tiny", True, False, False, "not built"), ("tiny", False, False, True, None)]


def test_every_wrong_file_is_named(project: Tiny) -> None:
    """Component or code; the control: nothing is wrong with a sound one."""
    entry = project.build()
    assert wrong(project) == []
    (code,) = entry.path.glob("compiled/*/code")
    spoil(code)
    assert wrong(project) == [f"{code} was changed"]
    project.build()
    spoil(entry.path / "component.wasm")
    assert wrong(project) == [f"{entry.path / 'component.wasm'} was changed"]
    spoil(entry.path / "manifest.json", b"{}")
    assert wrong(project) == [f"{entry.path / 'manifest.json'} has 2 bytes and not {len(entry.manifest.bytes())}"]


def test_code_that_was_never_compiled_is_told(project: Tiny) -> None:
    """Other settings: what is here is for others."""
    project.build()
    project.write("worker_images/wasm/configuration.py", "x = 1\n")
    assert ["is not compiled for this machine" in line for line in wrong(project)] == [True]


def prune(project: Tiny, *, everything: bool = False) -> list[str]:
    """What was removed."""
    with project.cache.writing(lambda: None):
        gone = keeping.prune(project.cache, project.shipped, images.MEANS, everything=everything)
    return sorted(path.relative_to(project.cache.folder).parts[0] for path in gone)


def test_pruning_keeps_what_this_version_uses(project: Tiny) -> None:
    """An image of another version, code for other settings and an old builder go; a second time there is nothing to remove."""
    project.build()
    project.write("worker_images/guest/main.py", "x = 2\n")
    entry = project.build()
    project.write("worker_images/wasm/configuration.py", "x = 1\n")
    project.build()
    (project.cache.builders / "old").mkdir()
    assert prune(project) == ["builders", "images", "images"]
    used = compiling.folder_of(entry, compiling.key_of(entry, project.shipped.worker_images))
    assert project.left() == sorted(f"images/{entry.path.name}{end}" for end in ("", f"/compiled/{used.name}"))
    assert prune(project) == []
    os.close(compiling.open_code(entry, compiling.key_of(entry, project.shipped.worker_images)).descriptor)


def test_pruning_all_leaves_nothing(project: Tiny) -> None:
    """Damaged ones as well."""
    spoil(project.build().path / "manifest.json")
    assert (prune(project, everything=True), project.left()) == (["images"], [])
