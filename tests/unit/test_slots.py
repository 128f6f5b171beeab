"""What a jail borrows from the host, claimed while other launchers sweep."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enter import kernel, main, slots


def test_the_lock_of_a_uid_writes_nothing(tmp_path: Path) -> None:
    """It holds its uid, and cannot change the file that it is: the control, opened for both, can."""
    uid, lock = slots.claim_uid(str(tmp_path), 70_000, 2)
    other, second = slots.claim_uid(str(tmp_path), 70_000, 2)
    assert (uid, other) == (70_000, 70_001)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(lock, b"x")
    assert (tmp_path / "70000").stat().st_size == 0
    both = os.open(tmp_path / "70000", os.O_RDWR)
    assert (os.write(both, b"x"), (tmp_path / "70000").stat().st_size) == (1, 1)
    for descriptor in (lock, second, both):
        os.close(descriptor)


def test_a_uid_is_free_when_nobody_of_its_jail_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its monitor is buried, but while something of a jail is on its way out the launcher holds the lock."""

    def nobody(*_: int) -> tuple[int, int]:
        raise ChildProcessError

    _, lock = slots.claim_uid(str(tmp_path), 70_000, 1)
    launcher = main.Launcher.__new__(main.Launcher)
    launcher._jails, launcher._numbers, launcher._lingering = {}, {}, [main.Jail([], lock)]
    launcher._unbound = None
    adopted = [True, False]
    monkeypatch.setattr(launcher, "_end_adopted", lambda: adopted.pop(0))
    monkeypatch.setattr(os, "waitpid", nobody)
    launcher._bury()
    with pytest.raises(kernel.Step):
        slots.claim_uid(str(tmp_path), 70_000, 1)
    launcher._bury()
    assert launcher._lingering == []
    os.close(slots.claim_uid(str(tmp_path), 70_000, 1)[1])


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
