"""Calls that wait for a jail, and whose turn it is.

Its job: places in line, turns between tenants, who gives way when the line is full. Pure: it starts, lends and waits for nothing.
Not its job: what there is to hand out (``stock.py``), handing it out (``pool.py``).
Laws:
1. Tenants take turns; within one, the calls of one worker are served in the order they came (tests/unit/test_line.py).
2. In a full line the newest place of the tenant with most gives way to a tenant that will still hold fewer; else who comes is refused
   (tests/unit/test_line.py).
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence

import trio

from engine.errors import RequestError
from engine.policy.model import Pool as PoolBounds
from engine.supervision.spare import Recipe
from engine.supervision.stock import Claim, Seat

_CLOSED = ("cancelled.shutdown", "the engine was closed while a worker was waited for")


class Place:
    """Where one call stands. ``turn`` is set with a seat or with the error that it waited for."""

    def __init__(self, claim: Claim, bounds: PoolBounds, recipe: Recipe) -> None:
        self.claim, self.bounds, self.recipe = claim, bounds, recipe
        self.number = 0  # in order of arrival
        self.turn = trio.Event()
        self.seat: Seat | None = None
        self.error: Exception | None = None

    def give(self, seat: Seat) -> None:
        """Its turn, with a jail."""
        self.seat = seat
        self.turn.set()

    def refuse(self, error: Exception) -> None:
        """Its turn, without one."""
        self.error = error
        self.turn.set()


class Line:
    """All places of one engine."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str | None, dict[Claim, deque[Place]]] = OrderedDict()  # whose turn is next first
        self._numbers = itertools.count(1)
        self._length = 0
        self._closed = False

    def __len__(self) -> int:
        """Calls that wait."""
        return self._length

    def join(self, place: Place) -> None:
        """Take the last place; in a line that was closed it is refused at once."""
        if self._closed:
            place.refuse(RequestError(*_CLOSED))
            return
        place.number = next(self._numbers)
        self._tenants.setdefault(place.claim.tenant, {}).setdefault(place.claim, deque()).append(place)
        self._length += 1

    def close(self) -> None:
        """Refuse everybody who waits, and who still comes."""
        self._closed = True
        for place in [place for claims in self._tenants.values() for places in claims.values() for place in places]:
            self.leave(place)
            place.refuse(RequestError(*_CLOSED))

    def leave(self, place: Place) -> None:
        """Out of the line; nothing when it has left."""
        tenant = place.claim.tenant
        places = self._tenants.get(tenant, {}).get(place.claim)
        if places is None or place not in places:
            return
        places.remove(place)
        self._length -= 1
        if not places:
            del self._tenants[tenant][place.claim]
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    def first(self, claim: Claim) -> Place | None:
        """Who came first of those with that claim."""
        places = self._tenants.get(claim.tenant, {}).get(claim)
        return places[0] if places else None

    def count(self, claim: Claim) -> int:
        """How many wait with that claim."""
        return len(self._tenants.get(claim.tenant, {}).get(claim, ()))

    def turns(self) -> list[list[Place]]:
        """For each tenant, whose turn is next first: the first place of each claim, by arrival."""
        return [sorted((places[0] for places in claims.values()), key=_number) for claims in self._tenants.values()]

    def served(self, tenant: str | None) -> None:
        """That tenant had its turn."""
        if tenant in self._tenants:
            self._tenants.move_to_end(tenant)

    def uncovered(self, depth: int, coming: Callable[[Claim], int]) -> dict[str | None, list[Place]]:
        """By tenant, those at a depth for whom no jail is on its way, in order of arrival."""
        found: dict[str | None, list[Place]] = {}
        for tenant, claims in self._tenants.items():
            for claim, places in claims.items():
                if claim.depth == depth and len(places) > coming(claim):
                    found.setdefault(tenant, []).extend(itertools.islice(places, coming(claim), None))
        return {tenant: sorted(places, key=_number) for tenant, places in found.items()}


def gives_way(waiting: Mapping[str | None, Sequence[Place]], newcomer: Place) -> Place:
    """Whose place is lost in a full line; the newcomer is one of those who wait."""
    own = len(waiting[newcomer.claim.tenant])
    most = max(waiting.values(), key=len)
    # more than the newcomer's tenant will hold: else two tenants with as many would take each other's places without end
    return most[-1] if len(most) > own else newcomer


def _number(place: Place) -> int:
    return place.number
