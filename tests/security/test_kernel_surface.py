"""The doors of the kernel, tried by raw number from inside a real jail: what no tool needs is refused, what pretends to be another is
killed.
"""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from engine.host import Engine
from engine.jail import bpf
from engine.jail.syscalls import CHILD, JAIL, Arch, compose, load_profiles
from engine.places import data_dir
from tests import kit
from tests.attempts import given, source

if os.uname().machine != "x86_64":
    pytest.skip("unproven here: raw numbers are those of x86_64", allow_module_level=True)

ROOT = os.geteuid() == 0
AUDIT_X86_64 = 0xC000003E
# uretprobe and uprobe pass every filter (Linux 6.14, 6.18); called from anywhere but the kernel's own trampoline the one ends the caller,
# the other fails
UNFILTERED = {335, 336}
NAMESPACES = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000}
NAMESPACES |= {"network": 0x40000000, "time": 0x80}


def simulated() -> dict[int, int]:
    """Number -> errno with which a child is refused when all arguments are zero, as both filters say; what passes or kills is left out."""
    profiles = load_profiles(Path(data_dir("policies")) / "syscalls")
    blobs = [bpf.compile_filter(compose(profiles, names, Arch.X86_64)).blob for names in (JAIL, CHILD)]
    found = {}
    for number in range(600):
        actions = [bpf.simulate(blob, AUDIT_X86_64, number, [0] * 6) for blob in blobs]
        # SECCOMP_RET_ERRNO with the number in its low half; the stricter filter answers
        refused = [action & 0xFFFF for action in actions if action & 0xFFFF0000 == 0x00050000]
        if refused and number not in UNFILTERED:
            found[number] = refused[-1]
    return found


NUMBERS = "return {str(number): tried(raw, number, 0, 0, 0, 0, 0, 0) for number in given['numbers']}"


async def test_every_refused_number_is_refused_in_the_jail(engine: Engine, tmp_path: Path) -> None:
    """All numbers below 600 that the filters refuse by simulation are refused by the kernel, with the very error, in a real tool's
    process.
    """
    wanted = simulated()
    # a refused call is not made at all, so none of these can do harm; there is no control that could be survived
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(NUMBERS), "attempt", given(numbers=sorted(wanted)))
    assert outcome.value == {str(number): ["refused", errno.errorcode[code]] for number, code in wanted.items()}
    assert len(wanted) > 480


SPACES = """
def forked(number, *arguments):
    pid = raw(number, *arguments)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "made"
def with_record(flags):
    words = (flags, 0, 0, 0, 17, 0, 0, 0)
    record = ctypes.create_string_buffer(b"".join(word.to_bytes(8, "little") for word in words), 64)
    return forked(435, record, 64)
import threading
tries = {}
for name, flag in given["flags"].items():
    tries[name] = [tried(forked, 56, flag | 17, 0, 0, 0, 0), tried(with_record, flag), tried(forked, 56, flag | 17 | (1 << 32), 0, 0, 0, 0)]
thread = threading.Thread(target=lambda: tries.update(thread="ran"))
thread.start()
thread.join()
tries["leave"] = {name: tried(raw, 272, flag) for name, flag in given["flags"].items() if given["leave"]}
return tries
"""


