"""What a call lets be seen, handed over while it runs: the task it runs in, and the way from there to who takes it.

Its job: run a call beside a block, hand on what it shows one by one, end it with the block; of what was raised, who is told what.
Not its job: the call (``call.py``), which call it is (``host.py``).
Laws:
1. Nothing is buffered beyond one item, and leaving the block cancels the call (tests/contract/test_streams.py).
2. An interrupt reaches the program once and alone, whatever it hit, and after the call has ended (tests/contract/test_interrupts.py).
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import trio

from engine.call import Emit
from engine.events import ToolOutput
from engine.outcome import Outcome


@contextlib.asynccontextmanager
async def streamed(
    call: Callable[[Emit], Awaitable[Outcome]], note: Callable[[Exception], None]
) -> AsyncIterator[AsyncIterator[ToolOutput | Outcome]]:
    """What the call shows, then its outcome. ``note`` is told what it raised when something else is raised here."""
    send, receive = trio.open_memory_channel[ToolOutput | Outcome](0)

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task: here it would look like the stream's end to that one
    async def run() -> None:
        with send:  # its asynchronous end would raise the cancellation in place of what the call raised
            await send.send(await call(send.send))

    raised: BaseException | None = None
    others: Sequence[BaseException] = ()
    try:
        with receive:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                try:
                    yield receive
                except BaseException as error:
                    raised = error  # not through the nursery, which would wrap it and take a group of the program's apart
                nursery.cancel_scope.cancel()  # before the channel closes: the call ends as given up, not as broken
    except BaseExceptionGroup as group:
        others = group.exceptions
    _raise_first(raised, others, note)


def _raise_first(raised: BaseException | None, others: Sequence[BaseException], note: Callable[[Exception], None]) -> None:
    """Raise the one exception that goes on: an interrupt, else what the block raised, else what the call did."""

    def rank(error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt):
            return 0
        if isinstance(error, trio.Cancelled):
            return 3  # whoever cancelled knows
        return 1 if error is raised else 2

    first = min([*others, *([] if raised is None else [raised])], key=rank, default=None)
    for error in others:
        if error is not first and isinstance(error, Exception):
            note(error)
    if first is not None and first is raised:
        raise first
    if first is not None:
        raise first from None if isinstance(raised, trio.Cancelled) else raised
