"""The jails of one engine by what is done with them, counted as they change.

Its job: who is idle, lent, ending or starting; what a claim may still take. Pure book-keeping: nothing is started, ended or waited for.
Not its job: deciding (``pool.py``, ``demand.py``), who waits (``line.py``).
Laws:
1. No jail is begun beyond the bounds, per depth: idle ones count at every depth, others at that of their call (tests/unit/test_stock.py).
2. A tenant that uses workers does not get the last one that is free, once two tenants were seen (tests/unit/test_stock.py).
3. What everybody gave back leaves no count behind (tests/unit/test_stock.py).
"""

import functools
from collections import Counter, OrderedDict
from typing import NamedTuple

import trio

from engine.policy.model import Pool as PoolBounds
from engine.spelling import spelled
from engine.supervision.spare import Recipe, Spare
from engine.worker.native import Jail

_SPARE_SECONDS = 600.0  # older ones are replaced before a call sees them
_FAILURES = 3  # spares in a row that did not come up; then none is made until a call asks


class Claim(NamedTuple):
    """What a jail in use is counted by: its worker key, the calls above the one that has it, the tenant."""

    key: str
    depth: int
    tenant: str | None


class Seat:
    """One jail, its recipe and its spare. Lent to one call at a time; ``claim`` is that call's, or the last one's."""

    def __init__(self, jail: Jail, recipe: Recipe, bounds: PoolBounds, claim: Claim) -> None:
        self.jail, self.recipe, self.bounds, self.claim = jail, recipe, bounds, claim
        self.spare: Spare | None = None
        self.failures = 0
        self.idle_since = trio.current_time()
        self.taken_at: float | None = None  # by the call whose absence is being measured
        self.returning = False  # its call has its verdict: it comes back in a moment
        self.unwanted = False  # ended when it comes back

    @functools.cached_property
    def enforced(self) -> bytes:
        """What its jail has in force, spelled for the receipts of its calls."""
        return spelled(dict(self.jail.enforced))

    def broken(self) -> bool:
        """Whether its jail died or was told to, or its zygote did not fork when it was told to: no fault of the call that would get it."""
        failed = self.spare is not None and self.spare.verdict is not None and self.spare.verdict[0] == "refused.start_failed"
        return failed or self.jail.doomed or self.jail.dead()

    def bare(self) -> bool:
        """Whether it has no spare and should: the last ones came up, and it is wanted."""
        return self.spare is None and self.failures < _FAILURES and not self.unwanted

    def spent(self) -> bool:
        """Whether its spare waited too long or was ended: no fault of the call that would get it."""
        spare = self.spare
        if spare is None or spare.child is None or not spare.ready.is_set() or spare.verdict is not None:
            return False  # on its way; or it failed, and the next call is told
        return trio.current_time() - spare.born > _SPARE_SECONDS or spare.child.gone()


class Start:
    """One jail being made: on behalf of those in line, or ``ahead`` of them. ``victim`` makes room for it."""

    def __init__(self, claim: Claim, recipe: Recipe, bounds: PoolBounds, *, ahead: bool, victim: Seat | None) -> None:
        self.claim, self.recipe, self.bounds, self.ahead, self.victim = claim, recipe, bounds, ahead, victim
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.seat: Seat | None = None
        self.error: Exception | None = None


