"""Memory of idle workers: what each holds alone (USS) and with its part of what is shared (PSS); of its spare alone, too.

A worker is its monitor, its pid 1 and its spare. What all workers of a kind share is their launcher, which is counted by itself. The kernel
shows their ``smaps_rollup`` to root alone.
"""

from pathlib import Path

import psutil
import trio

from bench import payload
from bench.case import Case, Metric, Target
from bench.measurement import Absent, Run
from bench.rivals.jobs import rollup
from bench.walls import Wall, both
from engine import Engine

WORKERS = 4
_SOURCE = """
import time

from engine import tool


@tool(effect="read", description="Takes its time.")
def slow(number: int) -> int:
    time.sleep(0.3)
    return number
"""


async def _calls(run: Run, wall: Wall) -> None:
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        async with trio.open_nursery() as nursery:
            for number in range(WORKERS):
                nursery.start_soon(_call, run, engine, number)
        await trio.sleep(1.0)  # the spares after it are ready, and nothing moves any more
        launcher = psutil.Process(_launcher_of(engine, wall))
        workers = [[monitor, *monitor.children(recursive=True)] for monitor in launcher.children()]
        workers = [worker for worker in workers if len(worker) > 2]  # a jail without a source waits beside them, and has no spare yet
        if not workers:
            raise Absent("no idle worker is left to look at")
        for worker in workers:
            _look_at(run, worker)
        run.fact("workers", len(workers))
        run.add("launcher", _rollup(launcher)["uss"])
        run.add("supervisor", rollup(Path("/proc/self"))["uss"])


def _launcher_of(engine: Engine, wall: Wall) -> int:
    """The process that the kind's workers are forked from."""
    others = [pid for pid in getattr(engine, "launcher_pids", ()) if pid != engine.launcher_pid]
    return others[0] if wall == "wasm" else engine.launcher_pid


async def _call(run: Run, engine: Engine, number: int) -> None:
    outcome = await engine.call("slow", {"number": number})
    run.check(outcome.value, number, outcome.reason)


def _look_at(run: Run, processes: list[psutil.Process]) -> None:
    """One worker: the monitor comes first, the spare last."""
    found = [_rollup(process) for process in processes]
    run.check(len(found), 3, "processes of an idle worker")
    run.add("worker", sum(one["uss"] for one in found))
    run.add("worker, shared part included", sum(one["pss"] for one in found))
    run.add("spare", found[-1]["uss"])
    run.add("spare, written to", found[-1]["dirty"])


def _rollup(process: psutil.Process) -> dict[str, float]:
    try:
        return rollup(Path(f"/proc/{process.pid}"))
    except PermissionError:
        raise Absent("the memory of a jailed process is shown to root alone") from None


CASE = Case(
    name="memory",
    title="Memory of idle workers",
    metrics=(
        Metric(name="worker", about="USS of monitor, pid 1 and spare together", unit="MB"),
        Metric(name="worker, shared part included", about="PSS of the three", unit="MB"),
        Metric(name="spare", about="USS of the spare alone", unit="MB"),
        Metric(name="spare, written to", about="its private dirty memory", unit="MB"),
        Metric(name="launcher", about="USS of the process that workers are forked from, one for all of a kind", unit="MB"),
        Metric(name="supervisor", about="USS of the process that holds the engine", unit="MB"),
    ),
    subjects=both(_calls),
    rivals=("monty", "eryx"),
    targets=(Target(metric="worker", statistic="median", bound=6), Target(metric="spare", statistic="median", bound=2.5)),
    full=2,
    compare=("worker", "spare"),
)
