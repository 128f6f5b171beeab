"""Who gets which jail: one call each, never two at once, never one of another key, and a line with an end."""

import dataclasses
from collections import Counter
from pathlib import Path

import psutil
import trio

from engine.host import Engine
from engine.outcome import Outcome
from engine.supervision.upkeep import Upkeep
from tests import kit, moments

HANG = "import time\nwhile True: time.sleep(1000)\n"


@dataclasses.dataclass
class Held:
    """A call that keeps its jail until it is told to end."""

    told: trio.Event = dataclasses.field(default_factory=trio.Event)
    outcome: Outcome | None = None


async def hold(engine: Engine, *, task_status: trio.TaskStatus[Held], **options: object) -> None:
    """Run a tool that blocks by what it shows, and let it end when told."""
    held = Held()
    code = moments.HERE + "for _ in range(3000): context.emit('x' * 1000)\nvalue = 'let go'"
    async with engine.stream("run", {"code": code}, **options) as items:  # type: ignore[arg-type]  # a test names options freely
        await anext(items)
        task_status.started(held)
        await held.told.wait()
        held.outcome = await moments.last(items)


async def in_line(engine: Engine, calls: int) -> None:
    """Until that many calls wait for a jail."""
    while len(engine._pool._line) != calls:
        await trio.lowlevel.checkpoint()


async def spares_ready(engine: Engine, spares: int) -> None:
    """Until every jail is idle and has its next child, and no other is left to be buried."""
    while engine._pool.living != len(engine._pool.idle) or len(moments.Tree(engine).children) != spares:
        await trio.lowlevel.checkpoint()


async def test_calls_at_once_have_a_jail_each(engine: Engine, tmp_path: Path) -> None:
    """Three at once are three jails with one child each; while they run no spare is forked."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            all_held = [await nursery.start(hold_with(engine)) for _ in range(3)]
            tree = moments.Tree(engine)
            assert Counter(child.ppid() for child in tree.children) == {first.pid: 1 for first in tree.firsts}
            for held in all_held:
                held.told.set()
    assert [(held.outcome.reason, held.outcome.value) for held in all_held] == [("ok.done", "let go")] * 3


def hold_with(engine: Engine, **options: object):  # type: ignore[no-untyped-def]  # the type of a nursery's start
    """``hold`` with its arguments, as ``nursery.start`` wants it."""

    async def start(task_status: trio.TaskStatus[Held]) -> None:
        await hold(engine, task_status=task_status, **options)

    return start


async def test_calls_one_after_the_other_share_a_jail_and_no_process(engine: Engine, tmp_path: Path) -> None:
    """The same first process forks a new child for each."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    firsts, children = set(), set()
    with trio.fail_after(30):
        for _ in range(5):
            await moments.assert_works(engine)
            await spares_ready(engine, 1)
            tree = moments.Tree(engine)
            firsts |= set(tree.firsts)
            children |= set(tree.children)
    assert (len(firsts), len(children)) == (1, 5)


async def test_an_idle_jail_holds_one_spare(engine: Engine, tmp_path: Path) -> None:
    """After a burst: as many jails as ran at once, one waiting child in each."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(engine.call, "echo", {"word": str(number)})
        tree = moments.Tree(engine)
        await spares_ready(engine, len(tree.firsts))
        tree = moments.Tree(engine)
    assert Counter(child.ppid() for child in tree.children) == {first.pid: 1 for first in tree.firsts}
    assert len(tree.firsts) <= 4


async def test_fifty_calls_over_four_jails(engine: Engine, tmp_path: Path) -> None:
    """Each is answered, with its own word and its own output, and there are never more jails than the policy has."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    got: dict[int, tuple[str, object, str]] = {}
    most = 0

    async def call(number: int) -> None:
        nonlocal most
        outcome = await engine.call("run", {"code": f"print({number})\nvalue = {number}"})
        most = max(most, engine._pool.living)
        got[number] = (outcome.reason, outcome.value, outcome.stdout)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(call, number)
    assert got == {number: ("ok.done", number, f"{number}\n") for number in range(50)}
    assert most == 4


