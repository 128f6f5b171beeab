"""Native code is mapped from a cache: nothing is read out of one that somebody else could have written to."""

import os
import stat
from pathlib import Path

import pytest

from engine.images.image import find
from tests import images
from tests.images import Tiny, tiny
from tests.staged import refusal


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny image, built, pinned and found: the control of each refusal."""
    images.without_installing(monkeypatch)
    made = tiny(tmp_path)
    made.build()
    made.pin()
    use(made)
    return made


def use(project: Tiny) -> None:
    """Find the image and open its code, as a worker's launcher would."""
    image = find("tiny", project.cache, project.shipped, allowed=None)
    os.close(image.open_code().descriptor)


PLACES = (".", "images", "images/*", "images/*/compiled", "images/*/compiled/*")
FILES = ("images/*/manifest.json", "images/*/record.json", "images/*/component.wasm", "images/*/compiled/*/code")


def place(project: Tiny, pattern: str) -> Path:
    """The one file or folder of the cache."""
    (found,) = project.cache.folder.glob(pattern) if pattern != "." else [project.cache.folder]
    return found


@pytest.mark.parametrize("mode", [0o020, 0o002], ids=["group", "others"])
@pytest.mark.parametrize("pattern", [*PLACES, *FILES, "images/*/compiled/*/manifest.json"])
def test_what_others_can_write_refuses(project: Tiny, pattern: str, mode: int) -> None:
    """Each folder and each file on the way; the control: without the bit it is used again."""
    path = place(project, pattern)
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(before | mode)
    assert refusal(use, project)[0] == "refused.image_corrupt"
    path.chmod(before)
    use(project)


@pytest.mark.parametrize("pattern", [*PLACES[1:], *FILES])
def test_a_link_in_place_of_a_part_refuses(project: Tiny, pattern: str, tmp_path: Path) -> None:
    """Where it leads there is the very same, today."""
    path = place(project, pattern)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert refusal(use, project)[0] in ("refused.image_corrupt", "refused.image_missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="unproven here: it takes root to give a file to somebody else")
@pytest.mark.parametrize("pattern", [*PLACES, *FILES])
def test_what_belongs_to_somebody_else_refuses(project: Tiny, pattern: str) -> None:
    """Whoever owns it can change it at any time; what belongs to root may lie on a read-only disk."""
    path = place(project, pattern)
    os.chown(path, 65534, 65534)
    assert refusal(use, project)[0] == "refused.image_corrupt"
    os.chown(path, 0, 0)
    use(project)


def test_the_cache_is_made_for_this_user_alone(project: Tiny) -> None:
    """Folders 0700, files that nobody writes to any more."""
    modes = {stat.S_IMODE(place(project, pattern).stat().st_mode) for pattern in PLACES}
    assert (modes, {stat.S_IMODE(place(project, pattern).stat().st_mode) for pattern in FILES}) == ({0o700}, {0o400})


def test_no_writing_into_a_folder_of_others(tmp_path: Path) -> None:
    """A shared folder is refused before anything is put there."""
    project = tiny(tmp_path)
    project.cache.folder.mkdir()
    project.cache.folder.chmod(0o777)
    code, (line,) = refusal(project.build)
    assert (code, "only this user or root" in line) == ("refused.storage", True)