async def test_no_namespace_can_be_made(engine: Engine, tmp_path: Path) -> None:
    """Neither by clone, with high bits, by clone3 whose flags no filter can read, nor by unshare; a thread still starts afterwards."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(SPACES), "attempt", given(flags=NAMESPACES, leave=True))
    value = outcome.value
    assert value.pop("leave") == {name: ["refused", "EPERM"] for name in NAMESPACES}
    assert value.pop("thread") == "ran"
    assert value == {name: [["refused", "EPERM"], ["refused", "ENOSYS"], ["refused", "EPERM"]] for name in NAMESPACES}
    bare = kit.bare(tmp_path / "bare", source(SPACES), "attempt", given(flags=NAMESPACES, leave=False)).value
    made = {name for name in NAMESPACES if bare[name][0] == ["done", "made"] or bare[name][1] == ["done", "made"]}
    # an ordinary user may make only a user namespace by itself; time namespaces cannot be made by clone at all (its bit is in the signal)
    assert made >= (set(NAMESPACES) - {"time"} if ROOT else {"user"})


# by number, with arguments that are harmless where nothing stops them
PROCESSES: dict[str, list[Any]] = {
    "ptrace attach to the first process": [101, 16, 1, 0, 0],
    "read its memory": [310, 1, "buffer", 1, "buffer", 1, 0],
    "write its memory": [311, 1, "buffer", 1, "buffer", 1, 0],
    "hold it": [434, 1, 0],
    "take its descriptor": [438, 0, 0, 0],
    "signal it through a hold": [424, 0, 0, 0, 0],
    "compare with it": [312, 1, 1, 0, 0, 0],
    "advise its memory": [440, 0, 0, 0, 0, 0],
    "signal it": [62, 1, 0],
    "signal all": [62, -1, 0],
    "signal its thread": [234, 1, 1, 0],
    "signal a thread of no group": [200, 1, 0],
    "queue a signal": [129, 1, 0, "buffer"],
    "read its limits": [302, 1, 7, 0, "buffer"],
    "set its limits": [302, 1, 7, "buffer", 0],
    "bind it to a processor": [203, 1, 8, "buffer"],
    "bind itself": [203, 0, 8, "buffer"],
    "its priority": [141, 0, 1, 5],
    "its scheduler": [144, 1, 0, "buffer"],
    "lock memory": [151, 1],
    "die without the first process": [157, 1, 0, 0, 0, 0],
    "adopt orphans": [157, 36, 1, 0, 0, 0],
    "be dumpable": [157, 4, 1, 0, 0, 0],
    "let others trace": [157, 0x59616D61, -1, 0, 0, 0],
    "a new session": [112],
}
DOORS: dict[str, list[Any]] = {
    "io_uring": [425, 1, "buffer"],
    "bpf": [321, 0, "buffer", 48],
    "keyring": [250, 0, -3, 0, 0, 0],
    "new key": [248, b"user", b"x", b"y", 1, -3],
    "asked key": [249, b"user", b"x", 0, 0],
    "page faults": [323, 1],
    "anonymous file": [319, b"x", 0],
    "secret file": [447, 0],
    "performance events": [298, "buffer", 0, -1, -1, 0],
    "kernel log": [103, 10, 0, 0],
    "mount": [165, b"none", b"/tmp", b"tmpfs", 0, 0],
    "unmount": [166, b"/tmp", 2],
    "new root": [155, b".", b"."],
    "change root": [161, b"."],
    "open a file system": [430, b"tmpfs", 0],
    "open a tree": [428, -100, b"/", 1],
    "move a mount": [429, -1, b"", -1, b"", 0],
    "set a mount": [442, -100, b"/", 0, "buffer", 32],
    "list mounts": [458, "buffer", "buffer", 8, 0],
    "swap": [167, b"/nothing", 0],
    "module": [313, -1, b"", 0],
    "new kernel": [246, 0, 0, 0, 0],
    "personality": [135, 0x40000],
    "segments": [154, 0, "buffer", 16],
    "ports": [173, 0, 1, 0],
    "quota": [179, 0, 0, 0, 0],
    "accounting": [163, 0],
    "shared memory": [29, 4242, 4096, 0o1600],
    "semaphores": [64, 4242, 1, 0o1600],
    "message queue": [68, 4242, 0o1600],
    "named queue": [240, b"stockade-attempt", 0o102, 0o600, 0],
    "watch files": [294, 0],
    "watch everything": [300, 0, 0],
    "own domain": [444, 0, 0, 1],
    "enter a domain": [446, -1, 0],
    "own filter": [317, 1, 0, "buffer"],
    "listen to a filter": [317, 1, 8, "buffer"],
    "filter by prctl": [157, 22, 2, "buffer", 0, 0],
    "execute": [59, b"/bin/true", "buffer", 0],
    "execute by descriptor": [322, 0, b"", "buffer", 0, 0x1000],
    "lock for all": [73, 0, 1],
    "timer": [222, 0, 0, "buffer"],
    "set the clock": [227, 0, 0],
    "send pages": [278, 1, "buffer", 1, 0],
}
# what a host refuses to this user as well: the record asks for another's signal, the leader of a group has its session, a compare may be
# off
HOSTS_OWN = {"queue a signal", "a new session", "compare with it"}
RAW = """
made = {}
for name, (number, *arguments) in given["calls"].items():
    named = [BUFFER if a == "buffer" else a.encode() if isinstance(a, str) else a for a in arguments]
    made[name] = tried(raw, number, *named)
return made
"""


def plain(calls: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The calls as data that can be sent to a tool."""
    return {name: [a.decode() if isinstance(a, bytes) else a for a in call] for name, call in calls.items()}


