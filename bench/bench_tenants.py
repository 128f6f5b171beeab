"""What many tenants cost: 1 to 100 of them, each calls once a round, and no two of them ever share a worker.

Its job: the latency of such a call, where the workers of all tenants fit and where there are fewer workers than tenants.
Not its job: fairness under a flood (the tests show that).
"""

from collections.abc import Callable

import trio

from bench import payload
from bench.case import OURS, Case, Metric
from bench.measurement import Run, lookup_policy
from engine.host import Engine

COUNTS = (1, 4, 16, 32, 100)
_ROUNDS = 4  # the first of them starts workers and counts apart
_POLICY = """extends = "required"
[pool]
total = { value = 128, reason = "a worker for each of 100 tenants" }
"""
ROOMY = "128 workers"


def _job(policy: str) -> Callable[[Run], None]:
    def job(run: Run) -> None:
        trio.run(_all, run, policy)

    return job


async def _all(run: Run, policy: str) -> None:
    place, written = payload.write(run.folder, payload.LOOKUP), run.folder / "policy.toml"
    written.write_text(policy, encoding="utf-8")
    for count in (1, 4, 32) if run.quick else COUNTS:
        async with payload.engine(run, policy=written if policy else "required") as engine:
            await engine.load(place)
            for number in range(_ROUNDS):
                await _round(run, engine, count, first=number == 0)


async def _round(run: Run, engine: Engine, count: int, *, first: bool) -> None:
    """One call of each tenant, one at a time, with a little rest before each; every one gets the answer to its own question."""
    for tenant in range(count):
        await trio.sleep(0.005)
        with run.timed("first_call" if first else "call", at=count):
            outcome = await engine.call("lookup_policy", {"region": f"region {tenant}"}, tenant=f"tenant {tenant}")
        run.check(outcome.value, lookup_policy(f"region {tenant}"), outcome.reason)
        receipt = await outcome.concluded()
        run.check(receipt["tenant"], f"tenant {tenant}", "the tenant on the receipt")


CASE = Case(
    name="tenants",
    title="Many tenants, one call of each a round",
    metrics=(
        Metric(name="call", about="a call of a tenant that called before", per="tenants", chart="growth"),
        Metric(name="first_call", about="the first call of a tenant", per="tenants"),
    ),
    subjects={OURS: _job(""), ROOMY: _job(_POLICY)},
    full=3,
    compare=("call",),
)
