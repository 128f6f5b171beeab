"""One call, from a request to an outcome.

Its job: the steps in order, and the verdict.
Not its job: any step's inside; which tools there are (``host.py``); starting workers (``supervision/pool.py``); what is left to do when
the verdict stands (``concluding.py``).
Laws:
1. No worker is asked for unless the arguments, the policy, the environment and the plan were made (tests/contract/test_refusals.py).
2. The verdict is settled once, before any kill (tests/contract/test_endings.py).
3. No partial and no result reaches the caller unchecked, nor with a secret in it (tests/security/test_promise_checked.py,
   tests/contract/test_leaving.py).
4. An answer that is not ok, and every exception, comes after the child is gone; an ok one after it was killed
   (tests/contract/test_concluding.py).
"""

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import trio

from engine import errors, spelling
from engine.concluding import Conclusion
from engine.egress.traffic import Exceeded
from engine.events import LogRecord, PartialResult, Progress, ToolEvent, ToolOutput
from engine.leaving import Seen, Unseen, Withheld
from engine.outcome import Outcome, error_for
from engine.outward import HTTP
from engine.preparing import LoadedTool, Preparation, Prepared
from engine.secrecy import Secrecy
from engine.supervision import deadline, reaper
from engine.supervision.finishing import finish
from engine.supervision.pool import Pool, Seat
from engine.supervision.pump import Closed, Pump
from engine.supervision.spare import LEAVE_SECONDS, Recipe, failed
from engine.supervision.values import Checked, Values
from engine.wire import messages
from engine.wire.framing import RemoteFault
from engine.wire.session import Large

