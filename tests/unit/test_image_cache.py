"""The cache: what is read is checked, what is written appears whole."""

import errno
from pathlib import Path

import pytest

from engine.authoring.canonical import canonical
from engine.errors import EngineError
from engine.images import cache
from engine.images.build import sound
from engine.images.cache import Cache, Damaged, Entry
from tests import images
from tests.images import Tiny, spoil, tiny
from tests.staged import refusal


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny image that was built."""
    images.without_installing(monkeypatch)
    made = tiny(tmp_path)
    made.build()
    return made


def entry(project: Tiny) -> Entry:
    """The image as the cache has it."""
    return cache.entry(project.cache, project.recipe.digest)


def damage(project: Tiny) -> str:
    """What is wrong with it."""
    with pytest.raises(Damaged) as caught:
        sound(project.cache, project.recipe.digest)
    return str(caught.value)


def test_an_image_says_what_it_is(project: Tiny) -> None:
    """Its manifest has every input, the tools, the size and the hash; the record says that it was made here."""
    found = entry(project)
    manifest = found.manifest
    assert (manifest.name, manifest.recipe, manifest.inputs) == ("tiny", project.recipe.digest, project.recipe.inputs)
    assert (manifest.python, manifest.modules, manifest.tools) == ("3.14.0", ("json", "re"), {"tool": "1.0"})
    assert (found.component, manifest.component.size, found.built_here) == (images.digest(images.COMPONENT), 8, True)
    assert sound(project.cache, project.recipe.digest).manifest == manifest


def test_what_is_not_there_is_no_damage(tmp_path: Path) -> None:
    """A cache without the image, and no cache at all."""
    project = tiny(tmp_path)
    assert project.cache.present() == ()
    with pytest.raises(FileNotFoundError):
        entry(project)


def test_a_place_that_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    """Another user's HOME, a file for a folder, a name that no file system takes: an error to read, and no bug of ours."""
    closed = Cache(folder=tmp_path / ("x" * 300))  # an error for root as well
    with pytest.raises(Damaged, match="cannot be read: File name too long"):
        cache.entry(closed, f"sha256:{'1' * 64}")
    (tmp_path / "file").touch()
    for folder, why in ((closed.folder, "File name too long"), (tmp_path / "file", "Not a directory")):
        code, lines = refusal(Cache(folder=folder).present)
        assert code == "refused.storage"
        assert f"cannot be read: {why}" in lines[0]
    with pytest.raises(FileNotFoundError):
        cache.entry(Cache(folder=tmp_path / "file"), f"sha256:{'1' * 64}")


def test_a_record_nested_without_end_is_damaged(project: Tiny) -> None:
    """What the reader of JSON gives up on."""
    spoil(entry(project).path / cache.RECORD, b"[" * 4000)
    assert cache.RECORD in damage(project)


@pytest.mark.parametrize("name", [cache.COMPONENT, cache.MANIFEST, cache.RECORD])
@pytest.mark.parametrize("data", [None, b"", b"{}", b"x" * 9000])
def test_a_changed_file_is_named(project: Tiny, name: str, data: bytes | None) -> None:
    """One byte, cut short, something else, too much."""
    spoil(entry(project).path / name, data)
    assert name in damage(project)


@pytest.mark.parametrize("name", [cache.COMPONENT, cache.MANIFEST, cache.RECORD])
def test_a_missing_file_and_a_link_are_named(project: Tiny, name: str, tmp_path: Path) -> None:
    """The link's target would be right, which does not count."""
    path = entry(project).path / name
    path.rename(tmp_path / "elsewhere")
    assert name in damage(project)
    path.symlink_to(tmp_path / "elsewhere")
    assert name in damage(project)


def test_an_image_under_another_name_is_damaged(project: Tiny) -> None:
    """A folder's name is the digest of the recipe in its manifest."""
    other = project.cache.images / ("1" * 64)
    entry(project).path.rename(other)
    with pytest.raises(Damaged, match="another recipe"):
        cache.entry(project.cache, f"sha256:{'1' * 64}")


def test_a_record_of_another_kind_is_damaged(project: Tiny) -> None:
    """Fields that are not ours never become a record."""
    spoil(entry(project).path / cache.RECORD, canonical({"format": 1, "built_here": True, "manifest": {"size": 1, "more": 2}}))
    assert "record.json is not as it was written" in damage(project)


def test_the_next_writer_removes_what_a_killed_one_left(project: Tiny) -> None:
    """Half-made images and half-made code; the control: what is whole stays."""
    kept = project.left()
    (project.cache.images / ".tmp-0123" / "made").mkdir(parents=True)
    (entry(project).path / "compiled" / ".tmp-4567").mkdir()
    with project.cache.writing(lambda: None):
        pass
    assert project.left() == kept


def test_a_half_made_folder_goes_with_an_error(tmp_path: Path) -> None:
    """Nothing is left beside the final place."""

    def make() -> None:
        with cache.making(tmp_path) as made:
            (made / "half").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        make()
    assert list(tmp_path.iterdir()) == []


def test_putting_a_folder_replaces_what_was_there(tmp_path: Path) -> None:
    """The old one is gone whole, and the files of the new one can no longer be written."""
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old").write_text("x")
    with cache.making(tmp_path) as made:
        (made / "new").write_text("y")
        cache.put(made, tmp_path / "final")
    assert [(path.name, path.stat().st_mode & 0o777) for path in (tmp_path / "final").iterdir()] == [("new", 0o400)]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize(
    ("number", "mapped"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, True), (errno.EACCES, True), (errno.EPERM, True), (errno.EMFILE, False)],
)
def test_room_is_asked_for_where_room_would_help(tmp_path: Path, number: int, mapped: bool) -> None:
    """Too many open files, say, are no fault of the folder's."""
    with pytest.raises(EngineError if mapped else OSError) as caught, Cache(folder=tmp_path).writing(lambda: None):
        raise OSError(number, "no")
    assert ("make room" in str(caught.value)) is mapped


def test_a_cache_that_cannot_be_made_says_so_with_the_ways_out(tmp_path: Path) -> None:
    """A file where the folder should be; the same words as for a full or read-only disk."""
    (tmp_path / "file").write_text("")

    def write() -> None:
        with Cache(folder=tmp_path / "file" / "cache").writing(lambda: None):
            pass

    code, (line,) = refusal(write)
    assert code == "refused.storage"
    assert "--image-dir" in line
    assert "stockade image import" in line
