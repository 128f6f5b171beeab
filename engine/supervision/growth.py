"""What is remembered of each key between its calls, and the jails started ahead of need because of it.

Its job: note calls and absences, say how many jails a key should have, order one more when there is room, memory and a core for it.
Not its job: the arithmetic (``demand.py``), making a jail (``pool.py``).
Laws:
1. A jail ahead of need is ordered when a call was answered or at a look round, not when a call asks (tests/contract/test_upkeep.py).
2. One at a time of a key, and after a failure none until the next look round (tests/contract/test_upkeep.py).
"""

import os
from collections.abc import Callable

import trio

from engine.policy.model import Pool as PoolBounds
from engine.supervision.demand import Demand, Scene, longest_pause, starts, wanted
from engine.supervision.memory import Measured
from engine.supervision.spare import Recipe
from engine.supervision.stock import Claim, Stock

Order = Callable[[Claim, Recipe, PoolBounds], None]


class _Custom:
    """One key's."""

    def __init__(self, recipe: Recipe, bounds: PoolBounds, tenant: str | None) -> None:
        self.recipe, self.bounds, self.claim = recipe, bounds, Claim(recipe.key, 0, tenant)
        self.demand = Demand()
        self.growing = False


class Growth:
    """Keys that were called lately. ``order`` starts a jail; ``began`` tells what became of it."""

    def __init__(self, stock: Stock, order: Order) -> None:
        self._stock, self._order = stock, order
        self._customs: dict[str, _Custom] = {}
        self._cores = len(os.sched_getaffinity(0))
        self.measured = Measured()

    def called(self, recipe: Recipe, bounds: PoolBounds, tenant: str | None) -> None:
        """A call wants a jail."""
        custom = self._customs.get(recipe.key)
        if custom is None:
            custom = self._customs[recipe.key] = _Custom(recipe, bounds, tenant)
        custom.demand = custom.demand.arrived(trio.current_time(), longest_pause(bounds))

    def was_away(self, key: str, seconds: float) -> None:
        """A jail was away for a call that long."""
        if (custom := self._customs.get(key)) is not None:
            custom.demand = custom.demand.was_away(seconds)

    def wish(self, key: str) -> int:
        """Jails worth having of a key, lent ones included."""
        custom = self._customs.get(key)
        return 0 if custom is None else wanted(custom.demand, custom.bounds, now=trio.current_time(), lent=self._stock.held(key))

    def answered(self, key: str) -> None:
        """A call of that key has its answer and its jail is back: the moment to start one more."""
        if (custom := self._customs.get(key)) is not None:
            self._grow(custom, late=False)

    def look(self) -> None:
        """See which keys have wanted another jail for a while, and forget those that want none and have none."""
        for key, custom in list(self._customs.items()):
            custom.growing = custom.growing and self._stock.held(key) > 0
            self._grow(custom, late=True)
            if not self._stock.of(key) and not self.wish(key):
                del self._customs[key]

    def began(self, key: str, *, well: bool) -> None:
        """A jail that was ordered is there, or failed."""
        if (custom := self._customs.get(key)) is not None:
            custom.growing = not well

    def forget(self, keep: Callable[[Recipe], bool]) -> None:
        """Forget the keys whose recipe is no longer wanted."""
        for key in [key for key, custom in self._customs.items() if not keep(custom.recipe)]:
            del self._customs[key]

    def _grow(self, custom: _Custom, *, late: bool) -> None:
        claim, bounds, stock = custom.claim, custom.bounds, self._stock
        there = stock.of(claim.key)
        if custom.growing or not custom.demand.trusted:
            return
        wish = self.wish(claim.key)
        if wish <= there:
            return  # the usual case
        scene = Scene(
            jails=there,
            waiting=len(stock.idle_of(claim.key)),
            running=stock.running,
            cores=self._cores,
            room=stock.room(claim, bounds) and stock.may_use(claim, bounds),
            affordable=self.measured.fits(stock.living, bounds.memory_bytes),
        )
        if starts(wish, bounds, scene, late=late):
            custom.growing = True
            self._order(claim, custom.recipe, bounds)
