"""The end of a call: an ok answer is handed over when its worker was killed, any other when it was seen to be gone."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from engine import concluding, spelling
from engine.errors import EngineBug, HostError
from engine.host import Engine
from engine.outcome import Outcome
from engine.supervision import reaper
from engine.supervision.values import _Order
from engine.wire.framing import RemoteFault
from engine.worker import child as children
from engine.worker import native
from engine.worker.base import End
from engine.worker.child import NativeChild
from engine.worker.native import Jail
from tests import kit, moments


class Held:
    """Burials that wait: ``asked`` is set when one is wanted, ``go`` lets all of them on."""

    def __init__(self, reap: Callable[..., Awaitable[End]]) -> None:
        self._reap = reap
        self.asked, self.go = trio.Event(), trio.Event()

    async def reap(self, jail: Jail, child: NativeChild, *, leave_seconds: float = 0.0) -> End:
        """As the reaper does, later."""
        self.asked.set()
        with trio.move_on_after(30):
            await self.go.wait()
        return await self._reap(jail, child, leave_seconds=leave_seconds)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Burials that their test lets on."""
    made = Held(reaper.reap)
    monkeypatch.setattr(reaper, "reap", made.reap)
    return made


async def test_an_ok_answer_waits_for_no_burial_but_its_worker_is_dead(engine: Engine, tmp_path: Path, held: Held) -> None:
    """What of the tool would run on, a thread where it can have one, is ended with it; the receipt comes after the burial."""
    code = "try:\n    import threading, time\n    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    code += "except RuntimeError:\n    pass\nvalue = 'answer'"
    held.go.set()
    await engine.load(kit.write(tmp_path / "source", moments.RUN))
    held.go = trio.Event()
    with trio.fail_after(60):
        async with engine.stream("run", {"code": moments.HERE * 2 + code}) as items:
            await anext(items)
            (call,) = engine._under_way.calls  # not answered before the second is taken
            assert call._conclusion.spare is not None
            assert call._conclusion.spare.child is not None
            outcome = await moments.last(items)
        assert (outcome.reason, outcome.value) == ("ok.done", "answer")
        await trio.lowlevel.wait_readable(call._conclusion.spare.child.pidfd)  # the kernel says that it has ended (pidfd_open(2))
        assert kit.call_receipts(tmp_path / "state") == []
        held.go.set()
        receipt = await outcome.concluded()
    assert receipt["usage"]["cpu_ms"] > 0
    assert kit.call_receipts(tmp_path / "state") == [dict(receipt)]


async def test_any_other_answer_comes_after_the_burial(engine: Engine, tmp_path: Path, held: Held) -> None:
    """The caller of a tool that failed is told when nothing of it is left."""
    held.go.set()
    await engine.load(kit.write(tmp_path / "source", moments.RUN))
    held.asked, held.go = trio.Event(), trio.Event()
    outcomes: list[Outcome] = []

    async def call() -> None:
        outcomes.append(await engine.call("run", {"code": "raise ValueError"}))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await held.asked.wait()
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert (outcomes, kit.call_receipts(tmp_path / "state")) == ([], [])
            held.go.set()
    assert [outcome.reason for outcome in outcomes] == ["tool_error.exception"]
    assert len(kit.call_receipts(tmp_path / "state")) == 1


async def test_the_engines_end_waits_for_it(tmp_path: Path) -> None:
    """An engine that is left with the answer in hand leaves no process, and a journal with the receipt."""
    below = []
    async with kit.plain_engine(tmp_path / "state") as engine:
        outcome = await moments.run(engine, tmp_path / "source", "value = 1")
        below += moments.Tree(engine).all()
    assert moments.living(below) == []
    receipt = await outcome.concluded()
    assert kit.call_receipts(tmp_path / "state") == [dict(receipt)]


async def test_what_would_not_end_is_told_to_who_asks_and_who_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there and stays; the receipt, the one who waits for it and the one who closes the engine are told."""
    monkeypatch.setattr(native, "_CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(reaper, "GRACE_SECONDS", 0.2)
    below = []
    with trio.fail_after(60), pytest.raises(HostError) as closing:  # noqa: PT012 - it is raised where the block is left
        async with kit.plain_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path, "value = 1")
            below += moments.Tree(engine).all()
            with monkeypatch.context() as patch:
                for module in (native, children):
                    patch.setattr(module, "kill", lambda pidfd: None)
                hanging = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nvalue = 2"
                outcome = await engine.call("run", {"code": hanging + "\nos._exit = lambda status: threading.Event().wait()"})
                assert (outcome.reason, outcome.value) == ("ok.done", 2)
                with pytest.raises(HostError) as asking:
                    await outcome.concluded()
    assert [caught.value.code for caught in (asking, closing)] == ["engine_failed.not_clean"] * 2
    await moments.wait_gone(below)


async def test_a_burial_that_takes_longer_than_both_graces_ends_that_jail_alone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host without a moment to spare: the answer stands, the jail is ended for it, and the next call works."""
    await moments.run(engine, tmp_path / "source", "value = 1")
    with trio.fail_after(60):
        for _ in range(5):
            with monkeypatch.context() as patch:
                patch.setattr(reaper, "GRACE_SECONDS", 0.0)
                outcome = await engine.call("echo", {"word": "x"})
                receipt = await outcome.concluded()
            assert (outcome.reason, receipt["verdict"]["reason"]) == ("ok.done", "ok.done")
            await moments.assert_works(engine)


