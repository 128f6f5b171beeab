"""Python under the filters in the real kernel: asyncio, threads, files and sqlite3 run whole, and pid 1 can do its work.

Every case runs first without a filter, with the same answer, on each supported version that this machine has.
"""

import functools
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.jail import bpf
from engine.jail.syscalls import CHILD, JAIL, Arch, compose, load_profiles
from engine.places import data_dir

if platform.system() != "Linux" or platform.machine() not in list(Arch):
    pytest.skip("unproven here: there is no filter for this system", allow_module_level=True)

PROBE = Path(__file__).with_name("seccomp_probe.py")
IN_PID_1 = (JAIL,)
IN_A_CHILD = (JAIL, CHILD)  # stacked, as a tool meets them
ALONE = (CHILD,)  # the child's filter is whole by itself


@functools.cache
def code_of(names: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    profiles = load_profiles(Path(data_dir("policies")) / "syscalls")
    program = bpf.compile_filter(compose(profiles, names, Arch(platform.machine())))
    return program.blob.hex(), program.tgid_offsets


def interpreter(version: str) -> str:
    """An interpreter of that version on this machine; skips where there is none."""
    kept = sorted(str(path) for path in (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in (sys.executable, shutil.which(f"python{version}"), *kept):
        if candidate:
            asked = subprocess.run([candidate, "-ISc", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True)
            if asked.stdout.strip() == version:
                return candidate
    pytest.skip(f"unproven here: no Python {version}")


PYTHONS = pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
STACKS = pytest.mark.parametrize("stack", [(), IN_A_CHILD, ALONE], ids=["control", "child", "child-alone"])


def run(version: str, stack: Sequence[tuple[str, ...]], code: str, folder: Path) -> str:
    request: dict[str, Any] = {"filters": [code_of(names) for names in stack], "child": code_of(CHILD), "code": code}
    command = [interpreter(version), "-I", "-S", str(PROBE)]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    return done.stdout + done.stderr


ASYNCIO = """
import asyncio, signal
async def main():
    loop, seen = asyncio.get_running_loop(), []
    loop.add_signal_handler(signal.SIGUSR1, seen.append, "signal")
    one, two = await asyncio.gather(asyncio.to_thread(sum, range(10)), asyncio.sleep(0, "slept"))
    signal.raise_signal(signal.SIGUSR1)
    while not seen:
        await asyncio.sleep(0)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.to_thread(max, 3, 4))
    print(one, two, seen, task.result())
asyncio.run(main())
asyncio.run(main(), debug=True)
"""
THREADS = """
import threading, concurrent.futures
gate = threading.Barrier(65)
threads = [threading.Thread(target=gate.wait) for _ in range(64)]
[thread.start() for thread in threads]
gate.wait()
[thread.join() for thread in threads]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(abs, range(-5, 5))))
"""
FILES = """
import contextlib, fcntl, gzip, hashlib, decimal, mmap, os, pathlib, shutil, socket, sqlite3, tempfile, zipfile
tempfile.tempdir = os.getcwd()
here = pathlib.Path("d"); here.mkdir(); (here / "a").write_text("text"); os.chmod(here / "a", 0o640); os.utime(here / "a")
shutil.copy2(here / "a", here / "b"); shutil.copytree(here, "e"); (here / "b").rename(here / "c"); os.truncate(here / "c", 2)
with tempfile.TemporaryFile() as one, tempfile.NamedTemporaryFile() as two, tempfile.TemporaryDirectory() as three, contextlib.chdir(three):
    number = one.fileno(); one.write(b"x"); os.posix_fallocate(number, 0, 4096)
    os.pwritev(number, [b"y"], 0); os.preadv(number, [bytearray(1)], 0)
    fcntl.lockf(two, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.lockf(two, fcntl.LOCK_UN); os.fsync(two.fileno())
for mode in ("wal", "delete"):
    with contextlib.closing(sqlite3.connect(mode + ".db")) as base:
        base.execute("pragma journal_mode=" + mode); base.execute("create table t(x)")
        base.executemany("insert into t values(?)", [(n,) for n in range(100)]); base.commit(); base.execute("vacuum")
        print(base.execute("select sum(x) from t").fetchone()[0])
with open("m", "w+b") as file:
    file.truncate(8192)
    with mmap.mmap(file.fileno(), 8192) as view: view[:2] = b"ab"; view.flush()
with zipfile.ZipFile("z.zip", "w") as packed: packed.write("d/a")
with zipfile.ZipFile("z.zip") as packed: packed.extractall("z")
with gzip.open("g", "wb") as file: file.write(b"x")
left, right = socket.socketpair(); left.send(b"q"); print(right.recv(1), socket.socket(fileno=right.detach()).type.name)
print(sorted(name for _, _, names in os.walk(".") for name in names), decimal.Decimal(2).sqrt() > 1, len(hashlib.sha256(b"x").hexdigest()))
shutil.rmtree("e"); os.unlink("m"); print(os.cpu_count() > 0, shutil.disk_usage(".").total > 0)
"""
WANTED_FILES = "4950\n4950\nb'q' SOCK_STREAM\n['a', 'a', 'a', 'b', 'c', 'delete.db', 'g', 'm', 'wal.db', 'z.zip'] True 64\nTrue True\n"


@pytest.mark.slow
@PYTHONS
@STACKS
@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        pytest.param(ASYNCIO, "45 slept ['signal'] 4\n" * 2, id="asyncio"),
        pytest.param(THREADS, "25\n", id="threads"),
        pytest.param(FILES, WANTED_FILES, id="files"),
    ],
)
def test_python_runs_whole(version: str, stack: tuple[tuple[str, ...], ...], code: str, wanted: str, tmp_path: Path) -> None:
    """asyncio with threads and signals, 64 threads at once, files and sqlite3 behave as without a filter; so do imports after lock-down."""
    assert run(version, stack, code, tmp_path) == wanted


ZYGOTE = """
import os, resource, socket
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"go"], [os.open("/dev/null", os.O_RDONLY)])
pid = os.fork()
if pid == 0:
    message, fds, _, _ = socket.recv_fds(theirs, 16, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    load(bytes.fromhex(child[0]), child[1])
    tries = []
    limit = lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, attempt in (("fork", os.fork), ("limit", limit), ("read", lambda: os.fstat(fds[0]))):
        try:
            attempt()
            tries.append(name + " done")
        except (PermissionError, ValueError):  # the latter is how the module resource tells EPERM
            tries.append(name + " refused")
    theirs.send(", ".join(tries).encode())
    os._exit(7)
theirs.close()
print(ours.recv(100).decode(), os.waitstatus_to_exitcode(os.wait4(pid, 0)[1]))
"""


@pytest.mark.slow
@PYTHONS
@pytest.mark.parametrize("stack", [(), IN_PID_1], ids=["control", "pid-1"])
def test_pid_1_forks_and_locks_a_child(version: str, stack: tuple[tuple[str, ...], ...], tmp_path: Path) -> None:
    """Pid 1 forks, passes a descriptor and waits; its child sets a limit and locks itself, and then can neither fork nor set one."""
    assert run(version, stack, ZYGOTE, tmp_path) == "fork refused, limit refused, read done 7\n"