async def test_a_call_waits_in_line_and_past_its_end_is_refused(engine: Engine, tmp_path: Path) -> None:
    """One jail, two places in line: the fourth call at once is told so, the two before it are served."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1, "queued": 2}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    waiting: list[Outcome] = []

    async def wait() -> None:
        waiting.append(await engine.call("echo", {"word": "waited"}))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine))
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await in_line(engine, 2)
            refused = await engine.call("echo", {"word": "too many"})
            held.told.set()
    assert (refused.reason, refused.lines) == (
        "refused.busy",
        ("workers in use: 1 of 1 (pool.jails), 1 of 1 (pool.total); calls in line: 2 of 2 (pool.queued)",),
    )
    assert (await refused.concluded())["worker"]["started"] is False
    assert [(one.reason, one.value) for one in waiting] == [("ok.done", "waited")] * 2
    assert held.outcome is not None
    assert held.outcome.reason == "ok.done"


async def test_who_waits_in_line_until_its_deadline_is_refused(engine: Engine, tmp_path: Path) -> None:
    """Not as a limit of the tool, which never ran."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine))
            outcome = await engine.call("echo", {"word": "x"}, timeout_ms=200)
            held.told.set()
    assert (outcome.reason, outcome.lines) == ("refused.busy", ("no worker became free within 200 ms",))


async def test_a_jail_that_does_not_start_leaves_its_room_to_the_next(engine: Engine, tmp_path: Path) -> None:
    """One jail at most, and none ever comes up in time: each call in line is told so at once, none waits for its deadline."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}, "limits": {"start": "1 ms"}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    got: list[str] = []

    async def call() -> None:
        got.append((await engine.call("echo", {"word": "x"})).reason)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call)
    # a jail that was made ahead may come up even in that, but its child does not
    assert (len(got), set(got) <= {"refused.start_failed", "limit_exceeded.start"}) == (4, True)


async def test_the_line_is_served_in_order(engine: Engine, tmp_path: Path) -> None:
    """One jail, six calls that came one after the other."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    served: list[int] = []

    async def wait(number: int) -> None:
        await engine.call("echo", {"word": "waited"})
        served.append(number)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine))
            for number in range(6):
                nursery.start_soon(wait, number)
                await in_line(engine, number + 1)
            held.told.set()
    assert served == [0, 1, 2, 3, 4, 5]


async def test_a_jail_that_becomes_free_serves_another_key(engine: Engine, tmp_path: Path) -> None:
    """Two jails in all. Behind a call that may not have a second one stands one of another tenant: it does not wait for the first."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 2}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            one = await nursery.start(hold_with(engine, tenant="one"))
            two = await nursery.start(hold_with(engine, tenant="two"))
            nursery.start_soon(echo, engine, "one")
            await in_line(engine, 1)
            async with trio.open_nursery() as inner:
                inner.start_soon(echo, engine, "three")
                await in_line(engine, 2)
                two.told.set()
            one.told.set()
        await moments.assert_works(engine)


async def echo(engine: Engine, tenant: str) -> None:
    """One short call of a tenant."""
    outcome = await engine.call("echo", {"word": tenant}, tenant=tenant)
    assert (outcome.reason, outcome.value) == ("ok.done", tenant)


async def test_tenants_never_share_a_jail(engine: Engine, tmp_path: Path) -> None:
    """One after the other: a jail each, though the first is idle when the second calls."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    firsts: dict[str | None, psutil.Process] = {}
    with trio.fail_after(30):
        for tenant in ("one", "two", None):
            before = set(moments.Tree(engine).firsts)
            outcome = await engine.call("echo", {"word": "x"}, tenant=tenant)
            assert (await outcome.concluded())["tenant"] == tenant
            (firsts[tenant],) = set(moments.Tree(engine).firsts) - before
        before = set(moments.Tree(engine).firsts)
        for tenant in ("one", "two", None):
            await engine.call("echo", {"word": "x"}, tenant=tenant)
        assert set(moments.Tree(engine).firsts) == before == set(firsts.values())