async def test_two_are_buried_in_one_jail_at_once(engine: Engine, tmp_path: Path) -> None:
    """The next child may die while the last one is buried: each burial gets its own record, whichever comes first."""
    await engine.load(kit.write(tmp_path / "source", moments.RUN))
    await engine.warm("echo")
    (seat,) = engine._pool.idle
    assert seat.spare is not None
    assert seat.spare.child is not None
    children = [seat.spare.child, await seat.jail.fork()]
    ends: dict[int, End | None] = {}

    async def bury(child: NativeChild) -> None:
        ends[child.number] = await seat.jail.bury(child, 30.0)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for child in children:
                nursery.start_soon(bury, child)
            for _ in range(50):  # both wait
                await trio.lowlevel.checkpoint()
            for child in reversed(children):
                child.kill()
    assert {number: end is not None and end.status for number, end in ends.items()} == {child.number: 9 for child in children}
    children[1].close()


async def test_a_receipt_that_cannot_be_made_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer stands; who waits for the receipt is told, and so is who closes the engine. Its control is the next call."""
    with trio.fail_after(60), pytest.raises(HostError) as closing:  # noqa: PT012 - it is raised where the block is left
        async with kit.plain_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path / "source", "value = 1")
            with monkeypatch.context() as patch:
                patch.delattr(concluding, "receipt")
                outcome = await engine.call("echo", {"word": "x"})
                with pytest.raises(EngineBug) as asking:
                    await outcome.concluded()
            assert (await (await engine.call("echo", {"word": "x"})).concluded())["verdict"]["reason"] == "ok.done"
    assert (outcome.reason, asking.value.lines) == ("ok.done", ("NameError while the receipt was made",))
    assert closing.value.lines == ("NameError while a call was concluded",)


async def test_a_cancelled_block_cuts_no_conclusion_short(tmp_path: Path, held: Held) -> None:
    """What was answered before is buried and has its whole receipt: a scope around the engine reaches its body alone."""
    burials = held
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with kit.plain_engine(tmp_path / "state") as engine:
                burials.go.set()
                await engine.load(kit.write(tmp_path / "source", moments.RUN))
                burials.asked, burials.go = trio.Event(), trio.Event()
                outcome = await engine.call("echo", {"word": "x"})
                await burials.asked.wait()
                nursery.start_soon(let_go, engine, burials)
                scope.cancel()
                await trio.lowlevel.checkpoint()
    receipt = await outcome.concluded()
    assert (scope.cancelled_caught, receipt["verdict"]["reason"], receipt["violations"]) == (True, "ok.done", [])
    assert receipt["usage"]["cpu_ms"] > 0


async def let_go(engine: Engine, burials: Held) -> None:
    """Let the burials on when the engine has been closing for a while."""
    await engine._closing.wait()
    for _ in range(50):
        await trio.lowlevel.checkpoint()
    burials.go.set()


async def test_a_large_value_without_a_name_says_so(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that checks it is lost before its digest: the receipt names none, though the caller holds a value."""
    take = _Order.take

    def lost(self: _Order, what: str, told: Any) -> bool:
        if what == "digest":
            raise RemoteFault("violation.protocol", "the checking process is gone")
        return take(self, what, told)

    code = "value = [{'number': number} for number in range(20_000)]"
    found = []
    for patched in (True, False):
        with monkeypatch.context() as patch:
            if patched:
                patch.setattr(_Order, "take", lost)
            outcome = await moments.run(engine, tmp_path / "source", code)
            outcome.value.append("changed by the caller")
            receipt = await outcome.concluded()
        found.append((outcome.reason, receipt["digests"]["result"], receipt["violations"]))
    named = spelling.digest([{"number": number} for number in range(20_000)])
    assert found == [("ok.done", None, ["the digest could not be made"]), ("ok.done", named, [])]
