"""A step that is run to its end whatever comes meanwhile: what leaves nothing behind must not be left half done.

Its job: shield a step from cancellation, and from an interrupt in the program's own task, where no scope shields from it.
Not its job: the steps.
Laws:
1. An interrupt that comes meanwhile is raised when the step has ended, once and in no group (tests/contract/test_interrupts.py).
"""

from collections.abc import Awaitable, Callable, Sequence

import trio


@trio.lowlevel.enable_ki_protection  # an interrupt comes while it waits, never between two lines
async def finish(step: Callable[[], Awaitable[None]]) -> None:
    """Run it to its end. Raises an interrupt that came meanwhile, with what the step raised as its cause; else what the step raised."""
    errors: Sequence[BaseException] = ()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_shielded, step)
    except BaseExceptionGroup as group:
        errors = group.exceptions
    if errors:
        first, *rest = sorted(errors, key=lambda error: not isinstance(error, KeyboardInterrupt))
        first.__cause__ = rest[0] if rest else first.__cause__
        raise first


def interrupt_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The interrupt in a nursery's group; without one the group."""
    return next((error for error in group.exceptions if isinstance(error, KeyboardInterrupt)), group)


@trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
async def _shielded(step: Callable[[], Awaitable[None]]) -> None:
    with trio.CancelScope(shield=True):
        await step()
