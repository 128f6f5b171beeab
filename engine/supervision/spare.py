"""A child that is made ready before its call: forked, locked, its tool imported, waiting.

Its job: bring one child up to ``Ready`` within the start limit, and remember why when it does not get there. Under the freshness
``snapshot`` the jail's first process imports the tool before its first fork.
Not its job: how many there are and who gets them (``pool.py``), the call itself (``call.py``).
Laws:
1. What went wrong in a spare is the outcome of the call that takes it, with what it printed (tests/contract/test_endings.py).
2. A declaration that is not the loaded one ends the child before it is sent a call (tests/security/test_promise_checked.py).
3. A jail whose first process could not import the tool, or has threads since, ends and forks nothing (tests/contract/test_snapshot.py).
4. Whatever goes wrong while one is made ready ends that one alone (tests/contract/test_jails.py).
5. Under the freshness ``snapshot`` no secret is told to the process that imports for all (tests/security/test_snapshot_secrets.py).
"""

import dataclasses
import functools
import os

import trio

from engine.errors import HostError
from engine.jail.plan import Plan
from engine.policy.model import Freshness
from engine.policy.network import Scope
from engine.supervision import reaper
from engine.supervision.pump import Capture, Closed, Pump
from engine.supervision.values import LARGE_BYTES
from engine.wire.framing import RemoteFault
from engine.wire.messages import EncodedInit, Expected, Failure, Init, Ready
from engine.wire.session import Bounds, Session
from engine.worker.base import End
from engine.worker.child import NativeChild
from engine.worker.native import Jail

