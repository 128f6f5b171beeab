"""Tenants side by side: they take turns, and a flood of one does not keep another from its single call."""

from collections import Counter
from pathlib import Path

import trio

from engine.host import Engine
from engine.outcome import Outcome
from tests import kit, moments
from tests.contract.test_pool import hold_with, in_line

FULL = "workers in use: 3 of 3 (pool.jails), 3 of 3 (pool.total); calls in line: 64 of 64 (pool.queued)"
GAVE_WAY = "the line is full, and this call's tenant held most of it: its newest call gave way to another tenant's"


async def test_a_flood_does_not_starve_another_tenants_call(engine: Engine, tmp_path: Path) -> None:
    """Two hundred calls at once fill three workers and the line; then comes one of another tenant, and is answered long before them."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 3, "total": 3}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    answered: list[str] = []
    refused: Counter[tuple[str, ...]] = Counter()

    async def flood() -> None:
        told(await engine.call("run", {"code": "value = sum(range(100_000))"}, tenant="flood"), "flood")

    def told(outcome: Outcome, tenant: str) -> None:
        if outcome.reason == "refused.busy":
            refused[outcome.lines] += 1
        else:
            assert outcome.reason == "ok.done"
            answered.append(tenant)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(flood)
            await in_line(engine, 67)  # three of them wait for the workers that are being made
            before = len(answered)
            told(await engine.call("echo", {"word": "x"}, tenant="single"), "single")
    # its worker has to be made first, and meanwhile the others answer some; in order of arrival it would be behind all 67
    assert answered.index("single") < before + 33
    assert refused == {(FULL,): 133, (GAVE_WAY,): 1}
    assert len(answered) == 200 - 134 + 1


async def test_the_last_worker_is_kept_for_who_has_none(engine: Engine, tmp_path: Path) -> None:
    """Two workers: the second call at once of one tenant waits in line, another tenant's is served meanwhile."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 2, "total": 2}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    late: list[Outcome] = []

    async def second() -> None:
        late.append(await engine.call("echo", {"word": "second"}, tenant="one"))

    with trio.fail_after(30):
        await engine.call("echo", {"word": "x"}, tenant="other")
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine, tenant="one"))
            nursery.start_soon(second)
            await in_line(engine, 1)
            for _ in range(3):
                outcome = await engine.call("echo", {"word": "free"}, tenant="other")
                assert (outcome.reason, outcome.value, late) == ("ok.done", "free", [])
            held.told.set()
    assert [outcome.value for outcome in late] == ["second"]


async def test_a_tenant_that_is_alone_has_them_all(engine: Engine, tmp_path: Path) -> None:
    """The control: as long as no other was seen, its second call at once is served."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 2, "total": 2}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine, tenant="one"))
            outcome = await engine.call("echo", {"word": "second"}, tenant="one")
            held.told.set()
    assert (outcome.reason, outcome.value) == ("ok.done", "second")


async def test_tenants_take_turns(engine: Engine, tmp_path: Path) -> None:
    """One worker: three calls of one tenant that came first, then one of each of two others: these wait for one call each."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    served: list[str] = []

    async def call(tenant: str) -> None:
        outcome = await engine.call("echo", {"word": tenant}, tenant=tenant)
        assert outcome.reason == "ok.done"
        served.append(tenant)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine, tenant="holder"))
            for place, tenant in enumerate(("many", "many", "many", "one", "two"), 1):
                nursery.start_soon(call, tenant)
                await in_line(engine, place)
            held.told.set()
    assert served == ["many", "one", "two", "many", "many"]
