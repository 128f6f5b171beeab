"""Which jails there are, and who gets which.

Its job: lend a jail with a child that is ready or on its way, take it back, prepare its next spare, keep the bounds.
Not its job: making a spare ready (``spare.py``), what a call does with it (``call.py``).
Laws:
1. A jail holds at most one call and one spare; n calls at once are n jails (tests/contract/test_pool.py).
2. At its bound a call waits in line, and past the bound of the line it is refused, never dropped (tests/contract/test_pool.py).
3. Bounds and lines are per depth: a tool's own call never waits for a jail that its caller holds (tests/contract/test_nesting.py).
4. After ``close`` no jail is left (tests/security/test_promise_clean.py).
"""

from collections.abc import Awaitable, Callable

import trio

from engine.errors import HostError, RequestError
from engine.policy.model import Pool as PoolBounds
from engine.supervision import reaper
from engine.supervision.spare import Recipe, Spare
from engine.worker.launcher import Launcher
from engine.worker.native import Jail

_SPARE_SECONDS = 600.0  # older ones are replaced before a call sees them
_FAILURES = 3  # spares in a row that did not come up; then none is made until a call asks


class Seat:
    """One jail, its recipe and its spare. Lent to one call at a time."""

    def __init__(self, jail: Jail, recipe: Recipe) -> None:
        self.jail, self.recipe = jail, recipe
        self.spare: Spare | None = None
        self.failures = 0
        self.depth = 0  # of the call that it is, or was last, lent to
        self.idle_since = trio.current_time()


class _Place:
    """Where a call stands in line; ``turn`` is set when there may be a jail for it."""

    def __init__(self, key: str, bounds: PoolBounds, depth: int) -> None:
        self.key, self.bounds, self.depth = key, bounds, depth
        self.turn = trio.Event()


