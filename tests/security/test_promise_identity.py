"""A worker is nobody: no user of the host, no capability, no way to get one, in namespaces of its own. Looked at from inside and from
outside.
"""

# ruff: noqa: ASYNC240 - looking at the host's files while a jail runs is the test, and nobody else waits on this loop

import contextlib
import os
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import trio

from engine.host import Engine
from engine.policy.model import Freshness
from tests import kit, levels, moments
from tests.attempts import given, source

ROOT = os.geteuid() == 0
TO_ROOT_ALONE = pytest.mark.skipif(not ROOT, reason="unproven here: the kernel shows this of a process that forbids dumps to root alone")
WAITING = """
from engine import Context, schema, tool

@tool(description="Waits.", input=schema.object({}), output={}, effect="read")
def waiting(context: Context) -> None:
    import threading, time
    try:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError:
        pass  # a WebAssembly worker has none
    context.emit("here")
    time.sleep(60)
"""


def below(pid: int) -> list[psutil.Process]:
    """Monitor, first process of the jail, its child: one line down from the launcher."""
    found = [psutil.Process(pid)]
    with contextlib.suppress(psutil.NoSuchProcess):  # it ends while it is looked at
        while children := moments.ordered(found[-1].children()):
            found.append(children[-1])
    return found[1:]


@contextlib.asynccontextmanager
async def running(engine: Engine, folder: Path, policy: Path | None = None) -> AsyncIterator[list[int]]:
    """Pids of monitor, first process and child while a call runs."""
    await engine.load(kit.write(folder, WAITING), policy=policy)
    with trio.fail_after(30):
        async with engine.stream("waiting", {}) as items:
            async for _ in items:
                break
            yield [process.pid for process in below(moments.Tree(engine).launcher.pid)]


def facts(pid: int, task: int | None = None) -> dict[str, str]:
    """The lines of a process's status."""
    place = f"/proc/{pid}/status" if task is None else f"/proc/{pid}/task/{task}/status"
    return dict(line.split(":\t", 1) for line in Path(place).read_text().splitlines() if ":\t" in line)


