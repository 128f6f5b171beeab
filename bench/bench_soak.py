"""Thousands of mixed calls, one in twenty of them misbehaving, many in flight: no wrong answer, nothing left, nobody late.

Its job: make the calls of ``soak_mix.py``, compare each end with the right one, and what the engine holds before with what it holds after.
Not its job: which ends are right.
"""

import dataclasses
import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import trio

from bench import payload
from bench.case import Case, Metric, Target
from bench.measurement import Run
from bench.soak_mix import BENIGN_MS, LOOP_MS, SOURCE, Attempt, attempts
from engine.events import PartialResult
from engine.host import Engine
from engine.outcome import Outcome

CONCURRENCY = 32
_POLICY = """extends = "required"
[limits]
memory = { value = "96 MiB", reason = "so that a tool that takes all there is has it soon" }
[pool]
idle = { value = "1 s", reason = "so that what is left after the calls is what leaks" }
"""
_WARM = 200  # calls before the first count: caches of the engine and of Python's allocator are filled by then
_HANGS_SECONDS = 60.0
_QUIET_SECONDS = 40.0
_GRACE_MS = 300.0  # what an end may take beyond the deadline before it counts as late: the reaper's own, and a loop that is busy
_GROWTH_MIB = 8.0  # of the supervisor over all calls; a receipt or a jail's record kept by mistake for each of 10 000 is more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """What the engine holds while no call runs and no jail is kept."""

    processes: int
    descriptors: int
    launcher_descriptors: int
    cgroups: int
    supervisor_mib: float
    launcher_mib: float

    def things(self) -> dict[str, int]:
        """What must be the same before and after, exactly."""
        return {name: getattr(self, name) for name in ("processes", "descriptors", "launcher_descriptors", "cgroups")}


class Soak:
    """The calls of one run, and how they went."""

    def __init__(self, run: Run, engine: Engine) -> None:
        self._run, self._engine = run, engine
        self.reasons: Counter[str] = Counter()

    async def make(self, calls: int, *, seed: int, counted: bool) -> float:
        """Make so many calls of the mix, so many in flight; the calls a second."""
        left = attempts(calls, seed=seed)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(CONCURRENCY):
                nursery.start_soon(self._line, left, counted)
        return calls / (trio.current_time() - started)

    async def _line(self, left: Iterator[Attempt], counted: bool) -> None:
        for attempt in left:
            started = trio.current_time()
            outcome: Outcome | None = None
            partials: tuple[int, ...] = ()
            with trio.move_on_after(_HANGS_SECONDS):
                outcome, partials = await self._called(attempt)
            waited_ms = (trio.current_time() - started) * 1000
            if outcome is None:
                self._run.check("hangs", attempt.reasons, _named(attempt))
                continue
            await self._judge(attempt, outcome, partials)
            if attempt.benign and counted:
                self._run.add("wait", waited_ms)
                self._run.check(waited_ms <= attempt.timeout_ms, True, f"{_named(attempt)} answered after {waited_ms:.0f} ms, in time")
            elif attempt.timeout_ms == LOOP_MS:
                late = waited_ms - attempt.timeout_ms
                self._run.add("late", late)
                self._run.check(late <= _GRACE_MS, True, f"{_named(attempt)} ended {late:.0f} ms after its deadline, in time")

    async def _called(self, attempt: Attempt) -> tuple[Outcome, tuple[int, ...]]:
        arguments, timeout_ms, tenant = dict(attempt.arguments), attempt.timeout_ms, attempt.tenant
        if attempt.tool != "count":
            return await self._engine.call(attempt.tool, arguments, timeout_ms=timeout_ms, tenant=tenant), ()
        partials, outcome = [], None
        async with self._engine.stream(attempt.tool, arguments, timeout_ms=timeout_ms, tenant=tenant) as items:
            async for item in items:
                if isinstance(item, PartialResult):
                    partials.append(item.value)
                elif isinstance(item, Outcome):
                    outcome = item
        assert outcome is not None, "a stream ends with its outcome"
        return outcome, tuple(partials)

    async def _judge(self, attempt: Attempt, outcome: Outcome, partials: tuple[int, ...]) -> None:
        self.reasons[outcome.reason] += 1
        what = f"{_named(attempt)} ({'; '.join(outcome.lines)})"
        right = outcome.reason if outcome.reason in attempt.reasons else " or ".join(attempt.reasons)
        self._run.check(outcome.reason, right, what)
        receipt = await outcome.concluded()
        self._run.check(receipt["verdict"]["reason"], outcome.reason, f"the receipt of {_named(attempt)}")
        if outcome.reason == "ok.done":
            self._run.check(outcome.value, attempt.value, what)
            self._run.check(partials, attempt.partials, f"the partials of {_named(attempt)}")
        if attempt.printed and outcome.reason == "ok.done":
            self._run.check(f"{outcome.stdout}|{outcome.stderr}", attempt.printed, f"the words of {_named(attempt)}")
        if attempt.benign:
            self._run.check(receipt["violations"], [], f"the violations of {_named(attempt)}")


