"""Which jails there are, and who gets which.

Its job: lend a jail with a child that is ready or on its way, take it back, have its next spare made, start and end jails within bounds.
Not its job: making a spare ready (``spare.py``), how many are wanted (``growth.py``), turns (``line.py``), idle ones (``upkeep.py``).
Laws:
1. A jail holds at most one call and one spare, a scoped one has one child at a time; n calls at once are n jails
   (tests/contract/test_pool.py, tests/contract/test_scoped_pool.py).
2. A call gets a jail whose spare is ready before one whose spare is on its way, and that before a new one (tests/contract/test_lending.py).
3. At its bound a call waits in line, and past the bound of the line one is refused, never dropped (tests/contract/test_pool.py).
4. Bounds and lines are per depth: a tool's own call never waits for a jail that its caller holds (tests/contract/test_nesting.py).
5. Tenants take turns, and none takes the last worker from those who have none (tests/contract/test_tenants.py).
6. After ``close`` no jail is left (tests/security/test_promise_clean.py), and nobody waits (tests/contract/test_pool_closing.py).
7. A jail that would not end is told by ``close``, and is no other call's error (tests/contract/test_upkeep_trouble.py).
"""

from collections.abc import Awaitable, Callable

import trio

from engine.errors import EngineError, HostError, RequestError
from engine.outcome import error_for
from engine.policy.model import Pool as PoolBounds
from engine.supervision import reaper
from engine.supervision.growth import Growth
from engine.supervision.line import Line, Place, gives_way
from engine.supervision.spare import Recipe, Spare
from engine.supervision.stock import Claim, Start, Stock
from engine.supervision.stock import Seat as Seat  # the name under which calls know it
from engine.worker.launcher import Launcher
from engine.worker.native import Jail


