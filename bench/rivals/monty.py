"""pydantic-monty: a Python subset in Rust, a pool of worker processes; a fresh session for each call."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import measurement
from bench.measurement import Run, lookup_policy
from bench.rivals import jobs
from bench.sources import NBODY, POLICY

_NBODY = NBODY.replace("def nbody(steps: int) -> float:", "def nbody(steps):")


@contextlib.contextmanager
def _pool() -> Iterator[Callable[..., Any]]:
    """A function that runs code with inputs in a fresh session of a warm pool."""
    from pydantic_monty import Monty

    with Monty(min_processes=2) as pool:

        def fed(code: str, inputs: dict[str, Any], **limits: Any) -> Any:
            with pool.checkout(limits=limits or None) as session:
                return session.feed_run(code, inputs=inputs)

        yield fed


def _lookup(fed: Callable[..., Any]) -> Callable[[str], Any]:
    return lambda region: fed(POLICY + "lookup_policy(region)", {"region": region})


def _paced(run: Run) -> None:
    with _pool() as fed:
        jobs.paced(run, _lookup(fed))


def _throughput(run: Run) -> None:
    with _pool() as fed:
        jobs.throughput(run, [_lookup(fed)], (1, 2, 8))


def _cpu(run: Run) -> None:
    with _pool() as fed:
        jobs.cpu(run, lambda steps: fed(_NBODY + "nbody(steps)", {"steps": steps}))


def _large(run: Run) -> None:
    with _pool() as fed:
        jobs.large(run, lambda value: fed("value", {"value": value}))


def _first_call(run: Run) -> None:
    import pydantic_monty  # noqa: F401 - its import is told apart from the first call

    with run.timed("first call"), _pool() as fed:
        answer = _lookup(fed)("EU")
    run.check(answer, lookup_policy("EU"))


def _deadline(run: Run) -> None:
    from pydantic_monty import MontyRuntimeError

    with _pool() as fed:
        _lookup(fed)("EU")
        jobs.late(run, lambda way: fed("while True:\n    pass\n", {}, max_feed_duration_secs=0.2), MontyRuntimeError, _lookup(fed))


def _flood(run: Run) -> None:
    from pydantic_monty import CollectString, Monty, MontyRuntimeError

    def flooded() -> Any:
        with pool.checkout() as session:
            return session.feed_run(f"def flood():\n{jobs.FLOOD}flood()", print_callback=CollectString())

    with Monty(min_processes=1) as pool:
        jobs.flood(run, flooded, MontyRuntimeError)


def _bomb(run: Run) -> None:
    from pydantic_monty import MontyRuntimeError

    code = f"def bomb():\n{jobs.BOMB}bomb()"
    with _pool() as fed:
        _lookup(fed)("EU")
        jobs.bomb(run, lambda: fed(code, {}, max_memory=jobs.BOMB_BYTES), MontyRuntimeError, _lookup(fed))


def _memory(run: Run) -> None:
    from pydantic_monty import Monty

    with Monty(min_processes=2) as pool:
        with pool.checkout() as first, pool.checkout() as second:
            sessions = (first, second)
            workers = [session.worker_pid for session in sessions]
            answers = [session.feed_run(POLICY + "lookup_policy(region)", inputs={"region": "EU"}) for session in sessions]
        time.sleep(0.5)  # they are idle again
        for worker, answer in zip(workers, answers, strict=True):
            run.check(answer, lookup_policy("EU"))
            found = jobs.rollup(Path(f"/proc/{worker}"))
            run.add("worker", found["uss"])
            run.add("worker, shared part included", found["pss"])


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
}

if __name__ == "__main__":
    measurement.main(JOBS, "pydantic-monty")