_IDLE_CPU_SECONDS = 0.05  # a minute; a child that blocks on its channel uses none
_CORES = os.cpu_count() or 1
_THREADS_SECONDS = 0.05  # for threads that have ended to be gone in the kernel's count, which takes some microseconds
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
    """All that children of one worker have in common. ``declarations`` is the digest they must prove, None while describing.

    ``secret_names`` are the variables of ``init`` whose values are secrets.
    """

    key: str
    plan: Plan
    init: Init
    bounds: Bounds
    declarations: str | None
    log_bytes: int
    start_ms: int
    freshness: Freshness = Freshness.FRESH
    wasm: str = ""  # the digest of the image, when it is a WebAssembly worker
    scope: Scope | None = None  # what its calls may reach
    secret_names: frozenset[str] = frozenset()

    @property
    def single(self) -> bool:
        """Whether its jail has one child at a time: whoever connects through its listeners is then known, and served for one call."""
        return self.scope is not None and bool(self.plan.listeners)

    @functools.cached_property
    def greeting(self) -> EncodedInit:
        """What each child is told first."""
        return EncodedInit.of(self.init)

    @property
    def first_greeting(self) -> EncodedInit:
        """What a process is told that imports the tool for all children: no secret. Each child is told the whole afterwards."""
        # security: a value in that process's memory is in each child's from birth, whatever the call, and stays when it was rotated
        environment = {name: value for name, value in self.init.environment.items() if name not in self.secret_names}
        return EncodedInit.of(dataclasses.replace(self.init, environment=environment))

    @functools.cached_property
    def answer(self) -> Expected | None:
        """What each child says to that, when all is well; None while describing."""
        return None if self.declarations is None else Expected.ready(self.declarations)

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
        self.calls = 0  # that this child has served before
        self.used = 0.0  # CPU seconds, by those
        self.used_when_ready = 0.0
        self._said: dict[str, Capture] | None = None  # by the jail's first process, while it imported the tool
        self._scope = trio.CancelScope(deadline=self.born + recipe.start_ms / 1000)
        self._given_up = False
        self.ready_at = self.born
        self._watched: tuple[float, float] | None = None  # when it was first known to wait, and its CPU seconds then

    async def prepare(self) -> None:
        """Bring it up; never raises but for cancellation, which leaves the child to whoever closes the jail."""
        try:
            with self._scope:
                self.verdict = await self._start()
            if self._scope.cancelled_caught and self._given_up:
                self.verdict = ("crashed.worker", "the worker was ended before its child was ready")
            elif self._scope.cancelled_caught:
                self.verdict = ("limit_exceeded.start", f"not ready within {self._recipe.start_ms} ms")
            if self.verdict is not None and self.child is not None and self.end is None:
                self.end = await reaper.reap(self._jail, self.child)  # else it would go on, with whatever it does, until a call asks
        except HostError as error:
            self.verdict = (error.code, "; ".join(error.lines))
        except Exception as error:  # a bug of ours in one child is no reason to end everybody's calls
            self.verdict = ("engine_failed.bug", f"{type(error).__name__} while a child was made ready")
        finally:
            self.ready_at = trio.current_time()
            self.ready.set()

    def burns(self) -> bool:
        """Whether it has used more CPU than waiting takes, since it was ready or first asked."""
        cpu = None if self.child is None else self.child.cpu_seconds()
        if cpu is None:
            return False
        now, since = trio.current_time(), self._watched
        if since is None:  # a reading at the time would cost every call; it used no more than every core until then
            since = (self.ready_at, min(cpu, (self.ready_at - self.born) * _CORES))
            self._watched = (now, cpu)
        return cpu - since[1] > _IDLE_CPU_SECONDS * max(1.0, (now - since[0]) / 60)

    def again(self, used: float) -> "Spare":
        """The same child, ready for its next call; ``used`` CPU seconds it has taken so far."""
        following = Spare(self._jail, self._recipe)
        following.child, following.pump = self.child, None if self.pump is None else self.pump.again()
        following.born, following.calls = self.born, self.calls + 1
        following.used, following.used_when_ready = used, self.used_when_ready
        following._watched = (trio.current_time(), used)
        following.ready.set()
        return following

    async def give_up(self) -> None:
        """Stop bringing it up; returns when nothing waits on its descriptors any more, at once when it was ready."""
        self._given_up = True
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self.ready.wait()

    async def _start(self) -> tuple[str, str] | None:
        if self._recipe.freshness is Freshness.SNAPSHOT and not self._jail.holds_tool:
            if (verdict := await self._import()) is not None:
                return verdict
        self.child = await self._jail.fork(seconds=None)
        session = Session(self._recipe.bounds, large_bytes=LARGE_BYTES, expected=self._recipe.answer)
        pump = self.pump = Pump(self.child, session, self._recipe.log_bytes, self._said)
        try:
            verdict = await self._introduce(pump, self._recipe.greeting)
        except Closed as closed:
            self.end = await reaper.reap(self._jail, self.child, leave_seconds=LEAVE_SECONDS)
            return await reaper.why_closed(self._jail, self.end, closed.fault, self._recipe.cpu_s)
        if self._recipe.freshness is Freshness.WARM:
            self.used_when_ready = self.child.cpu_seconds() or 0.0
            self._watched = (trio.current_time(), self.used_when_ready)
        return verdict

    async def _introduce(self, pump: Pump, greeting: EncodedInit) -> tuple[str, str] | None:
        """Tell a process what it is for, and hear that it is ready: None, or why not. Raises Closed."""
        try:
            await pump.send(greeting)
            return self._judged(await pump.next())
        except RemoteFault as fault:
            return fault.code, fault.line

    async def _import(self) -> tuple[str, str] | None:
        """Have the jail's first process import the tool, for all of its children. Whatever goes wrong with that ends the jail."""
        first = await self._jail.first_as_child()
        pump = self.pump = Pump(first, Session(self._recipe.bounds), self._recipe.log_bytes)
        try:
            verdict = await self._introduce(pump, self._recipe.first_greeting) or await self._unshareable(pump)
            self._jail.holds_tool, self._said = verdict is None, pump.captured
        except Closed:
            verdict = ("crashed.worker", "the process that imports the tool for all calls ended while it did")
        finally:
            pump.drain()
            first.close()
            if not self._jail.holds_tool:
                self._jail.kill()
        return verdict

    async def _unshareable(self, pump: Pump) -> tuple[str, str] | None:
        """Why a process that imported the tool cannot be forked: it printed too much, or it has threads."""
        try:
            pump.take_outputs()
        except RemoteFault as fault:
            return fault.code, fault.line
        with trio.move_on_after(_THREADS_SECONDS):
            while (threads := self._jail.threads()) != 1:  # noqa: ASYNC110 - the kernel has a count of them, and no event
                await trio.sleep(0.001)
        if threads is None:
            return "refused.cannot_enforce", "freshness snapshot: the threads of a worker cannot be counted on this host"
        if threads > 1:
            # security: what a lost thread held, a lock or half a change, would stay so in every child
            running, them = ("a thread", "it") if threads == 2 else (f"{threads - 1} threads", "them")
            left = f"the import left {running} running, and a process with threads is not forked"
            return "tool_error.import", f"{left}: start {them} in the call, or have the freshness fresh"
        return None

    def _judged(self, message: object) -> tuple[str, str] | None:
        if isinstance(message, Failure):
            return failed(message)
        if isinstance(message, Ready):
            expected = self._recipe.declarations
            if expected is None or message.declaration == expected:
                return None
            return "violation.declaration", "the worker's declarations are not those that were loaded"
        return "violation.protocol", f"the worker sent {type(message).__name__} before it was ready"
