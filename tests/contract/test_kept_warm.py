"""Under the freshness ``warm`` one process serves call after call, until something says that it had better not."""

from pathlib import Path
from typing import Any

import pytest
import trio

from engine.host import Engine
from engine.outcome import Outcome
from engine.policy.model import Freshness
from engine.supervision import stock, warm
from tests import kit, levels, moments

COUNT = "import tools\ntools.n = getattr(tools, 'n', 0) + 1\nprint('call', tools.n)\nvalue = [os.getpid(), tools.n]\n"


async def loaded(engine: Engine, folder: Path, source: str = moments.RUN, **limits: Any) -> None:
    """Have the tool kept warm."""
    await engine.load(kit.write(folder, source), policy=levels.policy(folder / "policy", Freshness.WARM, {"limits": limits}))


async def counted(engine: Engine, code: str = "", **options: Any) -> Outcome:
    """The process that serves the call, and which of its calls this is; then the code runs."""
    outcome = await engine.call("run", {"code": COUNT + code}, **options)
    await outcome.concluded()
    return outcome


async def test_one_process_serves_call_after_call(engine: Engine, tmp_path: Path) -> None:
    """Each has its own output and its own receipt."""
    await loaded(engine, tmp_path, moments.RUN + "\nprint('imported')\n")
    with trio.fail_after(60):
        found = [await counted(engine) for _ in range(4)]
        tree = moments.Tree(engine)
    assert [one.value for one in found] == [[found[0].value[0], number] for number in (1, 2, 3, 4)]
    assert [one.stdout for one in found] == ["imported\ncall 1\n", "call 2\n", "call 3\n", "call 4\n"]
    assert (len(tree.firsts), len(tree.children)) == (1, 1)  # no spare beside it: it is ready itself
    receipts = [await one.concluded() for one in found]
    assert [one["usage"]["stdout_bytes"] for one in receipts] == [len(one.stdout) for one in found]
    assert len({one["id"] for one in receipts}) == 4


async def test_what_is_printed_between_calls_belongs_to_the_next(engine: Engine, tmp_path: Path) -> None:
    """A thread that goes on printing, and was seen to while there was no call."""
    await loaded(engine, tmp_path)
    late = """
import threading, time
def later():
    while not hasattr(tools, 'enough'):
        os.write(1, b'late\\n')
        time.sleep(0.01)
threading.Thread(target=later).start()
"""
    with trio.fail_after(60):
        first = await counted(engine, late)
        before = first.stdout
        _, child = await levels.waiting(engine)
        await child.wait()
        second = await counted(engine, "tools.enough = True")
    assert second.stdout.startswith("late\n")
    assert (first.stdout, second.value) == (before, [first.value[0], 2])


@pytest.mark.parametrize(
    ("code", "reason", "stays"),
    [
        ("raise ValueError('no')", "tool_error.exception", True),
        ("value = object()", "tool_error.result_not_data", True),
        ("raise MemoryError", "tool_error.exception", False),
        ("sys.exit(1)", "tool_error.exit", False),
        ("os._exit(1)", "crashed.exit", False),
        ("import ctypes\nctypes.string_at(0)", "crashed.signal", False),
        ("while True: print('words ' * 1000)", "limit_exceeded.output", False),
        ("while True: context.emit('words')", "limit_exceeded.events", False),
        ("while True: pass", "limit_exceeded.wall", False),
        ("forge(frame(23, 1) + frame(23, 2))\nimport time\ntime.sleep(1000)", "ok.done", False),
        ("forge(b'\\x00' * 4)", "violation.protocol", False),
        ("context.call('missing')", "tool_error.exception", True),
    ],
)
async def test_after_what_it_goes_on(engine: Engine, tmp_path: Path, code: str, reason: str, stays: bool) -> None:
    """Only after a value or an exception, and those not of memory. Else the next call finds a new process, in no worse a state."""
    await loaded(engine, tmp_path)
    with trio.fail_after(60):
        before = await counted(engine)
        outcome = await counted(engine, code, timeout_ms=20_000 if reason != "limit_exceeded.wall" else 1500)
        after = await counted(engine)
        jail, _ = await levels.waiting(engine)
        assert (len(jail._children), len(moments.Tree(engine).children)) == (1, 1)  # whether it stayed or not, none beside it
    assert (outcome.reason, before.value[1], after.reason, after.stdout) == (reason, 1, "ok.done", f"call {after.value[1]}\n")
    assert after.value[1] == (3 if stays else 1)
    if stays:
        assert after.value[0] == before.value[0]


