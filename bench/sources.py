"""The work that tools and rivals do, as functions that run here and as text that runs there.

Its job: n-body, records of a size, the source text of both; plain enough for interpreters that know part of Python.
Not its job: tools (``payload.py``), timing.
Laws:
1. Standard library only: the rivals' environments hold nothing of ours (tests/unit/test_bench_measurement.py).
2. The text and the function are the same code (tests/unit/test_bench_measurement.py).
"""

import inspect
import json
from typing import Any


def nbody(steps: int) -> float:
    """The energy of five bodies after so many steps, in nothing but floats and lists."""
    bodies = [
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 39.47],
        [4.84, -1.16, -0.10, 0.60, 2.81, -0.02, 0.037],
        [8.34, 4.12, -0.40, -1.01, 1.81, 0.008, 0.011],
        [12.89, -15.11, -0.22, 1.08, 0.86, -0.01, 0.0017],
        [15.37, -25.91, 0.17, 0.97, 0.59, -0.03, 0.002],
    ]
    for _ in range(steps):
        for first in range(5):
            one = bodies[first]
            for second in range(first + 1, 5):
                two = bodies[second]
                x = one[0] - two[0]
                y = one[1] - two[1]
                z = one[2] - two[2]
                pull = 0.001 * (x * x + y * y + z * z) ** -1.5
                one[3] -= x * two[6] * pull
                one[4] -= y * two[6] * pull
                one[5] -= z * two[6] * pull
                two[3] += x * one[6] * pull
                two[4] += y * one[6] * pull
                two[5] += z * one[6] * pull
        for body in bodies:
            body[0] += 0.001 * body[3]
            body[1] += 0.001 * body[4]
            body[2] += 0.001 * body[5]
    energy = 0.0
    for body in bodies:
        energy += body[6] * (body[3] * body[3] + body[4] * body[4] + body[5] * body[5]) / 2
    return round(energy, 9)


NBODY = inspect.getsource(nbody)
POLICY = 'def lookup_policy(region):\n    return {"region": region, "refundWindowDays": 14}\n'


RECORD_BYTES = 84  # of one record as compact JSON, at the sizes that matter


def records(size: int) -> list[dict[str, Any]]:
    """Records that are about so many bytes as JSON."""
    return [
        {"id": number, "name": f"customer-{number:06}", "amount": number / 8, "open": number % 2 == 0, "tags": ["a", "b"]}
        for number in range(max(1, size // RECORD_BYTES))
    ]


def size_of(value: object) -> int:
    """Bytes of a value as compact JSON."""
    return len(json.dumps(value, separators=(",", ":")))
