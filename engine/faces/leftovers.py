"""What earlier engines left on this host: processes and cgroups whose owner is gone.

Its job: find them by what the kernel says, without touching any.
Not its job: removing them: a launcher sweeps its cgroups when it starts, and its processes die with it.
Laws:
1. What a living engine holds is no leftover: its supervisor is alive, its lock is taken (tests/e2e/test_cli_doctor.py).
"""

import fcntl
import os
import re

import psutil

_PROGRAM = "/enter/main.py"
_CGROUP = re.compile(r"stockade-[0-9]+-[0-9]+")
_FOLDERS = 20_000  # of the cgroup tree that are looked at; a host with more is a host full of containers


def processes() -> list[str]:
    """Launchers, jails and children whose supervisor is dead, one line each."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        at = next((at for at, word in enumerate(words) if word.endswith(_PROGRAM)), None)
        # every process of an engine carries the launcher's command line, whose first argument is the supervisor
        if at is None or len(words) <= at + 1 or not words[at + 1].isdigit():
            continue
        if not psutil.pid_exists(int(words[at + 1])):
            found.append(f"process {process.info['pid']}: its engine, process {words[at + 1]}, is gone")
    return found


def cgroups() -> list[str]:
    """Cgroups of launchers that are gone, by path: those whose lock nobody holds."""
    found = []
    for seen, (place, folders, _) in enumerate(os.walk("/sys/fs/cgroup")):
        if seen > _FOLDERS:
            break
        found += [path for name in folders if _CGROUP.fullmatch(name) and _unlocked(path := f"{place}/{name}")]
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
