"""What one call may use, and how such amounts are written.

Its job: the record of limits, their units, and the rule that two sets of limits combine to the tighter of each.
Not its job: clocks (``supervision/deadline.py``), how a limit is enforced (``jail/plan.py``, ``worker/native.py``).
Laws:
1. Every limit is a finite positive whole number: there is no value that means "none" (tests/unit/test_limits.py).
2. ``tighter`` never exceeds either of its inputs (tests/unit/test_limits.py).
"""

import dataclasses
import re
from collections.abc import Mapping

from engine.errors import PolicyError

_SIZES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_TIMES = {"ms": 1, "s": 1000, "min": 60_000}
_CEILING = 1 << 53  # beyond it a JSON reader may round (RFC 8259 section 6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Amounts for one call. Fields in ``KERNEL_HELD`` are held by the kernel and so belong to the worker's key."""

    wall_ms: int = 30_000
    start_ms: int = 5_000  # from fork to ready: import of the tool included
    cpu_ms: int = 30_000  # whole seconds are what RLIMIT_CPU can hold (setrlimit(2)); import counts
    memory_bytes: int = 256 << 20  # address space of the tool above the bare interpreter (RLIMIT_AS)
    scratch_bytes: int = 64 << 20
    scratch_inodes: int = 4096
    threads: int = 64  # besides the main one
    descriptors: int = 256
    request_bytes: int = 1 << 20
    result_bytes: int = 8 << 20
    events: int = 10_000  # partials, progress, events and logs together
    event_bytes: int = 16 << 20  # of all those together
    log_bytes: int = 256 << 10  # of stdout, and again of stderr

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if type(value) is not int or not 0 < value <= _CEILING:
                raise PolicyError("refused.policy", f"limit {name} must be a whole number from 1 to 2^53, not {value!r}")


KERNEL_HELD = frozenset(
    {"cpu_ms", "memory_bytes", "scratch_bytes", "scratch_inodes", "threads", "descriptors"}
)  # set once when a jail or a child starts; the rest the host holds and may differ per call
LIMIT_NAMES = tuple(field.name for field in dataclasses.fields(Limits))


def tighter(first: Limits, second: Limits) -> Limits:
    """The smaller of each limit: what holds when both must hold."""
    return Limits(**{name: min(getattr(first, name), getattr(second, name)) for name in LIMIT_NAMES})


def parse_size(text: object) -> int:
    """Bytes from ``"64 MiB"``, ``"512"`` or ``4096``. Raises PolicyError naming the units when it is neither."""
    return _parse(text, _SIZES, "a size such as 4096, '64 KiB', '256 MiB' or '1 GiB'")


def parse_time(text: object) -> int:
    """Milliseconds from ``"200 ms"``, ``"30 s"`` or ``"2 min"``. Raises PolicyError naming the units when it is none of them."""
    return _parse(text, _TIMES, "a time such as '200 ms', '30 s' or '2 min'")


def _parse(text: object, units: Mapping[str, int], wanted: str) -> int:
    if type(text) is int and "" in units:
        text = str(text)
    match = re.fullmatch(r"([0-9]{1,15}) ?([A-Za-z]*)", text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        raise PolicyError("refused.policy", f"{text!r} is not {wanted}")
    return int(match[1]) * units[match[2]]
