"""Policy files that start from others: what is taken over, what is not, and chains that have no end."""

import shutil
from pathlib import Path

import pytest

from engine.errors import PolicyError
from engine.limits import Limits
from engine.places import data_dir
from engine.policy.grants import Grants
from engine.policy.load import load_policy
from engine.policy.protections import NEEDED, NO_WALL

SHIPPED = data_dir("policies")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of policies that a test may add to."""
    for path in SHIPPED.glob("*.toml"):
        shutil.copy(path, tmp_path)
    shutil.copytree(SHIPPED / "network", tmp_path / "network")
    return tmp_path


def lines_of(folder: Path, text: str | bytes, name: str = "own") -> tuple[str, ...]:
    """The lines, without the file's folder, with which a policy of this text refuses."""
    (folder / f"{name}.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PolicyError) as caught:
        load_policy("own", folder)
    assert caught.value.code == "refused.policy"
    return tuple(line.removeprefix(f"{folder}/") for line in caught.value.lines)


def test_a_path_is_read_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    """A policy beside its tools may extend one of the folder by name, and a neighbour by path."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "base.toml").write_text('extends = "required"\n[limits]\nthreads = { value = 1, reason = "r" }\n')
    (other / "own.toml").write_text('extends = "./base.toml"\n')
    assert load_policy(other / "own.toml", folder).limits == Limits(threads=1)


def test_the_nearest_file_wins_and_lists_are_replaced_whole(folder: Path) -> None:
    """A child says what it wants to have, not what it adds."""
    (folder / "base.toml").write_text(
        '[grants]\nlayers = { value = ["a", "b"], reason = "r" }\neffects = { value = ["read"], reason = "r" }\n'
    )
    (folder / "own.toml").write_text('extends = "base"\n[grants]\nlayers = { value = ["c"], reason = "r" }\n')
    assert load_policy("own", folder).grants == Grants(layers=frozenset({"c"}), effects=frozenset({"read"}))


@pytest.mark.parametrize("target", ["own", "./own.toml", "./sub/../own.toml"])
def test_a_loop_refuses(folder: Path, target: str) -> None:
    """A policy cannot extend itself by any spelling."""
    (folder / "sub").mkdir()
    assert lines_of(folder, f'extends = "{target}"')[0].endswith("extends: a loop, or more than 8 files: own.toml -> own.toml")


def test_a_loop_over_two_files_refuses(folder: Path) -> None:
    """Nor through another one."""
    (folder / "other.toml").write_text('extends = "own"')
    assert lines_of(folder, 'extends = "other"') == ("own.toml: extends: a loop, or more than 8 files: own.toml -> other.toml -> own.toml",)


def test_a_mistake_is_reported_with_the_file_it_stands_in(folder: Path) -> None:
    """A broken base is not hidden by a child that replaces the entry."""
    (folder / "base.toml").write_text('[grants]\nlayers = { value = ["../x"], reason = "r" }\n')
    lines = lines_of(folder, 'extends = "base"\n[grants]\nlayers = { value = [], reason = "r" }\n')
    assert lines == ("base.toml: grants.layers: '../x' is not a layer's name",)


def test_loosenings_are_not_inherited(folder: Path) -> None:
    """A reader of one file sees every danger of it."""
    assert lines_of(folder, 'extends = "host"')[0].startswith("own.toml: loosenings.host_mode_without_any_wall: must be named in this file")


def test_a_named_loosening_lets_host_be_extended(folder: Path) -> None:
    """The control: named again, it stands."""
    (folder / "own.toml").write_text('extends = "host"\n[loosenings]\nhost_mode_without_any_wall = { value = true, reason = "r" }\n')
    assert load_policy("own", folder).protections == NO_WALL


def test_leaving_host_mode_brings_the_whole_wall_back(folder: Path) -> None:
    """Nothing is inherited across the wall."""
    (folder / "own.toml").write_text('extends = "host"\nmode = { value = "required", reason = "r" }\n')
    assert load_policy("own", folder).protections == NEEDED
