"""Looks after the jails of an engine between calls.

Its job: end those that nobody wants, replace children that should not serve, stay within the memory budget, see who wants more.
Not its job: who gets a jail (``pool.py``), how many are wanted (``demand.py``).
Laws:
1. It touches idle jails alone, and of those only the one that is at fault (tests/contract/test_upkeep.py).
2. Above the memory budget the one that holds most goes first, of equals the least recently used, down to none
   (tests/contract/test_upkeep.py).
3. A waiting child that works costs its jail: there is none of that key until a call asks (tests/contract/test_upkeep_trouble.py).
4. A jail that would not end keeps none of the others from being looked after (tests/contract/test_upkeep_trouble.py).
"""

from collections.abc import Awaitable, Callable

import trio

from engine.supervision.demand import keeps
from engine.supervision.memory import Measured, private_bytes
from engine.supervision.pool import Pool, Seat

_ALIKE_BYTES = 8 << 20  # jails that differ by less hold as much


async def held_by(seat: Seat) -> int:
    """Private bytes of one jail."""
    return await private_bytes(seat.jail.monitor())


class Upkeep:
    """``look`` is called now and then; ``weigh`` tells the private bytes of all jails, ``weigh_one`` those of one."""

    def __init__(self, pool: Pool, weigh: Callable[[], Awaitable[int]], weigh_one: Callable[[Seat], Awaitable[int]] = held_by) -> None:
        self._pool, self._weigh, self._weigh_one = pool, weigh, weigh_one

    async def look(self) -> None:
        """See after everything once. That a jail would not end is told by the pool's end."""
        await self.retire_unused()
        await self.renew()
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

    async def renew(self) -> None:
        """Replace waiting children that are too old or were ended; end the jails of those that work while they should wait."""
        for seat in self._pool.idle:
            if seat not in self._pool.idle:
                continue  # a call has it by now
            spare = seat.spare
            if seat.spent():
                self._pool.renew(seat)
            elif spare is not None and spare.ready.is_set() and spare.verdict is None and spare.burns():
                # security: another child of that source would work as well, at the cost of everybody's calls
                await self._pool.abandon(seat)

    async def shrink(self) -> None:
        """End idle jails, the one that holds most first, until the others stay within their policy's memory."""
        sizes: dict[Seat, int] = {}
        while over := self._over(await self._measured()):
            for seat in over:
                if seat not in sizes:
                    sizes[seat] = await self._weigh_one(seat)
            most = max(sizes[seat] for seat in over)
            await self._pool.retire(next(seat for seat in over if sizes[seat] > most - _ALIKE_BYTES))  # of those alike the first

    def _over(self, held: int) -> list[Seat]:
        """Idle jails whose policy has less memory than all hold, the least recently used first."""
        return [seat for seat in self._pool.idle if seat.bounds.memory_bytes < held]

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
