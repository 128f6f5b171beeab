"""What earlier engines left on this host: processes and cgroups whose owner is gone.

Its job: find them by what the kernel says, without touching any.
Not its job: removing them: a launcher sweeps its cgroups when it starts, and its processes die with it.
Laws:
1. What a living engine holds is no leftover: its supervisor is alive, its lock is taken (tests/e2e/test_cli_doctor.py).
"""

import fcntl
import os
import re
from collections.abc import Iterator

import psutil

_PROGRAM = "/enter/main.py"
_CGROUP = re.compile(r"stockade-[0-9]+-[0-9]+")
_FOLDERS = 20_000  # of the cgroup tree that are looked at; a host with more is a host full of containers


def orphans() -> list[str]:
    """Launchers, jails and children whose supervisor is dead, one line each."""
    return [f"process {pid}: its engine, process {owner}, is gone" for pid, owner in _processes() if not psutil.pid_exists(owner)]


def processes_of(supervisor: int) -> list[str]:
    """What is alive of the engines of one process, one line each."""
    return [f"process {pid}" for pid, owner in _processes() if owner == supervisor]


def orphaned_cgroups() -> list[str]:
    """Cgroups of launchers that are gone, by path: those whose lock nobody holds."""
    return [path for path in _cgroups() if _unlocked(path)]


def cgroups_of(launcher: int) -> list[str]:
    """Cgroups that one launcher made."""
    return [path for path in _cgroups() if path.rpartition("/")[2].startswith(f"stockade-{launcher}-")]


def _processes() -> Iterator[tuple[int, int]]:
    """Pid and supervisor of all: the launcher's first argument is its supervisor, and what it forks carries the same command line."""
    parents: dict[int, int] = {}
    owners: dict[int, int] = {}
    for process in psutil.process_iter(["pid", "ppid", "cmdline"]):
        pid, words = process.info["pid"], process.info["cmdline"] or []
        parents[pid] = process.info["ppid"] or 0
        at = next((at for at, word in enumerate(words) if word.endswith(_PROGRAM)), None)
        if at is not None and len(words) > at + 1 and words[at + 1].isdigit():
            owners[pid] = int(words[at + 1])
    for pid in parents:
        # security: a child can overwrite its own command line, but not whose child it is
        above = pid
        while above and above not in owners:
            above = parents.get(above, 0)
        if above in owners:
            yield pid, owners[above]


def _cgroups() -> list[str]:
    found = []
    for seen, (place, folders, _) in enumerate(os.walk("/sys/fs/cgroup")):
        if seen > _FOLDERS:
            break
        found += [f"{place}/{name}" for name in folders if _CGROUP.fullmatch(name)]
    return sorted(found)


def _unlocked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # gone meanwhile, or not ours to look at
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
