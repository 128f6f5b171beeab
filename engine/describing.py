"""One describing: a jailed child imports a source and says what it declares; with a receipt, like any call.

Its job: the child, the talk with it, the receipt, the error when it does not come to an answer.
Not its job: staging before it, checking and keeping the answer after it (``loading.py``).
Laws:
1. It has no grant but layers, its own limits, and a jail that serves nothing else (tests/contract/test_loading.py).
2. It has a receipt whatever its end (tests/contract/test_receipts.py).
3. What is declared with a secret in it is refused, and nobody sees it (tests/contract/test_leaving_declared.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import trio

from engine.errors import EngineError
from engine.leaving import Leaving
from engine.outcome import Usage, Verdict, error_for
from engine.preparing import Loaded, Prepared
from engine.results.journal import Journal
from engine.results.receipts import Happened, Setting, read, receipt
from engine.spelling import spelled
from engine.supervision.pool import Pool, Seat
from engine.supervision.pump import Closed, Pump
from engine.supervision.reaper import reap, why_closed
from engine.supervision.spare import LEAVE_SECONDS, failed
from engine.wire.framing import RemoteFault
from engine.wire.messages import Declarations, Describe, Failure
from engine.worker.base import End

_LINES = 20  # problems told at once
_TEXT_CHARACTERS = 64 << 10  # of them


@dataclasses.dataclass
class Described:
    """What came of it while it goes on; ``told`` is as the worker sent it, not yet checked."""

    verdict: tuple[str, str]
    told: list[Any] | None = None
    end: End | None = None
    stderr: str = ""
    usage: dict[str, int] = dataclasses.field(default_factory=dict)


async def describe(
    staged: Loaded, prepared: Prepared, pool: Pool, journal: Journal, leaving: Leaving
) -> tuple[list[Any], Mapping[str, Any]]:
    """What the source declares, unchecked, and the receipt. Raises the error of the verdict that it ended with."""
    journal.require()
    started, limits = trio.current_time(), prepared.resolved.limits
    seat = await pool.lease(prepared.recipe, prepared.resolved.pool)
    found = Described(("limit_exceeded.wall", f"the source was not described within {limits.wall_ms} ms"))
    enforced = seat.jail.enforced
    try:
        with trio.move_on_after(limits.wall_ms / 1000):
            await _talk(seat, found)
            await _require_innocent(found, leaving)
    except trio.Cancelled:
        found.verdict = ("cancelled.caller", "the caller gave up")
        raise
    finally:
        with trio.CancelScope(shield=True):
            await _leave(seat, found)
            await pool.give_back(seat, healthy=False)
        code, line = found.verdict
        # a declaration's line is one for each problem: each is looked through as it will be shown, and all of them as they came
        parts = leaving.text("error", line[:_TEXT_CHARACTERS]).splitlines()[:_LINES]
        found.verdict = code, "\n".join(map(leaving.said, parts))
        found.stderr = leaving.text("stderr", found.stderr)
        made = _receipt(staged, prepared, found, enforced, (trio.current_time() - started) * 1000, journal, leaving)
    if found.told is None:
        raise _refusal(found, leaving)
    return found.told, made


async def _talk(seat: Seat, found: Described) -> None:
    spare = seat.spare
    if spare is None:
        raise error_for("engine_failed.bug", "the pool lent a worker without a child")
    await spare.ready.wait()
    found.end = spare.end
    if spare.verdict is not None or spare.pump is None or spare.child is None:
        found.verdict = spare.verdict or ("engine_failed.bug", "a child without a pump")
        return
    found.told, found.verdict = await _answer(spare.pump)
    if found.verdict[0] == "crashed.silent":
        found.end = await reap(seat.jail, spare.child, leave_seconds=LEAVE_SECONDS)
        found.verdict = await why_closed(seat.jail, found.end, None, seat.recipe.cpu_s)


async def _require_innocent(found: Described, leaving: Leaving) -> None:
    """Nobody sees what is declared with a secret in it: a description, a default, a name."""
    if (told := found.told) is None:
        return
    found.told = None  # until it is looked through
    if lines := await leaving.declared(told):
        found.verdict = ("refused.secret_source", "\n".join(lines))
    else:
        found.told = told


async def _answer(pump: Pump) -> tuple[list[Any] | None, tuple[str, str]]:
    try:
        await pump.send(Describe())
        message = await pump.next()
    except RemoteFault as fault:
        return None, (fault.code, fault.line)
    except Closed as closed:
        end = closed.fault
        return None, (end.code, end.line) if end else ("crashed.silent", "the worker closed its channel")
    if isinstance(message, Declarations):
        return message.tools, ("ok.done", "")
    if isinstance(message, Failure):
        return None, failed(message)
    return None, ("violation.protocol", f"the worker sent {type(message).__name__} when it was asked to describe")


async def _leave(seat: Seat, found: Described) -> None:
    """Bury the child when it can be, and take what it printed."""
    spare = seat.spare
    if spare is None or spare.pump is None or spare.child is None or not spare.ready.is_set():
        return  # on its way still: it ends with its jail
    found.end = found.end or await reap(seat.jail, spare.child)
    spare.pump.drain()
    found.stderr = spare.pump.captured["stderr"].text()
    found.usage = {f"{name}_bytes": capture.total for name, capture in spare.pump.captured.items()}
    found.usage["request_bytes"] = spare.pump.request_bytes


def _receipt(
    staged: Loaded,
    prepared: Prepared,
    found: Described,
    enforced: Mapping[str, int],
    wall_ms: float,
    journal: Journal,
    leaving: Leaving,
) -> Mapping[str, Any]:
    code, line = found.verdict
    end = found.end
    peak = end.peak_rss_kib * 1024 if end and end.status is not None else None
    setting = Setting(
        kind="describe",
        tool=None,
        tenant=None,
        declaration=None,
        source=staged.bundle.digest,
        layers={layer.name: layer.digest for layer in staged.layers},
        image=staged.image,
        policy=prepared.policy,
        limits=prepared.resolved.limits,
        means=prepared.recipe.plan.means,
        worker=prepared.worker,
    )
    happened = Happened(
        verdict=Verdict(code=code, lines=(line,) if line else ()),
        usage=Usage(wall_ms=round(wall_ms, 3), cpu_ms=end.cpu_ms if end else None, peak_rss_bytes=peak, **found.usage),
        started=True,
        enforced=spelled(dict(enforced)),
        secrets=leaving.found,
    )
    made = leaving.line(receipt(setting, happened, journal.kind))
    journal.append(made, ran=True)
    journal.flush()
    return read(made)


def _refusal(found: Described, leaving: Leaving) -> EngineError:
    """The error of a describing that failed, with the last lines that the source wrote."""
    code, line = found.verdict
    if code in ("refused.declaration", "refused.secret_source"):
        return error_for(code, *line.removeprefix("DeclarationError: ").splitlines())
    trace = [said for said in found.stderr.strip().splitlines() if said.strip(" ^~")][-4:-1]
    return error_for(code, line, *(map(leaving.said, trace) if code == "tool_error.import" else ()))
