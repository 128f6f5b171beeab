"""The locked zygote: first process of the jail, which never runs tool code, unless it is told to import the tool (``snapshot.py``).

Its job: fork one child per request of the supervisor, lock that child before it reads its first tool byte, empty its
scratch slot when it is gone, and say how it ended.
Not its job: entering the jail (``enter.py``), running the tool (``guest/main.py``), deciding when to fork or to kill (the supervisor).
Laws:
1. A child is locked (Landlock domain, rlimits, filter, descriptors) before the guest begins (tests/security/test_promise_siblings.py).
2. A slot is given out again only after its child's exit was seen and the slot is empty (tests/security/test_promise_fresh.py).
3. Messages on the control socket are fixed records; a child never holds that socket (tests/security/test_promise_identity.py).
4. Behind the wall no process has the name of a slot but the child in it (tests/security/test_promise_siblings.py).
"""

import _signal
import _socket
import os
import resource
import select
import struct
from collections.abc import Callable, Collection
from typing import Any

from enter import kernel
from enter.enter import Plan, die_with, named

NUMBER = struct.Struct("<cQB")  # b"S" to fork or b"I" to import, a number, a slot: host to zygote, with three descriptors
ENDED = struct.Struct("<cQiQQQ")  # b"X", number, wait status, user us, system us, peak RSS in KiB
_CHANNEL = 3
Serve = Callable[[int, str], None]
Learn = Callable[[list[int], int], bool]


