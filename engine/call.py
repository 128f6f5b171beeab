"""One call, from a request to an outcome.

Its job: the steps in order, the verdict, the receipt; whatever happens, the child is gone when it returns.
Not its job: any step's inside; which tools there are (``host.py``); starting workers (``supervision/pool.py``).
Laws:
1. No worker is asked for unless the arguments, the policy, the environment and the plan were made (tests/contract/test_refusals.py).
2. The verdict is settled once, before any kill (tests/contract/test_endings.py).
3. No partial and no result reaches the caller unchecked (tests/security/test_promise_checked.py).
4. Every call that named a known tool has a receipt (tests/contract/test_receipts.py).
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import trio

from engine import errors
from engine.authoring import canonical
from engine.events import LogRecord, PartialResult, Progress, ToolEvent, ToolOutput
from engine.outcome import Outcome, Settlement, Usage
from engine.preparing import LoadedTool, Preparation, Prepared
from engine.results.receipts import Happened, Journal, Setting, receipt
from engine.supervision import deadline, reaper
from engine.supervision.pool import Pool, Seat
from engine.supervision.pump import Closed, Pump
from engine.supervision.spare import LEAVE_SECONDS, failed
from engine.wire import messages
from engine.wire.framing import RemoteFault
from engine.worker.base import End

Emit = Callable[[ToolOutput], Awaitable[None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a caller wants: arguments as received, and what may only tighten the policy."""

    arguments: object
    timeout_ms: int | None = None
    limits: Mapping[str, object] = dataclasses.field(default_factory=dict)
    tenant: str | None = None
    approved: bool = False
    depth: int = 0  # calls above this one
    ancestor_required: bool = False


