"""Whose large value is checked next, and for how long."""

import pytest
import trio
import trio.testing

from engine.supervision import values as values_module


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The hour, as the turns see it."""
    hour = [100.0]
    monkeypatch.setattr(trio, "current_time", lambda: hour[0])
    return hour


async def test_tenants_take_turns() -> None:
    """One with many values in the queue lets another's only one go before its second."""
    turns = values_module._Turns(1)
    order: list[str] = []
    free = trio.Event()

    async def take(tenant: str) -> None:
        async with turns.taken(tenant):
            if not order:
                order.append(tenant)
                await free.wait()
            else:
                order.append(tenant)

    async with trio.open_nursery() as nursery:
        for tenant in ("first", "many", "many", "many", "one", "two"):
            nursery.start_soon(take, tenant)
            await trio.testing.wait_all_tasks_blocked()
        free.set()
    assert order == ["first", "many", "one", "two", "many", "many"]


async def test_who_gives_up_in_the_queue_blocks_nobody() -> None:
    """Neither while it waits, nor when its turn had just come."""
    turns = values_module._Turns(1)
    async with trio.open_nursery() as nursery:
        async with turns.taken(None):
            for tenant in ("a", "b"):
                nursery.start_soon(turns._wait, tenant)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    with trio.fail_after(5):
        async with turns.taken("c"):
            pass


class Held:
    """Turns that their tenants keep until the block's end."""

    def __init__(self, nursery: trio.Nursery, most: int) -> None:
        self._nursery, self.turns = nursery, values_module._Turns(most)
        self.tenants: list[str] = []
        self.taken: list[values_module._Turn] = []
        self.done: dict[str, trio.Event] = {}

    async def want(self, tenant: str) -> None:
        """Have a tenant take a turn, or wait for one."""
        self._nursery.start_soon(self._take, tenant)
        await trio.testing.wait_all_tasks_blocked()

    async def give_back(self, tenant: str) -> None:
        """End the first turn of a tenant."""
        self.done.pop(tenant).set()
        await trio.testing.wait_all_tasks_blocked()

    async def _take(self, tenant: str) -> None:
        async with self.turns.taken(tenant) as turn:
            self.tenants.append(tenant)
            self.taken.append(turn)
            self.turns.begin(turn)
            await self.done.setdefault(tenant, trio.Event()).wait()


async def test_the_last_one_is_kept_from_a_tenant_that_has_another() -> None:
    """Once there are two: a flood of one leaves a process to the other. Its control is a tenant that is alone."""
    async with trio.open_nursery() as nursery:
        held = Held(nursery, 2)
        for tenant in ("flood", "flood"):
            await held.want(tenant)
        assert held.tenants == ["flood", "flood"]  # alone, it has both
        await held.want("other")
        await held.give_back("flood")
        assert held.tenants == ["flood", "flood", "other"]
        for tenant in ("flood", "flood", "flood"):
            await held.want(tenant)
        await held.give_back("other")
        assert held.tenants == ["flood", "flood", "other", "flood"]
        await held.want("other")
        assert held.tenants == ["flood", "flood", "other", "flood", "other"]
        nursery.cancel_scope.cancel()


async def test_a_value_has_less_time_while_others_wait(now: list[float]) -> None:
    """From when it began; its tenant's own values that wait change nothing, and it has all its time when nobody waits any more."""
    async with trio.open_nursery() as nursery:
        held = Held(nursery, 1)
        await held.want("slow")
        deadlines = [held.taken[0].scope.deadline]
        now[0] += 1
        await held.want("slow")
        deadlines.append(held.taken[0].scope.deadline)
        with trio.CancelScope() as scope:
            scope.cancel()
            await held.turns._wait("gives up")
        deadlines.append(held.taken[0].scope.deadline)
        await held.want("other")
        deadlines.append(held.taken[0].scope.deadline)
        assert deadlines == [120.0, 120.0, 120.0, 103.0]
        nursery.cancel_scope.cancel()