Emit = Callable[[ToolOutput], Awaitable[None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a caller wants: arguments as received, and what may only tighten the policy."""

    arguments: object
    timeout_ms: int | None = None
    limits: Mapping[str, object] = dataclasses.field(default_factory=dict)
    tenant: str | None = None
    approved: bool = False
    namespace: str = ""  # of the tools that it and its nested calls may name
    depth: int = 0  # calls above this one
    ancestor_required: bool = False


class HostCalls(Protocol):
    """The engine as a call sees it: who answers a tool's own calls, and who else is being served."""

    def alone(self) -> bool:
        """Whether there is no call but this one."""

    async def answer(self, tool: LoadedTool, request: Request, name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        """Whether it went well, and the value or the reason."""


class Call:
    """One call on its way. ``run`` it once."""

    def __init__(
        self,
        tool: LoadedTool,
        request: Request,
        *,
        preparation: Preparation,
        pool: Pool,
        host_calls: HostCalls,
        conclusion: Conclusion,
        values: Values,
        secrecy: Secrecy,
    ) -> None:
        self._tool, self._request = tool, request
        self._preparation, self._pool, self._host_calls = preparation, pool, host_calls
        self._conclusion, self._settlement, self._values = conclusion, conclusion.settlement, values
        self._secrecy, self._leaving = secrecy, conclusion.leaving
        self._shutdown = self._innocent = False  # the second: its arguments hold no secret
        self._scope: trio.CancelScope | None = None  # around all that it waits for

    def shut_down(self) -> None:
        """End it because the engine closes."""
        self._shutdown = True
        if self._scope is not None:
            self._scope.cancel()

    async def run(self, emit: Emit, later: Callable[[Conclusion], None]) -> Outcome:
        """The outcome. What an ok one does not wait for is handed to ``later``; cancellation passes through, after all of it is done."""
        try:
            await self._judged(emit)
        except BaseException:
            await finish(self._conclusion.run)
            raise
        if self._conclusion.answered():
            later(self._conclusion)
        else:
            await finish(self._conclusion.run)
        return self._conclusion.outcome()

    async def _judged(self, emit: Emit) -> None:
        """Come to a verdict. Cancellation, an interrupt and bugs pass through, with the verdict settled."""
        try:
            arguments, prepared = self._prepared()
            with trio.CancelScope(deadline=deadline.after(self._conclusion.started, prepared.resolved.limits.wall_ms)) as self._scope:
                await self._steps(arguments, prepared, emit)
            if self._scope.cancelled_caught:
                self._settle_cut()
        except (trio.Cancelled, trio.BrokenResourceError, KeyboardInterrupt):  # the second: nobody takes what the tool shows any more
            self._settlement.settle("cancelled.caller", "the caller gave up")
            raise
        except errors.EngineError as error:
            self._settlement.settle(error.code, *error.lines)
        except Exception as error:
            self._settlement.settle("engine_failed.bug", f"{type(error).__name__} in the engine")
            raise

    def _settle_cut(self) -> None:
        """The scope was cancelled: by the engine's end, or by the deadline."""
        prepared, seat, spare = self._conclusion.prepared, self._conclusion.seat, self._conclusion.spare
        if self._shutdown or prepared is None:
            self._settlement.settle("cancelled.shutdown", "the engine was closed while the call ran")
            return
        wall_ms = prepared.resolved.limits.wall_ms
        if not self._innocent:
            self._settlement.settle("limit_exceeded.wall", f"the arguments were not looked through within {wall_ms} ms")
        elif seat is None and not self._pool.making(prepared.recipe, depth=self._request.depth, tenant=self._request.tenant):
            self._settlement.settle("refused.busy", f"no worker became free within {wall_ms} ms")
        elif spare is None or not spare.ready.is_set():
            late = f"the worker was still starting after {wall_ms} ms: give the call more time, or have one wait for it with engine.warm"
            self._settlement.settle("limit_exceeded.wall", late)
        else:
            self._settlement.settle("limit_exceeded.wall", f"no answer within {wall_ms} ms")

    def _prepared(self) -> tuple[messages.Packed, Prepared]:
        """All that stands before a worker; what it takes is the call's own time."""
        conclusion, request = self._conclusion, self._request
        conclusion.require()
        arguments = self._tool.checked_arguments(request.arguments, nested=request.depth > 0)
        prepared = conclusion.prepared = self._preparation.prepare(self._tool, request)
        return arguments, prepared

    async def _steps(self, arguments: messages.Packed, prepared: Prepared, emit: Emit) -> None:
        request, pool = self._request, prepared.resolved.pool
        if held := await self._leaving.arguments(arguments.data):
            raise error_for("refused.secret_in", f"the arguments hold the secret {', '.join(held)}")
        if prepared.resolved.scope is not None:
            self._conclusion.outward = self._secrecy.outward(prepared.resolved)
        self._innocent = True
        seat = await self._pool.lease(prepared.recipe, pool, depth=request.depth, tenant=request.tenant)
        self._conclusion.seat = seat
        pump = await self._ready(seat)
        if pump is not None:
            await self._talk(seat, pump, prepared.recipe, arguments, emit)

    async def _ready(self, seat: Seat) -> Pump | None:
        """The pump of a child that is ready; None when the spare's own verdict became the call's."""
        spare, seat.spare = seat.spare, None  # it is the call's now
        assert spare is not None  # noqa: S101 - a type fact: the pool lends no seat without one
        self._conclusion.spare = spare
        if not spare.ready.is_set():
            await spare.ready.wait()
        if spare.verdict is not None:
            self._settlement.settle(*spare.verdict)
            return None
        return spare.pump

    async def _talk(self, seat: Seat, pump: Pump, recipe: Recipe, arguments: messages.Packed, emit: Emit) -> None:
        """The talk with the worker, with the way out open as long as it lasts where the call has one."""
        try:
            pump.hold_to(recipe.bounds, recipe.log_bytes)  # the child may have been made for another call of this worker
            pump.refuse_early()
            pump.session.watch = self._leaving.look
            if (outward := self._conclusion.outward) is None:
                await self._converse(pump, arguments, emit)
                return
            with trio.CancelScope() as talk:
                async with outward.opened(seat.jail, functools.partial(self._cut_off, talk)):
                    await self._converse(pump, arguments, emit)
        except RemoteFault as fault:
            self._settlement.settle(fault.code, fault.line)
        except Withheld as held:
            self._settlement.settle("refused.secret_out", f"what the tool answered {held}")
        except Exceeded as excess:
            self._settlement.settle("limit_exceeded.egress", excess.line)
        except Closed as closed:
            await self._died(closed)

    def _cut_off(self, talk: trio.CancelScope, line: str) -> None:
        """A connection says that the call must end."""
        self._settlement.settle("limit_exceeded.egress", line)
        talk.cancel()

    async def _converse(self, pump: Pump, arguments: messages.Packed, emit: Emit) -> None:
        """Send the call, take what comes until the answer."""
        pump.alone = self._host_calls.alone
        await pump.send(messages.Call(tool=self._tool.name, arguments=arguments, call=""))
        while self._settlement.verdict is None:
            message = await pump.next()
            if isinstance(message, Large):
                checked = await self._checked(pump, message)
                seen = await self._leaving.seen(Unseen(payload=message.payload))
                await self._take(pump, checked.message, emit, seen, checked)
            else:
                await self._take(pump, message, emit, await self._leaving.seen(pump.session.seen or Seen(size=0)))

    async def _checked(self, pump: Pump, large: Large) -> Checked:
        """A large message, checked in another process."""
        try:
            checked = await self._values.taken(large, self._tool.checker_of(large.kind), tenant=self._request.tenant)
        except RemoteFault as fault:
            pump.session.fault(fault)
            raise
        pump.session.confirm(checked.message)
        return checked

    async def _take(self, pump: Pump, message: messages.FromWorker, emit: Emit, seen: Seen, checked: Checked | None = None) -> None:
        """Act on one message of the worker. Raises Withheld for what may not be seen."""
        leaving = self._leaving
        match message:
            case messages.Result(value=value):
                await self._judge_result(value, checked, seen)
            case messages.Failure(kind="import" | "declaration"):
                # security: these say that the tool never ran; once it runs, it could pass off what it did as not done
                self._settlement.settle("violation.protocol", f"the worker sent a Failure of kind {message.kind} in a call")
            case messages.Failure():
                self._settlement.settle(*failed(message))
            case messages.HostCall(number=number):
                ok, value = await self._answer(message)
                await pump.send(messages.HostReply(number=number, ok=ok, value=value))
            case messages.Partial(value=value):
                lines = self._tool.partial_problems(value) if checked is None else self._tool.undeclared_partial() + checked.lines
                if lines:
                    self._settlement.settle("tool_error.partial_schema", *lines)
                else:
                    await emit(PartialResult(value=await leaving.item("partial", value, seen, self._tool.partial_problems)))
            case messages.Progress():
                said, done, total = await leaving.words("progress", [message.message, message.done, message.total], seen)
                await emit(Progress(done=done, total=total, message=said))
            case messages.Event(value=value):
                await emit(ToolEvent(value=await leaving.item("event", value, seen)))
            case messages.Log():
                said, data = await leaving.words("log", [message.message, message.data], seen)
                await emit(LogRecord(level=message.level, message=said, data=data))
            case _:
                self._settlement.settle("violation.protocol", f"the worker sent {type(message).__name__} in a call")

    async def _answer(self, message: messages.HostCall) -> tuple[bool, Any]:
        """The answer to what the tool asks of the host: another tool, or a request to a host that it was granted."""
        if message.name != HTTP:
            return await self._host_calls.answer(self._tool, self._request, message.name, message.arguments)
        conclusion = self._conclusion
        assert conclusion.prepared is not None  # noqa: S101 - a type fact: nothing was sent before
        # one without a network asks in vain, which is counted and bounded as any refusal is
        outward = conclusion.outward = conclusion.outward or self._secrecy.outward(conclusion.prepared.resolved)
        return await outward.answer(message.arguments)

    async def _judge_result(self, value: Any, checked: Checked | None, seen: Seen) -> None:
        if lines := self._tool.result_problems(value) if checked is None else checked.lines:
            self._settlement.settle("tool_error.result_schema", *lines)
            return
        shown = await self._leaving.result(value, seen, self._tool.result_problems)
        if not self._settlement.settle("ok.done"):
            return
        self._conclusion.value = shown.value
        if checked is not None and shown.digest is None:
            self._conclusion.digest_later = checked.digest
        else:
            self._conclusion.digest = shown.digest or spelling.digest(shown.value)

    async def _died(self, closed: Closed) -> None:
        conclusion = self._conclusion
        seat, spare, prepared = conclusion.seat, conclusion.spare, conclusion.prepared
        if seat is None or spare is None or spare.child is None or prepared is None:
            return
        conclusion.end = await reaper.reap(seat.jail, spare.child, leave_seconds=LEAVE_SECONDS)
        code, line = await reaper.why_closed(seat.jail, conclusion.end, closed.fault, prepared.recipe.cpu_s)
        self._settlement.settle(code, line)
