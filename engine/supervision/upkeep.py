"""Looks after the jails of an engine between calls.

Its job: end those that nobody wants, replace children that should not serve, stay within the memory budget, see who wants more.
Not its job: who gets a jail (``pool.py``), how many are wanted (``demand.py``).
Laws:
1. It touches idle jails alone, and of those only the one that is at fault (tests/contract/test_upkeep.py).
2. Above the memory budget the least recently used go first, down to none (tests/contract/test_upkeep.py).
"""

from collections.abc import Awaitable, Callable

import trio

from engine.supervision.demand import keeps
from engine.supervision.memory import Measured
from engine.supervision.pool import Pool, Seat


class Upkeep:
    """``look`` is called now and then; ``weigh`` tells the private bytes of all jails."""

    def __init__(self, pool: Pool, weigh: Callable[[], Awaitable[int]]) -> None:
        self._pool, self._weigh = pool, weigh

    async def look(self) -> None:
        """See after everything once. Raises HostError when a jail would not end."""
        await self.retire_unused()
        self.renew()
        await self.shrink()
        self._pool.growth.look()

    async def retire_unused(self) -> None:
        """End the jails that are broken, that nobody used for as long as their policy keeps them, or that failed beside others."""
        now = trio.current_time()
        for seat in self._pool.idle:
            if seat not in self._pool.idle:
                continue  # a call has it by now: ending the ones before it took a while
            if seat.broken() or self._superfluous(seat, now) or self._failed(seat):
                await self._pool.retire(seat)

    def renew(self) -> None:
        """Replace waiting children that are too old, were ended, or work while they should wait."""
        for seat in self._pool.idle:
            spare = seat.spare
            if seat.spent() or (spare is not None and spare.ready.is_set() and spare.verdict is None and spare.burns()):
                self._pool.renew(seat)

    async def shrink(self) -> None:
        """End idle jails, the least recently used first, until the others stay within their policy's memory."""
        held = await self._measured()
        while (seat := next((seat for seat in self._pool.idle if seat.bounds.memory_bytes < held), None)) is not None:
            await self._pool.retire(seat)
            held = await self._measured()

    async def _measured(self) -> int:
        jails = self._pool.living
        measured = self._pool.growth.measured = Measured(bytes=await self._weigh(), jails=jails)
        return measured.bytes

    def _superfluous(self, seat: Seat, now: float) -> bool:
        if now - seat.idle_since <= seat.bounds.idle_ms / 1000:
            return False
        idle, lent = self._pool.of(seat.recipe.key)
        return idle > keeps(self._pool.growth.wish(seat.recipe.key), seat.bounds, lent=lent)

    def _failed(self, seat: Seat) -> bool:
        """One whose child did not come up, while another can serve; alone it stays, and the next call is told why."""
        spare = seat.spare
        return spare is not None and spare.ready.is_set() and spare.verdict is not None and self._pool.of(seat.recipe.key)[0] > 1
