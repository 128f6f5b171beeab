"""The launcher: one order, one answer, whoever asks at once, whoever gives up, and whatever becomes of it."""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio
import trio.testing

from engine.errors import HostError
from engine.host import Engine
from engine.worker import launcher as launchers
from engine.worker.launcher import Launcher
from engine.worker.parser import open_parser
from tests import kit, moments


@asynccontextmanager
async def running() -> AsyncIterator[Launcher]:
    """A launcher, ended afterwards."""
    launcher = await Launcher.start()
    try:
        yield launcher
    finally:
        await launcher.close()


async def ask(launcher: Launcher, number: int = 0) -> tuple[int, dict[str, object], int]:
    """An order that changes nothing: how often the kernel killed in a jail that there is not."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        return await launcher.order("oom", {"number": number}, theirs)


async def test_it_tells_what_this_host_is() -> None:
    """The facts are this machine's, found by itself."""
    async with running() as launcher:
        assert (launcher.facts.euid, launcher.facts.machine) == (os.geteuid(), os.uname().machine)


async def test_it_is_started_by_the_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its death signal goes by thread: one of the pool would end, and the launcher with it, after ten idle seconds."""
    spawn = launchers._spawn
    threads: list[int] = []

    def noted(program: launchers.Program) -> Any:
        threads.append(threading.get_ident())
        return spawn(program)

    monkeypatch.setattr(launchers, "_spawn", noted)
    async with running():
        assert threads == [threading.get_ident()]


async def test_it_inherits_nothing() -> None:
    """A clean environment, no argument that tells anything but where its files lie, and three descriptors beside its control socket."""
    os.environ["STOCKADE_TEST_CANARY"] = "zebra"
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    try:
        async with running() as launcher:
            await ask(launcher)
            process = psutil.Process(launcher.pid)
            assert process.environ() == {"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "PATH": "/nonexistent", "TZ": "UTC"}
            open_now = {number: os.readlink(f"/proc/{launcher.pid}/fd/{number}") for number in range(4)}
            assert (open_now[0], open_now[1], open_now[3].split(":")[0]) == ("/dev/null", "/dev/null", "socket")
            await _wait_settled(launcher)
    finally:
        os.close(kept)
        del os.environ["STOCKADE_TEST_CANARY"]


async def _wait_settled(launcher: Launcher) -> None:
    """Until the channel that came with the last order is closed, which is after its answer."""
    with trio.fail_after(10):
        while [number for number in os.listdir(f"/proc/{launcher.pid}/fd") if int(number) > 3 and _inherited(launcher.pid, number)]:
            await trio.lowlevel.checkpoint()


def _inherited(pid: int, number: str) -> bool:
    """Whether a descriptor is none of the pipe that its own signals wake it by."""
    try:
        return not os.readlink(f"/proc/{pid}/fd/{number}").startswith("pipe:")
    except FileNotFoundError:
        return False


async def test_it_leads_a_session_of_its_own() -> None:
    """What the terminal sends to our group does not reach it."""
    async with running() as launcher:
        assert (os.getsid(launcher.pid), os.getpgid(launcher.pid)) == (launcher.pid, launcher.pid)


async def test_orders_at_once_get_their_own_answers() -> None:
    """Fifty tasks: each number comes once, with an answer."""
    numbers: list[int] = []

    async def order(launcher: Launcher) -> None:
        number, told, _ = await ask(launcher)
        assert told == {"kills": 0}
        numbers.append(number)

    with trio.fail_after(30):
        async with running() as launcher, trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(order, launcher)
    assert sorted(numbers) == list(range(1, 51))


async def test_a_caller_that_gives_up_does_not_shift_the_answers() -> None:
    """Cancelled before, while and after it is sent, an order's answer is never the next one's."""

    async def give_up(launcher: Launcher, steps: int) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, launcher)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

    with trio.fail_after(30):
        async with running() as launcher:
            for steps in range(8):
                await give_up(launcher, steps)
                number, told, _ = await ask(launcher, steps)
                assert (number, told) == (launcher._number, {"kills": 0})


async def test_a_failing_order_names_its_step_and_spoils_nothing() -> None:
    """The launcher answers what failed, and then the next order."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    async with running() as launcher:
        with ours, theirs:
            plan = {"walls": False, "uids": ["/proc/nowhere", 1, 1], "cgroup_limits": {}}
            with pytest.raises(HostError) as caught:
                await launcher.order("jail", plan, theirs)
        assert (caught.value.code, caught.value.lines[0].split("'")[1]) == ("refused.start_failed", "claim a uid")
        assert not launcher.dead
        assert (await ask(launcher))[1] == {"kills": 0}


