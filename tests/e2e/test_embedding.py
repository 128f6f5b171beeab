"""The engine inside of other programs: scripts, threads, forked processes, odd surroundings. It works, and ends with its host."""

import os
import subprocess
import threading
from pathlib import Path

import psutil
import pytest
import trio

from engine.host import Engine
from tests import kit, moments, programs

SAY = programs.SAY
# one load and one call; what the receipt says of the journal
ONCE = """
async def main():
    async with Engine() as engine:
        await engine.load(source("once", SAY))
        outcome = await engine.call("say", {})
        return [outcome.reason, outcome.value, (await outcome.concluded())["journal"]]
"""
PRELUDE = f"SAY = {SAY!r}\n"


def script(text: str) -> str:
    """A program with the one tool's source, and the one call as ``main``."""
    return PRELUDE + ONCE + text


WAITING = """
TOOL = '''
import time
from engine import Context, tool

@tool(effect="read", description="d")
def wait(context: Context) -> str:
    context.emit("here")
    time.sleep(600)
    return ""
'''

async def main():
    async with Engine() as engine:
        await engine.load(source("waiting", TOOL))
        async with engine.stream("wait", {}) as items:
            await anext(items)
            pid = os.fork()
            if pid == 0:
                signal.pause()
            told([pid, engine.launcher_pid])
            await trio.sleep_forever()
trio.run(main)
"""


