"""Programs that make images: bounded, with nothing of ours in their environment, and gone with us."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.images import running
from tests import moments
from tests.kit import PROJECT

PYTHON = [sys.executable, "-I", "-c"]
# says its own number into the file, then never ends
FOREVER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()) + '\\n'); time.sleep(600)"


def run(program: str, *arguments: str, seconds: float = 60, **environment: str) -> str:
    """What the program printed."""
    return running.run([*PYTHON, program, *arguments], environment=environment, seconds=seconds)


def test_a_program_sees_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours, and nothing on its standard input."""
    monkeypatch.setenv("STOCKADE_CANARY", "secret")
    said = run("import json, os, sys; print(json.dumps([dict(os.environ), sys.stdin.read()]))", MINE="1")
    assert json.loads(said) == [{"MINE": "1", "LANG": "C.UTF-8"}, ""]


def test_a_failure_is_told_by_its_last_words() -> None:
    """Of both outputs, five lines at most; one that says nothing has its status, one that was killed its signal."""
    with pytest.raises(running.Failed) as caught:
        run("import sys; [print(n, file=sys.stderr) for n in range(9)]; sys.exit(3)")
    assert caught.value.lines == ("4", "5", "6", "7", "8")
    with pytest.raises(running.Failed) as caught:
        run("import sys; sys.exit(3)")
    assert caught.value.lines == (f"{Path(sys.executable).name} ended with 3 and said nothing",)
    with pytest.raises(running.Failed) as caught:
        run("import os; print('on', flush=True); os.abort()")
    assert caught.value.lines == ("on", f"{Path(sys.executable).name} died of SIGABRT")


def test_a_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(running.Failed) as caught:
        running.run([tmp_path / "none"], environment={}, seconds=60)
    assert caught.value.lines == (f"{tmp_path / 'none'} cannot be started: No such file or directory",)


def test_time_passes_while_it_runs() -> None:
    """Somebody is told, now and then, until it ends."""
    with pytest.raises(KeyError):
        running.run([*PYTHON, "import time; time.sleep(600)"], environment={}, seconds=600, tick=_fail)


def test_what_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """The program's own child is gone as well."""
    starting = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {FOREVER!r}, sys.argv[1]]); time.sleep(600)"
    with pytest.raises(running.Failed, match="did not end within"):
        run(starting, str(tmp_path / "pid"), seconds=2)
    moments.wait_gone_sync(_process(tmp_path / "pid"))


def test_a_program_dies_with_who_started_it(tmp_path: Path) -> None:
    """A kill leaves no time to end it: the kernel does."""
    pid = tmp_path / "pid"
    starter = (
        "import sys; from engine.images import running\n"
        f"running.run([{sys.executable!r}, '-c', {FOREVER!r}, {str(pid)!r}], environment={{}}, seconds=600)"
    )
    os.mkfifo(pid)
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=PROJECT)
    with process:
        watched = _process(pid)
        process.kill()
    moments.wait_gone_sync(watched)


def _fail() -> None:
    raise KeyError


def _process(pid: Path) -> list[psutil.Process]:
    try:
        return [psutil.Process(int(pid.read_text()))]
    except psutil.NoSuchProcess:
        return []