async def test_the_kernel_says_that_everything_in_the_jail_is_locked(engine: Engine, tmp_path: Path, worker_kind: str) -> None:
    """Each thread of the tool's process, and the first process, has no capability, no new privileges, and a filter; the child has one
    more.
    """
    async with running(engine, tmp_path / "source") as (_, first, child):
        for pid, filters in ((first, "1"), (child, "2")):
            for task in os.listdir(f"/proc/{pid}/task"):
                said = facts(pid, int(task))
                held = {
                    name: said[name]
                    for name in ("NoNewPrivs", "Seccomp", "Seccomp_filters", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
                }
                none = "0" * 16
                expected = {"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": filters} | dict.fromkeys(list(held)[3:], none)
                assert held == expected
        assert len(os.listdir(f"/proc/{child}/task")) == 2 or worker_kind == "wasm"  # whose threads are its engine's
    # the control: this process, from which all of that came
    assert (facts(os.getpid())["NoNewPrivs"], facts(os.getpid())["Seccomp"]) == ("0", "0")


async def test_the_uid_is_nobody_elses(engine: Engine, tmp_path: Path) -> None:
    """As root the worker has an unused uid of its own; an ordinary user's worker is that user, alone in a user namespace. No group
    stays.
    """
    async with running(engine, tmp_path / "source") as (_, first, child):
        for pid in (first, child):
            uids, gids = facts(pid)["Uid"].split(), facts(pid)["Gid"].split()
            assert len({*uids, *gids}) == 1 if ROOT else (set(uids), set(gids)) == ({str(os.getuid())}, {str(os.getgid())})
            if ROOT:
                assert 65_600 <= int(uids[0]) < 65_600 + 1024
                assert facts(pid)["Groups"].split() == []
        if ROOT:
            # asked for with the listing: others on this machine end while they are looked at
            others = [other.info for other in psutil.process_iter(["pid", "uids"]) if other.pid not in (first, child)]
            used = {uid for other in others if other["uids"] is not None for uid in other["uids"]}
            assert psutil.Process(child).uids().real not in used


@TO_ROOT_ALONE
async def test_every_namespace_is_the_jails_own(engine: Engine, tmp_path: Path) -> None:
    """Processes, files, network, IPC, name and cgroup are seen through namespaces that are not the host's."""
    names = ["mnt", "pid", "net", "ipc", "uts", "cgroup"]
    async with running(engine, tmp_path / "source") as (_, first, child):
        inside = {pid: {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in names} for pid in (first, child)}
        assert inside[first] == inside[child]
        assert [name for name in names if inside[child][name] == os.readlink(f"/proc/self/ns/{name}")] == []


@TO_ROOT_ALONE
async def test_nothing_is_mounted_but_what_was_planned(engine: Engine, tmp_path: Path, worker_kind: str) -> None:
    """The mounts of the jail, as the kernel lists them to root: all read-only but two scratch slots, none with set-id, no proc, no
    sysfs.
    """
    async with running(engine, tmp_path / "source") as (_, _, child):
        lines = Path(f"/proc/{child}/mountinfo").read_text().splitlines()
        mounts = {line.split()[4]: (set(line.split()[5].split(",")), line.split(" - ")[1].split()[0]) for line in lines}
        writable = [place for place, (options, _) in mounts.items() if "ro" not in options]
        assert [bool(re.fullmatch("/tmp/[0-9a-f]{32}", place)) for place in writable] == ([] if worker_kind == "wasm" else [True, True])
        assert [place for place, (options, _) in mounts.items() if "nosuid" not in options] == []
        assert [place for place, (options, _) in mounts.items() if "nodev" not in options and not place.startswith("/dev/")] == []
        assert {kind for _, kind in mounts.values()} & {
            "proc",
            "sysfs",
            "cgroup",
            "cgroup2",
            "devpts",
            "mqueue",
            "securityfs",
            "debugfs",
        } == set()
        assert {*mounts} >= {"/", "/bundle"} | (set() if worker_kind == "wasm" else {"/guest/engine/authoring"})


CAPABILITIES = """
X86 = os.uname().machine == "x86_64"
header, sets = ctypes.create_string_buffer((0x20080522).to_bytes(4, "little") + bytes(4), 8), ctypes.create_string_buffer(24)
got = tried(lambda: LIBC.capget(header, sets))
tries = {"uid 0": tried(os.setuid, 0), "uids": tried(os.setresuid, 0, 0, 0), "gid": tried(os.setgid, 0), "groups": tried(os.setgroups, [0]),
         "root": tried(os.chroot, "/"), "new privileges": tried(raw, 157 if X86 else 167, 38, 1, 0, 0, 0),
         "capset": tried(raw, 126 if X86 else 91, header, sets),
             "name": tried(raw, 170 if X86 else 161, os.uname().nodename.encode(), len(os.uname().nodename))}
return {"tries": tries, "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()], "pids": [os.getpid() > 1, os.getppid()]}
"""


async def test_nobody_can_become_somebody(engine: Engine, tmp_path: Path) -> None:
    """Every call that changes who a process is, is refused; the parent is the first process, and its number says nothing of the host."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(CAPABILITIES), "attempt", given())
    tries = outcome.value["tries"]
    assert {name: how for name, how in tries.items() if how != ["refused", "EPERM"]} == {}
    assert (len(set(outcome.value["ids"])), 0 in outcome.value["ids"], outcome.value["pids"]) == (1, False, [True, 1])
    bare = kit.bare(tmp_path / "bare", source(CAPABILITIES), "attempt", given()).value["tries"]
    # an ordinary user is refused by the host for most of these; taking its own empty capabilities again is what it may
    assert {name for name, how in bare.items() if how[0] == "done"} >= (
        {"uid 0", "uids", "gid", "groups", "capset", "root"} if ROOT else {"capset", "new privileges"}
    )


async def test_a_module_at_import_is_locked_as_well(engine: Engine, tmp_path: Path) -> None:
    """The first line of a module that is imported before any call, and a thread it starts there, already meet the whole wall."""
    before = """
import threading
FOUND = {}
def look(name):
    FOUND[name] = [tried(os.fork), tried(read, "/etc/passwd"), tried(raw, 165 if os.uname().machine == "x86_64" else 40, 0, 0, 0, 0, 0)]
look("module")
thread = threading.Thread(target=look, args=("thread",))
thread.start()
thread.join()
"""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source("return FOUND", before), "attempt", given())
    walls = [["refused", "EPERM"], ["refused", "ENOENT"], ["refused", "EPERM"]]
    assert outcome.value == {"module": walls, "thread": walls}
    control = source(
        "return FOUND",
        before.replace("[tried(os.fork), ", "[").replace(', tried(raw, 165 if os.uname().machine == "x86_64" else 40, 0, 0, 0, 0, 0)', ""),
    )
    assert kit.bare(tmp_path / "bare", control, "attempt", given()).value["module"][0][0] == "done"


LIMITS = """
import resource
names = ["CPU", "AS", "FSIZE", "NOFILE", "NPROC", "MEMLOCK", "CORE"]
raised = {}
for name in names:
    number = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(number)
    raised[name] = [tried(resource.setrlimit, number, (soft, hard)), tried(resource.prlimit, os.getppid(), number),
        tried(resource.prlimit, 0, number, (soft, hard))]
return {"limits": {name: list(resource.getrlimit(getattr(resource, "RLIMIT_" + name))) for name in names}, "raised": raised}
"""


async def test_limits_are_those_of_the_policy_and_stay(engine: Engine, tmp_path: Path) -> None:
    """The kernel's limits are what the policy says, soft and hard, and no new one can be set for this or another process."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(LIMITS), "attempt", given())
    limits = outcome.value["limits"]
    address = limits.pop("AS")
    mib = 1 << 20
    assert limits == {
        "CPU": [30, 31],
        "FSIZE": [64 * mib] * 2,
        "NOFILE": [256] * 2,
        "NPROC": limits["NPROC"],
        "MEMLOCK": [0, 0],
        "CORE": [0, 0],
    }
    assert limits["NPROC"] in ([67, 67], [68, 68])
    assert 256 * mib < address[0] == address[1] < 400 * mib
    # ValueError is how the module says that a limit was not permitted
    assert {name: how for name, how in outcome.value["raised"].items() if {why for _, why in how} - {"EPERM", "ValueError"}} == {}
    bare = kit.bare(tmp_path / "bare", source(LIMITS), "attempt", given()).value["raised"]
    assert {how[0][0] for how in bare.values()} == {"done"}


DESCRIPTORS = """
def alive(number):
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return {0o010000: "pipe", 0o020000: "device", 0o140000: "socket", 0o040000: "folder", 0o100000: "file"}[found.st_mode & 0o170000]
return {str(number): alive(number) for number in range(8192) if alive(number)}
"""


async def test_four_descriptors_and_no_other(engine: Engine, tmp_path: Path) -> None:
    """The tool holds the null device, its two outputs and its channel, even when the engine's process holds files that may be inherited."""
    (tmp_path / "held.txt").write_text("canary")
    held = [os.open(tmp_path / "held.txt", os.O_RDWR), os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)]
    try:
        for descriptor in held:
            os.set_inheritable(descriptor, True)
        async with kit.clean_engine(tmp_path / "other") as late:
            outcome = await kit.jailed(late, tmp_path / "jailed", source(DESCRIPTORS), "attempt", given())
        bare = kit.bare(tmp_path / "bare", source(DESCRIPTORS), "attempt", given(), close_fds=False).value
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert outcome.value == {"0": "device", "1": "pipe", "2": "pipe", "3": "socket"}
    assert [bare[str(descriptor)] for descriptor in held] == ["file", "folder"]