async def test_a_dead_one_is_known_without_asking() -> None:
    """Killed from outside: it is known at once, and an order says so instead of waiting."""
    async with running() as launcher:
        os.kill(launcher.pid, signal.SIGKILL)
        with trio.fail_after(10):
            while not launcher.dead:
                await trio.lowlevel.checkpoint()
            with pytest.raises(HostError) as caught:
                await ask(launcher)
    assert caught.value.code == "refused.start_failed"


async def test_a_stopped_one_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence beyond its time ends the order, and the launcher is ended rather than waited for."""
    with trio.fail_after(30):
        async with running() as launcher:
            monkeypatch.setattr(launchers, "_ANSWER_SECONDS", 0.2)  # not before: it may take longer to come up
            monkeypatch.setattr(launchers, "_LEAVE_SECONDS", 0.2)
            os.kill(launcher.pid, signal.SIGSTOP)
            with pytest.raises(HostError) as caught:
                await ask(launcher)
            assert launcher.dead
    assert (caught.value.code, caught.value.lines) == ("refused.start_failed", ("the launcher is gone: no answer",))


async def test_whoever_waits_behind_a_silent_order_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four orders at once to one that is stopped: all are told when the first is, not one silence after the other."""
    told: list[str] = []

    async def order(launcher: Launcher) -> None:
        with pytest.raises(HostError) as caught:
            await ask(launcher)
        told.append(caught.value.lines[0])

    with trio.fail_after(30):
        async with running() as launcher:
            monkeypatch.setattr(launchers, "_ANSWER_SECONDS", 0.5)
            monkeypatch.setattr(launchers, "_LEAVE_SECONDS", 0.2)
            os.kill(launcher.pid, signal.SIGSTOP)
            waited: list[Launcher] = []
            answer = Launcher._answer

            async def waiting(one: Launcher) -> Any:
                waited.append(one)
                return await answer(one)

            monkeypatch.setattr(Launcher, "_answer", waiting)
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(order, launcher)
    assert (told, waited) == (["the launcher is gone: no answer"] * 4, [launcher])


async def test_whoever_waits_for_an_answer_is_told_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: the number of its socket is another's in a moment, and two would wait for that one."""
    monkeypatch.setattr(launchers, "_LEAVE_SECONDS", 0.2)
    happened: list[str] = []

    async def order(launcher: Launcher) -> None:
        with pytest.raises(HostError, match=r"refused\.start_failed: the launcher is gone"):
            await ask(launcher)
        happened.append("told")

    launcher = await Launcher.start()
    psutil.Process(launcher.pid).suspend()  # it takes no order, and leaves by force alone
    async with trio.open_nursery() as nursery:
        nursery.start_soon(order, launcher)
        await trio.testing.wait_all_tasks_blocked()
        await launcher.close()
        happened.append("closed")
    assert happened == ["told", "closed"]


