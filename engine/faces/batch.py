"""``stockade batch``: the calls of one file, their outcomes into another.

Its job: the files and the engine of a batch, progress on stderr while it runs, the summary at its end.
Not its job: the batch itself (``batch/``).
Laws:
1. The summary and the exit code are those of the whole batch, in however many runs it was made (tests/e2e/test_cli_batch_resume.py); an
   interrupted one is summed up as far as it came.
2. Nothing that a tool or a line said reaches the terminal but reasons and counts (tests/e2e/test_cli_batch.py).
3. On a terminal progress is one line that is written over; elsewhere it is a line now and then (tests/unit/test_batch_progress.py).
"""

import contextlib
import dataclasses
import os
import stat
from pathlib import Path
from typing import IO, Any

import trio

from engine.batch.lines import SLACK_BYTES, Defaults
from engine.batch.run import Batch, Wanted, opened
from engine.errors import EngineError, RequestError
from engine.faces import run
from engine.faces.printing import Answer, Printer, table
from engine.faces.progress import Progress
from engine.outcome import error_for
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.model import Pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What only this command is told."""

    calls: str
    out: str
    source: str | None
    concurrency: int | None
    resume: bool
    allow_repeat: bool


class Command:
    """One run of the command. ``answer`` is all of it; after an interrupt ``stopped`` says how far it came."""

    def __init__(self, printer: Printer, asked: Asked, options: run.Wanted) -> None:
        self._printer, self._asked, self._options = printer, asked, options
        self._made: Batch | None = None
        self._seconds = 0.0
        self._concurrency = 0

    async def answer(self) -> Answer:
        """All of it. Raises EngineError when the host does not allow it."""
        wanted = _wanted(self._printer, self._asked, self._options)
        self._concurrency = wanted.concurrency
        with contextlib.ExitStack() as stack:
            try:
                calls = stack.enter_context(_calls(self._asked.calls))
                results, started = stack.enter_context(opened(Path(self._asked.out), resume=self._asked.resume))
            except RequestError as error:
                return dataclasses.replace(Answer.of_error(error), advice="")  # the table's is for one call; the line says it all
            async with self._options.engine() as engine:
                self._made = made = Batch(engine, calls, results, started, wanted)
                try:
                    await self._run(made)
                except RequestError as error:
                    return dataclasses.replace(Answer.of_error(error), advice="")
                return _told(self._value(made), made, results.name)

    async def _run(self, made: Batch) -> None:
        progress = Progress(self._printer, made)
        before = trio.current_time()
        failure: EngineError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(progress.keep_telling)
                try:
                    await made.run()
                except EngineError as error:  # raised again outside of the nursery, which would wrap it
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            self._seconds = trio.current_time() - before
            progress.end()
        if failure is not None:
            if made.done < made.total:
                self._printer.event("batch", {"done": made.done, "total": made.total}, _stopped(made))
            raise failure

    def stopped(self) -> Answer | None:
        """The answer after an interrupt, None when nothing had begun."""
        made = self._made
        if made is None:
            return None
        return Answer(reason="cancelled.caller", lines=(_stopped(made),), value=self._value(made), advice="")

    def _value(self, made: Batch) -> dict[str, Any]:
        tally, seconds = made.tally, self._seconds
        return {
            "lines": made.total,
            "done": made.done,
            "earlier": made.earlier,
            "outcomes": tally.outcomes(),
            "wall_ms": tally.wall_ms(),
            "seconds": round(seconds, 3),
            "lines_per_second": round(made.finished / seconds, 1) if seconds else 0.0,
            "concurrency": self._concurrency,
        }


def _stopped(made: Batch) -> str:
    return f"stopped with {made.done} of {made.total} lines finished: --resume goes on with the others"


def at_once(printer: Printer, asked: int | None, pool: Pool, *, workers: int | None = None) -> int:
    """How many calls may be in flight so that none stands in the pool's line; told when it is fewer than asked for.

    ``workers``: of how many kinds they are, by source and tenant; None when that is not known.
    """
    room = max(1, pool.total - 1)  # the last worker is kept for tenants that have none
    room = room if workers is None else min(room, workers * pool.jails)
    given = min(asked or 2 * len(os.sched_getaffinity(0)), room)
    if asked is not None and given < asked:
        printer.note(f"{given} calls at once: the policy's pool has no room for more")
    return given


def _wanted(printer: Printer, asked: Asked, options: run.Wanted) -> Wanted:
    policy = load_policy(options.policy, data_dir("policies"))
    return Wanted(
        concurrency=at_once(printer, asked.concurrency, policy.pool),
        jails=policy.pool.jails,
        line_bytes=policy.limits.request_bytes + SLACK_BYTES,
        allow_repeat=asked.allow_repeat,
        worker=options.worker,
        defaults=Defaults(source=asked.source, timeout_ms=options.timeout_ms, tenant=options.tenant),
    )


def _calls(path: str) -> IO[bytes]:
    """The file of calls. Raises RequestError when it cannot be read, or not a second time."""
    if path == "-":
        raise error_for("refused.request", "a batch is not read from stdin: it reads its calls a second time when it is gone on with")
    try:
        # security: without O_NONBLOCK a pipe that nobody writes to would hold the command for ever
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or str(error)
        raise error_for("refused.request", f"the calls {path} cannot be read: {why}") from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    raise error_for("refused.request", f"the calls {path} are no file: a batch that is gone on with reads them again")


def _told(value: dict[str, Any], made: Batch, results: str) -> Answer:
    tally = made.tally
    bad = {name: count for name, count in tally.outcomes().items() if name != "ok.done"}
    mixed = len(bad) > 1
    lines = [f"{tally.failed} of {tally.lines} lines are not ok", *(f"{name}: {count}" for name, count in bad.items())]
    if not mixed:
        lines = [f"{count} of {tally.lines} lines ended so" for count in bad.values()]
    return Answer(reason=tally.reason(), lines=tuple(lines), value=value, text=_text(value, made.finished, results), mixed=mixed)


def _text(value: dict[str, Any], finished: int, results: str) -> str:
    wall = value["wall_ms"]
    rows = [
        ("lines", f"{finished} in {value['seconds']:g} s, {value['lines_per_second']:g} a second, {value['concurrency']} at once"),
        *([("finished earlier", str(value["earlier"]))] if value["earlier"] else []),
        ("outcomes", ", ".join(f"{reason} {count}" for reason, count in value["outcomes"].items()) or "none"),
        ("wall time (ms)", "no call ran" if wall is None else ", ".join(f"{name} {ms:g}" for name, ms in wall.items() if ms is not None)),
        ("results", results),
    ]
    return table(("batch", ""), rows)
