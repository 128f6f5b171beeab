"""pyeryx: CPython as WebAssembly inside the host's process; a warm pool, a fresh state for each call."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import measurement
from bench.measurement import Run, lookup_policy
from bench.rivals import jobs
from bench.sources import NBODY, POLICY


@contextlib.contextmanager
def _pool() -> Iterator[Callable[..., Any]]:
    """A function that runs code in a warm pool, each time from a fresh state; the variable ``result`` is the answer."""
    import eryx

    with _factory().create_pool(max_size=4, min_idle=2) as pool:

        def executed(code: str, **limits: Any) -> Any:
            options = {"resource_limits": eryx.ResourceLimits(**limits)} if limits else {}
            with pool.acquire(**options) as sandbox:
                return sandbox.execute(code).result

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
    with _pool() as executed:
        jobs.throughput(run, [_lookup(executed)], (1, 2))


def _cpu(run: Run) -> None:
    with _pool() as executed:
        jobs.cpu(run, lambda steps: executed(f"{NBODY}\nresult = nbody({steps})"))


def _large(run: Run) -> None:
    with _pool() as executed:
        jobs.large(run, lambda value: executed(f"import json\nresult = json.loads({json.dumps(value)!r})"))


def _first_call(run: Run) -> None:
    import eryx

    with run.timed("first call"):
        answer = eryx.Sandbox().execute(f"{POLICY}result = lookup_policy('EU')").result
    run.check(answer, lookup_policy("EU"))


def _deadline(run: Run) -> None:
    with _pool() as executed:
        _lookup(executed)("EU")
        jobs.late(run, lambda: executed("while True:\n    pass\n", execution_timeout_ms=200), TimeoutError, _lookup(executed))


def _flood(run: Run) -> None:
    import eryx

    with _pool() as executed:
        _lookup(executed)("EU")
        jobs.flood(run, lambda: executed(f"def flood():\n{jobs.FLOOD}flood()"), eryx.EryxError)


JOBS = {
    "paced": _paced,
    "throughput": _throughput,
    "cpu": _cpu,
    "large": _large,
    "first_call": _first_call,
    "deadline": _deadline,
    "flood": _flood,
}

if __name__ == "__main__":
    measurement.main(JOBS, "pyeryx")
