"""A child that is made ready before its call: forked, locked, its tool imported, waiting.

Its job: bring one child up to ``Ready`` within the start limit, and remember why when it does not get there.
Not its job: how many there are and who gets them (``pool.py``), the call itself (``call.py``).
Laws:
1. What went wrong in a spare is the outcome of the call that takes it, with what it printed (tests/contract/test_endings.py).
2. A declaration that is not the loaded one ends the child before it is sent a call (tests/security/test_promise_checked.py).
"""

import dataclasses

import trio

from engine.errors import HostError
from engine.jail.plan import Plan
from engine.supervision import reaper
from engine.supervision.pump import Closed, Pump
from engine.wire.framing import RemoteFault
from engine.wire.messages import Failure, Init, Ready
from engine.wire.session import Bounds, Session
from engine.worker.base import End
from engine.worker.native import Jail, NativeChild

_IDLE_CPU_SECONDS = 0.05  # a minute; a child that blocks on its channel uses none
LEAVE_SECONDS = 0.25  # for a process that closed its channel to be gone by itself, so that its own exit status is seen
FAILURES = {
    "exception": "tool_error.exception",
    "import": "tool_error.import",
    "exit": "tool_error.exit",
    "not_data": "tool_error.result_not_data",
    "missing": "tool_error.tool_missing",
    "declaration": "refused.declaration",
}


def failed(message: Failure) -> tuple[str, str]:
    """Reason and line for a failure that a worker reports."""
    if message.kind not in FAILURES:
        # security: whether somebody cancelled, only we know; else a tool could pass off what it did as never asked for
        return "violation.protocol", f"the worker sent a Failure of kind {message.kind}, and nobody cancelled"
    own_words = message.kind in ("missing", "not_data")
    return FAILURES[message.kind], message.message if own_words else f"{message.type}: {message.message}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that children of one worker have in common. ``declarations`` is the digest they must prove, None while describing."""

    key: str
    plan: Plan
    init: Init
    bounds: Bounds
    declarations: str | None
    log_bytes: int
    start_ms: int
    idle_ms: int

    @property
    def cpu_s(self) -> int:
        """Seconds of CPU that the kernel allows."""
        return int(self.plan.order["limits"]["cpu_s"])


class Spare:
    """One child on its way to ready. After ``ready`` is set, ``verdict`` is None or says why it cannot serve."""

    def __init__(self, jail: Jail, recipe: Recipe) -> None:
        self._jail, self._recipe = jail, recipe
        self.ready = trio.Event()
        self.born = trio.current_time()
        self.child: NativeChild | None = None
        self.pump: Pump | None = None
        self.end: End | None = None
        self.verdict: tuple[str, str] | None = None
        self._wanted = trio.CancelScope()
        self._watched: tuple[float, float] | None = None  # when it was first looked at while it waited, and its CPU seconds then

    async def prepare(self) -> None:
        """Bring it up; never raises but for cancellation, which leaves the child to whoever closes the jail."""
        try:
            with self._wanted, trio.move_on_after(self._recipe.start_ms / 1000) as scope:
                self.verdict = await self._start()
            if self._wanted.cancelled_caught:
                self.verdict = ("crashed.worker", "the worker was ended before its child was ready")
            elif scope.cancelled_caught:
                self.verdict = ("limit_exceeded.start", f"not ready within {self._recipe.start_ms} ms")
            if self.verdict is not None and self.child is not None and self.end is None:
                self.end = await reaper.reap(self._jail, self.child)  # else it would go on, with whatever it does, until a call asks
        except HostError as error:
            self.verdict = (error.code, "; ".join(error.lines))
        finally:
            self.ready.set()

    def burns(self) -> bool:
        """Whether it has used more CPU than waiting takes, since it was first asked."""
        cpu = None if self.child is None else self.child.cpu_seconds()
        if cpu is None:
            return False
        now = trio.current_time()
        if self._watched is None:
            self._watched = (now, cpu)
        return cpu - self._watched[1] > _IDLE_CPU_SECONDS * max(1.0, (now - self._watched[0]) / 60)

    async def give_up(self) -> None:
        """Stop bringing it up; returns when nothing waits on its descriptors any more, at once when it was ready."""
        self._wanted.cancel()
        with trio.CancelScope(shield=True):
            await self.ready.wait()

    async def _start(self) -> tuple[str, str] | None:
        self.child = await self._jail.fork()
        self.pump = Pump(self.child, Session(self._recipe.bounds), self._recipe.log_bytes)
        try:
            await self.pump.send(self._recipe.init)
            return self._judged(await self.pump.next())
        except RemoteFault as fault:
            return fault.code, fault.line
        except Closed as closed:
            self.end = await reaper.reap(self._jail, self.child, leave_seconds=LEAVE_SECONDS)
            return await reaper.why_closed(self._jail, self.end, closed.fault, self._recipe.cpu_s)

    def _judged(self, message: object) -> tuple[str, str] | None:
        if isinstance(message, Failure):
            return failed(message)
        if isinstance(message, Ready):
            expected = self._recipe.declarations
            if expected is None or message.declaration == expected:
                return None
            return "violation.declaration", "the worker's declarations are not those that were loaded"
        return "violation.protocol", f"the worker sent {type(message).__name__} before it was ready"
