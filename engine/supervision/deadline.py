"""When a call is over, on the one clock that nobody can set: trio's monotonic one.

Its job: turn the limits of a call into points in time, once, at its start.
Not its job: what happens then (``call.py`` settles the verdict, ``reaper.py`` kills).
Laws:
1. A deadline is absolute: reading, writing and waiting do not move it (tests/contract/test_endings.py).
"""

import dataclasses

import trio

GRACE_SECONDS = 2.0  # from a kill until its effect must have been seen; a SIGKILL takes about 2 ms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deadline:
    """Points on trio's clock, in seconds."""

    started: float
    wall: float

    @classmethod
    def of(cls, wall_ms: int) -> "Deadline":
        """The deadline of a call that starts now."""
        now = trio.current_time()
        return cls(started=now, wall=now + wall_ms / 1000)

    def elapsed_ms(self) -> float:
        """Time since the start, in ms."""
        return (trio.current_time() - self.started) * 1000
