"""Workers made ahead of the first call."""

from pathlib import Path

import pytest
import trio

from engine.errors import EngineError
from engine.host import Engine
from tests import kit, moments
from tests.contract.test_pool import hold_with

RISKY = """
from engine import tool

@tool(effect="write", description="d", dangerous=True)
def risky() -> str:
    return "done"
"""


async def test_the_first_call_finds_a_worker(engine: Engine, tmp_path: Path) -> None:
    """It waits with its child before the call, and serves it; reading the declarations left none behind."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.fail_after(30):
        assert moments.Tree(engine).firsts == []
        await engine.warm("echo")
        tree = moments.Tree(engine)
        (seat,) = engine._pool.idle
        assert seat.spare is not None
        assert (len(tree.firsts), len(tree.children), seat.spare.ready.is_set()) == (1, 1, True)
        await moments.assert_works(engine)
        assert moments.Tree(engine).firsts == tree.firsts


async def test_as_many_as_asked_within_the_bounds(engine: Engine, tmp_path: Path) -> None:
    """Two, then two again, then more than the policy has for one tool; tools of one source share them."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    found = []
    with trio.fail_after(30):
        for jails in (2, 2, 3, 100):
            await engine.warm("echo", "run", jails=jails)
            found.append((len(engine._pool.idle), len(moments.Tree(engine).children)))
    assert found == [(2, 2), (2, 2), (3, 3), (4, 4)]


async def test_a_tenants_worker_is_its_own(engine: Engine, tmp_path: Path) -> None:
    """What was made for one tenant serves that one."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with trio.fail_after(30):
        await engine.warm("echo", tenant="one")
        firsts = moments.Tree(engine).firsts
        await (await engine.call("echo", {"word": "x"}, tenant="one")).concluded()
        assert moments.Tree(engine).firsts == firsts
        await (await engine.call("echo", {"word": "x"}, tenant="two")).concluded()
        assert len(moments.Tree(engine).firsts) == 2


async def test_an_idle_worker_of_another_makes_room(engine: Engine, tmp_path: Path) -> None:
    """One in all: the one that was warmed before is ended."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        for tenant in ("one", "two"):
            await engine.warm("echo", tenant=tenant)
            assert [seat.claim.tenant for seat in engine._pool.idle] == [tenant]
            assert len(moments.Tree(engine).firsts) == 1


SLOW = """
if CALLED:
    import time
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("source", "tool", "tables", "code"),
    [
        (moments.RUN, "absent", {}, "refused.unknown_tool"),
        (RISKY, "risky", {"grants": {}}, "refused.not_granted"),
        (moments.CALLED + moments.RUN + SLOW, "echo", {"limits": {"start": "1 s"}}, "limit_exceeded.start"),
        (moments.CALLED + moments.RUN + "\nif CALLED:\n    raise ValueError('not today')\n", "echo", {}, "tool_error.import"),
    ],
)
async def test_it_refuses_what_a_call_would_be_refused_with(
    engine: Engine, tmp_path: Path, source: str, tool: str, tables: dict[str, dict[str, object]], code: str
) -> None:
    """With the code that the call gives as its outcome."""
    policy = moments.policy(tmp_path, tables)
    if "grants" in tables:
        with policy.open("a", encoding="utf-8") as file:
            file.write('effects = { value = ["read"], reason = "a test needs it so" }\n')
    await engine.load(kit.write(tmp_path / "source", source), policy=policy)
    with trio.fail_after(30):
        with pytest.raises(EngineError) as caught:
            await engine.warm(tool)
        outcome = await engine.call(tool, {"word": "x"} if tool == "echo" else {})
    assert (caught.value.code, outcome.reason) == (code, code)


async def test_nothing_is_called_so_nothing_is_approved(engine: Engine, tmp_path: Path) -> None:
    """A dangerous tool can be made ready; its call still needs approval."""
    await engine.load(kit.write(tmp_path, RISKY))
    with trio.fail_after(30):
        await engine.warm("risky")
        assert (await engine.call("risky", {})).reason == "refused.approval"
        assert (await engine.call("risky", {}, approved=True)).value == "done"


async def test_no_room_is_told_as_it_is(engine: Engine, tmp_path: Path) -> None:
    """One in all and a call has it: nobody waits in line, and nobody is said to."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine, tenant="one"))
            with pytest.raises(EngineError) as caught:
                await engine.warm("echo", tenant="two")
            held.told.set()
    assert (caught.value.code, caught.value.lines) == ("refused.busy", ("workers in use: 1 of 1 (pool.total)",))


async def test_the_last_one_that_is_kept_is_told(engine: Engine, tmp_path: Path) -> None:
    """Two in all, and two tenants: the one whose call has a worker gets no other for another source."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 2}})
    for space in ("a", "b"):
        await engine.load(kit.write(tmp_path / space, f"{moments.RUN}\nSPACE = '{space}'\n"), policy=policy, namespace=space)
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        await (await engine.call("echo", {"word": "x"}, tenant="two", namespace="a")).concluded()
        async with trio.open_nursery() as nursery:
            held = await nursery.start(hold_with(engine, tenant="one"))
            with pytest.raises(EngineError) as caught:
                await engine.warm("echo", tenant="one", namespace="b")
            await engine.warm("echo", tenant="two", namespace="b")
            held.told.set()
    kept = "workers in use: all but the last (pool.total), which is kept for a tenant that has none"
    assert (caught.value.code, caught.value.lines) == ("refused.busy", (kept,))


async def test_one_that_comes_back_in_a_moment_is_waited_for(engine: Engine, tmp_path: Path) -> None:
    """The only one, whose call has its answer: it makes room, as it would for a call."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    with trio.fail_after(30):
        for number in range(4):
            assert (await engine.call("echo", {"word": "x"}, tenant=f"{number}")).reason == "ok.done"
            await engine.warm("echo", tenant=f"{number + 1}")
            assert [seat.claim.tenant for seat in engine._pool.idle] == [f"{number + 1}"]


@pytest.mark.parametrize("jails", [0, -1, True, "2"])
async def test_how_many_is_a_number(engine: Engine, tmp_path: Path, jails: int) -> None:
    """From one on."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    with pytest.raises(EngineError) as caught:
        await engine.warm("echo", jails=jails)
    assert caught.value.code == "refused.request"


async def test_the_end_of_the_engine_ends_it(tmp_path: Path) -> None:
    """Whoever still waits for workers is told, and nothing is left of them."""
    told: list[str] = []

    async def warm(engine: Engine) -> None:
        try:
            await engine.warm("echo", jails=4)
        except EngineError as error:
            told.append(error.code)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery, kit.clean_engine(tmp_path / "state") as engine:
            await engine.load(kit.write(tmp_path, moments.RUN))
            nursery.start_soon(warm, engine)
            while not engine._pool.living:
                await trio.lowlevel.checkpoint()
    assert told == ["cancelled.shutdown"]
