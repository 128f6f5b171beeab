"""Much data is looked through beside everybody else: others have their turns, and a deadline does not wait for it."""

import threading

import pytest
import trio
import trio.testing

from engine.leaving import Leaving, Seen, Unseen
from engine.policy.model import OnSecret
from engine.policy.shapes import ValueShapes
from engine.results.redact import Hit, Watch

PATIENCE_SECONDS = 30.0  # a test that fails ends
VALUE = "a-canary-of-the-test"
MUCH = VALUE + " " * (1 << 20)


def leaving() -> Leaving:
    """The way out of a call with one secret."""
    return Leaving(Watch({"orders": VALUE}, ValueShapes()), OnSecret.REDACT)


async def test_much_is_not_looked_at_where_it_came() -> None:
    """A payload of a megabyte is kept for later; one of a few bytes is looked at."""
    way = leaving()
    assert way.look(memoryview(VALUE.encode())) == Seen(size=20, hits=(Hit(id="orders", certain=True, start=0, end=20),))
    assert way.look(memoryview(MUCH.encode())) == Unseen(payload=MUCH.encode())
    assert (await way.seen(Unseen(payload=MUCH.encode()))).hits == way.look(memoryview(VALUE.encode())).hits  # type: ignore[union-attr]  # asserted above


@pytest.mark.parametrize("step", ["seen", "arguments", "item", "result", "words"])
async def test_others_have_their_turns_meanwhile(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The work waits for what another task does."""
    other_ran = threading.Event()
    look = Watch.seen

    def waiting(self: Watch, data: bytes | memoryview) -> tuple[Hit, ...]:
        assert other_ran.wait(PATIENCE_SECONDS)
        return look(self, data)

    monkeypatch.setattr(Watch, "seen", waiting)
    way, seen = leaving(), Seen(size=len(MUCH), hits=(Hit(id="orders", certain=True, start=0, end=20),))
    steps = {
        "seen": lambda: way.seen(Unseen(payload=MUCH.encode())),
        "arguments": lambda: way.arguments(MUCH.encode()),
        "item": lambda: way.item("partial", [MUCH], seen),
        "result": lambda: way.result([MUCH], seen, lambda _: ()),
        "words": lambda: way.words("log", ["said", {"a": MUCH}], seen),
    }
    async with trio.open_nursery() as nursery:
        nursery.start_soon(steps[step])
        await trio.testing.wait_all_tasks_blocked()
        other_ran.set()


async def test_a_deadline_does_not_wait_and_the_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that would go on for ever: the wait is over at once, and the thread's end comes with it."""
    begun, ended = threading.Event(), threading.Event()

    def endless(self: Watch, data: bytes | memoryview) -> tuple[Hit, ...]:
        begun.set()
        try:
            while True:
                self._needles.silent(b"")
        finally:
            ended.set()

    monkeypatch.setattr(Watch, "seen", endless)
    way = leaving()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.arguments, MUCH.encode())
        assert await trio.to_thread.run_sync(begun.wait, PATIENCE_SECONDS)
        nursery.cancel_scope.cancel()
    assert await trio.to_thread.run_sync(ended.wait, PATIENCE_SECONDS)
