"""One batch: each line of calls becomes one line of outcomes, whatever happens between.

Its job: what was done before, reading ahead, calls in flight, the note before a call that must not be made twice, the outcome's line.
Not its job: the formats of lines (``lines.py``), files (``files.py``), what is shown meanwhile (``faces/batch.py``).
Laws:
1. An id that is finished is neither called again nor lost, however the run before ended (tests/e2e/test_cli_batch_resume.py); what the
   host kept from its end is made again (tests/unit/test_batch_again.py).
2. A call that changes the world is noted on the disk before it begins; begun and not finished, it is not made again unasked
   (tests/unit/test_batch_run.py).
3. No more calls are in flight than asked for, and of one worker no more than it has jails, so that none waits for another
   (tests/unit/test_batch_run.py).
4. Memory does not grow with the number of lines (tests/unit/test_batch_flat.py).
5. The counts are of the lines that the file of calls has now, each by its last outcome (tests/unit/test_batch_again.py).
6. What stops one line stops no other, except a disk that is full and a worker that would not end (tests/unit/test_batch_run.py).
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import trio

from engine.batch.files import LineFile
from engine.batch.ids import Ids, Met, Past, Standing
from engine.batch.lines import BadLine, CallLine, Defaults, Raw, raw_lines, read_line
from engine.batch.sources import Runs, Sources
from engine.batch.tally import Tally
from engine.errors import EngineError, one_line
from engine.host import WorkerKind
from engine.outcome import REASONS, Fault, Outcome, Status, error_for

T = TypeVar("T")
CHANGES_THE_WORLD = ("write", "external")  # effects that a second call would have a second time
_PASSING = ("refused.busy", "refused.source_changed")  # beside what is the host's fault
_AHEAD_LINES, _AHEAD_BYTES = 64, 1 << 20  # read and not yet called
_LOOKED_AT = 2000  # lines in one go; finished ones are passed over, and an interrupt must not wait for a million of them
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """How a batch is to run. ``jails`` is how many calls one worker serves at once, ``line_bytes`` the longest line."""

    concurrency: int
    jails: int
    line_bytes: int
    allow_repeat: bool = False
    worker: WorkerKind = "auto"
    defaults: Defaults = dataclasses.field(default_factory=Defaults)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Due:
    """A line that is to have an outcome. ``past``: it has one, which stands unless the call may be made again."""

    line: CallLine | BadLine
    past: Past | None = None


@contextlib.contextmanager
def opened(out: Path, *, resume: bool) -> Iterator[tuple[LineFile, LineFile]]:
    """The file of outcomes and, beside it, that of calls begun. Raises RequestError when they are there and ``resume`` is false."""
    with contextlib.ExitStack() as stack:
        results = LineFile.opened(out, go_on=resume)
        stack.callback(results.close)
        try:
            started = LineFile.opened(out.with_name(f"{out.name}.started"), go_on=resume)
        except EngineError:
            if not resume:
                results.remove()
            raise
        stack.callback(started.close)
        yield results, started


class Batch:
    """One run of a batch. ``run`` it once; ``tally``, ``done`` and ``total`` may be looked at meanwhile."""

    def __init__(self, engine: Runs, calls: IO[bytes], results: LineFile, started: LineFile, wanted: Wanted) -> None:
        self._engine, self._calls, self._results, self._started, self._wanted = engine, calls, results, started, wanted
        self.tally = Tally()
        self.total = 0  # lines of the file of calls
        self.earlier = 0  # of them, finished by earlier runs
        self.finished = 0  # by this one
        self._sources = Sources(engine, wanted.worker)
        self._slots = trio.Semaphore(wanted.concurrency)
        self._lanes: dict[tuple[str, str | None], _Lane] = {}
        self._scope = trio.CancelScope()
        self._failure: EngineError | None = None

    @property
    def done(self) -> int:
        """Lines that have their outcome."""
        return self.earlier + self.finished

    async def run(self) -> None:
        """All of it. Raises RequestError when the files do not belong to it, HostError when the host stops it."""
        with contextlib.closing(Ids()) as ids:
            await trio.to_thread.run_sync(self._look_back, ids)
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await self._feed(nursery, ids)
        if self._failure is not None:
            raise self._failure
        await trio.to_thread.run_sync(self._results.keep)
        self._started.remove()  # each that was begun has its outcome on the disk

    def _look_back(self, ids: Ids) -> None:
        """Take down what earlier runs did, and count the lines."""
        for record in _interruptible(self._results.records()):
            id, reason = _checked(record, self._results)
            past = Past(reason=reason, wall_ms=None if record["usage"] is None else float(record["usage"]["wall_ms"]))
            ids.finished(id, record["line"], record["call"], past, open=_never_ran(reason))
        self._results.cut()
        for record in self._started.records():
            if not _is_note(record):
                raise error_for("refused.request", f"{self._started.name} was not written by a batch: remove it, or name another file")
            ids.begun(record["id"])
        self._started.cut()
        self._started.keep_name()
        self.total = sum(1 for _ in _interruptible(raw_lines(self._calls, self._wanted.line_bytes)))
        self._calls.seek(0)

    async def _feed(self, nursery: trio.Nursery, ids: Ids) -> None:
        """Start the lines that are to have an outcome, read in pieces and by a thread."""
        raws, more = raw_lines(self._calls, self._wanted.line_bytes), True
        try:
            while more:
                found, pasts, more = await trio.to_thread.run_sync(self._piece, raws, ids)
                for past in pasts:
                    self._stands(past)
                for due in found:
                    await self._slots.acquire()
                    nursery.start_soon(self._one, due)
        except EngineError as error:
            self._stop(error)

    def _piece(self, raws: Iterator[Raw], ids: Ids) -> tuple[list[Due], list[Past], bool]:
        """The next lines that are due, the outcomes of those between that are finished, and whether more may follow."""
        found: list[Due] = []
        pasts: list[Past] = []
        size = 0
        for looked, raw in enumerate(raws, 1):
            due = self._standing(read_line(raw, self._wanted.line_bytes, self._wanted.defaults), ids)
            if isinstance(due, Past):
                pasts.append(due)
            else:
                found.append(due)
                size += len(raw.data or b"")
            if len(found) == _AHEAD_LINES or size > _AHEAD_BYTES or looked == _LOOKED_AT:
                return found, pasts, True
        return found, pasts, False

    def _standing(self, line: CallLine | BadLine, ids: Ids) -> Due | Past:
        """The line as it is to be treated, or its outcome when an earlier run finished it."""
        met = ids.meet(line.id, line.number, line.digest)
        if met.standing is Standing.TAKEN:
            met, line = ids.meet(None, line.number, line.digest), _taken(line, met)
        allowed, past = self._wanted.allow_repeat, met.past
        if past is not None and not (_passing(past.reason) or (allowed and past.reason == "refused.repeat")):
            return past
        # a refusal ran nothing, but a note beside it may be of a later run that did not see the end
        unsure = met.standing is Standing.BEGUN or (past is not None and met.begun and _never_ran(past.reason))
        if unsure and not allowed and isinstance(line, CallLine):
            told = "an earlier run began this call and did not see its end: it may have been done"
            return Due(line=BadLine(number=line.number, digest=line.digest, id=line.id, reason="refused.repeat", lines=(told,)))
        stands = past is not None and not allowed and not _never_ran(past.reason)
        return Due(line=line, past=past if stands else None)

    def _stands(self, past: Past) -> None:
        """Count the outcome of an earlier run."""
        self.tally.add(past.reason, past.wall_ms)
        self.earlier += 1

    async def _one(self, due: Due) -> None:
        """One line, to its outcome in the file."""
        try:
            if isinstance(due.line, BadLine):
                self._write(due.line, _refused(due.line.reason, due.line.lines), {})
            else:
                await self._called(due.line, due.past)
        except EngineError as error:
            self._stop(error)
        finally:
            self._slots.release()

    async def _called(self, line: CallLine, past: Past | None) -> None:
        stopping: EngineError | None = None
        receipt: Mapping[str, Any] = {}
        try:
            outcome = await self._outcome(line, past)
        except _OnceError as once:
            self._stands(once.past)
            return
        except EngineError as error:
            outcome = _refused(error.code, error.lines)
            stopping = error if error.code == "engine_failed.not_clean" else None
        except Exception as error:
            outcome = _refused("engine_failed.bug", (one_line(f"{type(error).__name__} in the engine"),))
        if outcome.status is Status.CANCELLED:
            return  # it has no end that a later run could not better
        if outcome.reason == "refused.storage":
            raise error_for(outcome.reason, *outcome.lines)  # so would be all that follow
        try:
            with trio.CancelScope(shield=True):  # what is finished is written, interrupted or not
                receipt = await outcome.concluded()
        except EngineError as error:
            stopping = error
        self._write(line, outcome, receipt)
        if stopping is not None:
            raise stopping

    async def _outcome(self, line: CallLine, past: Past | None) -> Outcome:
        """The call's. Raises _OnceError when it changes the world and its outcome stands."""
        async with self._sources.hold(line.source) as held, self._lane(held.bundle, line.tenant):
            if held.effects.get(line.tool) in CHANGES_THE_WORLD:
                if past is not None:
                    raise _OnceError(past)
                note = {"id": line.id, "line": line.number, "call": line.digest}
                await trio.to_thread.run_sync(self._started.append_durably, note)
            return await self._engine.call(line.tool, line.arguments, timeout_ms=line.timeout_ms, tenant=line.tenant, namespace=line.source)

    @contextlib.asynccontextmanager
    async def _lane(self, bundle: str, tenant: str | None) -> AsyncIterator[None]:
        """A turn among the calls that one worker serves: in the pool's own line the time of a call would run already."""
        lane = self._lanes.setdefault((bundle, tenant), _Lane(self._wanted.jails))
        lane.users += 1
        try:
            async with lane.turns:
                yield
        finally:
            lane.users -= 1
            if not lane.users:
                del self._lanes[bundle, tenant]

    def _write(self, line: CallLine | BadLine, outcome: Outcome, receipt: Mapping[str, Any]) -> None:
        ran = bool(receipt) and receipt["worker"]["started"]
        usage = {name: receipt["usage"][name] for name in ("wall_ms", "cpu_ms", "peak_rss_bytes")} if ran else None
        self._results.append(
            {
                "id": line.id,
                "line": line.number,
                "call": line.digest,
                "status": str(outcome.status),
                "reason": outcome.reason,
                "lines": list(outcome.lines),
                "value": outcome.value,
                "stdout": outcome.stdout,
                "stderr": outcome.stderr,
                "usage": usage,
                "receipt": receipt.get("id"),
            }
        )
        self.tally.add(outcome.reason, None if usage is None else usage["wall_ms"])
        self.finished += 1

    def _stop(self, error: EngineError) -> None:
        self._failure = self._failure or error
        self._scope.cancel()


