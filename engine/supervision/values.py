"""Large values, checked in a process of their own and built here a little at a time, so that no neighbour waits for them.

Its job: who may use a checking process and when, what its answers mean, the building in slices.
Not its job: the process (``worker/checker.py``), the checks (``wire/judging.py``), what becomes of the call (``call.py``).
Laws:
1. A value is handed over only when the process has said that it is sound and fits its schema (tests/contract/test_large.py).
2. A process that dies or stays silent ends that value and nothing else; the next value gets a new one (tests/contract/test_large.py).
3. Tenants take turns, and once there are several none has the last process beside another (tests/contract/test_turns.py).
4. After ``close`` no process of it is left (tests/contract/test_large.py).
5. A digest is the process's word on the bytes that came, never of an object that the caller holds (tests/contract/test_large.py).
"""

import dataclasses
import gc
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from engine.checking import Checker
from engine.errors import EngineError, HostError, one_line
from engine.wire import decoding, judging
from engine.wire.framing import RemoteFault
from engine.wire.messages import FromWorker, Result, message_of
from engine.wire.session import Large
from engine.worker.checker import CheckingProcess

LARGE_BYTES = 16 << 10  # of records 1 ms on the loop, of empty objects 8 ms; beyond it the way to another process is the shorter one
_PROCESSES = 2
_ORDERS = 200  # what one process is given before it is let go: what it keeps of them, schemas and keys, stays small
_SECONDS = 20.0  # for one value; about one second is usual for the worst of 8 MiB
_SHARED_SECONDS = 3.0  # the same while values of other tenants wait
_SLICE_SECONDS = 0.002
_IDLE_SECONDS = 60.0  # a process holds some 30 MB
_ADDRESS_BYTES = 1 << 30  # what checking takes beside what grows with the value
_ADDRESS_FACTOR = 16  # bytes of memory behind a byte of a frame; text of 8 MiB takes 5, records 30, but those of at most a million values
_CPU_SECONDS = int(_ORDERS * _SECONDS) + 60  # what the kernel allows one process in all; each value has its deadline here


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A large message that was taken: ``lines`` is why its value does not fit, empty when it does.

    ``digest`` is of its value; None when the process was lost after it had judged and before it had named it.
    """

    message: FromWorker
    lines: tuple[str, ...]
    digest: Callable[[], Awaitable[str | None]] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Idle:
    """A process that waits, the bytes of memory it may use, and since when."""

    process: CheckingProcess
    address: int
    since: float


class _Turn:
    """The use of one process by a tenant. ``scope`` ends its value; the time counts from ``begin``."""

    def __init__(self, tenant: str | None) -> None:
        self.tenant = tenant
        self.scope = trio.CancelScope()
        self.since = math.inf


class _Turns:
    """Who may use a process next and for how long: at most so many at once, and tenants in turn."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: OrderedDict[str | None, deque[trio.Event]] = OrderedDict()
        self._held: set[_Turn] = set()
        self._used: Counter[str | None] = Counter()
        self._tenants: set[str | None] = set()  # two at most: that there are several is all there is to know

    @asynccontextmanager
    async def taken(self, tenant: str | None) -> AsyncIterator[_Turn]:
        await self._wait(tenant)
        turn = _Turn(tenant)
        self._held.add(turn)
        try:
            yield turn
        finally:
            self._held.discard(turn)
            self._pass_on(tenant)

    def begin(self, turn: _Turn) -> None:
        """The process has the value from now on."""
        turn.since = trio.current_time()
        self._retime()

    async def _wait(self, tenant: str | None) -> None:
        if len(self._tenants) < 2:
            self._tenants.add(tenant)
        if tenant not in self._waiting and self._may(tenant):  # whoever waits while one is free may not have that one
            self._use(tenant)
            return
        called = trio.Event()
        self._waiting.setdefault(tenant, deque()).append(called)
        self._retime()
        try:
            await called.wait()
        except trio.Cancelled:
            if called.is_set():
                self._pass_on(tenant)  # it was given just now, and nobody is here to take it
            else:
                self._waiting[tenant].remove(called)
                if not self._waiting[tenant]:
                    del self._waiting[tenant]
                self._retime()
            raise

    def _may(self, tenant: str | None) -> bool:
        # security: else one tenant's slow values would hold every process, and nobody else's would come to an end
        last = self._free == 1 and len(self._tenants) > 1
        return self._free > 0 and not (last and self._used[tenant])

    def _use(self, tenant: str | None) -> None:
        self._free -= 1
        self._used[tenant] += 1

    def _pass_on(self, tenant: str | None) -> None:
        self._free += 1
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]
        for other in list(self._waiting):
            if self._may(other):
                line = self._waiting.pop(other)
                line.popleft().set()
                self._use(other)
                if line:
                    self._waiting[other] = line  # behind everybody else
        self._retime()

    def _retime(self) -> None:
        for turn in self._held:
            shared = any(tenant != turn.tenant for tenant in self._waiting)
            turn.scope.deadline = turn.since + (_SHARED_SECONDS if shared else _SECONDS)


