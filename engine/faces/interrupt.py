"""Ctrl-C and SIGTERM as an orderly end: what runs is cancelled, everything of it is cleaned up, then the command says so.

Its job: run one async command and give back its answer, or raise ``Interrupted`` after its clean-up.
Not its job: what cleaning up is (``Engine``), the exit code (``cli.py``).
Laws:
1. A signal never ends the process while something of a call is alive (tests/e2e/test_cli_signals.py).
2. What a command raises comes out as it was raised, not wrapped in a group (tests/e2e/test_cli_run.py).
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


class Interrupted(Exception):
    """A signal asked for the end; the command has ended cleanly."""


def run(command: Callable[[], Awaitable[T]], stopped: Callable[[], T | None] = lambda: None) -> T:
    """The command's answer, or ``stopped``'s when a signal cut it short. Raises Interrupted without one, or what the command raises."""
    answer = trio.run(_guarded, command)
    if answer is None:
        answer = stopped()
    if answer is None:
        raise Interrupted
    return answer


async def _guarded(command: Callable[[], Awaitable[T]]) -> T | None:
    answers: list[T] = []
    failures: list[Exception] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(_cancel_on, signals, scope)
            try:
                with scope:
                    answers.append(await command())
            except Exception as error:
                failures.append(_only(error))  # raised again outside of the nursery, which would wrap it
            nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return answers[0] if answers else None


def _only(error: Exception) -> Exception:
    """The one exception in a group of one, as deep as it lies."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _cancel_on(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()
