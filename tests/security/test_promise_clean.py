"""Promise: when an engine's block ends, and after each call, nothing of it is left on the host."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import trio

from engine.errors import HostError, PolicyError
from engine.host import Engine
from engine.places import data_dir
from engine.worker import child, native
from tests import kit, moments

HANG = "import time\nwhile True: time.sleep(1000)\n"
ENDINGS = [
    "value = 1",
    "raise ValueError",
    "os._exit(0)",
    "os.abort()",
    "os.close(3)",
    "forge(b'garbage, and more of it')",
    "forge(frame(23, 1) + frame(23, 2))",
    "while True: print('words' * 1000)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
    "open('left behind', 'w').write('x' * 100_000)",
    "os.makedirs('a/b/c/d')\nos.chmod('a/b', 0)\nos.chmod('a', 0)",
]


def cgroups_anywhere() -> list[str]:
    """All cgroups on this host that any engine made."""
    found = []
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{root}/{name}" for name in folders if name.startswith("stockade-")]
    return found


async def test_calls_that_end_in_every_way_leave_nothing_between_them(engine: Engine, tmp_path: Path) -> None:
    """After a hundred endings descriptors, threads, processes and mounts are as many as after the first of each kind."""
    policy = moments.policy(tmp_path, {"pool": {"jails": 1, "total": 1}})  # else more are made for calls that come so fast
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)

    async def round_of_endings(seed: int) -> None:
        for code in random.Random(seed).sample(ENDINGS, len(ENDINGS)):
            await engine.call("run", {"code": code})
        await moments.assert_works(engine)
        with trio.fail_after(30):
            while len(moments.Tree(engine).children) != 1:  # the next spare is there, and it alone
                await trio.lowlevel.checkpoint()
            for seat in engine._pool.idle:  # and all that we hold of it: its pidfd comes with its first byte
                assert seat.spare is not None
                await seat.spare.ready.wait()
        await moments.made_ahead(moments.Tree(engine).launcher.pid)  # with its cgroup

    await round_of_endings(0)
    own = psutil.Process()

    def counts() -> tuple[int, ...]:
        tree = moments.Tree(engine)
        return own.num_fds(), kit.Belongings.now().threads, len(tree.all()), len(kit.cgroups_of(tree.launcher.pid))

    before = counts()
    for seed in range(1, 9):
        await round_of_endings(seed)
    after = counts()
    assert after == before
    assert kit.mounts_below(tmp_path / "state") == []


async def test_the_next_call_finds_an_empty_scratch_folder(engine: Engine, tmp_path: Path) -> None:
    """Files, deep folders and folders that nobody may enter are gone when the next child gets the same slot."""
    for code in ENDINGS[-2:] * 2:
        await moments.run(engine, tmp_path, code)
    outcome = await moments.run(engine, tmp_path, "value = os.listdir('.')")
    assert (outcome.reason, outcome.value) == ("ok.done", [])


async def test_an_engine_that_is_left_by_an_exception_cleans_up(tmp_path: Path) -> None:
    """The exception of the block comes out as it is, and everything is gone."""
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the exception is raised in the block on purpose
        async with kit.clean_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path, "value = 1")
            raise ZeroDivisionError


async def test_a_worker_that_would_not_die_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kills do nothing, as on a process that the kernel cannot end: the engine says so, and takes all it can with it."""
    monkeypatch.setattr(native, "_CLOSE_SECONDS", 0.2)
    below: list[psutil.Process] = []
    with trio.fail_after(30), pytest.raises(HostError) as caught:  # noqa: PT012 - it is raised where the block is left
        async with kit.plain_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path, "value = 1")
            below += moments.Tree(engine).all()
            for module in (native, child):
                monkeypatch.setattr(module, "kill", lambda pidfd: None)
    lines = ("a jail's process outlived its SIGKILL by five seconds",)
    assert (caught.value.code, caught.value.lines) == ("engine_failed.not_clean", lines)
    await moments.wait_gone(below)


async def test_a_call_whose_worker_would_not_die_has_its_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kills do nothing: the call raises louder than any outcome, and what it left is in the journal."""
    monkeypatch.setattr(native, "_CLOSE_SECONDS", 0.2)
    below: list[psutil.Process] = []
    with trio.fail_after(30), pytest.raises(HostError):  # noqa: PT012 - once more where the block is left
        async with kit.plain_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path, "value = 1")
            below += moments.Tree(engine).all()
            with monkeypatch.context() as patch:
                for module in (native, child):
                    patch.setattr(module, "kill", lambda pidfd: None)
                with pytest.raises(HostError) as caught:
                    await engine.call("run", {"code": "os._exit(0)"})
            receipts = [json.loads(line) for line in (tmp_path / "state" / "journal" / "receipts.jsonl").read_text().splitlines()]
            assert caught.value.code == "engine_failed.not_clean"
            assert (receipts[-1]["verdict"]["reason"], receipts[-1]["violations"]) == ("crashed.exit", list(caught.value.lines))
            raise caught.value
    await moments.wait_gone(below)


async def test_an_engine_that_cannot_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of its own policies is broken: told as the operator's, with no launcher left that was started before it was read."""
    policies = shutil.copytree(data_dir("policies"), tmp_path / "policies")
    before = kit.Belongings.now()
    for file in ("describe.toml", "preload.toml"):
        (policies / file).write_text("nonsense = 1\n")
        monkeypatch.setattr("engine.host.data_dir", lambda kind: policies)
        with pytest.raises(PolicyError) as caught:
            async with kit.plain_engine(tmp_path / "state"):
                raise AssertionError("it started")
        assert caught.value.lines[0].startswith(f"{policies}/{file}: ")
        shutil.copy(data_dir("policies") / file, policies / file)
    assert kit.Belongings.now() == before


