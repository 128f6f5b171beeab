"""How many jails of a key are worth having: what was seen of its calls, and what follows from it.

Its job: the running means of a key's calls, and the decisions made of them. Pure: every clock is an argument.
Not its job: starting and ending jails (``pool.py``, ``upkeep.py``).
Laws:
1. Never above the policy's bounds, more for more calls, none for a key that was never used (tests/unit/test_demand.py).
2. A key that is called once a minute has one (tests/unit/test_demand.py).
"""

import dataclasses

from engine.policy.model import Pool as PoolBounds

_TRUSTED = 16  # calls before the means are believed; until then one jail is wanted
_WEIGHT = 16  # calls that a mean looks back on
_MISSED = 0.05  # of the calls may find no jail ready
_LOAD = 1024.0  # jails away at once; beyond it every policy's bound is reached


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What was seen of a key's calls: how many, when the last came, the mean time between two, and how long one keeps its jail away.

    Away is from the moment a call took a jail until that jail's next child was ready: it holds call, burial, fork and import. In seconds.
    """

    arrivals: int = 0
    last: float = 0.0
    interval: float = 0.0
    away: float = 0.0

    @property
    def trusted(self) -> bool:
        """Whether enough was seen to start jails for it."""
        return self.arrivals >= _TRUSTED

    def arrived(self, now: float, longest: float) -> "Demand":
        """With one call more. A pause counts as ``longest`` at most, so that one night does not outweigh a day."""
        seen = min(self.arrivals, _WEIGHT)
        gap = min(now - self.last, longest)
        interval = self.interval + (gap - self.interval) / seen if seen else 0.0
        return Demand(arrivals=self.arrivals + 1, last=now, interval=interval, away=self.away)

    def was_away(self, seconds: float) -> "Demand":
        """With one jail's absence more."""
        away = self.away + (seconds - self.away) / _WEIGHT if self.away else seconds
        return Demand(arrivals=self.arrivals, last=self.last, interval=self.interval, away=away)


def longest_pause(bounds: PoolBounds) -> float:
    """The longest time between two calls that a mean takes in, in seconds."""
    return 2 * bounds.idle_ms / 1000


def wanted(demand: Demand, bounds: PoolBounds, *, now: float, lent: int) -> int:
    """Jails of a key worth having, lent ones included.

    By Little's law rate times absence are away at a time; as many more are wanted as Erlang's loss formula needs for calls that come
    by chance to find one ready, but for one in twenty. A pause lowers the rate while it lasts. Zero after ``pool.idle``, or after twice
    the usual time between two calls when that is longer.
    """
    pause = now - demand.last
    if not demand.arrivals or pause > max(bounds.idle_ms / 1000, 2 * demand.interval):
        return 0
    if not demand.trusted:
        return 1
    most = min(bounds.jails, bounds.total, lent + bounds.ready)
    between = max(demand.interval, pause)
    load = min(demand.away / between, _LOAD) if between > demand.away / _LOAD else _LOAD
    return max(1, _enough(load, most))


def _enough(load: float, most: int) -> int:
    """The fewest jails of which at most one call in twenty finds none, up to a bound (Erlang B, by its recursion)."""
    jails, missed = 1, load / (1 + load)
    while missed > _MISSED and jails < most:
        jails += 1
        missed = load * missed / (jails + load * missed)
    return jails


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """What else bears on starting a jail ahead of need: this key's jails, how many of them wait, calls that run, and cores for them."""

    jails: int
    waiting: int
    running: int
    cores: int
    room: bool
    affordable: bool


def starts(wish: int, bounds: PoolBounds, scene: Scene, *, late: bool) -> bool:
    """Whether to start one more ahead of need. While calls keep every core busy only when it is ``late``: the wish has stood a while."""
    short = scene.jails < wish and scene.waiting < bounds.ready
    return short and scene.room and scene.affordable and (late or scene.running < scene.cores)


def keeps(wish: int, bounds: PoolBounds, *, lent: int) -> int:
    """Of the jails that nobody uses, those to keep past ``pool.idle``."""
    return max(0, min(wish - lent, bounds.ready))