async def test_a_limit_that_the_kernel_holds_needs_a_jail_of_its_own(engine: Engine, tmp_path: Path) -> None:
    """Less memory is another worker; less time, output or events is the same one."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.fail_after(30):
        await moments.assert_works(engine)
        shared = set(moments.Tree(engine).firsts)
        for limits in ({"wall": "5 s"}, {"log": "1 KiB"}, {"events": 5}, {"result": "1 KiB"}, {"request": "1 KiB"}):
            assert (await engine.call("echo", {"word": "x"}, limits=limits)).reason == "ok.done"
        assert set(moments.Tree(engine).firsts) == shared
        held: tuple[tuple[str, object], ...] = (
            ("memory", "64 MiB"),
            ("cpu", "2 s"),
            ("threads", 4),
            ("descriptors", 32),
            ("scratch", "1 MiB"),
        )
        for number, (name, limit) in enumerate(held, 2):
            assert (await engine.call("echo", {"word": "x"}, limits={name: limit})).reason == "ok.done"
            assert len(moments.Tree(engine).firsts) == number


async def test_a_jail_of_another_key_is_ended_when_there_is_no_room(engine: Engine, tmp_path: Path) -> None:
    """Two in all: a third tenant takes the place of the one that was idle longest."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 2, "total": 2}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        await echo(engine, "one")
        (oldest,) = moments.Tree(engine).firsts
        await echo(engine, "two")
        await echo(engine, "three")
        tree = moments.Tree(engine)
    assert (len(tree.firsts), oldest in tree.firsts, moments.living([oldest])) == (2, False, [])


async def nothing() -> int:
    """No memory at all."""
    return 0


def unused_for_long(engine: Engine) -> Upkeep:
    """What looks after the engine's jails, when each idle one was used last long ago, and its key is not asked for any more."""
    for seat in engine._pool.idle:
        seat.idle_since -= 1e6
    engine._pool.growth.forget(lambda recipe: False)
    return Upkeep(engine._pool, nothing)


async def test_a_jail_that_nobody_uses_is_ended(engine: Engine, tmp_path: Path) -> None:
    """With its spare, when the policy's time for it is over; one that is in use stays."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 2, "total": 2}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine))
            await (await engine.call("echo", {"word": "x"})).concluded()
            before = moments.Tree(engine)
            await unused_for_long(engine).retire_unused()
            after = moments.Tree(engine)
            held.told.set()
    assert (len(before.firsts), len(after.firsts), len(after.children)) == (2, 1, 1)
    assert held.outcome is not None
    assert held.outcome.reason == "ok.done"


async def test_a_source_that_changed_gets_new_jails(engine: Engine, tmp_path: Path) -> None:
    """Loaded again with another text: the old worker is ended and the answer is the new one."""
    for number in range(3):
        await engine.load(kit.write(tmp_path, f"{moments.RUN}\nNUMBER = {number}\n"))
        outcome = await engine.call("run", {"code": "value = sys.modules['tools'].NUMBER"})
        assert (outcome.reason, outcome.value, len(moments.Tree(engine).firsts)) == ("ok.done", number, 1)


async def test_a_jail_does_not_serve_again_after_a_crash(engine: Engine, tmp_path: Path, worker_kind: str) -> None:
    """Nor after a violation; after an answer, an exception or a limit it does."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    kept: dict[str, bool] = {}
    for code in ("value = 1", "1 / 0", "while True: print('words' * 1000)", "os.abort()", "forge(b'garbage, and more')"):
        await moments.assert_works(engine)
        before = moments.Tree(engine).firsts
        outcome = await engine.call("run", {"code": code})
        kept[outcome.reason] = moments.Tree(engine).firsts == before
    assert kept == {
        "ok.done": True,
        "tool_error.exception": True,
        "limit_exceeded.output": True,
        "crashed.exit" if worker_kind == "wasm" else "crashed.signal": False,  # it traps where a process gets a signal
        "violation.protocol": False,
    }  # fmt: skip  one row


async def test_an_import_that_fails_each_time_is_not_tried_without_end(engine: Engine, tmp_path: Path) -> None:
    """After three spares in a row that did not come up, none is made until a call asks; each call still gets its reason."""
    source = moments.CALLED + moments.RUN + "\nif CALLED:\n    raise ValueError('not today')\n"
    await engine.load(kit.write(tmp_path, source))
    with trio.fail_after(30):
        for _ in range(6):
            assert (await engine.call("echo", {"word": "x"})).reason == "tool_error.import"
        (seat,) = engine._pool.idle
        assert (seat.failures >= 3, seat.spare) == (True, None)
