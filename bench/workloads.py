"""Ordinary work of tools, as functions that run here and as text that runs there.

Its job: eleven kinds of work of some 10 to 100 ms each, which give the same answer on every CPython; the text of all of them.
Not its job: n-body (``sources.py``), tools, timing.
Laws:
1. Standard library only: the rivals' environments hold nothing of ours (tests/unit/test_bench_measurement.py).
2. The text and the functions are the same code (tests/unit/test_bench_workloads.py).

SHA-256 is not among them: processors have instructions for it, which only native code can use, and that says nothing of Python.
"""

import hashlib
import inspect
import json
import re
import zlib
from collections.abc import Callable

TIMES = 3  # that a call does its work, so that it takes far longer than a call
WORKLOADS: dict[str, Callable[[], object]] = {}


def _named(work: Callable[[], object]) -> Callable[[], object]:
    WORKLOADS[work.__name__] = work
    return work


@_named
def calls() -> object:
    """Function calls: Fibonacci's numbers by recursion."""

    def fib(number: int) -> int:
        return number if number < 2 else fib(number - 1) + fib(number - 2)

    return fib(24)


@_named
def loop() -> object:
    """A loop over whole numbers."""
    total = 0
    for number in range(600_000):
        total += number & 7
    return total


@_named
def floats() -> object:
    """Floats in lists."""
    place, speed = [0.0, 1.0, 2.0], [1.0, -0.5, 0.25]
    for _ in range(60_000):
        for axis in range(3):
            place[axis] += 0.001 * speed[axis]
            speed[axis] -= 0.001 * place[axis]
    return [round(one, 9) for one in place]


@_named
def json_round_trip() -> object:
    """JSON of records, there and back."""
    made = [{"id": number, "name": f"n{number}", "tags": ["a", "b"], "score": number / 8} for number in range(2000)]
    for _ in range(4):
        made = json.loads(json.dumps(made))
    return [len(made), made[-1]]


@_named
def regex() -> object:
    """A pattern over a text."""
    text = "user17@example.org, phone 555-0199; " * 2000
    found = re.findall(r"(\w+)@(\w+)\.org|(\d{3})-(\d{4})", text)
    return [len(found), found[0], found[-1]]


@_named
def md5() -> object:
    """A digest that no processor has instructions for."""
    return hashlib.md5(b"stockade" * (1 << 20), usedforsecurity=False).hexdigest()


@_named
def compress() -> object:
    """Compression, there and back; how well it packs is the library's affair."""
    data = b"".join(b"%d,%d;" % (number, number * number) for number in range(60_000))
    return zlib.crc32(zlib.decompress(zlib.compress(data, 1)))


@_named
def sort() -> object:
    """Sorting, with a key."""
    numbers = [(number * 7919) % 100_003 for number in range(60_000)]
    ordered = sorted(numbers, key=lambda number: -number)
    return [ordered[0], ordered[-1], sorted(ordered)[1]]


@_named
def dicts() -> object:
    """Dictionaries with texts as keys."""
    counts: dict[str, int] = {}
    for number in range(120_000):
        key = f"k{number % 977}"
        counts[key] = counts.get(key, 0) + 1
    return [len(counts), counts["k5"]]


@_named
def texts() -> object:
    """Text cut, changed and put together again."""
    words = ("the quick brown fox jumps over the lazy dog " * 3000).split()
    made = " ".join(word.upper() if len(word) > 4 else word.replace("o", "0") for word in words)
    return [len(made), made.count("QUICK"), made[-9:]]


@_named
def exceptions() -> object:
    """Exceptions that are raised and caught."""
    caught = 0
    for number in range(60_000):
        try:
            raise ValueError(number)
        except ValueError as error:
            caught += error.args[0] & 1
    return caught


IMPORTS = "import hashlib\nimport json\nimport re\nimport zlib\n"
TEXTS = {name: inspect.getsource(work).removeprefix("@_named\n") for name, work in WORKLOADS.items()}


def answer(name: str) -> str:
    """What the work of that name gives, as JSON, done as often as everybody does it: the right answer, computed here."""
    return [json.dumps(WORKLOADS[name]()) for _ in range(TIMES)][-1]