class Zygote:
    """Holds the control socket and the living children by pidfd."""

    def __init__(self, plan: Plan, control: _socket.socket, slots: list[int], own: list[int], serve: Serve, learn: Learn) -> None:
        self._plan, self._control, self._slots, self._own, self._serve, self._learn = plan, control, slots, own, serve, learn
        self._children: dict[int, tuple[int, int, int]] = {}  # pidfd -> number, pid, slot
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)
        self._lock = Lock(plan)

    def run(self) -> None:
        """Serve until the supervisor lets go of the control socket."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._children:
                    self._bury(descriptor)
                elif not self._request():
                    return

    def _request(self) -> bool:
        data, descriptors = receive(self._control, NUMBER.size, 3)
        if not data:
            return False
        kind, number, slot = NUMBER.unpack(data)
        if kind == b"I":
            well = self._learn(descriptors, self._slot(slot))
            self._lock = Lock(self._plan)  # the tool may have tightened limits, and a child cannot raise them again
            return well
        pid = os.fork()
        if pid == 0:
            self._child(descriptors, slot)
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (number, pid, slot)
        self._poll.register(pidfd, select.POLLIN)
        return True

    def _child(self, descriptors: list[int], slot: int) -> None:
        status = 70
        try:
            own = self._own[slot] if self._own else -1
            self._lock.child(descriptors, own, self._slot(slot))
            self._serve(_CHANNEL, os.getcwd() if self._slots else "/")
            status = 0
        except kernel.Step as step:
            os.write(2, f"the worker could not lock itself: {step.name}: {step.text}\n".encode())
        finally:
            os._exit(status)

    def _slot(self, number: int) -> int:
        """The open slot of that number; -1 in a jail that has none, because its children have no files."""
        return self._slots[number] if self._slots else -1

    def _bury(self, pidfd: int) -> None:
        number, pid, slot = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, used = os.wait4(pid, 0)
        if not self._plan["walls"]:  # inside the wall nothing can be forked, and the namespace ends what is left
            end_orphans({living for _, living, _ in self._children.values()})
        if self._slots:
            empty(self._slots[slot])
        micro = [int(seconds * 1_000_000) for seconds in (used.ru_utime, used.ru_stime)]
        self._control.send(ENDED.pack(b"X", number, status, *micro, used.ru_maxrss))


class Lock:
    """How children are locked. What is the same for all of them is made here, once: a page that a child writes is a page copied."""

    def __init__(self, plan: Plan) -> None:
        self._walls: bool = plan["walls"]
        filters = plan["filters"]
        self._kernel = kernel.ChildLock(bytes.fromhex(filters["child"]), filters["tgid"]) if self._walls else None
        limits = plan["limits"]
        self._last = _CHANNEL + plan.get("kept", 0)  # its descriptor with the highest number
        for name in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_CORE):  # of no use to a zygote either, so its children inherit them
            resource.setrlimit(name, (0, 0))
        self._limits = [
            (name, _at_most(name, soft, hard))
            for name, soft, hard in (
                (resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1),  # SIGXCPU, a second later SIGKILL (setrlimit(2))
                (resource.RLIMIT_AS, limits["address_bytes"], limits["address_bytes"]),
                (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
                (resource.RLIMIT_NOFILE, limits["descriptors"], limits["descriptors"]),
                (resource.RLIMIT_NPROC, limits["tasks"], limits["tasks"]),
                (resource.RLIMIT_DATA, limits.get("data_bytes"), limits.get("data_bytes")),
            )
            if soft is not None
        ]

    def child(self, descriptors: list[int], ruleset: int, slot: int) -> None:
        """Make this process a stranger to its siblings and to pid 1, for good. Raises Step."""
        channel, out, err = descriptors
        if not self._walls:
            kernel.prctl("die with the zygote", kernel.PR_SET_PDEATHSIG, _signal.SIGKILL)
        os.dup2(channel, _CHANNEL)
        os.dup2(out, 1)
        os.dup2(err, 2)
        # security: the inherited one is shared with every jail, so flags set on it by one call would be read by the next
        os.dup2(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), 0)
        if ruleset >= 0 and self._kernel is not None:
            self._kernel.enter_landlock(ruleset)
        if slot >= 0:
            move_in(slot)
        os.closerange(self._last + 1, 1 << 20)  # security: the control socket, the sibling's slot and the rulesets go here
        for name, pair in self._limits:
            resource.setrlimit(name, pair)
        if self._kernel is not None:
            self._kernel.load_filter()
        # the kernel adds this process's credentials to the first byte: that is how the supervisor learns who we are
        os.write(_CHANNEL, b"\x01")


def _at_most(name: int, soft: int, hard: int) -> tuple[int, int]:
    """The pair, but never above what was inherited tighter. Nothing can change that later: the filters forbid it."""
    ceiling = resource.getrlimit(name)[1]
    return (soft, hard) if ceiling == resource.RLIM_INFINITY else (min(soft, ceiling), min(hard, ceiling))


def move_in(slot: int) -> None:
    """Make a folder in the slot the working directory, one that nobody had before: nothing can have been left on it."""
    folder = os.urandom(16).hex()  # security: made here, so no other process of the jail ever has the name (stat is not Landlock's)
    try:
        os.fchdir(slot)
        os.mkdir(folder, 0o700)
        os.chdir(folder)
    except OSError as error:
        raise named("enter the scratch slot", error) from None


def end_orphans(keep: set[int]) -> None:
    """Without the wall: end every process that came down to us from a tool, until there is none."""
    children = f"/proc/self/task/{os.getpid()}/children"
    while True:
        with open(children) as file:
            found = {int(word) for word in file.read().split()} - keep
        if not found:
            return
        for pid in found:
            pidfd = os.pidfd_open(pid)  # ours and not waited for, so the number is still its own
            _signal.pidfd_send_signal(pidfd, _signal.SIGKILL)
            os.close(pidfd)
            os.waitpid(pid, 0)


def quiet_signals(traps: Collection[int] = ()) -> None:
    """No handler stays that a sibling or the terminal could reach; for pid 1 the default means: ignored (pid_namespaces(7)).

    But for ``traps``, which an engine of WebAssembly raises against itself.
    """
    for number in range(1, _signal.NSIG):
        if number in (_signal.SIGKILL, _signal.SIGSTOP, 32, 33, 34, *traps):  # 32 to 34 belong to the threads library
            continue
        try:
            # as every Python process has them, so that a broken pipe or a full file is an error and not a death
            wanted = _signal.SIG_IGN if number in (_signal.SIGPIPE, _signal.SIGXFSZ) else _signal.SIG_DFL
            _signal.signal(number, wanted)
        except (OSError, ValueError):
            continue
    _signal.set_wakeup_fd(-1)


def receive(control: _socket.socket, size: int, wanted: int) -> tuple[bytes, list[int]]:
    """One record with exactly ``wanted`` descriptors; an empty record means that the supervisor is gone."""
    width = struct.calcsize("i")
    data, ancillary, _, _ = control.recvmsg(size, _socket.CMSG_SPACE(wanted * width))
    found: list[int] = []
    for level, kind, payload in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            found += struct.unpack(f"{len(payload) // width}i", payload[: len(payload) // width * width])
    if data and len(found) != wanted:
        raise kernel.Step("receive the child's descriptors", 0, f"{len(found)} instead of {wanted}")
    return data, found


def empty(slot: int) -> None:
    """Remove all that lies in a slot, whatever its depth or modes, with a fixed number of descriptors and no recursion."""
    if os.fstat(slot).st_nlink == 0:  # without the wall a tool can remove it: this jail ends, and the next call gets another
        raise kernel.Step("empty the scratch slot", 0, "it was removed")
    os.fchmod(slot, 0o700)  # security: the slot itself is its child's as well: closed, it would end the jail
    token, moved = "", 0
    while names := _names(slot):
        for name in names:
            if _removed(slot, name):
                continue
            token = token or os.urandom(8).hex()  # security: a name that the child could not have put in the way
            # a folder with something in it: its entries move up, so that depth never costs a descriptor or a stack frame
            os.chmod(name, 0o700, dir_fd=slot)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=slot)
            try:
                for entry in os.listdir(inner):
                    if not _removed(inner, entry):
                        os.chmod(entry, 0o700, dir_fd=inner)
                        moved += 1
                        os.rename(entry, f"{token}-{moved}", src_dir_fd=inner, dst_dir_fd=slot)
            finally:
                os.close(inner)
    os.utime(slot, (0, 0))  # security: times that a child set on its slot are not for the next one to read


def _names(folder: int) -> list[str]:
    # security: a tmpfs of Linux 6.11 to 6.13 lists what there was at the last rewind, and listdir's own is at its end: what was made
    # since would stay for the next child
    os.lseek(folder, 0, os.SEEK_SET)
    return os.listdir(folder)


def _removed(folder: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=folder)  # first, because a child's own folder, mostly empty, is all there is after most calls
    except NotADirectoryError:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def preload(names: list[str]) -> None:
    """Import standard-library modules by the operator's list: the author of a tool does not choose what runs here."""
    for name in names:
        try:
            __import__(name)
        except Exception as error:
            raise kernel.Step(f"import {name} beforehand", 0, type(error).__name__) from None


