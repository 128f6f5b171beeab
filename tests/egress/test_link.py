"""Sockets that end together, idle ones, and two tasks that are one."""

import functools
import signal
import socket

import pytest
import trio
import trio.testing

from engine.egress.link import BROKEN, Link, both, end_idle, plainly


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that do not block."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


@pytest.mark.parametrize("how", [Link.reset, Link.close])
async def test_whoever_waits_is_woken(how: object) -> None:
    """With an error that says it is over, as is whoever comes later."""
    assert callable(how)
    near, far = pair()
    link = Link(near, far)
    woken: list[int] = []

    async def wait(sock: socket.socket) -> None:
        try:
            await trio.lowlevel.wait_readable(sock)
        except BROKEN:
            woken.append(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, near)
        nursery.start_soon(wait, far)
        await trio.testing.wait_all_tasks_blocked()
        how(link)
    for sock in (near, far):
        with pytest.raises(BROKEN):
            sock.recv(1)
    assert (woken, near.fileno(), far.fileno(), link.closed) == ([1, 1], -1, -1, True)


async def test_nothing_is_opened_on_a_link_that_is_over() -> None:
    """What comes late is closed; before, it ends with the link."""
    link, (one, other) = Link(), pair()
    link.add(one)
    link.reset()
    with pytest.raises(trio.ClosedResourceError):
        link.add(other)
    assert (one.fileno(), other.fileno()) == (-1, -1)


async def test_one_socket_can_be_dropped_alone() -> None:
    """The others stay."""
    one, other = pair()
    link = Link(one, other)
    link.drop(one)
    assert (one.fileno(), other.fileno() >= 0, link.closed) == (-1, True, False)
    link.close()


async def test_an_idle_link_ends_and_a_busy_one_does_not(mock_clock: trio.testing.MockClock) -> None:
    """Each by its own last byte."""
    idle, busy = Link(), Link()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_idle, (idle, busy), 30)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(29)
        await trio.testing.wait_all_tasks_blocked()
        assert (idle.closed, busy.closed) == (False, False)
        await busy.pause(0)
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert (idle.closed, busy.closed) == (True, False)
        mock_clock.jump(29)
        await trio.testing.wait_all_tasks_blocked()
        assert busy.closed
        nursery.cancel_scope.cancel()


async def test_the_first_error_ends_both_and_is_in_no_group() -> None:
    """Whichever of the two it was."""

    async def fail() -> None:
        raise OSError("it broke")

    for one in (functools.partial(both, fail, trio.sleep_forever), functools.partial(both, trio.sleep_forever, fail)):
        with pytest.raises(OSError, match="it broke"):
            await one()


def test_an_interrupt_in_the_programs_own_task_is_in_no_group() -> None:
    """Whether it comes while the task works, or while it waits for the other one to end."""

    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    async def slow_to_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            signal.raise_signal(signal.SIGINT)
            with trio.CancelScope(shield=True):
                for _ in range(3):
                    await trio.lowlevel.checkpoint()

    async def fail() -> None:
        await trio.testing.wait_all_tasks_blocked()
        raise OSError("it broke")

    for one, other in ((trio.sleep_forever, interrupted), (slow_to_end, fail)):
        with pytest.raises(KeyboardInterrupt):
            trio.run(trio.lowlevel.enable_ki_protection(both), one, other)


async def test_a_cancellation_is_no_error_of_the_block() -> None:
    """It goes to whoever cancelled, and what is around it goes on."""
    with trio.CancelScope() as scope:
        async with plainly() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_of_several_errors_one_comes_out() -> None:
    """The first, when none is an interrupt."""

    async def fail() -> None:
        raise ValueError("it broke")

    async def nested() -> None:
        async with plainly() as around, plainly() as nursery:
            for _ in range(2):
                nursery.start_soon(fail)
            around.start_soon(trio.sleep_forever)

    with pytest.raises(ValueError, match="it broke"):
        await nested()