def _named(attempt: Attempt) -> str:
    return f"{attempt.tool} {str(dict(attempt.arguments))[:60]}"


def soak(run: Run) -> None:
    """The whole of it: some calls first, a count of what is held, the calls, the same count again, and once more when all is closed."""
    trio.run(_soak, run)


async def _soak(run: Run) -> None:
    source, policy, state = run.folder / "tools.py", run.folder / "policy.toml", run.folder / "state"
    source.write_text(SOURCE, encoding="utf-8")
    policy.write_text(_POLICY, encoding="utf-8")
    await trio.to_thread.run_sync(gc.collect)  # trio's own thread is there before anything is counted
    outside = _own()
    calls = run.size(full=10_000, quick=400)
    async with payload.engine(run, policy=policy) as engine:
        await engine.load(source)
        soaked = Soak(run, engine)
        await soaked.make(_WARM, seed=2, counted=False)
        before = await _held(run, engine)
        run.add("calls_per_second", await soaked.make(calls, seed=1, counted=True))
        after = await _held(run, engine)
    run.add("wrong", run.missed)
    run.add("leaked", sum(max(0, after.things()[name] - count) for name, count in before.things().items()))
    for name in dataclasses.asdict(before):
        run.fact(f"{name} before/after", f"{getattr(before, name):.4g}/{getattr(after, name):.4g}")
    run.check(after.things(), before.things(), "what the engine holds after the calls")
    run.check(_own(), outside, "what the process holds when the engine is closed")
    run.check(_receipts(state), _WARM + calls + _nested(_WARM, 2) + _nested(calls, 1), "receipts in the journal")
    run.add("supervisor_growth", after.supervisor_mib - before.supervisor_mib)
    run.add("launcher_growth", after.launcher_mib - before.launcher_mib)
    for who in ("supervisor", "launcher"):
        grown = getattr(after, f"{who}_mib") - getattr(before, f"{who}_mib")
        run.check(grown <= _GROWTH_MIB, True, f"the {who} grew by {grown:.1f} MiB, which is flat")
    for reason, count in soaked.reasons.most_common():
        run.fact(reason, count)


def _nested(calls: int, seed: int) -> int:
    return sum(2 for one in attempts(calls, seed=seed) if one.tool == "nested")


def _receipts(state: Path) -> int:
    with (state / "journal" / "receipts.jsonl").open("rb") as file:
        return sum(b'"kind":"call"' in line for line in file)


def _own() -> tuple[int, int]:
    own = psutil.Process()
    return own.num_fds(), len(own.children(recursive=True))


async def _held(run: Run, engine: Engine) -> Held:
    """What is held once no jail is left but the launcher alone; what does not go away in time is named as wrong."""
    own, launcher = psutil.Process(), psutil.Process(engine.launcher_pid)
    with trio.move_on_after(_QUIET_SECONDS):
        while len(own.children(recursive=True)) > 1:  # noqa: ASYNC110 - processes that end tell nobody but the engine
            await trio.sleep(0.2)
    left = [child for child in own.children(recursive=True) if child.pid != launcher.pid]
    run.check(len(left), 0, "processes beside the launcher when nothing was called for a while")
    gc.collect()
    return Held(
        processes=len(own.children(recursive=True)),
        descriptors=own.num_fds(),
        launcher_descriptors=launcher.num_fds(),
        cgroups=_cgroups(engine.launcher_pid),
        supervisor_mib=own.memory_full_info().uss / 2**20,
        launcher_mib=launcher.memory_full_info().uss / 2**20,
    )


def _cgroups(launcher: int) -> int:
    return sum(name.startswith(f"stockade-{launcher}-") for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders)


CASE = Case(
    name="soak",
    title=f"Mixed calls, {CONCURRENCY} in flight, one in twenty misbehaving",
    metrics=(
        Metric(name="calls_per_second", about="calls a second, misbehaving ones among them", unit="1/s", better="higher"),
        Metric(name="wait", about=f"a call that behaves, of {BENIGN_MS} ms that it has", chart="distribution"),
        Metric(name="wrong", about="answers, partials, receipts and times that were not right", unit="answers"),
        Metric(name="leaked", about="processes, descriptors and cgroups held after all calls, less before", unit="things"),
        Metric(name="late", about="an endless loop, after its deadline"),
        Metric(name="supervisor_growth", about="memory of the supervisor after all calls, less before", unit="MiB"),
        Metric(name="launcher_growth", about="memory of the launcher after all calls, less before", unit="MiB"),
    ),
    subjects={"stockade": soak},
    targets=(
        Target(metric="wrong", statistic="max", bound=0),
        Target(metric="leaked", statistic="max", bound=0),
        Target(metric="supervisor_growth", statistic="max", bound=_GROWTH_MIB),
        Target(metric="launcher_growth", statistic="max", bound=_GROWTH_MIB),
        Target(metric="wait", statistic="max", bound=BENIGN_MS),
    ),
    full=1,
    quick=1,
    seconds=1200.0,
    compare=("calls_per_second",),
)
