"""What a jail borrows from the host, claimed while other launchers sweep."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enter import slots


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object]) -> list[int]:
    """Do something before the first call of that function; the list grows with each call."""
    real, calls = getattr(owner, name), []

    def wrapped(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            act()
        return real(*args, **more)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


@pytest.mark.parametrize(("owner", "name"), [(os, "open"), (fcntl, "flock")])
def test_a_cgroup_that_a_sweep_took_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Between its making and its opening, and between its opening and its lock."""
    place = tmp_path / "stockade-1-1"
    calls = once(monkeypatch, owner, name, place.rmdir)
    descriptor = slots._owned(str(place))
    assert (len(calls), os.path.samestat(os.fstat(descriptor), place.stat())) == (2, True)
    os.close(descriptor)


def test_a_cgroup_that_is_owned_is_not_taken(tmp_path: Path) -> None:
    """Another launcher of that number, in another pid namespace, keeps its own; what a dead one left is taken."""
    held = slots._owned(str(tmp_path / "stockade-1-1"))
    with pytest.raises(OSError, match="own one of that name"):
        slots._owned(str(tmp_path / "stockade-1-1"))
    os.close(held)
    os.close(slots._owned(str(tmp_path / "stockade-1-1")))


def test_a_sweep_takes_what_nobody_owns(tmp_path: Path) -> None:
    """And nothing else."""
    held = slots._owned(str(tmp_path / "stockade-1-1"))
    (tmp_path / "stockade-2-1").mkdir()
    (tmp_path / "another").mkdir()
    slots.sweep({"memory": str(tmp_path)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "stockade-1-1"]
    os.close(held)