def started(command: list[str], home: Path) -> subprocess.Popen[bytes]:
    """The program, running, with its answers on a pipe."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=programs.environment(HOME=str(home)))


class TestScripts:
    """A program of its own, without a state folder given."""

    def test_with_a_home_the_journal_is_durable(self, tmp_path: Path) -> None:
        """It lies in the user's state folder and holds the call."""
        home = tmp_path / "home"
        home.mkdir()
        made = programs.run(tmp_path, script("told(within(30, main))"), variables={"HOME": str(home), "XDG_STATE_HOME": None})
        assert made == ["ok.done", "said", "durable"]
        assert len(kit.call_receipts(home / ".local/state/stockade")) == 1

    @pytest.mark.parametrize("home", ["/dev/null", "/nonexistent/home", "/proc/self"])
    def test_without_a_home_it_works_and_the_journal_is_ephemeral(self, tmp_path: Path, home: str) -> None:
        """The receipt says so, and nothing is left of the folder that served."""
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        variables = {"HOME": f"{home}/x" if os.geteuid() == 0 else home, "XDG_STATE_HOME": None, "TMPDIR": str(temporary)}
        if os.geteuid() == 0:
            variables["HOME"] = "/dev/null"  # root can make a folder almost anywhere
        assert programs.run(tmp_path, script("told(within(30, main))"), variables=variables) == ["ok.done", "said", "ephemeral"]
        assert list(temporary.iterdir()) == []

    def test_in_a_folder_that_is_gone(self, tmp_path: Path) -> None:
        """Whose current folder was removed under it."""
        text = script("os.mkdir(FOLDER / 'gone')\nos.chdir(FOLDER / 'gone')\nos.rmdir(FOLDER / 'gone')\ntold(within(30, main))")
        assert programs.run(tmp_path, text, variables={"HOME": str(tmp_path)})[:2] == ["ok.done", "said"]

    @pytest.mark.parametrize("closed", ["0", "0 1", "2", "0 1 2"])
    def test_without_standard_descriptors(self, tmp_path: Path, closed: str) -> None:
        """As a daemon runs that closed them; a socket of the engine may then have such a number."""
        text = script(
            f"import shutil\nfor number in {closed.split()!r}:\n    os.close(int(number))\n"
            "made = within(30, main)\n(FOLDER / 'answer').write_text(json.dumps(made))\nos._exit(0)\n"
        )
        started = programs.command(tmp_path, text)
        done = subprocess.run(started, env=programs.environment(HOME=str(tmp_path)), timeout=60, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        assert programs.answer((tmp_path / "answer").read_text())[:2] == ["ok.done", "said"]

    @pytest.mark.parametrize("how", ["signal.SIG_IGN", "signal.SIG_DFL", "lambda *_: os.waitpid(-1, os.WNOHANG)"])
    def test_whatever_the_host_does_with_its_children(self, tmp_path: Path, how: str) -> None:
        """A host that ignores the end of its children, or waits for any of them, takes nothing from the engine."""
        text = script(f"def reap(*_):\n    pass\nsignal.signal(signal.SIGCHLD, {how})\ntold([within(30, main), within(30, main)])")
        first, second = programs.run(tmp_path, text, variables={"HOME": str(tmp_path)})
        assert first == second == ["ok.done", "said", "durable"]

    def test_with_few_descriptors(self, tmp_path: Path) -> None:
        """Sixty-four are enough for an engine and a call."""
        text = script("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\ntold(within(30, main))")
        assert programs.run(tmp_path, text, variables={"HOME": str(tmp_path)})[:2] == ["ok.done", "said"]


class TestThreads:
    """Hosts with threads."""

    def test_a_thread_with_a_run_of_its_own(self, tmp_path: Path) -> None:
        """Twice, in two threads at once, inside of this very process."""
        found: list[object] = []

        async def main(name: str) -> None:
            with trio.fail_after(30):
                async with Engine(state_dir=tmp_path / name) as engine:
                    outcome = await kit.jailed(engine, tmp_path / f"{name}-source", SAY, "say", {"word": name})
                    found.append(outcome.value)

        threads = [threading.Thread(target=trio.run, args=(main, name)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(map(str, found)) == ["one", "two"]
        assert moments.living(psutil.Process().children()) == []

    def test_a_host_with_fifty_threads(self, tmp_path: Path) -> None:
        """They run, allocate and wait for locks while the launcher is started; it is started again and again without a hang."""
        text = script(
            "stop = threading.Event()\n"
            "def busy():\n    while not stop.wait(0.001):\n        sorted(str(n) for n in range(50))\n"
            "threads = [threading.Thread(target=busy) for _ in range(50)]\n"
            "for one in threads:\n    one.start()\n"
            "made = [within(60, main) for _ in range(3)]\nstop.set()\nfor one in threads:\n    one.join()\ntold(made)"
        )
        assert programs.run(tmp_path, text, variables={"HOME": str(tmp_path)}, seconds=200) == [["ok.done", "said", "durable"]] * 3


class TestForks:
    """Hosts that fork while an engine lives."""

    FORKED = """
async def main():
    async with Engine() as engine:
        await engine.load(source("once", SAY))
        before = (await engine.call("say", {"word": "before"})).value
        pid = os.fork()
        if pid == 0:
            CHILD
        status = (await trio.to_thread.run_sync(os.waitpid, pid, 0))[1]
        after = [(await engine.call("say", {"word": "after"})).value for _ in range(3)]
        return [before, status, after]
told(within(60, main))
"""

    @pytest.mark.parametrize(
        "child", ["os._exit(0)", "os.execv('/bin/true', ['true'])", "sys.stdout = None; os.closerange(3, 1000); os._exit(0)"]
    )
    def test_a_child_that_goes_its_way_takes_nothing_along(self, tmp_path: Path, child: str) -> None:
        """It exits, becomes another program, or closes what it inherited: the engine answers afterwards, and ends in time."""
        made = programs.run(tmp_path, PRELUDE + self.FORKED.replace("CHILD", child), variables={"HOME": str(tmp_path)})
        assert made == ["before", 0, ["after", "after", "after"]]

    def test_a_program_that_becomes_another_one_inherits_nothing(self, tmp_path: Path) -> None:
        """A plain child of the host sees only the standard descriptors; the engine's are all closed on exec."""
        text = PRELUDE + (
            "import subprocess\n"
            "async def main():\n    async with Engine() as engine:\n        await engine.load(source('once', SAY))\n"
            "        await engine.call('say', {})\n"
            "        listing = 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\"))))'\n"
            "        run = lambda: subprocess.run([sys.executable, '-c', listing], close_fds=False, capture_output=True, text=True)\n"
            "        return (await trio.to_thread.run_sync(run)).stdout\n"
            "told(within(30, main))"
        )
        assert programs.run(tmp_path, text, variables={"HOME": str(tmp_path)}) == "[0, 1, 2, 3]\n"

    async def test_all_ends_with_a_killed_host_whose_forked_child_lives(self, tmp_path: Path) -> None:
        """The child holds a copy of every descriptor, so no end of file is seen; launcher, jails and tool end all the same."""
        host = started(programs.command(tmp_path, WAITING), tmp_path)
        assert host.stdout is not None
        with host.stdout as output:
            child, launcher = programs.answer((await trio.to_thread.run_sync(lambda: output.readline() + output.readline())).decode())
        forked, below = psutil.Process(child), psutil.Process(launcher)
        try:
            everything = [below, *below.children(recursive=True)]
            assert len(everything) >= 4  # launcher, monitor, first process, tool
            host.kill()
            host.wait()
            await moments.wait_gone(everything)
            assert forked.is_running()
        finally:
            forked.kill()
            host.kill()
            host.wait()