class HostCalls(Protocol):
    """Who answers a tool's own calls."""

    async def answer(self, tool: LoadedTool, request: Request, name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        """Whether it went well, and the value or the reason."""


class Call:
    """One call on its way. ``run`` it once."""

    def __init__(
        self, tool: LoadedTool, request: Request, *, preparation: Preparation, pool: Pool, journal: Journal, host_calls: HostCalls
    ) -> None:
        self._tool, self._request = tool, request
        self._preparation, self._pool, self._journal, self._host_calls = preparation, pool, journal, host_calls
        self._settlement = Settlement()
        self._prepared: Prepared | None = None
        self._seat: Seat | None = None
        self._end: End | None = None
        self._value: Any = None
        self._violations: list[str] = []
        self._output = {"stdout": "", "stderr": ""}
        self._usage: dict[str, Any] = {}
        self._enforced: Mapping[str, int] = {}
        self._shutdown = False
        self._scope = trio.CancelScope()

    def shut_down(self) -> None:
        """End it because the engine closes."""
        self._shutdown = True
        self._scope.cancel()

    def refuse(self, code: str, line: str) -> Outcome:
        """The outcome of a call that is not even begun, with its receipt."""
        self._settlement.settle(code, line)
        return self._conclude(0.0)

    async def run(self, emit: Emit) -> Outcome:
        """The outcome. Cancellation passes through, after the child is gone and the receipt is written."""
        started = trio.current_time()
        try:
            with self._scope:
                await self._steps(emit)
            if self._scope.cancelled_caught:
                self._settlement.settle("cancelled.shutdown", "the engine was closed while the call ran")
        except (trio.Cancelled, trio.BrokenResourceError, KeyboardInterrupt):  # the second: nobody takes what the tool shows any more
            self._settlement.settle("cancelled.caller", "the caller gave up")
            raise
        except errors.EngineError as error:
            self._settlement.settle(error.code, *error.lines)
        except Exception as error:
            self._settlement.settle("engine_failed.bug", f"{type(error).__name__} in the engine")
            raise
        finally:
            try:
                await self._leave()
            except errors.HostError as error:  # something would not end: said on the receipt, and louder than the outcome
                self._violations += error.lines
                raise
            finally:
                outcome = self._conclude((trio.current_time() - started) * 1000)
        return outcome

    async def _steps(self, emit: Emit) -> None:
        self._journal.require()
        arguments = self._tool.checked_arguments(self._request.arguments)
        self._prepared = self._preparation.prepare(self._tool, self._request)
        limits = self._prepared.resolved.limits
        with trio.CancelScope(deadline=deadline.after(limits.wall_ms)) as scope:
            self._seat = await self._pool.lease(self._prepared.recipe, self._prepared.resolved.pool, depth=self._request.depth)
            self._enforced = self._seat.jail.enforced
            pump = await self._ready(self._seat)
            if pump is not None:
                pump.session.narrow(self._prepared.recipe.bounds)
                await self._talk(pump, arguments, emit)
        if scope.cancelled_caught:
            if self._seat is None:
                self._settlement.settle("refused.busy", f"no worker became free within {limits.wall_ms} ms")
            else:
                self._settlement.settle("limit_exceeded.wall", f"no answer within {limits.wall_ms} ms")

    async def _ready(self, seat: Seat) -> Pump | None:
        """The pump of a child that is ready; None when the spare's own verdict became the call's."""
        assert seat.spare is not None  # noqa: S101 - a type fact: the pool lends no seat without one
        await seat.spare.ready.wait()
        self._end = seat.spare.end
        if seat.spare.verdict is not None:
            self._settlement.settle(*seat.spare.verdict)
            return None
        return seat.spare.pump

    async def _talk(self, pump: Pump, arguments: dict[str, Any], emit: Emit) -> None:
        """Send the call, take what comes until the answer."""
        try:
            pump.refuse_early()
            await pump.send(messages.Call(tool=self._tool.name, arguments=arguments, call=""))
            while self._settlement.verdict is None:
                await self._take(pump, await pump.next(), emit)
        except RemoteFault as fault:
            self._settlement.settle(fault.code, fault.line)
        except Closed as closed:
            await self._died(closed)

    async def _take(self, pump: Pump, message: messages.FromWorker, emit: Emit) -> None:
        """Act on one message of the worker."""
        match message:
            case messages.Result(value=value):
                self._judge_result(value)
            case messages.Failure(kind="import" | "declaration"):
                # security: these say that the tool never ran; once it runs, it could pass off what it did as not done
                self._settlement.settle("violation.protocol", f"the worker sent a Failure of kind {message.kind} in a call")
            case messages.Failure():
                self._settlement.settle(*failed(message))
            case messages.HostCall(number=number):
                ok, value = await self._host_calls.answer(self._tool, self._request, message.name, message.arguments)
                await pump.send(messages.HostReply(number=number, ok=ok, value=value))
            case messages.Partial(value=value):
                if lines := self._tool.partial_problems(value):
                    self._settlement.settle("tool_error.partial_schema", *lines)
                else:
                    await emit(PartialResult(value=value))
            case messages.Progress():
                await emit(Progress(done=message.done, total=message.total, message=errors.one_line(message.message)))
            case messages.Event(value=value):
                await emit(ToolEvent(value=value))
            case messages.Log():
                await emit(LogRecord(level=message.level, message=errors.one_line(message.message), data=message.data))
            case _:
                self._settlement.settle("violation.protocol", f"the worker sent {type(message).__name__} in a call")

    def _judge_result(self, value: Any) -> None:
        lines = self._tool.result_problems(value)
        if lines:
            self._settlement.settle("tool_error.result_schema", *lines)
        elif self._settlement.settle("ok.done"):
            self._value = value

    async def _died(self, closed: Closed) -> None:
        seat = self._seat
        if seat is None or seat.spare is None or seat.spare.child is None or self._prepared is None:
            return
        self._end = await reaper.reap(seat.jail, seat.spare.child, leave_seconds=LEAVE_SECONDS)
        code, line = await reaper.why_closed(seat.jail, self._end, closed.fault, self._prepared.recipe.cpu_s)
        self._settlement.settle(code, line)

    async def _leave(self) -> None:
        """Nothing of the call stays: the child is buried, its output taken, its jail given back or ended."""
        seat = self._seat
        if seat is None:
            return
        with trio.CancelScope(shield=True):
            spare, seat.spare = seat.spare, None
            healthy = False
            try:
                if spare is not None:
                    await spare.give_up()
                if spare is not None and spare.child is not None:
                    self._end = self._end or spare.end or await reaper.reap(seat.jail, spare.child)
                    self._take_output(spare.pump)
                    spare.child.close()
                    healthy = self._healthy()
            finally:
                await self._pool.give_back(seat, healthy=healthy)

    def _healthy(self) -> bool:
        """Whether the jail may serve again: not after a violation, a crash, or when the engine is not sure of anything."""
        verdict = self._settlement.verdict
        return verdict is not None and not self._violations and verdict.status not in ("violation", "crashed", "engine_failed")

    def _take_output(self, pump: Pump | None) -> None:
        if pump is None:
            return
        if late := pump.drain():
            self._violations.append(late)
        self._output = {name: capture.text() for name, capture in pump.captured.items()}
        session = pump.session
        self._usage = {
            "request_bytes": pump.request_bytes,
            "result_bytes": session.result_bytes,
            "event_bytes": session.event_bytes,
            "events": session.events,
            **{f"{name}_bytes": capture.total for name, capture in pump.captured.items()},
        }

    def _conclude(self, wall_ms: float) -> Outcome:
        verdict = self._settlement.verdict
        if verdict is None:
            self._settlement.settle("engine_failed.bug", "the call ended without a verdict")
            verdict = self._settlement.verdict
        assert verdict is not None  # noqa: S101 - settled in the line above
        end = self._end
        usage = Usage(
            wall_ms=round(wall_ms, 3),
            cpu_ms=end.cpu_ms if end else None,
            peak_rss_bytes=end.peak_rss_kib * 1024 if end and end.status is not None else None,
            **self._usage,
        )
        ok = verdict.code == "ok.done"
        happened = Happened(
            verdict=verdict,
            usage=usage,
            worker={"kind": "native", "started": self._seat is not None, **(self._prepared.worker if self._prepared else {})},
            enforced=self._enforced,
            violations=tuple(self._violations),
            result=canonical.digest(self._value) if ok else None,
        )
        made = receipt(self._setting(), happened, self._journal.kind)
        lines = verdict.lines
        if problem := self._journal.append(made, ran=self._seat is not None):
            made = {**made, "journal": "owed"}
            lines += (errors.one_line(f"the receipt is not in the journal: {problem}; no call starts until it is"),)
        value = self._value if ok else None
        return Outcome(status=verdict.status, reason=verdict.code, value=value, lines=lines, receipt=made, **self._output)

    def _setting(self) -> Setting:
        setting = self._tool.setting(self._request.tenant)
        if self._prepared is None:
            return setting
        plan, limits = self._prepared.recipe.plan, self._prepared.resolved.limits
        return dataclasses.replace(setting, policy=self._prepared.policy, limits=limits, means=plan.means)
