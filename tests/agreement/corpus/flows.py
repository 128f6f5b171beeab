"""Tools that are generators, coroutines, or show something while they run."""

import asyncio
import contextlib
import contextvars
import functools
import io
import itertools
import logging
import operator
import sys
import warnings
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

from engine import Context, tool


@tool(effect="read")
def counted(upto: int) -> Generator[int, None, str]:
    """Yield numbers, then say so."""
    yield from range(upto)
    return f"{upto} of them"


@tool(effect="read")
def stepped(values: list[int]) -> Iterator[dict[str, int]]:
    """Yield each value with the sum so far."""
    for value, total in zip(values, itertools.accumulate(values), strict=True):
        yield {"value": value, "total": total}


@tool(effect="read")
async def counted_slowly(upto: int) -> AsyncIterator[int]:
    """Yield numbers between sleeps."""
    for number in range(upto):
        await asyncio.sleep(0.001)
        yield number


@tool(effect="read")
async def gathered(delays: list[float]) -> dict[str, Any]:
    """Tasks that end in the order of their delays."""
    ended: list[float] = []

    async def wait(delay: float) -> float:
        await asyncio.sleep(delay)
        ended.append(delay)
        return delay

    return {"given": await asyncio.gather(*map(wait, delays)), "ended": ended}


@tool(effect="read")
async def given_up() -> list[str]:
    """Timeouts, cancellation and shields."""
    said = []
    try:
        await asyncio.wait_for(asyncio.sleep(60), 0.001)
    except TimeoutError as error:
        said.append(type(error).__name__)
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    said.append(f"cancelled: {task.cancelled()}")
    async with asyncio.timeout(60):
        said.append(await asyncio.shield(asyncio.sleep(0, "shielded")))
    return said


@tool(effect="read")
async def queued(count: int) -> list[int]:
    """Values through a bounded queue, by two workers, with a lock and an event."""
    queue: asyncio.Queue[int | None] = asyncio.Queue(2)
    lock, ready, found = asyncio.Lock(), asyncio.Event(), []

    async def work() -> None:
        await ready.wait()
        while (value := await queue.get()) is not None:
            async with lock:
                found.append(value * value)

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(work())
        ready.set()
        for value in [*range(count), None, None]:
            await queue.put(value)
    return sorted(found)


@tool(effect="read")
async def group_fails() -> list[str]:
    """A group of tasks, two of which fail."""

    async def fail(text: str) -> None:
        raise ValueError(text)

    said: list[str] = []
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail("one"))
            group.create_task(fail("two"))
    except* ValueError as found:
        said += sorted(str(error) for error in found.exceptions)
    return said


@tool(effect="read")
async def in_context(value: int) -> list[int | None]:
    """Each task has its own context."""
    variable: contextvars.ContextVar[int | None] = contextvars.ContextVar("variable", default=None)

    async def change(to: int) -> int | None:
        variable.set(to)
        await asyncio.sleep(0)
        return variable.get()

    return [*await asyncio.gather(change(value), change(value + 1)), variable.get()]


@tool(effect="read")
def shows(text: str, context: Context) -> str:
    """Show one of each."""
    context.progress(1, 3, text)
    context.emit({"found": [text]})
    context.log.warning("odd", rows=2)
    return text


@tool(effect="read")
def prints(lines: int) -> int:
    """Write to both outputs."""
    for number in range(lines):
        print("line", number, end="\n" if number % 2 else " | ")
    print("ünïcode 😀", "\udcff", file=sys.stderr)
    sys.stdout.buffer.write(b"raw \xc3\xa9\n")
    print(*range(3), sep="\t", flush=True)
    return sys.stdout.write("no newline")


@tool(effect="read")
def prints_much(size: int) -> int:
    """One large print among small ones."""
    print("before")
    print("x" * size)
    print("after")
    return size


@tool(effect="read")
def reads() -> list[str]:
    """Standard input has nothing."""
    return [sys.stdin.read(), sys.stdin.readline(), sys.stdin.buffer.read().hex()]


@tool(effect="read")
def records(word: str) -> str:
    """What logging and warnings write."""
    held = io.StringIO()
    handler = logging.StreamHandler(held)
    handler.setFormatter(logging.Formatter("%(levelname)s:%(name)s:%(message)s"))
    logger = logging.getLogger("corpus")
    logger.addHandler(handler)
    logger.error("a %s", word)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(held):
        warnings.simplefilter("always")
        warnings.warn(word, stacklevel=1)
        print(word, [str(one.message) for one in caught])
    logger.removeHandler(handler)
    return held.getvalue()


@tool(effect="read")
def composed(numbers: list[int]) -> list[Any]:
    """Functions of functions."""

    @functools.lru_cache
    def fibonacci(number: int) -> int:
        return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

    total = functools.reduce(operator.add, numbers, 0)
    return [total, fibonacci(90), functools.partial(max, 3)(1), list(map(operator.neg, numbers)), str(fibonacci.cache_info())]


@tool(effect="read")
def matched(value: Any) -> str:
    """By structural pattern."""
    match value:
        case {"kind": "point", "at": [int(x), int(y)]}:
            return f"point {x} {y}"
        case [first, *rest] if rest:
            return f"many {first} {len(rest)}"
        case str() | int():
            return "scalar"
        case _:
            return "else"