def held(pid: int) -> list[tuple[str, str]]:
    """What the descriptors of a process are, and which way they are open; numbers and random names left out."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        flags = re.search(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{number}").read_text())
        assert flags is not None
        way = ("reads", "writes", "both")[int(flags[1], 8) & os.O_ACCMODE]
        found.append((re.sub(r"[0-9a-f]{32}|\d+", "*", os.readlink(f"/proc/{pid}/fd/{number}")), way))
    return sorted(found)


NULL, SOCKET, LOCK = ("/dev/null", "both"), ("socket:[*]", "both"), ("/run/stockade/uids/*", "reads")
OF_MONITOR = [*[NULL] * 3, LOCK, ("pipe:[*]", "writes")]  # the pipe that tells the first process that the monitor is alive
OF_FIRST = {
    NULL,
    SOCKET,  # the supervisor's
    ("/tmp/*", "reads"),  # mounts of the jail: the scratch slots
    ("anon_inode:[pidfd]", "both"),  # of its children
    ("anon_inode:[landlock-ruleset]", "both"),  # for its children
}
OF_CHILD = [("/dev/null", "reads"), *[("pipe:[*]", "writes")] * 2, SOCKET]


@TO_ROOT_ALONE
@pytest.mark.parametrize("level", [Freshness.FRESH, Freshness.SNAPSHOT])
async def test_no_process_of_a_jail_holds_a_file_of_the_host(engine: Engine, tmp_path: Path, level: Freshness) -> None:
    """Each descriptor of monitor, first process and child is one it needs; the lock of the uid is the monitor's alone, to be held only.

    The monitor, where no tool code ever runs, is the control: there the listing does find the lock.
    """
    async with running(engine, tmp_path / "source", levels.policy(tmp_path / "policy", level)) as (monitor, first, child):
        assert (held(monitor), held(child)) == (OF_MONITOR, OF_CHILD)
        assert {*held(first)} | {("anon_inode:[landlock-ruleset]", "both")} == OF_FIRST
        lock = Path("/run/stockade/uids", facts(first)["Uid"].split()[0])
        descriptors = {pid: [os.stat(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")] for pid in (monitor, first)}
        files = {pid: [found for found in descriptors[pid] if stat.S_ISREG(found.st_mode)] for pid in (monitor, first)}
        assert (files[first], [os.path.samestat(found, lock.stat()) for found in files[monitor]]) == ([], [True])


RECEIVE = """
import array, fcntl, socket
pair = socket.socketpair()
channel = socket.socket(fileno=os.dup(3)) if given["jailed"] else pair[1]
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.open("/dev/null", os.O_RDONLY)]))]
return {"send": tried(channel.sendmsg, [b"x"], rights), "own pair": tried(pair[0].sendmsg, [b"x"], rights),
    "receive": tried(pair[0].recvmsg, 1, 100),
        "peer": tried(channel.getsockopt, socket.SOL_SOCKET, socket.SO_PEERCRED),
            "owner": tried(fcntl.fcntl, channel.fileno(), fcntl.F_SETOWN, os.getpid()),
        "option": tried(channel.setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)}
