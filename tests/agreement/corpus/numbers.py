"""Tools over numbers and time."""

import calendar
import cmath
import datetime
import decimal
import fractions
import heapq
import itertools
import math
import random
import statistics
import zoneinfo
from typing import Any

from engine import tool


@tool(effect="read")
def money(amounts: list[str]) -> list[str]:
    """Exact sums, rounded as banks do."""
    total = sum(map(decimal.Decimal, amounts), decimal.Decimal(0))
    cent = decimal.Decimal("0.01")
    return [str(total), str(total.quantize(cent, decimal.ROUND_HALF_EVEN)), str((total / 7).quantize(cent)), f"{total.sqrt():.30f}"]


@tool(effect="read")
def precise(digits: int) -> str:
    """The number e, by its series."""
    with decimal.localcontext() as context:
        context.prec = digits
        return str(decimal.Decimal(1).exp())


@tool(effect="read")
def ratios(parts: list[str]) -> list[str]:
    """A sum of fractions, and what lies near it."""
    total = sum(map(fractions.Fraction, parts), fractions.Fraction(0))
    return [str(total), str(total.limit_denominator(10)), str(float(total)), str(round(total, 3))]


@tool(effect="read")
def described(values: list[float]) -> dict[str, float]:
    """What statistics says of them."""
    return {
        "mean": statistics.fmean(values),
        "median": statistics.median(values),
        "deviation": statistics.stdev(values),
        "quartile": statistics.quantiles(values)[0],
        "mode": statistics.mode(values),
    }


@tool(effect="read")
def trend(x: list[float], y: list[float]) -> list[float]:
    """A line through points."""
    line = statistics.linear_regression(x, y)
    return [line.slope, line.intercept, statistics.correlation(x, y)]


@tool(effect="read")
def functions(x: float) -> list[float]:
    """A few functions of one number, as their shortest exact text says."""
    return [
        math.sqrt(x),
        math.floor(x),
        math.fsum([x] * 10),
        math.hypot(x, 1),
        math.gcd(int(x), 12),
        math.comb(int(x), 2),
        math.nextafter(x, 9),
    ]


@tool(effect="read")
def turned(real: float, imaginary: float) -> list[str]:
    """A complex number's square, its conjugate and its length."""
    number = complex(real, imaginary)
    return [str(number * number), str(number.conjugate()), f"{abs(number):.9f}", f"{cmath.phase(number):.9f}"]


@tool(effect="read")
def power(base: int, exponent: int) -> dict[str, Any]:
    """A large whole number, by its last digits."""
    number = base**exponent
    return {"bits": number.bit_length(), "ones": number.bit_count(), "last": str(number % 10**20), "root": str(math.isqrt(number) % 10**9)}


@tool(effect="read")
def factorial(number: int) -> str:
    """All its digits."""
    return str(math.factorial(number))


@tool(effect="read")
def primes(below: int) -> list[int]:
    """The primes below a number."""
    sieve = bytearray([1]) * below
    for number in range(2, math.isqrt(below) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, below, number)))
    return [number for number in range(2, below) if sieve[number]]


@tool(effect="read")
def modular(number: int, modulus: int) -> list[int]:
    """An inverse, a power, a division that rounds down."""
    return [pow(number, -1, modulus), pow(number, 10**12, modulus), -number // modulus, -number % modulus]


@tool(effect="read")
def floats(texts: list[str]) -> list[str]:
    """Numbers read and written again, exactly."""
    return [f"{float(text)!r} {float(text).hex()} {float(text).as_integer_ratio()}" for text in texts]


@tool(effect="read")
def drawn(seed: int, count: int) -> list[Any]:
    """What a seeded generator draws."""
    source = random.Random(seed)
    return [
        [source.randrange(1000) for _ in range(count)],
        source.random(),
        source.gauss(),
        source.choice("abc"),
        source.sample(range(50), 3),
    ]


@tool(effect="read")
def later(day: str, days: int) -> list[str]:
    """A date, moved, and what the calendar says of it."""
    moved = datetime.date.fromisoformat(day) + datetime.timedelta(days=days)
    year, week, weekday = moved.isocalendar()
    return [
        moved.isoformat(),
        f"{year}-W{week:02}-{weekday}",
        moved.strftime("%A %d %B %Y, day %j"),
        str([int(part) for part in calendar.monthrange(moved.year, moved.month)]),
    ]


@tool(effect="read")
def moment(text: str) -> list[str]:
    """A time of day in two zones."""
    read = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    there = datetime.timezone(datetime.timedelta(hours=5, minutes=45), "there")
    return [
        read.isoformat(),
        read.astimezone(there).isoformat(),
        str(read.timestamp()),
        read.astimezone(there).tzname() or "",
        str(read.utctimetuple().tm_yday),
    ]


@tool(effect="read")
def zoned(text: str, zones: list[str]) -> list[str]:
    """A moment in the zones of these names."""
    read = datetime.datetime.fromisoformat(text)
    there = [read.astimezone(zoneinfo.ZoneInfo(zone)) for zone in zones]
    return [f"{one.isoformat()} {one.tzname()} {one.dst()}" for one in there]


@tool(effect="read")
def month(year: int, number: int) -> str:
    """A month's sheet."""
    return calendar.month(year, number)


@tool(effect="read")
def smallest(values: list[int], count: int) -> dict[str, Any]:
    """By a heap, and what itertools makes of them."""
    return {
        "smallest": heapq.nsmallest(count, values),
        "pairs": [list(pair) for pair in itertools.pairwise(values)],
        "sums": list(itertools.accumulate(values)),
        "runs": [[key, len(list(run))] for key, run in itertools.groupby(sorted(values), lambda value: value % 3)],
    }