class Pool:
    """All jails of one engine. ``nursery`` owns the spares on their way."""

    def __init__(self, nursery: trio.Nursery, launcher: Callable[[], Awaitable[Launcher]]) -> None:
        self._nursery, self._launcher = nursery, launcher
        self._idle: list[Seat] = []  # least recently used first
        self._lent: set[Seat] = set()
        self._ending: set[Seat] = set()  # may still run tool code, so they count until they are gone
        self._starting: dict[tuple[str, int], int] = {}  # by key and depth
        self._line: list[_Place] = []  # in order of arrival

    @property
    def living(self) -> int:
        """Jails that are there, being made or being ended."""
        return len({*self._idle, *self._lent, *self._ending}) + sum(self._starting.values())

    async def lease(self, recipe: Recipe, bounds: PoolBounds, *, depth: int = 0) -> Seat:
        """A jail of that key with a spare that is ready or on its way. Raises RequestError ``refused.busy``, HostError.

        ``depth`` counts the calls above this one, each of which holds a jail until this one has ended.
        """
        place: _Place | None = None
        try:
            while True:
                # who comes later waits behind those who want the same
                ahead = place is None and any((other.key, other.depth) == (recipe.key, depth) for other in self._line)
                if not ahead and (seat := await self._found(recipe, bounds, depth)) is not None:
                    return seat
                if place is None:
                    place = self._join(recipe.key, bounds, depth)
                await place.turn.wait()
                place.turn = trio.Event()
        finally:
            if place is not None:
                self._line.remove(place)
            self._wake()  # this one may leave free what it was woken for, or the room of a jail that would not start

    async def give_back(self, seat: Seat, *, healthy: bool) -> None:
        """Take a jail back after its call; one that is not healthy is ended."""
        self._lent.discard(seat)
        if healthy and not seat.jail.dead():
            seat.idle_since = trio.current_time()
            self._idle.append(seat)
            if seat.failures < _FAILURES:
                self._spare(seat)
            self._wake()
        else:
            await self._retire(seat)

    async def retire_idle(self, keep_seconds: Callable[[Seat], float]) -> None:
        """End the jails that nobody used for as long as their policy keeps them."""
        now = trio.current_time()
        for seat in [seat for seat in self._idle if now - seat.idle_since > keep_seconds(seat)]:
            if seat in self._idle:
                self._idle.remove(seat)
                await self._retire(seat)

    async def renew_idle(self) -> None:
        """Replace waiting children that are too old, or that work while they should wait."""
        for seat in [seat for seat in self._idle if seat.spare is not None and seat.spare.ready.is_set() and _stale(seat.spare)]:
            if seat in self._idle:
                self._idle.remove(seat)
                self._lent.add(seat)  # nobody else may take it meanwhile, and ``close`` must find it
                try:
                    await self._renew(seat)
                finally:
                    self._lent.discard(seat)
                    self._idle.insert(0, seat)
                    self._wake()

    async def drain(self, keep: Callable[[Recipe], bool]) -> None:
        """End the idle jails whose recipe is no longer wanted; lent ones end when they come back unhealthy or are evicted."""
        for seat in [seat for seat in self._idle if not keep(seat.recipe)]:
            if seat in self._idle:
                self._idle.remove(seat)
                await self._retire(seat)

    async def close(self) -> None:
        """End every jail. Raises HostError when one would not end."""
        failed: list[str] = []
        for seat in [*self._idle, *self._lent]:
            try:
                await self._retire(seat)
            except HostError as error:
                failed += error.lines
        self._idle.clear()
        self._lent.clear()
        if failed:
            raise HostError("engine_failed.not_clean", *failed)

    async def _found(self, recipe: Recipe, bounds: PoolBounds, depth: int) -> Seat | None:
        """A jail for that recipe, started if there is room or another key's idle one can go; None when there is none to be had."""
        while True:
            seat = self._take(recipe.key)
            if seat is None and self._room(recipe.key, bounds, depth):
                seat = await self._start(recipe, depth)
            if seat is None:
                victim = self._victim(recipe.key, bounds, depth)
                if victim is None:
                    return None
                await self._retire(victim)
            elif seat.jail.dead():
                await self._retire(seat)
            else:
                seat.depth = depth
                self._lent.add(seat)
                await self._renew(seat)
                return seat

    def _take(self, key: str) -> Seat | None:
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].recipe.key == key:
                return self._idle.pop(at)
        return None

    def _taken(self, depth: int, key: str | None = None) -> int:
        """Jails that calls at that depth have, are getting or had and that still end; of one key, or of all."""
        there = sum(seat.depth == depth and key in (None, seat.recipe.key) for seat in {*self._lent, *self._ending})
        return there + sum(count for (other, at), count in self._starting.items() if at == depth and key in (None, other))

    def _room(self, key: str, bounds: PoolBounds, depth: int) -> bool:
        idle = sum(seat.recipe.key == key for seat in self._idle)
        return len(self._idle) + self._taken(depth) < bounds.total and idle + self._taken(depth, key) < bounds.jails

    def _victim(self, key: str, bounds: PoolBounds, depth: int) -> Seat | None:
        """The idle jail of another key to end for this one, least recently used first."""
        return self._idle.pop(0) if self._may_evict(key, bounds, depth) else None

    def _may_evict(self, key: str, bounds: PoolBounds, depth: int) -> bool:
        return bool(self._idle) and self._taken(depth) < bounds.total and self._taken(depth, key) < bounds.jails

    async def _start(self, recipe: Recipe, depth: int) -> Seat:
        which = (recipe.key, depth)
        self._starting[which] = self._starting.get(which, 0) + 1
        try:
            jail = await Jail.start(await self._launcher(), recipe.plan, seconds=recipe.start_ms / 1000)
        finally:
            self._starting[which] -= 1
            if not self._starting[which]:
                del self._starting[which]
        return Seat(jail, recipe)

    async def _renew(self, seat: Seat) -> None:
        """See that the seat has a spare which may serve."""
        old = seat.spare
        if old is not None and old.child is not None and old.ready.is_set() and _stale(old):
            await reaper.reap(seat.jail, old.child)
            old.child.close()
            seat.spare = None
        if seat.spare is None:
            self._spare(seat)

    def _spare(self, seat: Seat) -> None:
        spare = seat.spare = Spare(seat.jail, seat.recipe)
        self._nursery.start_soon(self._prepare, seat, spare)

    async def _prepare(self, seat: Seat, spare: Spare) -> None:
        await spare.prepare()
        seat.failures = seat.failures + 1 if spare.verdict is not None else 0

    async def _retire(self, seat: Seat) -> None:
        self._ending.add(seat)
        try:
            if seat.spare is not None:
                await seat.spare.give_up()
            await seat.jail.close()
        finally:
            if seat.spare is not None and seat.spare.child is not None:
                seat.spare.child.close()  # one that was buried is no longer the jail's to close
            self._ending.discard(seat)
            self._wake()

    def _join(self, key: str, bounds: PoolBounds, depth: int) -> _Place:
        if sum(place.depth == depth for place in self._line) >= bounds.queued:
            raise RequestError("refused.busy", f"{bounds.total} workers are in use and {bounds.queued} calls wait in line")
        place = _Place(key, bounds, depth)
        self._line.append(place)
        self._wake()
        return place

    def _wake(self) -> None:
        """Wake the first in line for whom there is a jail now. Each that was woken wakes the next, so that no chance is lost."""
        for place in self._line:
            idle = any(seat.recipe.key == place.key for seat in self._idle)
            wanted = (place.key, place.bounds, place.depth)
            if not place.turn.is_set() and (idle or self._room(*wanted) or self._may_evict(*wanted)):
                place.turn.set()
                return


def _stale(spare: Spare) -> bool:
    """Whether a spare waited too long, was ended, or does not wait at all: none is the fault of the call that would get it."""
    if spare.verdict is not None or spare.child is None:
        return False  # it failed, and the next call is told
    return trio.current_time() - spare.born > _SPARE_SECONDS or spare.child.gone() or spare.burns()
