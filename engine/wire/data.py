"""The closed set of data: None, bool, int64, finite float, str, list, and dict with str keys, within a depth and a number of values.

Its job: say whether fields of a message hold only that, on either way.
Not its job: bytes (``messages.py``), words for the author of a value (``checking.py``; the wire is never stricter than it).
Laws:
1. What passes has one meaning for every reader (tests/security/test_wire_hostile.py).
2. Neither a deep value nor one that holds itself costs stack or time without end (tests/unit/test_messages.py).
"""

from typing import Any

DEPTH = 128  # containers around a value, itself included; jsonschema-rs stops at about 255
NODES = 1_000_000  # values inside containers; about 70 MB when each is an empty dict
_INT_MAX = (1 << 63) - 1
_INT_MIN = -(1 << 63)


def outside(fields: list[Any], *, depth: int = DEPTH, nodes: int = NODES) -> str | None:
    """What lies outside the closed set, by its type; None when all is inside. Neither the fields nor keys count as values.

    One function and one level of containers after the other: this runs on every value, and depth must not cost stack.
    """
    level: list[Any] = [fields]
    left = nodes + len(fields)
    for _ in range(depth + 1):
        below: list[Any] = []
        for container in level:
            left -= len(container)
            # security: counted before it is looked into, else a value that holds itself many times over is walked for ever
            if left < 0:
                return "more values than its bound"
            if type(container) is dict:
                for key in container:
                    if type(key) is not str:
                        return f"a map with a key of type {type(key).__name__}"
                container = container.values()
            for value in container:
                kind = type(value)
                if kind is str:
                    continue
                if kind is int:
                    # security: without it a reader that holds 64 bits reads another number
                    if not _INT_MIN <= value <= _INT_MAX:
                        return "an int outside 64 bits"
                elif kind is float:
                    # security: inf and nan slip past minimum and maximum of a schema; either, less itself, is nan
                    if value - value != 0.0:
                        return "a float that is not finite"
                elif kind is dict or kind is list:
                    below.append(value)
                elif value is not None and kind is not bool:
                    return f"data of type {kind.__name__}"
        if not below:
            return None
        level = below
    return "data nested deeper than its bound"
