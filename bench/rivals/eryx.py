"""pyeryx: CPython as WebAssembly inside the host's process; a warm pool, a fresh state for each call, which every part makes sure of."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import measurement
from bench.measurement import Run, lookup_policy
from bench.rivals import jobs
from bench.sources import NBODY, POLICY
from bench.workloads import IMPORTS, TEXTS, TIMES

_LEFT = "import json\nresult = globals().get('left') or getattr(json, 'left', None)\nleft = json.left = 'something'\n"
_TRACES = 5  # more calls than the pool keeps idle


@contextlib.contextmanager
def _pool(size: int = 4) -> Iterator[Callable[..., Any]]:
    """A function that runs code in a warm pool, each time from a fresh state; the variable ``result`` is the answer."""
    import eryx

    with _factory().create_pool(max_size=size, min_idle=2) as pool:

        def executed(code: str, **limits: Any) -> Any:
            options = {"resource_limits": eryx.ResourceLimits(**limits)} if limits else {}
            with pool.acquire(**options) as sandbox:
                return sandbox.execute(code).result

        if any(executed(_LEFT) for _ in range(_TRACES)):
            raise RuntimeError("a call finds what another one left: this is no fresh state")
        yield executed


def _factory() -> Any:
    """What the pool comes from. Making one takes half a minute, so it is made once and kept in the rival's own environment."""
    import eryx

    kept = Path(sys.prefix) / "factory.bin"
    if kept.is_file():
        return eryx.SandboxFactory.load(kept)
    made = eryx.SandboxFactory()
    part = kept.with_suffix(f".{os.getpid()}")
    made.save(part)
    part.replace(kept)
    return made


def _lookup(executed: Callable[..., Any]) -> Callable[[str], Any]:
    return lambda region: executed(f"{POLICY}result = lookup_policy({region!r})")


def _paced(run: Run) -> None:
    with _pool() as executed:
        jobs.paced(run, _lookup(executed), full=100, quick=30, warm=5)


def _throughput(run: Run) -> None:
    with _pool(8) as executed:
        jobs.throughput(run, [_lookup(executed)], (1, 2, 4, 8))


def _cpu(run: Run) -> None:
    with _pool() as executed:
        jobs.cpu(run, lambda steps: executed(f"{NBODY}\nresult = nbody({steps})"))


def _workloads(run: Run) -> None:
    with _pool() as executed:
        jobs.workloads(
            run, lambda name: str(executed(f"{IMPORTS}{TEXTS[name]}\nresult = [json.dumps({name}()) for _ in range({TIMES})][-1]"))
        )


def _large(run: Run) -> None:
    with _pool() as executed:
        jobs.large(run, lambda value: executed(f"import json\nresult = json.loads({json.dumps(value)!r})"))
        jobs.text(run, lambda value: executed(f"result = {value!r}"))


def _first_call(run: Run) -> None:
    import eryx

    with run.timed("first call"):
        answer = eryx.Sandbox().execute(f"{POLICY}result = lookup_policy('EU')").result
    run.check(answer, lookup_policy("EU"))


def _deadline(run: Run) -> None:
    def ends(way: str) -> Any:
        return executed(f"def late():\n{jobs.LATE[way]}late()", execution_timeout_ms=jobs.DEADLINE_MS)

    with _pool() as executed:
        _lookup(executed)("EU")
        jobs.late(run, ends, TimeoutError, _lookup(executed), tuple(jobs.LATE))


def _flood(run: Run) -> None:
    import eryx

    with _pool() as executed:
        _lookup(executed)("EU")
        jobs.flood(run, lambda: executed(f"def flood():\n{jobs.FLOOD}flood()"), eryx.EryxError)


def _bomb(run: Run) -> None:
    import eryx

    code = f"def bomb():\n{jobs.BOMB}bomb()"
    with _pool() as executed:
        _lookup(executed)("EU")
        jobs.bomb(run, lambda: executed(code, max_memory_bytes=jobs.BOMB_BYTES), eryx.EryxError, _lookup(executed))


def _memory(run: Run) -> None:
    """Sandboxes are no processes: one is what this process grows by, a mean over several."""
    more = 8
    with _factory().create_pool(max_size=1, min_idle=1) as few:
        with few.acquire() as sandbox:
            run.check(sandbox.execute(f"{POLICY}result = lookup_policy('EU')").result, lookup_policy("EU"))
        time.sleep(1.0)  # it is filled in the background
        before = jobs.rollup(Path("/proc/self"))
        with _factory().create_pool(max_size=more, min_idle=more):
            time.sleep(2.0)
            after = jobs.rollup(Path("/proc/self"))
    run.add("worker", (after["uss"] - before["uss"]) / more)
    run.add("launcher", before["uss"])


JOBS = {
    "paced": _paced,
    "throughput": _throughput,
    "cpu": _cpu,
    "large": _large,
    "first_call": _first_call,
    "deadline": _deadline,
    "flood": _flood,
    "bomb": _bomb,
    "memory": _memory,
    "workloads": _workloads,
}

if __name__ == "__main__":
    measurement.main(JOBS, "pyeryx")
