"""The state folder: ours alone or refused, private and temporary where none can be had, and the digest that names the image."""

import dataclasses
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import state
from engine.errors import HostError
from engine.places import data_dir
from tests import hosts

POLICIES = data_dir("policies")
PARTS = {"root": 0o700, "empty": 0o555, "scratch": 0o700, "journal": 0o700}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="unproven here: giving a folder away needs root")


def refused(folder: Path) -> str:
    """The line that a state folder is refused with."""
    with pytest.raises(HostError) as caught:
        state.open_state(folder, POLICIES)
    assert caught.value.code == "refused.storage"
    (line,) = caught.value.lines
    return line


def modes(folder: Path) -> dict[str, int]:
    """The permissions of what lies in a folder."""
    return {place.name: place.lstat().st_mode & 0o777 for place in folder.iterdir()}


class TestGiven:
    """A folder that was asked for."""

    def test_it_is_made_private_with_its_parts(self, tmp_path: Path) -> None:
        """Whatever the umask says, and with parents that were missing."""
        before = os.umask(0)
        try:
            made = state.open_state(tmp_path / "a" / "b", POLICIES)
        finally:
            os.umask(before)
        assert (made.folder, made.ephemeral) == (tmp_path / "a" / "b", False)
        assert made.folder.stat().st_mode & 0o777 == 0o700
        assert modes(made.folder) == PARTS

    def test_one_that_is_there_is_used_with_what_is_in_it(self, tmp_path: Path) -> None:
        """A second engine, or the same one tomorrow; closing removes nothing."""
        first = state.open_state(tmp_path / "state", POLICIES)
        (first.stores.stage).mkdir(mode=0o700)
        first.close()
        second = state.open_state(tmp_path / "state", POLICIES)
        assert second == first
        assert second.stores.stage.is_dir()

    def test_one_that_others_may_read_is_closed_to_them(self, tmp_path: Path) -> None:
        """Nobody could have put anything in."""
        (tmp_path / "state").mkdir(mode=0o755)
        made = state.open_state(tmp_path / "state", POLICIES)
        assert made.folder.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
    def test_one_that_others_may_write_refuses(self, tmp_path: Path, mode: int) -> None:
        """What is in it may be theirs; once it is looked through and closed it is taken."""
        folder = tmp_path / "state"
        folder.mkdir()
        folder.chmod(mode)
        assert refused(folder) == (
            "the state folder cannot be used: others may write to it: look through it and chmod 700, or choose another"
        )
        assert modes(folder) == {}
        folder.chmod(0o700)
        assert state.open_state(folder, POLICIES).folder == folder

    @as_root
    def test_one_of_another_user_refuses(self, tmp_path: Path) -> None:
        """Even when we could write to it; given back, it is taken."""
        folder = tmp_path / "state"
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
        assert refused(folder) == "the state folder cannot be used: it is a link, no folder, or belongs to another user"
        assert modes(folder) == {}
        os.chown(folder, 0, 0)
        assert state.open_state(folder, POLICIES).folder == folder

    def test_a_link_refuses(self, tmp_path: Path) -> None:
        """Nothing is made where it leads; the folder itself is taken."""
        target = tmp_path / "elsewhere"
        target.mkdir(mode=0o700)
        (tmp_path / "state").symlink_to(target)
        assert refused(tmp_path / "state") == "the state folder cannot be used: it is a link, no folder, or belongs to another user"
        assert modes(target) == {}
        assert state.open_state(target, POLICIES).folder == target

    def test_a_file_in_its_place_refuses(self, tmp_path: Path) -> None:
        """The file is left as it is."""
        (tmp_path / "state").write_text("mine")
        assert refused(tmp_path / "state") == "the state folder cannot be used: File exists"
        assert (tmp_path / "state").read_text() == "mine"

    @pytest.mark.skipif(os.geteuid() == 0, reason="unproven here: root can write everywhere")
    def test_a_place_that_cannot_be_written_refuses(self, tmp_path: Path) -> None:
        """A folder that was asked for is never exchanged for another one in silence."""
        tmp_path.chmod(0o500)
        assert refused(tmp_path / "state") == "the state folder cannot be used: Permission denied"
        tmp_path.chmod(0o700)

    @pytest.mark.parametrize("part", PARTS)
    @pytest.mark.parametrize("plant", [lambda place: place.symlink_to("/"), lambda place: place.write_text("x")], ids=["link", "file"])
    def test_a_part_that_is_no_folder_of_ours_refuses(self, tmp_path: Path, part: str, plant: Callable[[Path], object]) -> None:
        """A link in the place of a part would lead the journal or a mount elsewhere; without it the folder is taken."""
        folder = tmp_path / "state"
        folder.mkdir(mode=0o700)
        plant(folder / part)
        assert refused(folder).startswith(f"the state folder cannot be used: {part}")
        (folder / part).unlink()
        assert state.open_state(folder, POLICIES).folder == folder