async def test_no_other_process_can_be_touched(engine: Engine, tmp_path: Path) -> None:
    """Tracing, memory, holds, signals, limits, priorities and processors of another process, and the own death signal, are refused."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(RAW), "attempt", given(calls=plain(PROCESSES)))
    assert {name: how for name, how in outcome.value.items() if how != ["refused", "EPERM"]} == {}
    harmless = {
        name: call
        for name, call in PROCESSES.items()
        if not name.startswith(("ptrace", "signal all", "bind", "set its", "its sch", "write"))
    }
    own = {name: [os.getpid() if at == 1 and a == 1 else a for at, a in enumerate(call)] for name, call in harmless.items()}
    bare = kit.bare(tmp_path / "bare", source(RAW), "attempt", given(calls=plain(own))).value
    assert {name for name, how in bare.items() if how[0] == "done"} >= {
        "hold it",
        "signal it",
        "read its limits",
        "adopt orphans",
        "be dumpable",
    }
    # of what is left, the kernel has words of its own: bad descriptors and records, not a missing permission
    others = {name for name, how in bare.items() if how == ["refused", "EPERM"]}
    assert others <= HOSTS_OWN | (set() if ROOT else {"lock memory", "its priority"})


# the control's shared memory, semaphores and queues, taken away again
REMOVED = """
for name, number in (("shared memory", 31), ("semaphores", 66), ("message queue", 71)):
    tried(raw, number, made[name][1], 0, 0)
tried(raw, 241, b"stockade-attempt")
return made
"""


async def test_no_rare_door_of_the_kernel_is_open(engine: Engine, tmp_path: Path) -> None:
    """Rings, programs, keys, events, anonymous files, mounts, modules, shared memory, queues, watches, own walls and execution are
    refused.
    """
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(RAW), "attempt", given(calls=plain(DOORS)))
    assert {name: how for name, how in outcome.value.items() if how != ["refused", "EPERM"]} == {}
    safe = ["io_uring", "new key", "anonymous file", "watch files", "own domain", "personality", "lock for all", "segments"]
    safe += ["shared memory", "semaphores", "message queue", "named queue", "timer"]
    body = RAW.replace("return made", REMOVED)
    bare = kit.bare(tmp_path / "bare", source(body), "attempt", given(calls=plain({name: DOORS[name] for name in safe}))).value
    # a host may have switched these three off for everybody, which it says in other words
    assert {name: how for name, how in bare.items() if how[0] != "done" and (name, how[1]) not in OFF_HERE} == {}


OFF_HERE = {
    ("io_uring", "EPERM"),
    ("io_uring", "ENOSYS"),
    ("segments", "ENOSYS"),
    ("new key", "ENOSYS"),
    ("new key", "EDQUOT"),
    ("io_uring", "EINVAL"),
}

# eax = number, then the call; the rest of the registers is zero
FAST = "b8{number}31ff31f631d24531d24531c04531c90f05c3"
SLOW = "53b81400000031dbcd805bc3"  # 32-bit getpid
CODE = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex(given["code"]))
return int(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
"""


def code(number: int) -> str:
    """Machine code that makes one call with zeros."""
    return FAST.format(number=number.to_bytes(4, "little").hex())


async def test_own_machine_code_meets_the_same_filter(engine: Engine, tmp_path: Path) -> None:
    """Code that a tool writes into memory and jumps into runs, and the kernel answers it as it answers Python."""
    answers = [(await kit.jailed(engine, tmp_path / "jailed", source(CODE), "attempt", given(code=code(n)))).value for n in (41, 57, 102)]
    assert answers[:2] == [-errno.EACCES, -errno.EPERM]
    assert answers[2] > 0
    assert kit.bare(tmp_path / "bare", source(CODE), "attempt", given(code=code(41))).value < 0  # family 0: the kernel's own refusal
    assert kit.bare(tmp_path / "bare", source(CODE), "attempt", given(code=code(102))).value == os.getuid()


@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param(code(0x40000000 | 39), id="x32-getpid"),
        pytest.param(code(0x40000000 | 520), id="x32-execve"),
        pytest.param(SLOW, id="32-bit-getpid"),
    ],
)
async def test_a_number_of_another_kind_kills(engine: Engine, tmp_path: Path, attempt: str) -> None:
    """Numbers of x32 and the 32-bit entry, where the same number means another call, end the process; the next call works."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(CODE), "attempt", given(code=attempt))
    assert (outcome.reason, outcome.lines) == ("crashed.signal", ("the process died of signal 31",))
    again = await engine.call("attempt", given(code=code(39)))
    assert again.reason == "ok.done"
    bare = kit.bare(tmp_path / "bare", source(CODE), "attempt", given(code=attempt))
    # where the kernel has no such entry the control ends by another signal or number, never by the filter's
    assert (bare.value is not None and bare.value != 0) or bare.returncode in (-11, -4)