class _TooCostlyError(Exception):
    """The process says that the value takes more than it may have."""


class _Order:
    """One value on its way through a process. ``sound`` and ``judged`` are set when that is known, ``over`` when nothing more comes."""

    def __init__(self, large: Large, checker: Checker | None, tenant: str | None) -> None:
        self.large, self.tenant = large, tenant
        self.details = {
            "kind": large.kind.NUMBER,
            "depth": large.depth,
            "nodes": large.nodes,
            "schema": None if checker is None else checker.text,
        }
        self.sound, self.judged, self.over = trio.Event(), trio.Event(), trio.Event()
        self.scope = trio.CancelScope()
        self.is_sound = False
        self.lines: tuple[str, ...] | None = None
        self.digest: str | None = None
        self.fault: RemoteFault | None = None

    def take(self, what: str, told: Any) -> bool:
        """Believe one answer as far as its form and place go; says whether it was the last. Raises RemoteFault for any other."""
        if what == judging.SOUND and not self.is_sound:
            self.is_sound = True
            self.sound.set()
            return False
        if what == judging.LINES and self.is_sound and self.lines is None and _texts(told):
            self.lines = tuple(one_line(line) for line in told)
            self.judged.set()
            return self.large.kind is not Result or bool(self.lines)
        if what == judging.DIGEST and self.lines == () and type(told) is str:
            self.digest = told
            return True
        if what == judging.FAULT and self.lines is None and type(told) is str:
            self.fault = RemoteFault("violation.protocol", told)
            return True
        if what == judging.COSTLY:
            raise _TooCostlyError
        raise RemoteFault("violation.protocol", "the checking process gave an answer that is none")

    def lose(self, fault: RemoteFault) -> None:
        """Nothing more comes, for this reason. A value that is judged stays judged."""
        if self.lines is None and self.fault is None:
            self.fault = fault

    def end(self) -> None:
        """Wake whoever waits, whatever is known."""
        for event in (self.sound, self.judged, self.over):
            event.set()


