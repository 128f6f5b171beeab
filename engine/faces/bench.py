"""``stockade bench``: what a tool of yours costs on this machine, behind the wall, with receipts written.

Its job: one load, the first call, calls one at a time with pauses, calls in flight; the figures as a table or as data.
Not its job: what the engine costs beside other sandboxes (``bench/``), a call's steps (``call.py``).
Laws:
1. Each call that was made is counted by how it ended, and one that did not end well is told and in no figure
   (tests/e2e/test_cli_bench.py).
2. A tool that changes the world is not called many times unasked (tests/e2e/test_cli_bench.py).
3. A tool whose first call does not end well is not measured: its outcome is the answer (tests/e2e/test_cli_bench.py).
"""

import dataclasses
import os
import platform
from collections import Counter
from collections.abc import Iterator
from typing import Any

import trio

from engine.batch.run import CHANGES_THE_WORLD
from engine.batch.tally import QUANTILES, quantiles
from engine.errors import one_line
from engine.faces.batch import at_once
from engine.faces.printing import Answer, Printer, table
from engine.faces.run import Wanted
from engine.host import Engine
from engine.outcome import REASONS, Outcome, Status, error_for
from engine.places import data_dir
from engine.policy.load import load_policy

_PAUSE_SECONDS = 0.01  # between calls made one at a time: a caller who thinks, so that the next child can become ready
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """How much is asked of the tool: calls of each kind, how many at once, whether a tool that changes the world may be repeated."""

    calls: int
    concurrency: int
    allow_repeat: bool

    @property
    def to_come(self) -> int:
        """Calls after the first: one at a time, those that start the jails, in flight."""
        return self.calls * 2 + self.concurrency