def report(facts: dict[str, Any]) -> bytes:
    """The record that says the jail is up: what was put in force, one ``name=level`` a line."""
    return b"U" + "".join(f"{name}={level}\n" for name, level in facts.items()).encode()


def failure(step: kernel.Step) -> bytes:
    """The record that says which step of entering failed, and how."""
    return b"F" + f"{step.name}\n{step.number}\n{step.text}".encode()


def lock_parser(details: dict[str, Any], launcher: int) -> None:
    """For a process that only parses: no files, no processes, no rights, bounded time and memory. Raises Step."""
    if details["uid"] is not None:
        kernel.drop_bounding_set()
        os.setgroups([])
        os.setresgid(*[details["uid"]] * 3)
        os.setresuid(*[details["uid"]] * 3)
    kernel.drop_capabilities()
    die_with(launcher, "die with the launcher")  # the change of uid clears it
    kernel.prctl("set no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl("forbid dumps", kernel.PR_SET_DUMPABLE, 0)
    for name, value in ((resource.RLIMIT_CPU, details["cpu_s"]), (resource.RLIMIT_AS, details["address_bytes"]), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(name, (value, value))
    if sum(details["landlock"]):
        ruleset = kernel.landlock_ruleset(tuple(details["landlock"]))
        kernel.landlock_enter(ruleset)
        os.close(ruleset)
    kernel.seccomp(bytes.fromhex(details["filter"]))