class Values:
    """The checking processes of one engine; they start with the first large value."""

    def __init__(self, nursery: trio.Nursery, lock: Callable[[], Mapping[str, Any]]) -> None:
        self._nursery, self._lock = nursery, lock
        self._turns = _Turns(_PROCESSES)
        self._idle: list[_Idle] = []
        self._busy: set[CheckingProcess] = set()
        self._closed = False
        self._unclean: list[str] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes there are, for tests and ``doctor``."""
        return tuple(process.pid for process in (*(idle.process for idle in self._idle), *self._busy))

    async def taken(self, large: Large, checker: Checker | None, *, tenant: str | None = None) -> Checked:
        """The message, checked in a process and built here in slices; ``checker`` is of its value, None where there is no schema.

        Raises RemoteFault: ``violation.protocol``, a ``limit_exceeded`` when checking cost too much, and ``crashed.worker`` when no
        process could be had or it was lost. Nothing is handed over then.
        """
        order = _Order(large, checker, tenant)
        self._nursery.start_soon(self._through, order)
        try:
            await order.sound.wait()
            values = await _built(order) if order.is_sound else []
            await order.judged.wait()
            if order.fault is not None or order.lines is None:
                raise order.fault or _lost("it was given up")
            message = message_of(values, large.kind)
        except BaseException:
            order.scope.cancel()
            raise

        async def digest() -> str | None:
            await order.over.wait()
            return order.digest  # never of the message: its value is the caller's by now, who may have changed it

        return Checked(message=message, lines=order.lines, digest=digest)

    async def retire_idle(self) -> None:
        """End the processes that had nothing to do for a minute; what would not end is told by ``close``."""
        cold = [idle for idle in self._idle if trio.current_time() - idle.since > _IDLE_SECONDS]
        self._idle = [idle for idle in self._idle if idle not in cold]
        for idle in cold:
            await self._end(idle.process)

    async def close(self) -> None:
        """End every process; values on their way end as ``crashed.worker``. Raises HostError when a process would not end."""
        self._closed = True
        idle, self._idle = self._idle, []  # nobody takes one of them while another is ended
        for process in [*(one.process for one in idle), *self._busy]:
            await self._end(process)
        if self._unclean:
            raise HostError("engine_failed.not_clean", *self._unclean)

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _through(self, order: _Order) -> None:
        """Run one order; whatever happens, ``over`` is set."""
        try:
            with order.scope:
                async with self._turns.taken(order.tenant) as turn:
                    await self._run(order, turn)
        except EngineError as error:
            order.lose(_lost("; ".join(error.lines)))
        except Exception as error:  # a bug of ours belongs to this value, not to everybody's
            order.lose(_lost(f"{type(error).__name__} in the engine"))
            self._note(f"{type(error).__name__} while a large value was checked")
        finally:
            order.end()

    async def _run(self, order: _Order, turn: _Turn) -> None:
        process, address = await self._process(len(order.large.payload))
        self._busy.add(process)
        whole = False
        try:
            self._turns.begin(turn)
            with turn.scope:
                await process.order("value", order.details, order.large.payload)
                while not order.take(*await process.answer()):
                    continue
                whole = True
            if turn.scope.cancelled_caught:
                order.lose(_costly(order.large))
        except _TooCostlyError:
            order.lose(_costly(order.large))
        except (OSError, RemoteFault, trio.ClosedResourceError):  # it is gone, or no longer itself: what is not known stays unknown
            order.lose(_lost("the checking process was lost"))
        finally:
            if whole and process.orders < _ORDERS and not self._closed:
                self._busy.discard(process)
                self._idle.append(_Idle(process=process, address=address, since=trio.current_time()))
            else:
                await self._end(process)

    async def _process(self, size: int) -> tuple[CheckingProcess, int]:
        """An idle process that may use enough memory, or a new one."""
        address = _ADDRESS_BYTES + _ADDRESS_FACTOR * max(size, 8 << 20)
        while self._idle:
            idle = self._idle.pop()
            if idle.address >= address and not idle.process.dead:
                return idle.process, idle.address
            await self._end(idle.process)
        self._require_open()
        process = await CheckingProcess.start({**self._lock(), "cpu_s": _CPU_SECONDS, "address_bytes": address})
        try:
            self._require_open()
        except HostError:  # closed meanwhile, by somebody who could not know of this one
            await self._end(process)
            raise
        return process, address

    def _require_open(self) -> None:
        if self._closed:
            raise HostError("refused.start_failed", "the engine is closed")

    async def _end(self, process: CheckingProcess) -> None:
        self._busy.discard(process)
        try:
            await process.close()
        except HostError as error:  # told when the engine closes, not to whoever had this value
            self._note(*error.lines)
        except Exception as error:  # nor is it a reason to leave the others
            self._note(f"{type(error).__name__} while a checking process was ended")

    def _note(self, *lines: str) -> None:
        self._unclean += [line for line in lines if line not in self._unclean]


async def _built(order: _Order) -> list[Any]:
    """The values of an order that is said to be sound. Raises RemoteFault when they are refused here, and the process has had its say."""
    try:
        return await _in_slices(order.large.payload)
    except RemoteFault:
        await order.over.wait()  # it comes to the same in a moment; to give the order up would end it, for every such value
        raise


async def _in_slices(payload: memoryview) -> list[Any]:
    """The values of a sound payload, built with a turn for everybody else every two milliseconds. Raises RemoteFault."""
    pieces = decoding.built_in_pieces(payload)
    try:
        while (values := _slice(pieces)) is None:
            await trio.lowlevel.checkpoint()
        return values
    except decoding.Refused as refused:
        problem = str(refused)
    raise RemoteFault("violation.protocol", f"the worker sent {problem}")


def _slice(pieces: Generator[None, None, list[Any]]) -> list[Any] | None:
    """Build for two milliseconds; the values when that was enough."""
    collecting = gc.isenabled()
    gc.disable()  # else every 700 new values begin a collection, and now and then one of all that the host holds: 50 ms and more
    try:
        until = time.perf_counter() + _SLICE_SECONDS
        while time.perf_counter() < until:
            next(pieces)
    except StopIteration as done:
        values: list[Any] = done.value
        return values
    finally:
        if collecting:
            gc.enable()
    return None


def _costly(large: Large) -> RemoteFault:
    code = "limit_exceeded.result" if large.kind is Result else "limit_exceeded.events"
    return RemoteFault(code, f"checking this {large.kind.__name__} takes more time or memory than a value may cost")


def _lost(why: str) -> RemoteFault:
    return RemoteFault("crashed.worker", f"a large value could not be checked: {why}")


def _texts(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)
