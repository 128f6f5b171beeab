"""What a running tool lets its caller see before the outcome: plain frozen values, already checked.

Its job: the four kinds of event.
Not its job: the frames they came in (``wire/messages.py``), checking (``call.py``).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartialResult:
    """One item of a stream; it fits the tool's partial schema."""

    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the tool says it is; ``message`` is one sanitised line of its own words."""

    done: float
    total: float | None
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolEvent:
    """Plain data that the tool emitted; no schema holds for it."""

    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One record of the tool's log; ``message`` is one sanitised line, ``data`` is untrusted."""

    level: str
    message: str
    data: Mapping[str, Any]


ToolOutput = PartialResult | Progress | ToolEvent | LogRecord
