"""The jail that waits for its order: taken by the first one that it fits and by no second, gone with its launcher, and never used when
it is not fit any more.
"""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.call import Request
from engine.errors import HostError
from engine.host import Engine
from engine.supervision.spare import Recipe
from engine.wire import messages
from engine.worker.native import Jail
from enter import kernel, main, unbound
from tests import kit, moments
from tests.attempts import pairs
from tests.contract.test_lending import lease

ROOT = os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not ROOT, reason="unproven here: a namespace of mounts of its own is root's without one of users")
Ready = tuple[psutil.Process, psutil.Process]
FILES = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}


@pytest.fixture
async def ready(engine: Engine, tmp_path: Path) -> Ready:
    """Monitor and first process of the jail that waits, in an engine that has loaded a source."""
    await engine.load(kit.write(tmp_path / "source", moments.RUN))
    return await moments.made_ahead(engine.launcher_pid)


@asynccontextmanager
async def jail(engine: Engine, *changes: pairs.Change) -> AsyncIterator[Ready]:
    """Monitor and first process of a jail that is ordered now."""
    async with pairs.jail_of(engine, pairs.recipe_of(engine, "run", *changes)) as made:
        monitor = psutil.Process(made.monitor())
        yield monitor, monitor.children()[0]


async def value_of(code: str, made: Jail, recipe: Recipe) -> Any:
    """What a child of that jail makes of a text."""
    one = pairs.Sibling(made, recipe)
    await one.ready()
    await one.pump.send(messages.Call(tool="run", arguments={"code": code}, call=""))
    answer: Any = await one.pump.next()
    await one.end()
    return answer.value


def limits_of(cgroups: list[str]) -> dict[str, int]:
    """What is set in them, where these are cgroups of version 1."""
    places = [(name, Path(place, file)) for place in cgroups for name, file in FILES.items()]
    return {name: int(place.read_text()) for name, place in places if place.exists()}


class TestTaken:
    """Which order gets it."""

    async def test_the_first_order_gets_it_and_no_second_one(self, engine: Engine, ready: Ready) -> None:
        """The order's jail is those very processes, by another name now; an order beside it has processes of its own."""
        async with jail(engine) as first, jail(engine) as second:
            assert (first, second[0] == first[0], second[1] == first[1]) == (ready, False, False)
            assert moments.UNBOUND not in (first[1].name(), second[1].name())
            assert set(moments.Tree(engine).firsts) == {first[1], second[1]}

    async def test_another_one_is_made_when_it_was_taken(self, engine: Engine, ready: Ready) -> None:
        """And serves the order after it."""
        async with jail(engine):
            another = await moments.made_ahead(engine.launcher_pid)
            async with jail(engine) as second:
                assert (second, another == ready) == (another, False)

    async def test_a_call_gets_it(self, engine: Engine, ready: Ready) -> None:
        """By way of the pool, like any jail."""
        with trio.fail_after(30):
            seat = await lease(engine, engine.prepare("run", Request(arguments={"code": ""})))
            assert seat.jail.monitor() == ready[0].pid
            await engine._pool.give_back(seat, healthy=False)
        await moments.assert_works(engine)

    async def test_a_plan_of_other_devices_takes_the_usual_way(self, engine: Engine, ready: Ready) -> None:
        """It gets what it asked for; the one that waits stays for an order that it fits, until one like the last is made in its place."""

        def two(order: dict[str, Any]) -> None:
            order["devices"] = ["null", "zero"]
            order["landlock"] = {**order["landlock"], "paths": [pair for pair in order["landlock"]["paths"] if "dev" not in pair[0]]}

        recipe = pairs.recipe_of(engine, "run", two)
        async with pairs.jail_of(engine, recipe) as made:
            assert made.monitor() != ready[0].pid
        async with jail(engine, two) as _:
            pass
        await moments.wait_gone(list(ready))  # nobody orders the like of it any more

    async def test_a_plan_of_other_namespaces_is_not_served_by_it(self, engine: Engine, ready: Ready) -> None:
        """It would report a namespace that was not asked for; the usual way reports what is missing."""

        def without_uts(order: dict[str, Any]) -> None:
            order["namespaces"] = [name for name in order["namespaces"] if name != "uts"]
            order["hostname"] = socket.gethostname()

        with pytest.raises(HostError) as caught:
            async with jail(engine, without_uts):
                pytest.fail("the jail was taken")
        assert caught.value.lines == ("uts_namespace: in force 0, needed 1",)

    async def test_sizes_are_the_orders_own(self, engine: Engine, ready: Ready) -> None:
        """It was made with those of the order before; slots and cgroups have those of the order that took it."""

        def smaller(order: dict[str, Any]) -> None:
            order["slots"] = {**order["slots"], "bytes": 5 << 20, "inodes": 77}
            order["cgroup_limits"] = {"memory": 300 << 20, "pids": 99} if order["cgroup_limits"] else {}

        recipe = pairs.recipe_of(engine, "run", smaller)
        size = "place = os.statvfs('.')\nvalue = [place.f_blocks * place.f_frsize, place.f_files]"
        async with pairs.jail_of(engine, recipe) as made:
            assert made.monitor() == ready[0].pid
            assert await value_of(size, made, recipe) == [5 << 20, 79]
            own = [place for place in kit.cgroups_of(engine.launcher_pid) if ready[1].pid in kit.members(place)]
            assert limits_of(own) == {name: recipe.plan.order["cgroup_limits"][name] for name in limits_of(own)}
        async with pairs.jail_of(engine, usual := pairs.recipe_of(engine, "run")) as made:
            assert await value_of(size, made, usual) == [usual.plan.order["slots"]["bytes"], usual.plan.order["slots"]["inodes"] + 2]

    async def test_what_the_order_asks_wrongly_is_told_by_its_step(self, engine: Engine, ready: Ready) -> None:
        """A step after the binding fails like any: named, to the one who ordered."""

        def nowhere(order: dict[str, Any]) -> None:
            order["binds"] = [*order["binds"], ["/proc/nonexistent", "/x", "folder"]]

        with pytest.raises(HostError) as caught:
            async with jail(engine, nowhere):
                pytest.fail("the jail was taken")
        assert caught.value.lines == ("step 'bind /x' failed: No such file or directory (errno 2)",)
        await moments.wait_gone(list(ready))
        await moments.assert_works(engine)