class TestUsual:
    """The folder of the user, when none was asked for."""

    @pytest.fixture
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A home, and a place for temporary folders."""
        for name in ("home", "temporary"):
            (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        return tmp_path / "home"

    def test_it_lies_in_the_users_state_folder(self, home: Path) -> None:
        """And stays there."""
        made = state.open_state(None, POLICIES)
        assert (made.folder, made.ephemeral) == (home / ".local" / "state" / "stockade", False)
        made.close()
        assert made.folder.is_dir()

    @pytest.mark.parametrize("spoil", ["a file in its place", "a link", "others may write", "no home"])
    def test_where_it_cannot_be_used_a_temporary_one_serves(self, home: Path, monkeypatch: pytest.MonkeyPatch, spoil: str) -> None:
        """It is private, and it is gone when the engine closes, with read-only bundles in it."""
        usual = home / ".local" / "state" / "stockade"
        usual.parent.mkdir(parents=True)
        if spoil == "a file in its place":
            usual.write_text("x")
        elif spoil == "a link":
            usual.symlink_to(home)
        elif spoil == "others may write":
            usual.mkdir()
            usual.chmod(0o777)
        else:
            monkeypatch.setattr("platformdirs.user_state_path", lambda name: Path("~") / name)
        made = state.open_state(None, POLICIES)
        assert (made.ephemeral, made.folder.parent, made.folder.stat().st_mode & 0o777) == (True, home.parent / "temporary", 0o700)
        sealed = made.stores.stage / "sha256" / "aa"
        sealed.mkdir(parents=True)
        (sealed / "tools.py").write_text("x")
        for place, mode in ((sealed / "tools.py", 0o444), (sealed, 0o555), (sealed.parent, 0o555)):
            place.chmod(mode)
        made.close()
        assert not made.folder.exists()
        assert not Path("~").exists()

    def test_a_home_that_is_missing_is_not_made(self, home: Path) -> None:
        """The home of nobody, for one, which root could make; once it is there it is used."""
        home.rmdir()
        made = state.open_state(None, POLICIES)
        assert (made.ephemeral, home.exists()) == (True, False)
        made.close()
        home.mkdir(mode=0o700)
        assert not state.open_state(None, POLICIES).ephemeral

    def test_without_any_place_the_host_refuses(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With what to do about it."""
        (home / ".local").write_text("x")
        monkeypatch.setattr("tempfile.tempdir", str(home / "absent"))
        with pytest.raises(HostError) as caught:
            state.open_state(None, POLICIES)
        assert caught.value.code == "refused.storage"
        assert caught.value.lines == ("no temporary state folder: No such file or directory: give state_dir, or set TMPDIR",)


class TestImage:
    """The digest of what a worker consists of."""

    def test_it_names_interpreter_machine_and_files(self) -> None:
        """The same for the same, another one for another interpreter or machine."""
        usual = state.image_digest(hosts.FACTS)
        assert usual == state.image_digest(dataclasses.replace(hosts.FACTS, kernel="9.9", landlock=1))
        python = state.image_digest(dataclasses.replace(hosts.FACTS, python="3.99.0"))
        machine = state.image_digest(dataclasses.replace(hosts.FACTS, machine="aarch64"))
        assert len({usual, python, machine}) == 3

    def test_it_changes_with_each_file_that_a_worker_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One byte in the guest, in the launcher's program or in what is carried in; another file changes nothing."""
        engine = tmp_path / "engine"
        images = tmp_path / "worker_images"
        files = [engine / "__init__.py", engine / "errors.py", engine / "authoring" / "tool.py", images / "guest" / "main.py"]
        files += [images / "enter" / "main.py", images / "rehearsal" / "sample.py", images / "README.md"]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x")
        monkeypatch.setattr(state, "__file__", str(engine / "state.py"))
        monkeypatch.setattr(state, "data_dir", lambda kind: tmp_path / kind)
        digests = [state.image_digest(hosts.FACTS)]
        for file in files:
            file.write_text("y")
            digests.append(state.image_digest(hosts.FACTS))
        assert len(set(digests)) == len(files)  # the first one, and one for each but the README
        assert digests[-1] == digests[-2]


class TestLeftBehind:
    """What engines that were killed could not remove."""

    def test_scratch_of_nobody_is_removed(self, tmp_path: Path) -> None:
        """Whatever its modes; while another engine uses the folder nothing is touched."""
        first = state.open_state(tmp_path / "state", POLICIES)
        left = first.folder / "scratch" / "worker-left"
        (left / "0" / "closed").mkdir(parents=True)
        (left / "0" / "closed").chmod(0)
        state.open_state(tmp_path / "state", POLICIES).close()
        assert left.exists()
        first.close()
        state.open_state(tmp_path / "state", POLICIES).close()
        assert not left.exists()

    def test_temporary_folders_of_nobody_are_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that is locked, one that is new and other folders stay."""
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr("platformdirs.user_state_path", lambda name: Path("relative"))
        used = state.open_state(None, POLICIES)
        killed, new, other = (tmp_path / name for name in ("stockade-killed", "stockade-new", "other"))
        for place in (killed, new, other):
            (place / "stage").mkdir(parents=True)
        for place in (used.folder, killed, other):
            os.utime(place, (0, 0))
        mine = state.open_state(None, POLICIES)
        assert {place.name for place in tmp_path.iterdir()} == {used.folder.name, mine.folder.name, "stockade-new", "other"}
        for made in (used, mine):
            made.close()
        assert {place.name for place in tmp_path.iterdir()} == {"stockade-new", "other"}
