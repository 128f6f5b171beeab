"""The calls of one engine that are not over: those that run, and those that are answered and not buried yet.

Its job: count them, bury the answered ones beside whatever else goes on, let whoever needs it wait until there is none.
Not its job: a call (``call.py``), what is left to do of an answered one (``concluding.py``).
Laws:
1. What goes wrong while one is buried is told when the engine closes, and ends nobody else's call (tests/contract/test_concluding.py).
"""

from collections.abc import Callable

import trio

from engine.call import Call
from engine.concluding import Conclusion
from engine.errors import HostError


class UnderWay:
    """``nursery`` owns the burials; ``note`` is told what went wrong with one."""

    def __init__(self, nursery: trio.Nursery, note: Callable[..., None]) -> None:
        self._nursery, self._note = nursery, note
        self.calls: set[Call] = set()
        self._burials = 0
        self._change = trio.Event()  # replaced each time one is over

    def begin(self, call: Call) -> None:
        """One more that runs."""
        self.calls.add(call)

    def end(self, call: Call) -> None:
        """It has its answer, or was given up."""
        self.calls.discard(call)
        self._changed()

    def conclude_later(self, conclusion: Conclusion) -> None:
        """Bury an answered one while its caller goes on."""
        self._burials += 1
        self._nursery.start_soon(self._conclude, conclusion)

    async def wait_buried(self) -> None:
        """Until no answered one is left."""
        while self._burials:
            await self._change.wait()

    async def wait_over(self) -> None:
        """Until none is left at all."""
        while self.calls or self._burials:
            await self._change.wait()

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _conclude(self, conclusion: Conclusion) -> None:
        try:
            await conclusion.run()
        except HostError as error:  # whoever asks for the receipt is told, and so is whoever closes the engine
            self._note(*error.lines)
        except Exception as error:  # a bug of ours in the end of one call is no reason to end everybody's
            self._note(f"{type(error).__name__} while a call was concluded")
        finally:
            self._burials -= 1
            self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = trio.Event()
