"""``stockade batch``: the calls of one file, their outcomes into another.

Its job: the files and the engine of a batch, progress on stderr while it runs, the summary at its end.
Not its job: the batch itself (``batch/``).
Laws:
1. The summary and the exit code are those of the whole batch, in however many runs it was made (tests/e2e/test_cli_batch_resume.py).
2. Nothing that a tool or a line said reaches the terminal but reasons and counts (tests/e2e/test_cli_batch.py).
3. On a terminal progress is one line that is written over; elsewhere it is a line now and then (tests/unit/test_batch_progress.py).
"""

import dataclasses
import os
import stat
from pathlib import Path
from typing import IO, Any

import trio

from engine.batch.lines import SLACK_BYTES, Defaults
from engine.batch.run import Batch, Wanted, opened
from engine.faces import run
from engine.faces.printing import Answer, Printer, table
from engine.faces.progress import Progress
from engine.outcome import error_for
from engine.places import data_dir
from engine.policy.load import load_policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What only this command is told."""

    calls: str
    out: str
    source: str | None
    concurrency: int | None
    resume: bool
    allow_repeat: bool


async def batch(printer: Printer, asked: Asked, options: run.Wanted) -> Answer:
    """All of it. Raises EngineError when the files or the host do not allow it."""
    wanted = _wanted(printer, asked, options)
    with _calls(asked.calls) as calls, opened(Path(asked.out), resume=asked.resume) as (results, started):
        async with options.engine() as engine:
            made = Batch(engine, calls, results, started, wanted)
            progress = Progress(printer, made)
            before = trio.current_time()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(progress.keep_telling)
                    await made.run()
                    nursery.cancel_scope.cancel()
            finally:
                progress.end()
                if made.done < made.total:
                    printer.note(f"stopped with {made.done} of {made.total} lines finished: --resume goes on with the others")
            return _told(made, results.name, trio.current_time() - before, wanted)


def _wanted(printer: Printer, asked: Asked, options: run.Wanted) -> Wanted:
    policy = load_policy(options.policy, data_dir("policies"))
    room = max(1, policy.pool.total - 1)  # the last worker is kept for tenants that have none
    concurrency = min(asked.concurrency or 2 * len(os.sched_getaffinity(0)), room)
    if asked.concurrency is not None and concurrency < asked.concurrency:
        printer.note(f"{concurrency} calls at once: the policy's pool has no room for more")
    return Wanted(
        concurrency=concurrency,
        jails=policy.pool.jails,
        line_bytes=policy.limits.request_bytes + SLACK_BYTES,
        allow_repeat=asked.allow_repeat,
        worker=options.worker,
        defaults=Defaults(source=asked.source, timeout_ms=options.timeout_ms, tenant=options.tenant),
    )


def _calls(path: str) -> IO[bytes]:
    """The file of calls. Raises RequestError when it cannot be read, or not a second time."""
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


def _told(made: Batch, results: str, seconds: float, wanted: Wanted) -> Answer:
    tally = made.tally
    value: dict[str, Any] = {
        "lines": tally.lines,
        "earlier": made.earlier,
        "outcomes": tally.outcomes(),
        "wall_ms": tally.wall_ms(),
        "seconds": round(seconds, 3),
        "lines_per_second": round(made.finished / seconds, 1) if seconds else 0.0,
        "concurrency": wanted.concurrency,
    }
    reason = tally.reason()
    bad = {name: count for name, count in tally.outcomes().items() if name != "ok.done"}
    lines = tuple(f"{count} of {tally.lines} lines ended so" if name == reason else f"{name}: {count}" for name, count in bad.items())
    return Answer(reason=reason, lines=lines, value=value, text=_text(value, made.finished, results))


def _text(value: dict[str, Any], finished: int, results: str) -> str:
    wall = value["wall_ms"]
    rows = [
        ("lines", f"{finished} in {value['seconds']:g} s, {value['lines_per_second']:g} a second, {value['concurrency']} at once"),
        *([("finished earlier", str(value["earlier"]))] if value["earlier"] else []),
        ("outcomes", ", ".join(f"{reason} {count}" for reason, count in value["outcomes"].items()) or "none"),
        ("wall time (ms)", "no call ran" if wall is None else ", ".join(f"{name} {ms:g}" for name, ms in wall.items())),
        ("results", results),
    ]
    return table(("batch", ""), rows)
