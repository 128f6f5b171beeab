"""Private memory of processes, and what still fits a budget."""

import os
import subprocess
import sys

import psutil
import pytest
import trio

from engine.supervision import memory
from engine.supervision.memory import Measured, private_bytes

HOLDING = "import sys; held = bytearray(32 << 20); print('here', flush=True); sys.stdin.read()"


def holding() -> "subprocess.Popen[bytes]":
    """A process below us that keeps 32 MiB until it is told to end."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    return process


async def test_what_a_process_holds_is_seen() -> None:
    """It is counted with at least as much, and when it is gone, with nothing."""
    before = await private_bytes(os.getpid())
    process = holding()
    try:
        during = await private_bytes(os.getpid())
    finally:
        process.communicate()
    assert 32 << 20 <= during - before < 80 << 20
    assert await private_bytes(process.pid) == 0


async def test_one_that_may_not_be_looked_into_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user: what it keeps is counted, though the exact figure is refused."""

    def denied(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    process = holding()
    try:
        monkeypatch.setattr(psutil.Process, "memory_full_info", denied)
        estimate = memory._private(process.pid)
    finally:
        process.communicate()
    assert 32 << 20 <= estimate < 80 << 20


async def test_others_go_on_between_two_processes() -> None:
    """Looking at a process lets the event loop go on."""
    process, turns = holding(), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            for _ in range(3):  # two tasks that are ready run in any order, so one look may be over before the other task's turn
                await private_bytes(os.getpid())
            assert turns > 0
            nursery.cancel_scope.cancel()
    finally:
        process.communicate()


@pytest.mark.parametrize(
    ("measured", "living", "budget", "fits"),
    [
        (Measured(), 0, 8 << 20, True),  # nothing seen yet: a jail is taken for 8 MiB
        (Measured(), 0, (8 << 20) - 1, False),
        (Measured(bytes=40 << 20, jails=4), 4, 50 << 20, True),  # as large as the others are on average
        (Measured(bytes=40 << 20, jails=4), 4, (50 << 20) - 1, False),
        (Measured(bytes=40 << 20, jails=4), 6, 70 << 20, True),  # two came since it was looked
        (Measured(bytes=40 << 20, jails=4), 6, (70 << 20) - 1, False),
        (Measured(bytes=40 << 20, jails=4), 1, 50 << 20, True),  # some went: still one more than was seen
    ],
)
def test_one_more_fits(measured: Measured, living: int, budget: int, fits: bool) -> None:
    """By what was measured, and what came since."""
    assert measured.fits(living, budget) is fits