class TestEnded:
    """When it ends before its order."""

    @pytest.mark.parametrize("part", [0, 1])
    async def test_killed_from_outside_it_costs_no_order(self, engine: Engine, ready: Ready, part: int) -> None:
        """The next order has a jail, the other process is gone as well, and another one waits after that order."""
        ready[part].kill()
        await moments.wait_gone(list(ready))
        async with jail(engine) as first:
            assert first[0] != ready[0]
            assert await moments.made_ahead(engine.launcher_pid) != ready

    async def test_with_its_launcher(self, engine: Engine, ready: Ready) -> None:
        """Killed, it takes both with it; the engine starts another launcher and works."""
        psutil.Process(engine.launcher_pid).kill()
        await moments.wait_gone(list(ready))
        await moments.assert_works(engine)

    async def test_with_its_engine(self, tmp_path: Path) -> None:
        """Closed while it waits: no process, no descriptor, no cgroup, no mount is left."""
        async with kit.clean_engine(tmp_path / "state") as engine:
            await engine.load(kit.write(tmp_path / "source", moments.RUN))
            waiting = await moments.made_ahead(engine.launcher_pid)
        assert moments.living(list(waiting)) == []

    @AS_ROOT
    def test_when_the_hosts_mounts_change(self, tmp_path: Path) -> None:
        """It is ended at once: the next jail shows what was mounted while it waited, and nothing that was unmounted is kept busy."""
        script = _MOUNTING.format(project=str(kit.PROJECT), folder=str(tmp_path))
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.stderr) == ("mounted\n", "")


_MOUNTING = """
import subprocess, sys
sys.path.insert(0, {project!r})
from pathlib import Path
import trio
from engine.host import Engine
from tests import kit, moments

async def main():
    folder = Path({folder!r})
    granted = folder / "granted"
    granted.mkdir()
    policy = folder / "policy.toml"
    grant = f'mine = {{{{ value = "{{granted}}", reason = "a test needs it so" }}}}'
    policy.write_text('extends = "required"\\n[grants.folders]\\n' + grant)
    source = moments.RUN
    async with Engine(state_dir=folder / "state") as engine:
        await engine.load(kit.write(folder / "source", source), policy=policy)
        waiting = await moments.made_ahead(engine.launcher_pid)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(granted)], check=True)
        await moments.wait_gone(list(waiting))
        (granted / "said").write_text("mounted")
        outcome = await engine.call("run", {{"code": "value = open('/granted/mine/said').read()"}})
        print(outcome.value, *outcome.lines)

trio.run(main)
"""


class TestFailed:
    """When it cannot be made."""

    @pytest.fixture
    def launcher(self, monkeypatch: pytest.MonkeyPatch) -> main.Launcher:
        """A launcher that wants to make one, and cannot."""
        made = main.Launcher.__new__(main.Launcher)
        made._jails, made._numbers, made._lingering, made._unbound, made._ahead = {}, {}, [], None, 0

        def failing(*_: object, **__: object) -> int:
            tries.append(1)
            raise kernel.Step("claim a uid", 11, "none is left")

        tries: list[int] = []
        monkeypatch.setattr(made, "_made", failing)
        made._tries, made._poll = tries, main.select.poll()  # type: ignore[attr-defined]  # for the test to look at
        made._wanted = {"cgroup_limits": {}, "slots": {"count": 2}}
        return made

    def test_it_is_tried_once_for_each_order(self, launcher: Any) -> None:
        """Then nothing is wanted, so the launcher sleeps until an order comes; and no descriptor is left of the try."""
        before, name = os.listdir("/proc/self/fd"), kernel.name_process("tests")
        launcher._make_ahead()
        assert (launcher._wanted, launcher._unbound, launcher._tries) == (None, None, [1])
        launcher._make_ahead()
        assert (launcher._tries, os.listdir("/proc/self/fd"), kernel.name_process(name)) == ([1], before, "tests")

    def test_a_step_that_fails_before_it_was_bound_is_told_to_nobody(self) -> None:
        """Its end is closed then: it cannot be bound, and the order takes the usual way."""
        waiting = unbound.Unbound({"cgroup_limits": {}, "slots": {"count": 2}})
        waiting.monitor = os.getppid()
        unbound.fail(waiting.far, kernel.Step("unshare network", 28, "No space left on device"))
        with pytest.raises(BrokenPipeError):
            waiting.bind({"binds": [], "shared": 0}, 0, _Codec())
        waiting.close()

    def test_a_step_that_fails_after_it_was_bound_is_told_to_who_ordered(self) -> None:
        """It was bound while it was still on its way: the supervisor reads the step on its own channel."""
        waiting = unbound.Unbound({"cgroup_limits": {}, "slots": {"count": 2}})
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            waiting.bind({"binds": [], "shared": 0}, theirs.fileno(), _Codec())
            unbound.fail(waiting.far, kernel.Step("unshare network", 28, "No space left on device"))
            assert ours.recv(1000) == b"Funshare network\n28\nNo space left on device"
        waiting.close()


class _Codec:
    """Stands for the launcher's."""

    def pack(self, *_: object) -> bytes:
        """Any frame."""
        return b"frame"