class _OnceError(Exception):
    """The call is not made a second time."""

    def __init__(self, past: Past) -> None:
        super().__init__()
        self.past = past


class _Lane:
    def __init__(self, jails: int) -> None:
        self.turns = trio.Semaphore(jails)
        self.users = 0


def _interruptible(items: Iterable[T]) -> Iterator[T]:
    """The items, in a thread of trio's that an interrupt need not wait for."""
    for number, item in enumerate(items):
        if number % 1024 == 0:
            trio.from_thread.check_cancelled()
        yield item


def _taken(line: CallLine | BadLine, met: Met) -> BadLine:
    where = f"stands on line {met.line}" if met.line is not None else "has an outcome, of another call"
    told = one_line(f"the id {line.id!r} {where} already: give this line an id of its own")
    return BadLine(number=line.number, digest=line.digest, id=None, reason="refused.request", lines=(told,))


def _passing(reason: str) -> bool:
    """Whether another run may see another end of the same call, since this one was the host's doing."""
    return REASONS[reason].fault is Fault.HOST or reason in _PASSING


def _never_ran(reason: str) -> bool:
    """Whether nothing of the tool ran for it."""
    return REASONS[reason].status is Status.REFUSED and reason != "refused.repeat"


def _is_note(record: Mapping[str, Any]) -> bool:
    """Whether a line is a note of a call begun, to the key."""
    return set(record) == {"id", "line", "call"} and type(record["id"]) is str and _is_place(record)


def _is_place(record: Mapping[str, Any]) -> bool:
    return type(record.get("line")) is int and _DIGEST.fullmatch(str(record.get("call"))) is not None


def _refused(reason: str, lines: tuple[str, ...]) -> Outcome:
    return Outcome(status=REASONS[reason].status, reason=reason, lines=lines)


def _checked(record: Mapping[str, Any], file: LineFile) -> tuple[str | None, str]:
    """Id and reason of an earlier outcome. Raises RequestError for a line that no batch wrote."""
    id, reason, usage = record.get("id"), record.get("reason"), record.get("usage")
    whole = (id is None or type(id) is str) and _is_place(record)
    wall = usage.get("wall_ms") if type(usage) is dict else None
    timed = usage is None or (isinstance(wall, int | float) and math.isfinite(wall))
    if not whole or not timed or type(reason) is not str or reason not in REASONS:
        raise error_for("refused.request", f"{file.name} was not written by a batch, or not as it is now: name another file")
    return id, reason