class Counted:
    """What calls came to: how they ended, and what their receipts say they used."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.lines: dict[str, tuple[str, ...]] = {}  # of the first call that ended so
        self.cpu_ms: list[float] = []
        self.peak_bytes: list[int] = []

    async def add(self, outcome: Outcome) -> None:
        """Count one outcome when its receipt is there."""
        usage = (await outcome.concluded()).get("usage", {})
        self.reasons[outcome.reason] += 1
        self.lines.setdefault(outcome.reason, outcome.lines)
        if outcome.status is not Status.OK:
            return  # what did not end well is no measure of what does
        if usage.get("cpu_ms") is not None:
            self.cpu_ms.append(usage["cpu_ms"])
        if usage.get("peak_rss_bytes") is not None:
            self.peak_bytes.append(usage["peak_rss_bytes"])


class Caller:
    """Makes the same call again and again, and holds a clock beside it."""

    def __init__(self, engine: Engine, tool: str, arguments: dict[str, Any], wanted: Wanted) -> None:
        self._engine, self._tool, self._arguments, self._wanted = engine, tool, arguments, wanted
        self.counted = Counted()

    async def first(self) -> tuple[float, Outcome]:
        """One call: how long the caller waited, and its outcome."""
        ms, outcome = await self._timed()
        await self.counted.add(outcome)
        return ms, outcome

    async def paced(self, calls: int) -> list[float]:
        """So many calls one at a time, each after a pause; how long the caller waited for each that ended well."""
        waited = []
        for _ in range(calls):
            await trio.sleep(_PAUSE_SECONDS)
            ms, outcome = await self.first()
            if outcome.status is Status.OK:
                waited.append(ms)
        return waited

    async def in_flight(self, calls: int, concurrency: int) -> tuple[list[float], float]:
        """So many calls, that many at once; how long the caller waited for each that ended well, and how many of these a second."""
        waited: list[float] = []
        left = iter(range(calls))
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(min(calls, concurrency)):
                nursery.start_soon(self._line, left, waited)
        return waited, len(waited) / (trio.current_time() - started)

    async def _line(self, left: Iterator[int], waited: list[float]) -> None:
        async with trio.open_nursery() as nursery:
            for _ in left:
                ms, outcome = await self._timed()
                if outcome.status is Status.OK:
                    waited.append(ms)
                nursery.start_soon(self.counted.add, outcome)

    async def _timed(self) -> tuple[float, Outcome]:
        started = trio.current_time()
        outcome = await self._engine.call(self._tool, self._arguments, timeout_ms=self._wanted.timeout_ms, tenant=self._wanted.tenant)
        return (trio.current_time() - started) * 1000, outcome


async def bench(printer: Printer, source: str, tool: str, arguments: dict[str, Any], wanted: Wanted, load: Load) -> Answer:
    """All of it. Raises EngineError when it does not come to a call."""
    loads_before = os.getloadavg()
    policy = load_policy(wanted.policy, data_dir("policies"))
    load = dataclasses.replace(load, concurrency=at_once(printer, load.concurrency, policy.pool, workers=1))
    async with wanted.engine() as engine:
        started = trio.current_time()
        await engine.load(source)
        load_ms = (trio.current_time() - started) * 1000
        _may_repeat(engine, tool, load)
        caller = Caller(engine, tool, arguments, wanted)
        first_ms, outcome = await caller.first()
        if outcome.status is not Status.OK:
            return Answer.of_outcome(outcome, await outcome.concluded())
        _announce(printer, first_ms, load)
        paced = await caller.paced(load.calls)
        await caller.in_flight(load.concurrency, load.concurrency)  # the jails that so many need are there before the clock runs
        waited, rate = await caller.in_flight(load.calls, load.concurrency)
    rows = {"load": [load_ms], "first call": [first_ms], "one at a time": paced, f"{load.concurrency} in flight": waited}
    return _told(tool, rows, rate, caller.counted, _machine(loads_before))


def _may_repeat(engine: Engine, tool: str, load: Load) -> None:
    effect = engine.loaded(tool).declaration.effect
    if effect in CHANGES_THE_WORLD and not load.allow_repeat:
        count = 1 + load.to_come
        raise error_for(
            "refused.request", f"{tool} has the effect {effect} and would be called {count} times: --allow-repeat says that it may be"
        )


def _announce(printer: Printer, first_ms: float, load: Load) -> None:
    text = (
        f"first call {_ms(first_ms)} ms; {load.to_come} more follow: {load.calls} one at a time, {load.concurrency} to start the workers, "
        f"{load.calls} with {load.concurrency} in flight"
    )
    printer.event("bench", {"first_call_ms": round(first_ms, 3), "calls_to_come": load.to_come}, text)


def _machine(loads_before: tuple[float, float, float]) -> dict[str, Any]:
    """What the figures depend on besides the tool; other work on the machine first of all."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "load_before": round(loads_before[0], 2),
        "load_after": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _told(tool: str, rows: dict[str, list[float]], rate: float, counted: Counted, machine: dict[str, Any]) -> Answer:
    figures = {name: {"count": len(series), **(quantiles(series) if series else dict.fromkeys(QUANTILES))} for name, series in rows.items()}
    used = {
        "cpu_ms": quantiles(counted.cpu_ms) if counted.cpu_ms else None,
        "peak_rss_bytes": quantiles(counted.peak_bytes) if counted.peak_bytes else None,
    }
    value = {
        "tool": tool,
        "milliseconds": figures,
        "calls_per_second": round(rate, 1),
        "usage": used,
        "outcomes": dict(counted.reasons.most_common()),
        "machine": machine,
    }
    text = "\n\n".join([_waited(figures), _summary(value)])
    bad = [(reason, count) for reason, count in counted.reasons.most_common() if reason != "ok.done"]
    if not bad:
        return Answer(value=value, text=text)
    mixed = len(bad) > 1
    ends = [(f"{reason}: " if mixed else "", f"{count} of {counted.reasons.total()} calls, in no figure", reason) for reason, count in bad]
    lines = [one_line(f"{named}{ended}: {'; '.join(counted.lines[reason])}") for named, ended, reason in ends]
    worst = max(bad, key=lambda pair: (REASONS[pair[0]].exit_code, pair[1]))  # as a batch ends
    return Answer(reason=worst[0], lines=tuple(lines), value=value, text=text, mixed=mixed)


def _waited(figures: dict[str, dict[str, Any]]) -> str:
    head = ("the caller waited (ms)", "ok", *QUANTILES)
    return table(head, [(name, str(row["count"]), *(_ms(row[column]) for column in QUANTILES)) for name, row in figures.items()])


def _summary(value: dict[str, Any]) -> str:
    cpu, peak, machine = value["usage"]["cpu_ms"], value["usage"]["peak_rss_bytes"], value["machine"]
    concurrent = list(value["milliseconds"])[-1]
    rows = [
        ("calls a second", f"{value['calls_per_second']:g} with {concurrent}, receipts written"),
        ("CPU of a call", "unknown" if cpu is None else f"median {_ms(cpu['median'])} ms, max {_ms(cpu['max'])} ms"),
        ("memory at peak", "unknown" if peak is None else f"median {peak['median'] / _MIB:.1f} MiB, max {peak['max'] / _MIB:.1f} MiB"),
        ("outcomes", ", ".join(f"{reason} {count}" for reason, count in value["outcomes"].items())),
        ("load average", f"{machine['load_before']:g} before, {machine['load_after']:g} after"),
        ("machine", f"{machine['processors']} processors, Linux {machine['kernel']}, Python {machine['python']}"),
    ]
    return table(("of all calls", ""), rows)


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