async def test_a_result_that_does_not_fit_is_no_reason_to_end(engine: Engine, tmp_path: Path) -> None:
    """The process did what it does: only the answer is refused."""
    source = moments.RUN + "\n@tool(effect='read')\ndef number() -> int:\n    'd'\n    return str(os.getpid())\n"
    await loaded(engine, tmp_path, source)
    with trio.fail_after(60):
        before = await counted(engine)
        outcome = await engine.call("number", {})
        after = await counted(engine)
    assert (outcome.reason, after.value) == ("tool_error.result_schema", [before.value[0], 2])


async def test_a_call_that_is_given_up_takes_the_process_along(engine: Engine, tmp_path: Path) -> None:
    """The block is left while the tool runs."""
    await loaded(engine, tmp_path)
    with trio.fail_after(60):
        await counted(engine)
        _, child = await levels.waiting(engine)
        async with engine.stream("run", {"code": moments.HERE + moments.FOREVER}) as items:
            await anext(items)
        assert child.pidfd < 0
        assert (await counted(engine)).value[1] == 1


async def test_it_serves_so_many_calls(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three here."""
    monkeypatch.setattr(warm, "CALLS", 3)
    await loaded(engine, tmp_path)
    with trio.fail_after(60):
        found = [(await counted(engine)).value for _ in range(7)]
    assert [number for _, number in found] == [1, 2, 3, 1, 2, 3, 1]
    assert len({process for process, _ in found}) == 3


async def test_no_call_is_cut_short_by_what_earlier_ones_used(engine: Engine, tmp_path: Path) -> None:
    """Each of four calls uses more than half of the CPU time that a process has; what uses little keeps its process."""
    await loaded(engine, tmp_path, cpu="1 s")
    burn = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"
    with trio.fail_after(120):
        found = [await counted(engine, burn.format(0.6)) for _ in range(3)]
        assert [(one.reason, one.value[1]) for one in found] == [("ok.done", 1)] * 3
        found = [await counted(engine, burn.format(0.01)) for _ in range(3)]
        assert [(one.reason, one.value[1]) for one in found] == [("ok.done", 1), ("ok.done", 2), ("ok.done", 3)]


@pytest.mark.parametrize("how", ["too old", "dead"])
async def test_one_that_should_not_serve_is_replaced(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Before a call sees it, while nobody uses it; its scratch goes with it, and the jail stays."""
    await loaded(engine, tmp_path)
    with trio.fail_after(60):
        await counted(engine, "open('left', 'w').close()")
        assert (await counted(engine, "value = os.listdir()")).value == ["left"]
        jail, child = await levels.waiting(engine)
        if how == "dead":
            child.kill()
            await trio.lowlevel.wait_readable(child.pidfd)
        else:
            with monkeypatch.context() as patch:
                patch.setattr(stock, "_SPARE_SECONDS", -1.0)
                engine._pool._pick(jail_key(engine))
        found = await counted(engine, "value = [os.listdir(), len(os.listdir('..'))]")
        assert (found.reason, found.value, found.stdout) == ("ok.done", [[], 1], "call 1\n")
        assert (await levels.waiting(engine))[0] is jail


def jail_key(engine: Engine) -> str:
    """The key of the only idle jail."""
    (seat,) = engine._pool.idle
    return seat.recipe.key


async def test_without_the_wall_it_is_the_same(engine: Engine, tmp_path: Path) -> None:
    """In the mode host."""
    place = tmp_path / "policy.toml"
    entry = '{ value = true, reason = "a test" }'
    level = 'freshness = { value = "warm", reason = "a test" }'
    place.write_text(f'extends = "host"\n{level}\n[loosenings]\nstate_kept_warm = {entry}\nhost_mode_without_any_wall = {entry}\n')
    await engine.load(kit.write(tmp_path, moments.RUN), policy=place)
    with trio.fail_after(60):
        first, second = [(await counted(engine)).value for _ in range(2)]
    assert second == [first[0], 2]
