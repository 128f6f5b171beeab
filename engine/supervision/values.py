"""Large values, checked in a process of their own and built here a little at a time, so that no neighbour waits for them.

Its job: who may use a checking process and when, what its answers mean, the building in slices.
Not its job: the process (``worker/checker.py``), the checks (``wire/judging.py``), what becomes of the call (``call.py``).
Laws:
1. A value is handed over only when the process has said that it is sound and fits its schema (tests/contract/test_large.py).
2. A process that dies or stays silent ends that value and nothing else; the next value gets a new one (tests/contract/test_large.py).
3. Tenants take turns: one with many large values waits between them for the others (tests/contract/test_large.py).
4. After ``close`` no process of it is left (tests/contract/test_large.py).
"""

import dataclasses
import gc
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from engine import spelling
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
_SLICE_SECONDS = 0.002
_IDLE_SECONDS = 60.0  # a process holds some 30 MB
_ADDRESS_BYTES = 1 << 30  # what checking takes beside what grows with the value
_ADDRESS_FACTOR = 16  # bytes of memory behind a byte of a frame; text of 8 MiB takes 5, records 30, but those of at most a million values
_CPU_SECONDS = int(_ORDERS * _SECONDS) + 60  # what the kernel allows one process in all; each value has its deadline here


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A large message that was taken: ``lines`` is why its value does not fit, empty when it does. ``digest`` is of its value."""

    message: FromWorker
    lines: tuple[str, ...]
    digest: Callable[[], Awaitable[str]] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Idle:
    """A process that waits, the bytes of memory it may use, and since when."""

    process: CheckingProcess
    address: int
    since: float


class _Turns:
    """Who may use a process next: at most so many at once, and tenants in turn."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: OrderedDict[str | None, deque[trio.Event]] = OrderedDict()

    @asynccontextmanager
    async def taken(self, tenant: str | None) -> AsyncIterator[None]:
        await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str | None) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        called = trio.Event()
        self._waiting.setdefault(tenant, deque()).append(called)
        try:
            await called.wait()
        except trio.Cancelled:
            if called.is_set():
                self._pass_on()  # it was given just now, and nobody is here to take it
            else:
                self._waiting[tenant].remove(called)
                if not self._waiting[tenant]:
                    del self._waiting[tenant]
            raise

    def _pass_on(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        tenant, line = self._waiting.popitem(last=False)
        line.popleft().set()
        if line:
            self._waiting[tenant] = line  # behind everybody else


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
        raise RemoteFault("violation.protocol", "the checking process gave an answer that is none")

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

        Raises RemoteFault: ``violation.protocol``, a ``limit_exceeded`` when checking cost too much or its process died of it, and
        ``crashed.worker`` when no process could be had. Nothing is handed over then.
        """
        order = _Order(large, checker, tenant)
        self._nursery.start_soon(self._through, order)
        try:
            await order.sound.wait()
            values = await _in_slices(large.payload) if order.is_sound else []
            await order.judged.wait()
            if order.fault is not None or order.lines is None:
                raise order.fault or _costly(large)
            message = message_of(values, large.kind)
        except BaseException:
            order.scope.cancel()
            raise

        async def digest() -> str:
            await order.over.wait()  # without it the process was lost since: the value is judged, and only its name is missing
            return order.digest or spelling.digest(getattr(message, "value", None))

        return Checked(message=message, lines=order.lines, digest=digest)

    async def retire_idle(self) -> None:
        """End the processes that had nothing to do for a minute. Raises HostError when one would not end."""
        cold = [idle for idle in self._idle if trio.current_time() - idle.since > _IDLE_SECONDS]
        self._idle = [idle for idle in self._idle if idle not in cold]
        for idle in cold:
            await idle.process.close()

    async def close(self) -> None:
        """End every process; values on their way end as ``crashed.worker``. Raises HostError when a process would not end."""
        self._closed = True
        for process in [*(idle.process for idle in self._idle), *self._busy]:
            await self._end(process)
        self._idle.clear()
        if self._unclean:
            raise HostError("engine_failed.not_clean", *self._unclean)

    async def _through(self, order: _Order) -> None:
        """Run one order; whatever happens, ``over`` is set."""
        try:
            with order.scope:
                async with self._turns.taken(order.tenant):
                    await self._run(order)
        except EngineError as error:
            order.fault = RemoteFault("crashed.worker", f"a large value could not be checked: {'; '.join(error.lines)}")
        finally:
            order.end()

    async def _run(self, order: _Order) -> None:
        process, address = await self._process(len(order.large.payload))
        self._busy.add(process)
        whole = False
        try:
            with trio.move_on_after(_SECONDS):
                await process.order("value", order.details, order.large.payload)
                while not order.take(*await process.answer()):
                    continue
                whole = True
        except (OSError, RemoteFault, trio.ClosedResourceError):
            pass  # it is gone, or no longer itself: what is not known stays unknown
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
        if self._closed:
            raise HostError("refused.start_failed", "the engine is closed")
        return await CheckingProcess.start({**self._lock(), "cpu_s": _CPU_SECONDS, "address_bytes": address}), address

    async def _end(self, process: CheckingProcess) -> None:
        self._busy.discard(process)
        try:
            await process.close()
        except HostError as error:  # told when the engine closes, not to whoever had this value
            self._unclean += error.lines


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


def _texts(value: Any) -> bool:
    return type(value) is list and all(type(item) is str for item in value)
