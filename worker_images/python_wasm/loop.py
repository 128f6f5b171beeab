"""The event loop of a guest that has no sockets, no threads and no descriptors to wait for: it runs what is ready, or sleeps.

Its job: ``asyncio.run`` and all that is built of tasks, futures, timers and queues.
Not its job: transports, subprocesses, executors: each refuses as the world does.
Laws:
1. What needs only tasks and time does the same as on a native loop (tests/agreement/test_walls.py).
2. A thread is refused where it is asked for (tests/wasm/test_loop.py).
"""

import asyncio
import time
from asyncio import base_events, unix_events
from collections.abc import Callable
from typing import Any


class _Sleeper:
    """A selector with nothing to select from."""

    def select(self, timeout: float | None) -> list[object]:
        """Sleep until the next timer; for ever when there is none, because nothing can come."""
        while timeout is None:
            time.sleep(3600)
        if timeout > 0:
            time.sleep(timeout)
        return []


class Loop(base_events.BaseEventLoop):
    """Tasks and timers."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Sleeper()

    def _process_events(self, events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # nobody else could wake it

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # of any kind
        """Raises RuntimeError: there are no threads."""
        raise RuntimeError("can't start new thread")


def install() -> None:
    """Be the loop that asyncio makes."""
    unix_events._UnixDefaultEventLoopPolicy._loop_factory = Loop  # type: ignore[attr-defined]  # the one place where asyncio looks it up
    for module in (asyncio, unix_events):
        for name in ("EventLoop", "SelectorEventLoop"):
            setattr(module, name, Loop)
