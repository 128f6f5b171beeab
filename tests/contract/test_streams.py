"""What a tool shows arrives while it runs, in order, at the pace of who takes it, and stops when nobody does."""

from pathlib import Path

import pytest
import trio

from engine.events import LogRecord, PartialResult, Progress, ToolEvent, ToolOutput
from engine.host import Engine
from tests import kit, moments

SOURCE = (
    moments.RUN
    + '''
import time
from collections.abc import AsyncIterator, Generator, Iterator

@tool(effect="read")
def counts(upto: int) -> Generator[int, None, str]:
    """Yield numbers."""
    yield from range(upto)
    return "counted"

@tool(effect="read")
async def counts_async(upto: int) -> AsyncIterator[int]:
    """Yield numbers."""
    import asyncio
    for number in range(upto):
        await asyncio.sleep(0)
        yield number

@tool(effect="read")
def endless() -> Iterator[str]:
    """Yield without end."""
    while True:
        yield "x" * 1000

@tool(effect="read")
def shows(context: Context) -> str:
    """Show one of each, then wait for ever."""
    context.progress(1, 3, "first step")
    context.emit({"found": ["a"]})
    context.log.warning("odd", rows=2)
    while True:
        time.sleep(1000)
'''
)


async def test_what_a_tool_shows_arrives_while_it_runs(engine: Engine, tmp_path: Path) -> None:
    """The tool never ends by itself, so whatever is here came before its end."""
    await engine.load(kit.write(tmp_path, SOURCE))
    with trio.fail_after(30):
        async with engine.stream("shows", {}) as items:
            got = [await anext(items) for _ in range(3)]
    assert got == [
        Progress(done=1, total=3, message="first step"),
        ToolEvent(value={"found": ["a"]}),
        LogRecord(level="warning", message="odd", data={"rows": 2}),
    ]


@pytest.mark.parametrize(("tool", "value"), [("counts", "counted"), ("counts_async", None)])
async def test_partials_come_in_order_and_the_outcome_last(engine: Engine, tmp_path: Path, tool: str, value: object) -> None:
    """A generator's own return value is the result; an async one has none."""
    await engine.load(kit.write(tmp_path, SOURCE))
    async with engine.stream(tool, {"upto": 100}) as items:
        shown, outcome = await moments.taken(items)
    assert shown == [PartialResult(value=number) for number in range(100)]
    assert (outcome.reason, outcome.value, (await outcome.concluded())["usage"]["events"]) == ("ok.done", value, 100)


async def test_a_call_drops_what_a_stream_shows(engine: Engine, tmp_path: Path) -> None:
    """The same tool by ``call``: the outcome alone, the same one."""
    await engine.load(kit.write(tmp_path, SOURCE))
    outcome = await engine.call("counts", {"upto": 100})
    assert (outcome.reason, outcome.value, (await outcome.concluded())["usage"]["events"]) == ("ok.done", "counted", 100)


@pytest.mark.parametrize(("upto", "reason"), [(10_000, "ok.done"), (10_001, "limit_exceeded.events")])
async def test_the_bound_on_partials(engine: Engine, tmp_path: Path, upto: int, reason: str) -> None:
    """Exactly at the limit passes; one more ends the call, after all within it were handed over."""
    await engine.load(kit.write(tmp_path, SOURCE))
    async with engine.stream("counts", {"upto": upto}) as items:
        shown, outcome = await moments.taken(items)
    assert (len(shown), outcome.reason) == (10_000, reason)


async def test_a_tool_waits_for_who_takes(engine: Engine, tmp_path: Path) -> None:
    """A generator without end and a caller that takes three items: what is sent stays within two socket buffers, and memory is flat."""
    await engine.load(kit.write(tmp_path, SOURCE))
    before = moments.resident_kib()
    with trio.fail_after(30):
        async with engine.stream("endless", {}) as items:
            for _ in range(3):
                await anext(items)
            (child,) = moments.Tree(engine).children
            used = -1.0
            while used != (used := child.cpu_times().user + child.cpu_times().system):  # until it works no more
                for _ in range(1000):
                    await trio.lowlevel.checkpoint()
            (call,) = engine._under_way.calls
            spare = call._conclusion.spare
            assert spare is not None
            assert spare.pump is not None
            assert spare.pump.session.events < 100
    assert moments.resident_kib() - before < 8 << 10


async def test_leaving_the_block_early_ends_the_call(engine: Engine, tmp_path: Path) -> None:
    """The tool would never end; its process is gone when the block is, and its jail serves again."""
    await engine.load(kit.write(tmp_path, SOURCE))
    with trio.fail_after(30):
        async with engine.stream("endless", {}) as items:
            await anext(items)
            tree = moments.Tree(engine)
        assert moments.living(tree.children) == []
        await moments.assert_works(engine)
        assert moments.Tree(engine).firsts == tree.firsts


async def test_an_exception_in_the_block_comes_out_as_it_is(engine: Engine, tmp_path: Path) -> None:
    """The call ends as given up by its caller, not as a fault of the engine, and the caller's own exception is all that is raised."""
    await engine.load(kit.write(tmp_path, SOURCE))
    tree = None
    with trio.fail_after(30):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the exception is raised in the block on purpose
            async with engine.stream("endless", {}) as items:
                await anext(items)
                tree = moments.Tree(engine)
                raise ZeroDivisionError
        assert tree is not None
        assert moments.living(tree.children) == []
        await moments.assert_works(engine)
    assert [made["verdict"]["reason"] for made in kit.call_receipts(tmp_path / "state")] == ["cancelled.caller", "ok.done"]


async def test_a_slow_caller_does_not_stretch_the_deadline(engine: Engine, tmp_path: Path) -> None:
    """The wall limit runs while nobody takes; what was not taken until then is not lost silently: the outcome says why."""
    await engine.load(kit.write(tmp_path, SOURCE))
    with trio.fail_after(30):
        await engine.warm("endless")
        async with engine.stream("endless", {}, timeout_ms=1000) as items:
            await anext(items)
            (call,) = engine._under_way.calls
            while call._settlement.verdict is None:
                await trio.lowlevel.checkpoint()
            outcome = await moments.last(items)
    assert (outcome.reason, outcome.lines) == ("limit_exceeded.wall", ("no answer within 1000 ms",))


async def test_streams_at_once_do_not_mix(engine: Engine, tmp_path: Path) -> None:
    """Eight streams over four jails: each gets its own numbers, all of them, in order."""
    await engine.load(kit.write(tmp_path, SOURCE))
    got: dict[int, tuple[list[ToolOutput], object]] = {}

    async def take(upto: int) -> None:
        async with engine.stream("counts", {"upto": upto}) as items:
            shown, outcome = await moments.taken(items)
            got[upto] = (shown, outcome.value)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for upto in range(50, 58):
                nursery.start_soon(take, upto)
    assert got == {upto: ([PartialResult(value=number) for number in range(upto)], "counted") for upto in range(50, 58)}