"""


async def test_no_descriptor_goes_through_the_channel(engine: Engine, tmp_path: Path) -> None:
    """Neither sent to the supervisor nor over an own pair; the channel's options and owner are not the tool's to set or ask."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(RECEIVE), "attempt", given(jailed=True))
    assert {name: how for name, how in outcome.value.items() if how != ["refused", "EPERM"]} == {}
    bare = kit.bare(tmp_path / "bare", source(RECEIVE), "attempt", given(jailed=False)).value
    assert {how[0] for how in bare.values()} == {"done"}


async def test_no_folder_is_open_to_climb_from(engine: Engine, tmp_path: Path) -> None:
    """Above the own slot nothing can be opened or entered for reading, neither from the working directory nor from any descriptor."""
    body = """
    ways = {"above": "../..", "far above": "../../../../../..", "root": "/"}
    tries = {name: tried(os.open, way, os.O_RDONLY) for name, way in ways.items()}
    os.chdir("/")
    return {**tries, "entered": tried(os.listdir, "."),
        "from each": [tried(lambda: os.open("..", os.O_RDONLY, dir_fd=n))[1] for n in range(4)]}
    """
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", given())
    denied = ["refused", "EACCES"]
    assert outcome.value == {"above": denied, "far above": denied, "root": denied, "entered": denied, "from each": ["ENOTDIR"] * 4}
    bare = kit.bare(tmp_path / "bare", source(body), "attempt", given(), cwd=tmp_path).value
    assert [bare[name][0] for name in ("above", "far above", "root", "entered")] == ["done"] * 4


def _sockets(pid: int) -> set[str]:
    """The sockets that a process holds."""
    held = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    return {one for one in held if one.startswith("socket:")}


async def test_who_waits_to_be_ordered_holds_its_own_end_alone(engine: Engine, tmp_path: Path) -> None:
    """The null device, one socket, its monitor's pipe and its two empty slots; the socket is nobody else's, and no jail has one of the
    launcher's.
    """
    await engine.load(kit.write(tmp_path / "source", source("return 1")))
    _, waiting = await moments.made_ahead(engine.launcher_pid)
    held = [os.readlink(f"/proc/{waiting.pid}/fd/{name}") for name in sorted(os.listdir(f"/proc/{waiting.pid}/fd"), key=int)]
    slots = os.path.join(engine._state.places.mountpoint, "tmp")
    kinds = ["slot" if os.path.dirname(one) == slots else one.split(":")[0] for one in held]
    assert kinds == [*["/dev/null"] * 3, "socket", "pipe", "slot", "slot"]
    assert (await engine.call("attempt", given())).reason == "ok.done"
    _, another = await moments.made_ahead(engine.launcher_pid)
    launchers = _sockets(engine.launcher_pid)
    assert len(launchers) == 2  # the supervisor's, and the other end of what waits now
    jailed = moments.Tree(engine)
    for one in (*jailed.monitors, *(jailed.firsts if os.geteuid() == 0 else [])):  # a locked process shows its descriptors to root alone
        assert _sockets(one.pid) & (launchers | _sockets(another.pid)) == set()
