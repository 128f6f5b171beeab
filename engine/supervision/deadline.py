"""When a call is over, on the one clock that nobody can set: trio's monotonic one.

Its job: turn the wall limit of a call into a point in time, once, at its start; the grace of a kill.
Not its job: what happens then (``call.py`` settles the verdict, ``reaper.py`` kills).
Laws:
1. A deadline is absolute: reading, writing and waiting do not move it (tests/contract/test_endings.py).
"""

GRACE_SECONDS = 2.0  # from a kill until its effect must have been seen; a SIGKILL takes about 2 ms


def after(started: float, wall_ms: int) -> float:
    """The deadline of a call that started then, on trio's clock in seconds."""
    return started + wall_ms / 1000
