"""The process that checks large values: what it is given, what it may do, and that it dies with the supervisor."""

import contextlib
import errno
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.errors import HostError
from engine.worker import checker as checkers
from engine.worker.checker import CheckingProcess
from tests.locked import lock_of_this_host


@asynccontextmanager
async def running() -> AsyncIterator[CheckingProcess]:
    """A process, ended afterwards."""
    process = await CheckingProcess.start(await lock_of_this_host())
    try:
        yield process
    finally:
        await process.close()


def read(pid: int, name: str) -> str:
    """A file of the kernel's on a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


def status(pid: int) -> dict[str, str]:
    """What the kernel says of a process."""
    lines = read(pid, "status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def reads(channel: socket.socket) -> None:
    """Returns when the process has begun with an order, and waits for the rest of it: its program runs, as it always will.

    That it was spawned says less: the kernel tells so while it has not laid out the new program's environment yet.
    """
    channel.send((1 << 30).to_bytes(4, "big"))
    with contextlib.suppress(BlockingIOError):
        while True:
            channel.send(bytes(1 << 16))
    await trio.lowlevel.wait_writable(channel)


async def test_it_inherits_nothing() -> None:
    """Four names in its environment, the null device three times, and its channel."""
    os.environ["STOCKADE_TEST_CANARY"] = "zebra"
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        process, pidfd, channel = checkers._spawn()  # not locked yet, so that an ordinary user can look as well
        with trio.fail_after(60):
            await reads(channel)
        seen = psutil.Process(process.pid)
        assert seen.environ() == {"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "PATH": "/nonexistent", "TZ": "UTC"}
        assert (seen.cwd(), os.getsid(process.pid)) == ("/", process.pid)
        assert {seen_file for number in range(3) if (seen_file := os.readlink(f"/proc/{process.pid}/fd/{number}"))} == {"/dev/null"}
        assert not [path for path in seen.cmdline() if "zebra" in path]
        await CheckingProcess(process, pidfd, channel).close()
    finally:
        os.close(kept)
        del os.environ["STOCKADE_TEST_CANARY"]


async def test_it_is_started_by_the_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its death signal goes by thread: one of the pool would end, and the process with it, after ten idle seconds."""
    threads = []

    def noted() -> Any:
        threads.append(threading.get_ident())
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(checkers, "_spawn", noted)
    with pytest.raises(HostError):
        await CheckingProcess.start({})
    assert threads == [threading.get_ident()]


async def test_it_is_locked_before_its_first_value() -> None:
    """A filter, no new privileges, no capabilities, bounds that it cannot lift, one thread."""
    async with running() as process:
        told, limits = status(process.pid), read(process.pid, "limits")
        assert (told["Seccomp"], told["NoNewPrivs"], told["Threads"]) == ("2", "1", "1")
        assert {int(told[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
        if os.geteuid() == 0:
            assert set(told["Uid"].split()) == {str(told["Uid"].split()[0])} != {"0"}
            assert "Max address space         1073741824" in limits
            assert sorted(os.listdir(f"/proc/{process.pid}/fd")) == ["0", "1", "2", "3"]


async def test_it_serves_order_after_order() -> None:
    """Answers carry the number of their order; a refused value does not end it."""
    async with running() as process:
        details = {"kind": 23, "depth": 9, "nodes": 99, "schema": '{"type":"string"}'}
        for payload, wanted in (
            (b"\x92\x17\xa1a", ["sound", "lines", "digest"]),
            (b"\x92\x17\xc4\0", ["sound", "fault"]),
            (b"\x92\x17\x01", ["sound", "lines"]),
        ):
            await process.order("value", details, payload)
            assert [(await process.answer())[0] for _ in wanted] == wanted


async def test_it_ends_when_its_channel_does() -> None:
    """Whoever lets go of it need not kill it."""
    process, pidfd, channel = checkers._spawn()
    channel.close()
    with trio.fail_after(20):
        await trio.lowlevel.wait_readable(pidfd)
    os.close(pidfd)
    assert process.wait() == 0


@pytest.mark.parametrize("lock", [{}, {"filter": "zz"}])
async def test_a_lock_that_fails_is_no_process(lock: Mapping[str, Any]) -> None:
    """It is not used unlocked."""
    with pytest.raises(HostError) as caught:
        await CheckingProcess.start(lock)
    assert (caught.value.code, caught.value.lines) == ("refused.start_failed", ("the checking process did not come up",))


_PROGRAM = """
import sys, trio
sys.path[:0] = [{project!r}]
from engine.worker.checker import CheckingProcess
from tests.locked import lock_of_this_host
async def main():
    process = await CheckingProcess.start(await lock_of_this_host())
    print(process.pid, flush=True)
    await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.slow
def test_it_dies_with_the_supervisor(project: Path) -> None:
    """A supervisor that is killed has no time to end it: the kernel does."""
    supervisor = subprocess.Popen([sys.executable, "-c", _PROGRAM.format(project=str(project))], stdout=subprocess.PIPE, text=True)
    with supervisor:
        assert supervisor.stdout is not None
        pidfd = os.pidfd_open(int(supervisor.stdout.readline()))
        supervisor.kill()
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        assert ended.poll(20_000)
        os.close(pidfd)


async def test_the_channel_is_a_pair_of_its_own() -> None:
    """Nobody else can connect to it: it has no name."""
    process, pidfd, channel = checkers._spawn()
    assert (channel.family, channel.getsockname()) == (socket.AF_UNIX, "")
    await CheckingProcess(process, pidfd, channel).close()
