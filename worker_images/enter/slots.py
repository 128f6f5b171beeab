"""What a jail borrows from the host for its lifetime: an unused uid and, where the host has them, cgroups.

Its job: claim both by lock, give them back, sweep what a killed launcher left.
Not its job: how large they are (the plan says).
Laws:
1. Who holds the lock owns the thing; a lock dies with its last holder, so nothing needs a pid to be compared (flock(2))
   (tests/security/test_promise_ends.py).
2. The lock of a uid is held by launcher and monitor, never where tool code runs, and nothing can be written by it
   (tests/security/test_promise_identity.py, tests/unit/test_slots.py).
3. What cannot be claimed is not given: the caller gets None or an exception, never a shared uid (tests/security/test_promise_clean.py).
"""

import _signal
import errno
import fcntl
import os
import time

from enter.kernel import Step

_PREFIX = "stockade-"
_TRIES = 50  # a sweep holds a lock for some ten us
_DYING_SECONDS = 1.0  # a SIGKILL takes about 2 ms
_V1 = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}  # cgroups(7)
_V2 = {"memory": "memory.max", "pids": "pids.max"}


def claim_uid(folder: str, first: int, count: int) -> tuple[int, int]:
    """A uid that no other jail on this host holds, and the descriptor that holds it. Raises Step."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for uid in range(first, first + count):
            # security: nobody who came to hold it could write to the host by it; a lock needs no more (flock(2))
            descriptor = os.open(f"{folder}/{uid}", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return uid, descriptor
            except BlockingIOError:
                os.close(descriptor)
    except OSError as error:
        raise Step("claim a uid", error.errno or 0, error.strerror or "") from None
    raise Step("claim a uid", 11, f"all {count} uids from {first} are taken")


def find_cgroups() -> dict[str, str]:
    """Controller -> folder in which this process may make cgroups that limit it; found by doing, empty where it may not."""
    found: dict[str, str] = {}
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            parent = "/sys/fs/cgroup" + os.path.dirname(path)
            _enable(parent)
            found |= {name: parent for name in _V2 if name not in found and _usable(parent, _V2[name])}
        for name in _V1:
            base = f"/sys/fs/cgroup/{name}{path}".rstrip("/")
            if name in controllers.split(",") and _usable(base, _V1[name]):
                found[name] = base
    return found


def make_cgroups(folders: dict[str, str], limits: dict[str, int], name: str) -> list[tuple[str, int]]:
    """One cgroup per folder with its limit set, each with the descriptor that owns it. Raises Step."""
    made: dict[str, int] = {}
    try:
        for controller in sorted(limits):
            place = f"{folders[controller]}/{_PREFIX}{os.getpid()}-{name}"
            if place not in made:
                made[place] = _owned(place)
        limit_cgroups(list(made.items()), limits)
    except OSError as error:
        give_back(list(made.items()))
        raise Step("make the cgroups", error.errno or 0, error.strerror or "") from None
    return list(made.items())


def limit_cgroups(cgroups: list[tuple[str, int]], limits: dict[str, int]) -> None:
    """Set each limit in that one of the cgroups which has it. Raises OSError."""
    for name, amount in limits.items():
        for place, _ in cgroups:
            files = [file for file in {_V1[name], _V2[name]} if os.path.exists(f"{place}/{file}")]
            if files:
                break
        else:  # security: what is not limited must not be reported as limited
            raise FileNotFoundError(errno.ENOENT, f"none of them limits {name}")
        descriptor = os.open(f"{place}/{files[0]}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(amount).encode())
        finally:
            os.close(descriptor)


def _owned(place: str) -> int:
    """Make the cgroup; the descriptor whose lock owns it. Raises OSError."""
    for _ in range(_TRIES):
        try:
            os.mkdir(place)
        except FileExistsError:
            pass  # a dead launcher's, if its lock is free
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # the sweep of another launcher came before the lock
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(place) and os.path.samestat(os.fstat(descriptor), os.stat(place)):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass  # it is being swept
        os.close(descriptor)
        time.sleep(0.001)
    raise OSError(errno.EBUSY, "other launchers sweep it away, or own one of that name")


def give_back(cgroups: list[tuple[str, int]]) -> bool:
    """Remove the cgroups; false while a process is still in one of them."""
    gone = not [place for place, _ in cgroups if not _removed(place)]
    if gone:
        for _, descriptor in cgroups:
            os.close(descriptor)
    return gone


def _removed(place: str) -> bool:
    try:
        os.rmdir(place)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def give_back_all(folders: dict[str, str]) -> bool:
    """Remove every cgroup of this launcher's that is still there, whoever lost it; false while a process is in one."""
    own = f"{_PREFIX}{os.getpid()}-"
    places = [f"{folder}/{name}" for folder in set(folders.values()) for name in os.listdir(folder) if name.startswith(own)]
    return not [place for place in places if not _removed(place)]


def oom_kills(cgroups: list[tuple[str, int]]) -> int:
    """How often the kernel killed something in these cgroups because their memory limit was reached."""
    total = 0
    for place, _ in cgroups:
        for file in ("memory.oom_control", "memory.events"):
            total += sum(int(line.split()[1]) for line in _lines(f"{place}/{file}") if line.startswith("oom_kill "))
    return total


def sweep(folders: dict[str, str]) -> None:
    """Remove the cgroups of launchers that were killed: those whose owner's lock is free."""
    for folder in set(folders.values()):
        for name in os.listdir(folder):
            if not name.startswith(_PREFIX):
                continue
            try:
                descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue  # somebody else swept it
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(f"{folder}/{name}")
            except OSError:
                continue  # its owner lives, or what is in it would not die
            finally:
                os.close(descriptor)


def _remove(place: str) -> None:
    """Remove a cgroup that lost its owner, with what is still in it: on its way out, or stopped before it could be told to die."""
    deadline = time.monotonic() + _DYING_SECONDS
    while True:
        try:
            os.rmdir(place)
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        for pid in _lines(f"{place}/cgroup.procs"):
            _end_member(place, int(pid))
        time.sleep(0.002)


def _end_member(place: str, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return  # gone
    try:
        # security: the number may have gone to another process since it was read; what is in here now is a jail's
        if str(pid) in _lines(f"{place}/cgroup.procs"):
            _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def _usable(folder: str, file: str) -> bool:
    """Whether a cgroup with that limit can be made here, tried and undone."""
    place = f"{folder}/{_PREFIX}probe-{os.getpid()}"
    for _ in range(5):
        try:
            os.mkdir(place)
        except OSError:
            return False
        usable = os.access(f"{place}/{file}", os.W_OK)
        try:
            os.rmdir(place)
            return usable
        except FileNotFoundError:
            continue  # the sweep of another launcher took it for a dead one's, maybe before it was looked at
    return False


def _enable(parent: str) -> None:
    """Ask for the controllers in a delegated cgroup v2 folder; what was not obtained shows when it is tried."""
    try:
        with open(f"{parent}/cgroup.subtree_control", "w") as control:
            control.write("+memory +pids")
    except OSError:
        return


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