async def test_one_that_would_not_die_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kill does nothing, as on a process that the kernel cannot end: closing comes to an end and says so, and leaves no descriptor."""
    monkeypatch.setattr(launchers, "_LEAVE_SECONDS", 0.2)
    before = psutil.Process().num_fds()
    launcher = await Launcher.start()
    process = psutil.Process(launcher.pid)
    process.suspend()
    with monkeypatch.context() as patch, trio.fail_after(30):
        patch.setattr(signal, "pidfd_send_signal", lambda *_: None)
        with pytest.raises(HostError) as caught:
            await launcher.close()
    process.kill()
    launcher._process.wait()
    assert (caught.value.code, psutil.Process().num_fds()) == ("engine_failed.not_clean", before)


async def test_a_full_table_of_the_launcher_fails_the_order_alone(engine: Engine, tmp_path: Path) -> None:
    """It has no descriptor left for a new process: that order is told so, and the launcher with its jails lives on."""
    await moments.run(engine, tmp_path, "value = 1")
    async with running() as launcher:
        await _wait_settled(launcher)
        old = resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE)
        taken = max(map(int, os.listdir(f"/proc/{launcher.pid}/fd")))
        resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (taken + 2, old[1]))  # room for the channel, none for a process behind it
        with pytest.raises(HostError) as caught:
            async with open_parser(launcher, engine._state.places):
                raise AssertionError("it was started")
        assert (caught.value.code, caught.value.lines) == (
            "refused.start_failed",
            ("step 'make the process that was ordered' failed: Too many open files (errno 24)",),
        )
        resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, old)
        async with open_parser(launcher, engine._state.places) as parse:
            assert (await parse(b"import json\n", "a.py"))["ok"] is True


async def test_a_full_table_of_ours_is_told(engine: Engine, tmp_path: Path) -> None:
    """Neither a call, a load nor a start finds a descriptor: each is refused as what it is, and with room the same engine goes on."""
    await (await moments.run(engine, tmp_path, "value = 1")).concluded()
    (seat,) = engine._pool.idle
    assert seat.spare is not None
    await seat.spare.ready.wait()  # it needs descriptors as well
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, old[1]))
    try:
        outcome = await engine.call("run", {"code": "value = 1"}, tenant="another")
        with pytest.raises(HostError) as loading:
            async with open_parser(await engine._launchers.native(), engine._state.places):
                raise AssertionError("it was started")
        with pytest.raises(HostError) as starting:
            await Launcher.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
    full = "Too many open files"
    assert (outcome.reason, outcome.lines) == ("refused.start_failed", (f"step 'open the jail's channel' failed: {full}",))
    assert loading.value.lines == (f"step 'open the parser's channel' failed: {full}",)
    assert starting.value.lines == (f"the launcher could not be started: {full}",)
    await moments.assert_works(engine)


async def test_it_is_gone_when_it_is_closed() -> None:
    """Its process is buried, and our descriptors are what they were."""
    await trio.to_thread.run_sync(lambda: None)
    own = psutil.Process()
    before = own.num_fds()
    async with running() as launcher:
        process = psutil.Process(launcher.pid)
    assert (process.is_running(), own.num_fds(), launcher.dead) == (False, before, True)


def owned(place: Path) -> int:
    """Make a cgroup that no sweep takes for a dead launcher's; the descriptor that holds it."""
    place.mkdir()
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.skipif(os.geteuid() != 0, reason="unproven here: only root can make cgroups")
async def test_it_leaves_no_cgroup_that_bears_its_name(tmp_path: Path) -> None:
    """Not even one that its books do not know; another's in the same folder is not its to remove."""
    places: list[Path] = []
    held: list[int] = []
    try:
        async with kit.plain_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path / "source", "value = 1")
            if not (known := kit.cgroups_of(engine.launcher_pid)):
                pytest.skip("unproven here: no cgroup can be made on this host")
            places += [Path(known[0]).with_name(f"stockade-{pid}-lost") for pid in (engine.launcher_pid, os.getpid())]
            held += map(owned, places)
        assert list(map(os.path.isdir, places)) == [False, True]
    finally:
        for descriptor, place in zip(held, places, strict=True):
            os.close(descriptor)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(place)


async def test_one_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is not there, and one that ends before it has said anything."""
    before = psutil.Process().num_fds()
    for interpreter, line in (("/nonexistent/python", "could not be started"), ("/bin/false", "the launcher is gone")):
        monkeypatch.setattr("sys._base_executable", interpreter, raising=False)
        with trio.fail_after(20), pytest.raises(HostError) as caught:
            await Launcher.start()
        assert (caught.value.code, line in caught.value.lines[0]) == ("refused.start_failed", True)
    assert psutil.Process().num_fds() == before
