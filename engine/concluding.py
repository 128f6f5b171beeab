"""The end of one call: nothing of it stays, and what became of it stands on a receipt.

Its job: bury the child, take its last output, give its jail back, write the receipt; whoever wants the receipt waits here.
Not its job: the verdict, which stands before (``call.py``); how a child is ended (``supervision/reaper.py``).
Laws:
1. When it is done, no process of the call is left, or the receipt and an error say what is (tests/security/test_promise_clean.py).
2. Every call that named a known tool has a receipt (tests/contract/test_receipts.py).
3. An ok answer does not wait for it, but its worker was killed before: no tool code runs on (tests/contract/test_concluding.py).
   A child that serves the next call as well lives on, if the policy loosens that (tests/contract/test_kept_warm.py).
4. Usage is of this call alone and by the kernel's word, or it is not told (tests/contract/test_freshness.py).
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import trio

from engine import errors
from engine.leaving import Leaving
from engine.outcome import Outcome, Settlement, Usage, Verdict
from engine.outward import Outward
from engine.policy.model import Freshness
from engine.preparing import LoadedTool, Prepared
from engine.results.journal import Journal, Line
from engine.results.receipts import Happened, read, receipt
from engine.supervision import reaper, warm
from engine.supervision.pool import Pool, Seat
from engine.supervision.pump import Pump
from engine.supervision.spare import Spare
from engine.worker.base import End


class Conclusion:
    """What is known of one call, filled in by it, and what is left to do of it: ``run`` once; ``told`` gives everybody the receipt."""

    def __init__(self, tool: LoadedTool, tenant: str | None, pool: Pool, journal: Journal, leaving: Leaving) -> None:
        self._tool, self._tenant, self._pool, self._journal = tool, tenant, pool, journal
        self.leaving = leaving
        self.settlement = Settlement(leaving.said)
        self.outward: Outward | None = None  # its network, where it has one
        self.started = trio.current_time()
        self.prepared: Prepared | None = None
        self.seat: Seat | None = None
        self.spare: Spare | None = None
        self.end: End | None = None
        self.value: Any = None
        self.digest: str | None = None  # of the value
        self.digest_later: Callable[[], Awaitable[str | None]] | None = None  # the same, of a large value
        self._wall_ms = 0.0
        self._cpu_ms: float | None = None  # asked of the living child
        self._goes_on: bool | None = None  # whether the child does, to its next call; None before it is decided
        self._violations: list[str] = []
        self._done = trio.Event()
        self._line: Line | None = None
        self._problem: errors.EngineError | None = None

    def require(self) -> None:
        """That the journal owes nothing, so that a call may start. Raises HostError ``refused.storage``."""
        self._journal.require()

    def answered(self) -> bool:
        """Whether the verdict is ok and stands behind a wall: then the child is killed at once, unless it goes on to the next call."""
        verdict = self.settlement.verdict
        if verdict is None or verdict.code != "ok.done" or self.seat is None or self.spare is None or self.spare.child is None:
            return False
        if not self.seat.recipe.plan.walls:  # without a wall it may have started others, which its kill does not end
            return False
        self._wall_ms = (trio.current_time() - self.started) * 1000
        if not self._kept():
            self.spare.child.kill()
        self._pool.returns(self.seat)
        return True

    async def run(self) -> None:
        """Leave nothing of the call, then write its receipt. Raises HostError when something would not end.

        Whoever may be cancelled meanwhile shields it; every wait in it has a bound of its own.
        """
        self._wall_ms = self._wall_ms or (trio.current_time() - self.started) * 1000
        if self.seat is not None and (self._kept() or self._healthy()):
            self._pool.refill(self.seat)  # while this one is buried; nothing when it goes on
        try:
            await self._leave()
            if self.digest_later is not None and (digest := await self.digest_later()) is not None:
                self.digest = digest
            elif self.digest_later is not None:  # never of the value: it is the caller's by now, who may have changed it
                self._violations.append("the digest could not be made")
        except errors.HostError as error:  # said on the receipt, and louder than the outcome
            self._violations += error.lines
            self._problem = error
            raise
        finally:
            self._conclude()

    async def told(self) -> Mapping[str, Any]:
        """The receipt, once it is written. Raises HostError when something of the call would not end, EngineBug when there is none."""
        await self._done.wait()
        if self._problem is not None:
            raise self._problem
        if self._line is None:
            return MappingProxyType({})
        if not self._line.written:
            self._journal.flush()
        made = read(self._line.data)
        return made if self._line.written else MappingProxyType({**made, "journal": "owed"})

    def outcome(self) -> Outcome:
        """What the caller gets."""
        verdict = self._verdict()
        pump = None if self.spare is None else self.spare.pump
        said = {} if pump is None else {name: self.leaving.text(name, capture.text()) for name, capture in pump.captured.items()}
        value = self.value if verdict.code == "ok.done" else None
        return Outcome(status=verdict.status, reason=verdict.code, value=value, lines=verdict.lines, conclusion=self.told, **said)

    async def _leave(self) -> None:
        """The child is buried, its output taken, its jail given back or ended."""
        seat, spare = self.seat, self.spare
        if seat is None:
            return
        healthy = False
        try:
            if spare is not None:
                if not spare.ready.is_set():
                    await spare.give_up()
                if self._kept():
                    healthy = True
                elif spare.child is not None:
                    self.end = self.end or spare.end or await reaper.reap(seat.jail, spare.child)
                    if spare.pump is not None and (late := spare.pump.drain()):
                        self._violations.append(late)
                    spare.child.close()
                    healthy = self._healthy()
        finally:
            await self._pool.give_back(seat, healthy=healthy)

    def _kept(self) -> bool:
        """Hand the child on to the next call when it may serve one; and ask it what it used, when nobody else can be asked later."""
        seat, spare, verdict = self.seat, self.spare, self.settlement.verdict
        if seat is None or spare is None or verdict is None or seat.recipe.freshness is Freshness.FRESH:
            return False
        if self._goes_on is not None:
            return self._goes_on
        self._goes_on = False
        if (following := warm.following(spare, seat.recipe, verdict)) is not None:
            seat.spare, self._goes_on = following, True
            self._cpu_ms = round((following.used - spare.used) * 1000, 3)
        elif seat.recipe.freshness is Freshness.SNAPSHOT and spare.child is not None and spare.end is None:
            # security: its zygote has run tool code, so its word on what a child used is the tool's
            used = spare.child.cpu_seconds()
            self._cpu_ms = None if used is None else round(used * 1000, 3)
        return self._goes_on

    def _healthy(self) -> bool:
        """Whether the jail may serve again: not after a violation, a crash, or when the engine is not sure of anything."""
        verdict = self.settlement.verdict
        return verdict is not None and not self._violations and verdict.status not in ("violation", "crashed", "engine_failed")

    def _verdict(self) -> Verdict:
        self.settlement.settle("engine_failed.bug", "the call ended without a verdict")
        assert self.settlement.verdict is not None  # noqa: S101 - settled in the line above
        return self.settlement.verdict

    def _conclude(self) -> None:
        """Write the receipt; whatever happens, whoever waits for it goes on."""
        try:
            self._write()
        except BaseException as error:
            bug = errors.EngineBug("engine_failed.bug", f"{type(error).__name__} while the receipt was made")
            self._problem = self._problem or bug
            raise
        finally:
            self._done.set()

    def _write(self) -> None:
        verdict, prepared = self._verdict(), self.prepared
        happened = Happened(
            verdict=verdict,
            usage=self._usage(),
            started=self.seat is not None,
            enforced=self.seat.enforced if self.seat else b"{}",
            violations=tuple(self._violations),
            result=self.digest if verdict.code == "ok.done" else None,
            egress={} if self.outward is None else self.outward.facts(),
            secrets=self.leaving.found,
        )
        setting = prepared.setting if prepared else None
        made = self.leaving.line(receipt(setting or self._tool.setting(self._tenant), happened, self._journal.kind))
        self._line = self._journal.append(made, ran=self.seat is not None)
        if verdict.code != "ok.done":
            self._journal.flush()  # somebody may look into it now

    def _usage(self) -> Usage:
        pump = None if self.spare is None else self.spare.pump
        cpu_ms, peak = self._taken()
        return Usage(wall_ms=round(self._wall_ms, 3), cpu_ms=cpu_ms, peak_rss_bytes=peak, **({} if pump is None else _traffic(pump)))

    def _taken(self) -> tuple[float | None, int | None]:
        """CPU time in ms and peak memory in bytes of this call; None for what nobody can tell of it alone."""
        end, freshness = self.end, Freshness.FRESH if self.seat is None else self.seat.recipe.freshness
        if self._cpu_ms is not None or end is None or end.cpu_ms is None or freshness is Freshness.SNAPSHOT:
            return self._cpu_ms, None
        if freshness is Freshness.WARM:  # the end tells of all the calls of this process
            return round(max(0.0, end.cpu_ms - (self.spare.used if self.spare else 0.0) * 1000), 3), None
        return end.cpu_ms, end.peak_rss_kib * 1024


def _traffic(pump: Pump) -> dict[str, int]:
    session = pump.session
    return {
        "request_bytes": pump.request_bytes,
        "result_bytes": session.result_bytes,
        "event_bytes": session.event_bytes,
        "events": session.events,
        **{f"{name}_bytes": capture.total for name, capture in pump.captured.items()},
    }
