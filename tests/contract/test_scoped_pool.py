"""Jails with listeners: what comes with their report, and one child at a time, also where several calls run at once."""

import dataclasses
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.call import Request
from engine.errors import HostError
from engine.host import Engine
from engine.outcome import Outcome
from engine.policy.model import Freshness
from engine.supervision.pool import Seat
from engine.supervision.spare import Recipe
from engine.worker import native
from engine.worker.native import Jail
from tests import kit, levels, moments
from tests.attempts import pairs, scopes
from tests.contract.test_lending import answered
from tests.contract.test_pool import hold_with, spares_ready

WANTED = scopes.scope("api.example.com:443", "b.example.com:80", "203.0.113.7:443")


@pytest.fixture
async def recipe(engine: Engine, tmp_path: Path) -> Recipe:
    """The recipe of a worker with that scope, of an engine that has loaded a source."""
    await engine.load(kit.write(tmp_path / "source", moments.RUN))
    return scopes.recipe_of(engine, "run", WANTED)


def children(engine: Engine) -> dict[int, int]:
    """First process of a jail -> how many children it has now."""
    tree = moments.Tree(engine)
    return {first.pid: sum(child.ppid() == first.pid for child in tree.children) for first in tree.firsts}


async def refused(engine: Engine, recipe: Recipe) -> tuple[str, ...]:
    """What a jail of that recipe is refused with; nothing of it stays."""
    before = kit.Belongings.now()
    with pytest.raises(HostError) as caught:
        async with pairs.jail_of(engine, recipe):
            pytest.fail("there is such a jail")
    assert caught.value.code == "refused.start_failed"
    assert kit.Belongings.now().descriptors == before.descriptors
    return caught.value.lines


class TestReport:
    """The listeners come with it, or there is no jail."""

    async def test_they_are_the_plans_in_its_order(self, engine: Engine, recipe: Recipe) -> None:
        """Each is bound to its address and does not listen, blocks nobody, is inherited by nobody, and is closed with the jail."""
        before = kit.Belongings.now().descriptors
        async with pairs.jail_of(engine, recipe) as jail:
            listeners = jail.listeners
            assert [str(one.place) for one in recipe.plan.listeners] == ["203.0.113.7:443", "api.example.com:443", "b.example.com:80"]
            assert [end.getsockname() for end in listeners] == [("203.0.113.7", 443), ("127.1.0.1", 443), ("127.1.0.2", 80)]
            assert [(end.getblocking(), end.get_inheritable()) for end in listeners] == [(False, False)] * 3
            assert [end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for end in listeners] == [0] * 3
        assert (jail.listeners, [end.fileno() for end in listeners]) == ((), [-1] * 3)
        assert kit.Belongings.now().descriptors == before

    def test_another_kind_of_socket_is_none(self) -> None:
        """One that listens by itself would take connections outside of every call; the control is bound, and no more."""
        kinds = (socket.SOCK_STREAM, 0), (socket.SOCK_DGRAM, 0)
        found = []
        for kind, protocol in kinds:
            with socket.socket(socket.AF_INET, kind, protocol) as end:
                end.bind(("127.0.0.1", 0))
                host, port = end.getsockname()
                found.append([native._bound(end, (host, port)), native._bound(end, (host, port + 1))])
                if kind == socket.SOCK_STREAM:
                    end.listen()
                    found[-1].append(native._bound(end, (host, port)))
        assert found == [[True, False, False], [False, False]]

    async def test_who_waits_for_one_is_told_that_its_jail_has_ended(self, engine: Engine, recipe: Recipe) -> None:
        """As for every descriptor of a jail."""
        told = []

        async def wait(end: socket.socket, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            try:
                await trio.lowlevel.wait_readable(end)
            except trio.ClosedResourceError:
                told.append(True)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                async with pairs.jail_of(engine, recipe) as jail:
                    for end in jail.listeners:
                        end.listen()
                        await nursery.start(wait, end)
        assert told == [True] * 3

    @pytest.mark.parametrize("kept", [[0, 1], [], [0, 2, 1], [0, 1, 2, 2]], ids=["one less", "none", "another order", "one more"])
    async def test_any_others_are_a_malformed_report(
        self, engine: Engine, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, kept: list[int]
    ) -> None:
        """Fewer, more, or the same in another order: a connection would lead where another place's does."""

        def told(jail: Jail, order: Any) -> Any:
            places = [order["network"]["listeners"][at] for at in kept]
            places[3:] = [["127.1.0.9", port] for _, port in places[3:]]
            return {**order, "network": {**order["network"], "listeners": places}}

        monkeypatch.setattr(Jail, "_with_scratch", told)
        assert await refused(engine, recipe) == ("the jail's report is malformed",)

    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            ({"listeners": [["198.51.100.1", 80]] * 3}, "step 'bind a listener' failed: Cannot assign requested address (errno 99)"),
            ({"listeners": [["127.1.0.1", 80]] * 3}, "step 'bind a listener' failed: Address already in use (errno 98)"),
            ({"addresses": ["224.0.0.1"]}, "step 'give the loopback device an address' failed: Invalid argument (errno 22)"),
            ({"settings": [["/proc/sys/net/ipv4/tcp_rmem", "x"]]}, "step 'set tcp_rmem' failed: Invalid argument (errno 22)"),
            ({"files": [["/etc/hosts", ""]] * 2}, "step 'write /etc/hosts' failed: File exists (errno 17)"),
        ],
    )
    async def test_a_step_that_fails_is_named(self, engine: Engine, recipe: Recipe, changes: dict[str, Any], line: str) -> None:
        """And nothing is left of the jail."""
        changed = pairs.changed(recipe, lambda order: order["network"].update(changes))
        assert await refused(engine, changed) == (line,)

    async def test_a_jail_of_scope_has_room_for_one_child(self, engine: Engine, recipe: Recipe) -> None:
        """A second fork is refused while the first child lives, and not when it is gone; the control has two."""
        with trio.fail_after(30):
            async with pairs.jail_of(engine, recipe) as jail:
                one, other = pairs.Sibling(jail, recipe), pairs.Sibling(jail, recipe)
                await one.ready()
                await other.spare.prepare()
                assert other.spare.verdict == ("refused.start_failed", "step 'find the child a slot' failed: 1 of 1 taken")
                await one.end()
                again = pairs.Sibling(jail, recipe)
                await again.ready()
                await again.end()
            plain = pairs.recipe_of(engine, "run")
            async with pairs.jail_of(engine, plain) as jail:
                for sibling in (pairs.Sibling(jail, plain), pairs.Sibling(jail, plain)):
                    await sibling.ready()


