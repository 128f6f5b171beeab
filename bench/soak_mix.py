"""What the soak calls: tools that behave, tools that do not, and what each call of them must come to.

Its job: the source, and a mix of calls in a fixed order with the right end of each.
Not its job: making the calls (``bench_soak.py``).
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SOURCE = '''
import ctypes, os, sys
from collections.abc import Iterator
from engine import Context, tool

SEEN: list[int] = []

@tool(effect="read")
def square(number: int) -> int:
    """Its square."""
    return number * number

@tool(effect="read")
def records(count: int) -> list[dict[str, int]]:
    """Records."""
    return [{"at": at, "twice": 2 * at} for at in range(count)]

@tool(effect="read")
def say(text: str) -> str:
    """Says it on both ways out, and returns it."""
    print(text)
    sys.stderr.write(text)
    return text

@tool(effect="read")
def count(upto: int, ctx: Context) -> Iterator[int]:
    """Counts, and tells how far it is."""
    for number in range(upto):
        ctx.progress(number, upto, "on")
        yield number

@tool(effect="read")
def fresh(text: str) -> list[int]:
    """What this call finds of earlier ones, once it has added to it: one entry, one file."""
    SEEN.append(1)
    with open("mark-" + text, "w") as file:
        file.write(text)
    return [len(SEEN), len(os.listdir("."))]

@tool(effect="read", nested_tools=[square])
def nested(number: int, ctx: Context) -> int:
    """The square of a square, by a call of another tool."""
    return ctx.call("square", {"number": ctx.call("square", {"number": number})})

@tool(effect="read")
def work(rounds: int) -> int:
    """Keeps a core busy for a while."""
    total = 0
    for number in range(rounds):
        total += number & 7
    return total

@tool(effect="read")
def misbehave(how: str) -> int:
    """Does what no tool should do."""
    if how == "loop":
        while True:
            pass
    if how == "memory":
        held = []
        while True:
            held.append(bytearray(4 << 20))
    if how == "exit":
        os._exit(3)
    if how == "sys.exit":
        sys.exit("enough")
    if how == "crash":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "flood":
        for _ in range(1 << 16):
            print("x" * 1023)
    if how == "flood of events":
        for _ in range(1 << 20):
            os.write(3, EVENT)
    if how == "long frame":
        os.write(3, b"\\xff" * 64)
    if how == "no message":
        os.write(3, b"\\x00\\x00\\x00\\x04\\xc1\\xc1\\xc1\\xc1")
    if how == "ready again":
        os.write(3, b"\\x00\\x00\\x00\\x03\\x92\\x10\\xc0")
    if how == "silence":
        os.close(3)
        while True:
            pass
    if how == "two answers":
        os.write(3, b"\\x00\\x00\\x00\\x03\\x92\\x17\\x01" * 2)
        while True:
            pass
    return 0

EVENT = b"\\x00\\x00\\x00\\x03\\x92\\x14\\x01" * 1000
'''

LOOP_MS = 1000  # what an endless loop is given
BENIGN_MS = 10_000  # what a call that behaves is given, waiting for a worker included
_TENANTS = (None, "first", "second")
# how -> the reasons that it may end with; more than one where the kernel and the tool's own process race for the answer
_BAD: Mapping[str, tuple[str, ...]] = {
    "loop": ("limit_exceeded.wall", "refused.busy"),  # its time may be over while it waits for a worker
    "memory": ("tool_error.exception", "limit_exceeded.memory"),
    "exit": ("crashed.exit",),
    "sys.exit": ("tool_error.exit",),
    "crash": ("crashed.signal",),
    "abort": ("crashed.signal",),
    "flood": ("limit_exceeded.output",),
    "flood of events": ("limit_exceeded.events",),
    "long frame": ("violation.protocol",),
    "no message": ("violation.protocol",),
    "ready again": ("violation.protocol",),
    "silence": ("crashed.silent",),
    "two answers": ("ok.done",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """One call and its right end: one of the reasons, and for ``ok.done`` the value, what was streamed, what was printed."""

    tool: str
    arguments: Mapping[str, Any]
    reasons: tuple[str, ...] = ("ok.done",)
    value: Any = None
    partials: tuple[int, ...] = ()
    printed: str = ""
    timeout_ms: int = BENIGN_MS
    tenant: str | None = None
    benign: bool = True


def attempts(calls: int, *, seed: int = 1) -> Iterator[Attempt]:
    """So many calls in a fixed order, one in twenty of them a misbehaving one, all kinds equally often.

    Each is made when it is asked for: thousands of them, kept, would be taken for what the engine holds.
    """
    chance = random.Random(seed)
    bad = calls // 20
    order = list(range(calls))
    chance.shuffle(order)
    for at, place in enumerate(order):
        made = _misbehaving(place) if place < bad else _BENIGN[place % len(_BENIGN)](chance.randrange(1, 1000))
        yield dataclasses.replace(made, tenant=_TENANTS[at % len(_TENANTS)])


def _misbehaving(at: int) -> Attempt:
    how = list(_BAD)[at % len(_BAD)]
    timeout_ms = LOOP_MS if how == "loop" else BENIGN_MS
    return Attempt(tool="misbehave", arguments={"how": how}, reasons=_BAD[how], value=1, timeout_ms=timeout_ms, benign=False)


def _square(number: int) -> Attempt:
    return Attempt(tool="square", arguments={"number": number}, value=number * number)


def _records(number: int) -> Attempt:
    return Attempt(tool="records", arguments={"count": number}, value=[{"at": at, "twice": 2 * at} for at in range(number)])


def _say(number: int) -> Attempt:
    text = "ä€ " * number
    return Attempt(tool="say", arguments={"text": text}, value=text, printed=f"{text}\n|{text}")


def _count(number: int) -> Attempt:
    upto = number % 10
    return Attempt(tool="count", arguments={"upto": upto}, partials=tuple(range(upto)))


def _fresh(number: int) -> Attempt:
    return Attempt(tool="fresh", arguments={"text": str(number)}, value=[1, 1])


def _nested(number: int) -> Attempt:
    return Attempt(tool="nested", arguments={"number": number}, value=number**4)


def _work(number: int) -> Attempt:
    rounds = number * 20
    return Attempt(tool="work", arguments={"rounds": rounds}, value=sum(at & 7 for at in range(rounds)))


# a nested call is three calls, so it is one of ten here
_BENIGN: tuple[Callable[[int], Attempt], ...] = (_square, _records, _say, _count, _fresh, _work, _square, _say, _fresh, _nested)