class Stock:
    """All seats. ``idle`` is in order of use, the least recently used first."""

    def __init__(self) -> None:
        self.idle: OrderedDict[Seat, None] = OrderedDict()
        self.lent: set[Seat] = set()
        self.ending: set[Seat] = set()  # may still run tool code, so they count until they are gone
        self.starting = 0
        self._idle_of: dict[str, list[Seat]] = {}
        self._used: Counter[object] = Counter()  # by depth, by depth and key, by depth and tenant
        self._coming: Counter[Claim] = Counter()
        self._held: Counter[str] = Counter()  # lent and starting, by key
        self._tenants: set[str | None] = set()  # two at most: that there are several is all there is to know

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Those that are there or being ended."""
        return (*self.idle, *self.lent, *self.ending)

    @property
    def living(self) -> int:
        """Jails that are there, being made or being ended."""
        return len(self.idle) + len(self.lent) + len(self.ending) + self.starting

    @property
    def running(self) -> int:
        """Lent jails whose call has no verdict yet."""
        return sum(not seat.returning for seat in self.lent)

    def idle_of(self, key: str) -> list[Seat]:
        """The idle ones of a key, the most recently used last."""
        return self._idle_of.get(key, [])

    def of(self, key: str) -> int:
        """How many of a key there are or are being made."""
        return len(self.idle_of(key)) + self._held[key]

    def held(self, key: str) -> int:
        """How many of a key are lent or being made."""
        return self._held[key]

    def coming(self, claim: Claim) -> int:
        """How many jails are on their way for such a claim: being made, or to be given back in a moment."""
        return self._coming[claim]

    def meet(self, tenant: str | None) -> None:
        """Learn that there is such a tenant."""
        if len(self._tenants) < 2:
            self._tenants.add(tenant)

    def may_use(self, claim: Claim, bounds: PoolBounds) -> bool:
        """Whether such a call may have one jail more in use."""
        used = self._used[claim.depth]
        if used >= bounds.total or self.full(claim, bounds):
            return False
        # security: else one tenant's flood would hold every worker for as long as its calls run
        last = used == bounds.total - 1 and len(self._tenants) > 1
        return not (last and self._used[claim.depth, "tenant", claim.tenant])

    def full(self, claim: Claim, bounds: PoolBounds) -> bool:
        """Whether its worker key is at its own bound."""
        return self._used[claim.depth, "key", claim.key] >= bounds.jails

    def used(self, claim: Claim, *, of_key: bool = False) -> int:
        """How many are in use at a claim's depth, of its key or in all."""
        return self._used[(claim.depth, "key", claim.key) if of_key else claim.depth]

    def in_use(self, claim: Claim, bounds: PoolBounds) -> str:
        """Which bounds are reached, in words for who is refused."""
        counts = (("jails", self.used(claim, of_key=True), bounds.jails), ("total", self.used(claim), bounds.total))
        reached = ", ".join(f"{used} of {most} (pool.{name})" for name, used, most in counts if used >= most)
        kept = "all but the last (pool.total), which is kept for a tenant that has none"
        return f"workers in use: {reached or kept}"

    def changing(self) -> bool:
        """Whether some jail will be idle, or gone, in a moment."""
        return bool(self.starting or self.ending or len(self.lent) > self.running)

    def room(self, claim: Claim, bounds: PoolBounds) -> bool:
        """Whether one jail more may live."""
        of_key = len(self.idle_of(claim.key)) + self._used[claim.depth, "key", claim.key]
        return len(self.idle) + self._used[claim.depth] < bounds.total and of_key < bounds.jails

    def victim(self) -> Seat | None:
        """The idle jail that was not used for the longest time."""
        return next(iter(self.idle), None)

    def start(self, claim: Claim) -> None:
        """Count one that is being made."""
        self.starting += 1
        self._count(claim, 1)
        self._held[claim.key] += 1
        self._coming[claim] += 1

    def started(self, claim: Claim) -> None:
        """It is there, or it failed: no longer counted as being made."""
        self.starting -= 1
        self._count(claim, -1)
        _less(self._held, claim.key)
        _less(self._coming, claim)

    def lend(self, seat: Seat, claim: Claim) -> None:
        """Give out an idle or a new one."""
        self._shelve(seat, idle=False)
        self.lent.add(seat)
        seat.claim, seat.returning = claim, False
        self._count(claim, 1)
        self._held[claim.key] += 1

    def returns(self, seat: Seat) -> None:
        """A lent one will come back in a moment."""
        if seat in self.lent and not seat.returning:
            seat.returning = True
            self._coming[seat.claim] += 1

    def back(self, seat: Seat, *, first: bool = False) -> None:
        """A lent or new one is idle now. ``first`` in order: nobody used it."""
        if seat in self.lent:
            self._unlend(seat)
            self._count(seat.claim, -1)
        self._shelve(seat, idle=True, first=first)

    def end(self, seat: Seat) -> bool:
        """Count one as ending; False when it does already, or has ended."""
        if seat in self.lent:
            self._unlend(seat)
        elif seat in self.idle:
            self._shelve(seat, idle=False)
            self._count(seat.claim, 1)
        else:
            return False
        self.ending.add(seat)
        return True

    def ended(self, seat: Seat) -> None:
        """It is gone."""
        self.ending.discard(seat)
        self._count(seat.claim, -1)

    def _unlend(self, seat: Seat) -> None:
        self.lent.discard(seat)
        _less(self._held, seat.claim.key)
        if seat.returning:
            seat.returning = False
            _less(self._coming, seat.claim)

    def _shelve(self, seat: Seat, *, idle: bool, first: bool = False) -> None:
        key = seat.recipe.key
        if idle:
            self.idle[seat] = None
            self._idle_of.setdefault(key, []).insert(0 if first else len(self.idle_of(key)), seat)
            if first:
                self.idle.move_to_end(seat, last=False)
        elif seat in self.idle:
            del self.idle[seat]
            self._idle_of[key].remove(seat)
            if not self._idle_of[key]:
                del self._idle_of[key]

    def _count(self, claim: Claim, step: int) -> None:
        for name in (claim.depth, (claim.depth, "key", claim.key), (claim.depth, "tenant", claim.tenant)):
            self._used[name] += step
            if not self._used[name]:
                del self._used[name]


def _less(counter: Counter, name: object) -> None:  # type: ignore[type-arg]  # of whatever it counts
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