class TestPool:
    """When the next child comes."""

    @pytest.mark.parametrize("scoped", [True, False])
    async def test_the_next_child_is_ordered_when_the_last_one_is_gone(self, engine: Engine, recipe: Recipe, *, scoped: bool) -> None:
        """Not while it is buried, as without listeners."""
        made = recipe if scoped else pairs.recipe_of(engine, "run")
        bounds = engine.prepare("run", Request(arguments={"code": ""})).resolved.pool
        assert (made.single, dataclasses.replace(recipe, plan=dataclasses.replace(recipe.plan, listeners=())).single) == (scoped, False)
        with trio.fail_after(30):
            seat = await engine._pool.lease(made, bounds)
            await answered(engine, seat)
            assert (seat.spare is None) is scoped
            await engine._pool.give_back(seat, healthy=True)
            assert seat.spare is not None
            await seat.spare.ready.wait()
            assert seat.spare.verdict is None
            assert sum(children(engine).values()) == 1

    async def test_while_a_call_runs_its_jail_has_one_child(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Three at once are three jails with a child each; afterwards each has its next one, and serves again."""
        await engine.load(kit.write(tmp_path, moments.RUN))
        scopes.grant(engine, monkeypatch, WANTED)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                all_held = [await nursery.start(hold_with(engine)) for _ in range(3)]
                running = children(engine)
                assert Counter(running.values()) == {1: 3}
                for held in all_held:
                    held.told.set()
            assert [(held.outcome.reason, held.outcome.value) for held in all_held] == [("ok.done", "let go")] * 3
            await spares_ready(engine, 3)
            assert children(engine) == dict.fromkeys(running, 1)
            found = [await engine.call("run", {"code": f"value = {number}"}) for number in range(6)]
            assert [(one.reason, one.value) for one in found] == [("ok.done", number) for number in range(6)]
            await spares_ready(engine, 3)
            assert children(engine) == dict.fromkeys(running, 1)

    async def test_a_child_that_is_kept_warm_is_the_only_one(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It serves call after call, and none is forked beside it; when it ends, the next one comes."""
        await engine.load(kit.write(tmp_path, moments.RUN), policy=levels.policy(tmp_path / "policy", Freshness.WARM))
        scopes.grant(engine, monkeypatch, WANTED)
        with trio.fail_after(60):
            found = [await engine.call("run", {"code": "value = os.getpid()"}) for _ in range(3)]
            assert len({one.value for one in found}) == 1
            assert Counter(children(engine).values()) == {1: 1}
            ended = await engine.call("run", {"code": "sys.exit()"})
            assert ended.reason == "tool_error.exit"
            await spares_ready(engine, 1)
            again = await engine.call("run", {"code": "value = os.getpid()"})
            assert again.value != found[0].value

    async def test_under_snapshot_too(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The process that imported forks the next child when the last one is gone."""
        await engine.load(kit.write(tmp_path, moments.RUN), policy=levels.policy(tmp_path / "policy", Freshness.SNAPSHOT))
        scopes.grant(engine, monkeypatch, WANTED)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                held = await nursery.start(hold_with(engine))
                running = children(engine)
                assert Counter(running.values()) == {1: 1}
                held.told.set()
            await spares_ready(engine, 1)
            assert children(engine) == running

    async def test_what_ends_in_mid_call_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No listener and no process: a jail that dies under its call, and an engine that closes while one runs."""
        outcomes: list[Outcome] = []
        seats: list[Seat] = []

        async def call(engine: Engine, *, task_status: trio.TaskStatus[None]) -> None:
            async with engine.stream("run", {"code": moments.HERE + moments.FOREVER}) as items:
                await anext(items)
                seats.extend(engine._pool._stock.lent)
                task_status.started()
                outcomes.append(await moments.last(items))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery, kit.clean_engine(tmp_path / "state") as engine:
                await engine.load(kit.write(tmp_path / "source", moments.RUN))
                scopes.grant(engine, monkeypatch, WANTED)
                await nursery.start(call, engine)
                psutil.Process(seats[0].jail.monitor()).children()[0].kill()
                await moments.wait_gone(moments.Tree(engine).firsts)
                await nursery.start(call, engine)
        assert [one.reason for one in outcomes] == ["crashed.worker", "cancelled.shutdown"]
        assert [seat.jail.listeners for seat in seats] == [(), ()]