class Pool:
    """All jails of one engine. ``nursery`` owns the spares and jails on their way."""

    def __init__(self, nursery: trio.Nursery, launcher: Callable[[Recipe], Awaitable[Launcher]]) -> None:
        self._nursery, self._launcher = nursery, launcher
        self._stock, self._line = Stock(), Line()
        self.growth = Growth(self._stock, self._ahead)
        self._starts: set[Start] = set()
        self._closed = False
        self._settled = trio.Event()  # replaced each time something ended
        self._back: trio.Event | None = None  # for who waits until one comes back
        self._unclean: list[str] = []  # what would not end, told by ``close``

    @property
    def living(self) -> int:
        """Jails that are there, being made or being ended."""
        return self._stock.living

    @property
    def idle(self) -> list[Seat]:
        """Those that no call has, the least recently used first."""
        return list(self._stock.idle)

    @property
    def images(self) -> set[str]:
        """The images of the jails that are there, being made or being ended."""
        return {seat.recipe.wasm for seat in self._stock.seats} | {start.recipe.wasm for start in self._starts}

    def of(self, key: str) -> tuple[int, int]:
        """Of a key: jails that are idle, and those that are lent or being made."""
        return len(self._stock.idle_of(key)), self._stock.held(key)

    def making(self, recipe: Recipe, *, depth: int, tenant: str | None) -> bool:
        """Whether a jail is on its way for a call that has just left the line; else it stood there at a bound."""
        claim = Claim(recipe.key, depth, tenant)
        return sum(start.claim == claim for start in self._starts) > self._line.count(claim)

    async def lease(self, recipe: Recipe, bounds: PoolBounds, *, depth: int = 0, tenant: str | None = None) -> Seat:
        """A jail of that key with a spare that is ready or on its way. Raises RequestError ``refused.busy``, HostError.

        Returns without giving up its turn when one is idle. ``depth`` counts the calls above this one, each of which holds a jail until
        this one has ended.
        """
        claim = Claim(recipe.key, depth, tenant)
        if recipe.declarations is not None:  # reading declarations is nobody's call
            self._stock.meet(tenant)
        self.growth.called(recipe, bounds, tenant)
        # who comes later waits behind those who want the same
        if not self._line.count(claim) and self._stock.may_use(claim, bounds) and (seat := self._pick(recipe.key)) is not None:
            return self._lend(seat, claim, bounds)
        place = Place(claim, bounds, recipe)
        self._line.join(place)
        self._serve()
        self._shorten(place)
        try:
            await place.turn.wait()
        except BaseException:
            self._line.leave(place)
            if place.seat in self._stock.lent:
                self._put_back(place.seat)
            raise
        if place.error is not None:
            raise place.error
        assert place.seat is not None  # noqa: S101 - a type fact: a turn comes with a seat or an error
        return place.seat

    def returns(self, seat: Seat) -> None:
        """A call has its answer, so its jail comes back in a moment: whoever asks meanwhile waits for it and gets no new one."""
        self._stock.returns(seat)

    def refill(self, seat: Seat) -> None:
        """Order the next spare of a jail whose call has its verdict, unless it has one, the last ones failed, or no two may live in it."""
        self._stock.returns(seat)
        if seat.bare() and not seat.recipe.single:
            self._spare(seat)

    async def give_back(self, seat: Seat, *, healthy: bool) -> None:
        """Take a jail back after its call; one that is not healthy is ended, and no other."""
        if not healthy or seat.unwanted or seat.broken():
            if self._stock.end(seat):
                await self._end(seat)
        elif seat in self._stock.lent:  # else it was ended meanwhile
            self._put_back(seat)
            self.growth.answered(seat.recipe.key)

    async def warm(self, recipe: Recipe, bounds: PoolBounds, *, jails: int, tenant: str | None = None) -> None:
        """Have that many idle jails of a key, as far as the bounds go, each with a child that is ready.

        Raises RequestError ``refused.busy``, HostError, or the error of what kept a child from being ready.
        """
        claim = Claim(recipe.key, 0, tenant)
        self._stock.meet(tenant)
        begun: list[Start] = []
        while (there := self._stock.of(recipe.key)) < min(jails, bounds.jails):
            start = self._begin(claim, recipe, bounds, ahead=True) if self._stock.may_use(claim, bounds) else None
            if start is not None:
                begun.append(start)
            elif there:
                break
            elif self._stock.changing():
                await self._change()
                if self._closed:
                    raise RequestError("cancelled.shutdown", "the engine was closed while a worker was waited for")
            else:
                raise RequestError("refused.busy", self._stock.in_use(claim, bounds))
        for start in begun:
            await start.done.wait()
            if start.error is not None:
                raise start.error
        for spare in [seat.spare for seat in self._stock.idle_of(recipe.key) if seat.spare is not None]:
            await spare.ready.wait()
            if spare.verdict is not None:
                raise error_for(*spare.verdict)

    async def drain(self, keep: Callable[[Recipe], bool]) -> None:
        """End the jails whose recipe is no longer wanted, lent ones when they come back."""
        self.growth.forget(keep)
        for seat in self._stock.lent:
            seat.unwanted = not keep(seat.recipe)
        for seat in [seat for seat in self._stock.idle if not keep(seat.recipe)]:
            await self.retire(seat)  # one that would not end is no reason to keep the others, nor the fault of who loads

    async def close(self) -> None:
        """End every jail, those on their way too. Raises HostError when one would not end, now or before."""
        self._closed = True
        for start in self._starts:
            start.scope.cancel()
        self._line.close()
        while self.living:
            for seat in [*self._stock.idle, *self._stock.lent]:
                if self._stock.end(seat):
                    await self._end_quietly(seat)
            if self.living:
                await self._settled.wait()
        if self._unclean:
            raise HostError("engine_failed.not_clean", *self._unclean)

    async def retire(self, seat: Seat) -> None:
        """End a jail if it is idle still. That one would not end is told by ``close``."""
        if seat in self._stock.idle and self._stock.end(seat):
            await self._end_quietly(seat)

    async def abandon(self, seat: Seat) -> None:
        """End an idle jail, and have none of its key ahead of need until a call asks."""
        key = seat.recipe.key
        self.growth.forget(lambda recipe: recipe.key != key)
        await self.retire(seat)

    def renew(self, seat: Seat) -> None:
        """Replace the spare of an idle seat by one that may serve; the seat comes back when that is ordered."""
        self._stock.lend(seat, seat.claim)  # nobody else may take it meanwhile, and ``close`` must find it
        self._stock.returns(seat)
        self._nursery.start_soon(self._renew, seat)

    def _pick(self, key: str) -> Seat | None:
        """The best idle jail of a key, the most recently used of equals; those that cannot serve are sent to be mended or ended."""
        coming = other = None
        for seat in reversed(list(self._stock.idle_of(key))):
            if seat.broken():
                self._retire_soon(seat)
            elif seat.spent():
                self.renew(seat)
            elif seat.spare is not None and not seat.spare.ready.is_set():
                coming = seat  # in the end the one whose spare was ordered first, which is the nearest
            elif seat.spare is not None and seat.spare.verdict is None:
                return seat
            else:
                other = seat
        return coming or other

    def _lend(self, seat: Seat, claim: Claim, bounds: PoolBounds) -> Seat:
        self._stock.lend(seat, claim)
        seat.bounds, seat.taken_at = bounds, None
        if seat.spare is None:
            self._spare(seat)  # for this call itself: not the end of an absence
        seat.taken_at = trio.current_time()
        return seat

    def _put_back(self, seat: Seat) -> None:
        """Make a lent seat idle, and see who waits for it."""
        seat.idle_since = trio.current_time()
        if seat.spare is not None and seat.taken_at is not None:  # it has the child that served: none is made ready, which would tell this
            self.growth.was_away(seat.recipe.key, seat.idle_since - seat.taken_at)
            seat.taken_at = None
        if seat.bare():  # its call's child is gone
            self._spare(seat)
        self._stock.back(seat)
        self._came()

    async def _change(self) -> None:
        """Until a jail came back, was made or has ended."""
        if self._back is None:
            self._back = trio.Event()
        await self._back.wait()

    def _came(self) -> None:
        """One came, came back or has ended: tell who waits for that, and see who is next."""
        if self._back is not None:
            self._back.set()
            self._back = None
        self._serve()

    def _serve(self) -> None:
        """Give those in line what there is, one tenant after the other, until there is nothing more for anybody."""
        given = bool(self._line)
        while given:
            given = False
            for firsts in self._line.turns():
                if any(self._grant(place) for place in firsts):
                    self._line.served(firsts[0].claim.tenant)
                    given = True

    def _grant(self, place: Place) -> bool:
        """Give that place a jail, or begin one for its claim; False when neither can be had, or one is on its way."""
        claim, bounds = place.claim, place.bounds
        if self._closed or not self._stock.may_use(claim, bounds):
            return False
        if (seat := self._pick(claim.key)) is not None:
            self._line.leave(place)
            place.give(self._lend(seat, claim, bounds))
            return True
        uncovered = self._line.count(claim) > self._stock.coming(claim)
        return uncovered and self._begin(claim, place.recipe, bounds, ahead=False) is not None

    def _shorten(self, newcomer: Place) -> None:
        """Refuse one call when the line is longer than its policy has it."""
        depth, queued = newcomer.claim.depth, newcomer.bounds.queued
        if newcomer.turn.is_set() or len(self._line) <= queued:
            return
        waiting = self._line.uncovered(depth, self._stock.coming)
        if sum(map(len, waiting.values())) <= queued or newcomer not in waiting.get(newcomer.claim.tenant, ()):
            return
        loser = gives_way(waiting, newcomer)
        self._line.leave(loser)
        if loser is newcomer:
            loser.refuse(self._busy(newcomer.claim, newcomer.bounds))
        else:
            own = "the line is full, and this call's tenant held most of it: its newest call gave way to another tenant's"
            loser.refuse(RequestError("refused.busy", own))

    def _busy(self, claim: Claim, bounds: PoolBounds) -> RequestError:
        waiting = sum(map(len, self._line.uncovered(claim.depth, self._stock.coming).values()))
        used = self._stock.in_use(claim, bounds)
        return RequestError("refused.busy", f"{used}; calls in line: {waiting} of {bounds.queued} (pool.queued)")

    def _begin(self, claim: Claim, recipe: Recipe, bounds: PoolBounds, *, ahead: bool) -> Start | None:
        """Begin a jail if there is room, or another key's idle one can go."""
        victim = None
        if not self._stock.room(claim, bounds):
            victim = self._stock.victim()
            if victim is None or victim.recipe.key == claim.key:
                return None
            self._stock.end(victim)
        return self._order(Start(claim, recipe, bounds, ahead=ahead, victim=victim))

    def _ahead(self, claim: Claim, recipe: Recipe, bounds: PoolBounds) -> None:
        self._order(Start(claim, recipe, bounds, ahead=True, victim=None))

    def _order(self, start: Start) -> Start:
        self._stock.start(start.claim)
        self._starts.add(start)
        if self._closed:
            start.scope.cancel()
        self._nursery.start_soon(self._start, start)
        return start

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _start(self, start: Start) -> None:
        """Make the jail; who waits gets it, or what went wrong."""
        try:
            with start.scope:
                if start.victim is not None:
                    await self._end_quietly(start.victim)
                jail = await Jail.start(await self._launcher(start.recipe), start.recipe.plan, seconds=start.recipe.start_ms / 1000)
                start.seat = Seat(jail, start.recipe, start.bounds, start.claim)
        except Exception as error:  # raised where somebody waits for it: a bug of ours too belongs to a call, not to all of them
            start.error = error
            if start.ahead and not isinstance(error, EngineError):
                self._note(error, "a worker was made ahead of need")
        except BaseException:  # the engine's own tasks are being cancelled: whoever closes it still waits for the last jail
            self._settled.set()
            raise
        finally:
            self._stock.started(start.claim)
            self._starts.discard(start)
        if start.scope.cancelled_caught:
            start.error = RequestError("cancelled.shutdown", "the engine was closed while the worker was made")
        self._begun(start)

    def _begun(self, start: Start) -> None:
        seat, place = start.seat, self._line.first(start.claim)
        if start.ahead:
            self.growth.began(start.claim.key, well=seat is not None)
        if seat is not None and place is not None:
            self._line.leave(place)  # its own turn: another tenant's would end the jail before it served
            place.give(self._lend(seat, start.claim, place.bounds))
        elif seat is not None:
            self._spare(seat)
            self._stock.back(seat)
        elif place is not None and start.error is not None and self._told(start):
            self._line.leave(place)
            place.refuse(start.error)
        start.done.set()
        self._settle()

    def _told(self, start: Start) -> bool:
        """Whether somebody in line is told that it failed: it was begun for them, and no other jail is on its way for all of them."""
        return not start.ahead and self._line.count(start.claim) > self._stock.coming(start.claim)

    def _spare(self, seat: Seat) -> None:
        spare = seat.spare = Spare(seat.jail, seat.recipe)
        since, seat.taken_at = seat.taken_at, None
        self._nursery.start_soon(self._prepare, seat, spare, since)

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _prepare(self, seat: Seat, spare: Spare, since: float | None) -> None:
        await spare.prepare()
        seat.failures = seat.failures + 1 if spare.verdict is not None else 0
        if since is not None:
            self.growth.was_away(seat.recipe.key, spare.ready_at - since)

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _renew(self, seat: Seat) -> None:
        old, seat.spare = seat.spare, None
        try:
            if old is not None and old.child is not None:
                await reaper.reap(seat.jail, old.child)
                old.child.close()
        except Exception as error:  # one child's trouble is no reason to end everybody's calls
            self._note(error, "a waiting child was replaced")
        if seat in self._stock.lent:  # else it was ended meanwhile
            if seat.bare():
                self._spare(seat)
            self._stock.back(seat, first=True)
            self._came()

    def _retire_soon(self, seat: Seat) -> None:
        if self._stock.end(seat):
            self._nursery.start_soon(self._end_quietly, seat)

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _end_quietly(self, seat: Seat) -> None:
        try:
            await self._end(seat)
        except Exception as error:  # no reason to end anybody's call; told when the engine closes
            self._note(error, "a worker was ended")

    def _note(self, error: Exception, when: str) -> None:
        self._unclean += error.lines if isinstance(error, HostError) else [f"{type(error).__name__} while {when}"]

    async def _end(self, seat: Seat) -> None:
        try:
            if seat.spare is not None:
                await seat.spare.give_up()
            await seat.jail.close()
            if seat.spare is not None and seat.spare.verdict is not None and seat.spare.verdict[0] == "engine_failed.not_clean":
                raise HostError(*seat.spare.verdict)  # whoever buried it went as far as the jail, and has nobody to tell
        finally:
            if seat.spare is not None and seat.spare.child is not None:
                seat.spare.child.close()  # one that was buried is no longer the jail's to close
            self._stock.ended(seat)
            self._settle()

    def _settle(self) -> None:
        """Something began or ended: there may be a jail or room for those in line."""
        self._settled.set()
        self._settled = trio.Event()
        self._came()