async def test_an_engine_that_is_cancelled_cleans_up(tmp_path: Path) -> None:
    """Cancelled around the whole block, with a tool running."""
    below: list[psutil.Process] = []
    with trio.CancelScope() as scope:
        async with kit.clean_engine(tmp_path / "state") as engine, moments.running(engine, tmp_path, HANG) as items:
            tree = moments.Tree(engine)
            below += tree.all()
            scope.cancel()
            await moments.last(items)
    assert (len(below), moments.living(below)) == (len(tree.launchers) + 3, [])


async def test_a_folder_of_state_keeps_no_part_of_a_call(tmp_path: Path) -> None:
    """After the engine has gone: the staged source, the receipts, and empty folders for mounting."""
    async with kit.clean_engine(tmp_path / "state") as engine:
        for code in ENDINGS:
            await moments.run(engine, tmp_path, code)
    left = sorted(place.relative_to(tmp_path / "state").parts[0] for place in (tmp_path / "state").rglob("*") if place.is_file())
    assert sorted(set(left)) == ["journal", "stage"]


async def test_a_temporary_state_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the usual state folder cannot be written, the private one goes with the engine."""
    (tmp_path / "no folder").write_text("")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no folder"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    async with kit.clean_engine(None) as engine:
        outcome = await moments.run(engine, tmp_path / "source", "value = 1")
        assert ((await outcome.concluded())["journal"], len(list((tmp_path / "temporary").iterdir()))) == ("ephemeral", 1)
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_two_engines_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    """One lives and ends while a call of the other is under way, in the same state folder."""
    async with kit.clean_engine(tmp_path / "state") as outer:
        async with moments.running(outer, tmp_path, "value = 'outer'") as items:
            async with kit.plain_engine(tmp_path / "state") as inner:
                first = await moments.run(inner, tmp_path, "value = 'inner'")
            outcome = await moments.last(items)
        assert (first.value, outcome.value) == ("inner", "outer")
        await moments.assert_works(outer)


async def test_an_engine_can_be_made_again_and_again(tmp_path: Path) -> None:
    """Ten lives of an engine in one process leave what one leaves."""
    own = psutil.Process()
    counts = []
    for _ in range(10):
        async with kit.clean_engine(tmp_path / "state") as engine:
            await moments.run(engine, tmp_path, "value = 1")
        counts.append((own.num_fds(), len(own.children(recursive=True))))
    assert counts == counts[:1] * 10


FORKING = """
import os, sys
sys.path.insert(0, {project!r})
import trio
from pathlib import Path
from engine.host import Engine
from tests import moments

async def main():
    folder = Path({folder!r})
    async with Engine(state_dir=folder / "state", {options}) as engine:
        await moments.run(engine, folder / "source", "value = 1")
        pid = os.fork()
        if pid == 0:
            os.read(int(sys.argv[1]), 1)  # lives on until the test lets go
            os._exit(0)
        await moments.assert_works(engine)
    print("ended", flush=True)

trio.run(main)
"""


def test_a_copy_of_the_process_does_not_keep_the_engine_from_ending(tmp_path: Path) -> None:
    """A fork of the host process holds copies of every descriptor; the engine ends all the same."""
    held, hold = os.pipe()
    script = FORKING.format(project=str(kit.PROJECT), folder=str(tmp_path), options=kit.engine_text())
    with subprocess.Popen([sys.executable, "-c", script, str(held)], stdout=subprocess.PIPE, pass_fds=[held], text=True) as program:
        os.close(held)
        assert program.stdout is not None
        assert program.stdout.readline() == "ended\n"
        assert program.wait(timeout=30) == 0
        os.close(hold)


NARROW = """
import json, resource, sys
sys.path.insert(0, {project!r})
import trio
from pathlib import Path
from engine.host import Engine
from tests import moments

async def main():
    folder = Path({folder!r})
    async with Engine(state_dir=folder / "state", {options}) as engine:
        limit = "import resource\\nvalue = list(resource.getrlimit(resource.RLIMIT_NOFILE))"
        outcome = await moments.run(engine, folder / "source", limit)
        many = await moments.run(engine, folder / "source", "value = [os.open('/dev/null', 0) for _ in range(100)]")
        print(json.dumps([outcome.reason, outcome.value, many.reason, many.lines]))

trio.run(main)
"""


def test_limits_that_were_inherited_tighter_are_never_raised(tmp_path: Path) -> None:
    """An engine started with 64 descriptors works, and its tools get 64 of the 256 that the policy allows."""
    script = NARROW.format(project=str(kit.PROJECT), folder=str(tmp_path), options=kit.engine_text())
    narrow = ["bash", "-c", 'ulimit -n 64; exec "$@"', "narrow"]
    done = subprocess.run([*narrow, sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    too_many = ["OSError: [Errno 24] Too many open files: '/dev/null'"]
    assert json.loads(done.stdout) == ["ok.done", [64, 64], "tool_error.exception", too_many]


async def test_the_same_tool_gets_the_whole_limit_otherwise(engine: Engine, tmp_path: Path) -> None:
    """The control: without the tighter limit there are 256."""
    outcome = await moments.run(engine, tmp_path, "import resource\nvalue = list(resource.getrlimit(resource.RLIMIT_NOFILE))")
    assert (outcome.reason, outcome.value) == ("ok.done", [256, 256])
