"""Ctrl-C and SIGTERM in the middle of a call: a clean end, exit code 130, nothing left alive."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.faces import leftovers
from tests import kit, moments
from tests.e2e.commands import command, environment, tools
from tests.kit import PROJECT

pytestmark = pytest.mark.slow


def _running(tmp_path: Path) -> "subprocess.Popen[bytes]":
    """A command whose tool has said that it runs."""
    process = subprocess.Popen(
        command("run", tools(tmp_path), "spin", "--json"),
        cwd=PROJECT,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert json.loads(process.stderr.readline())["message"] == "running"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_call_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """One document, exit code 130, no trace; of launcher, jail and child none is left."""
    with _running(tmp_path) as process:
        assert len(leftovers.processes_of(process.pid)) >= 3
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["reason"], err) == (130, "cancelled.caller", b"")
    assert leftovers.processes_of(process.pid) == []


def test_the_receipt_of_such_a_call_is_in_the_journal(tmp_path: Path) -> None:
    """The call was cancelled, and that stands on its receipt."""
    with _running(tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    (journal,) = (tmp_path / "state").rglob("receipts.jsonl")
    assert [made["verdict"]["reason"] for made in kit.call_receipts(journal.parent.parent)] == ["cancelled.caller"]


def test_a_command_killed_outright_leaves_nothing_either(tmp_path: Path) -> None:
    """SIGKILL leaves no time to clean up: the kernel ends the launcher with its supervisor, and the jail with the launcher."""
    with _running(tmp_path) as process:
        watched = [psutil.Process(int(line.split()[1])) for line in leftovers.processes_of(process.pid)]
        process.kill()
        process.communicate(timeout=60)
    moments.wait_gone_sync(watched)


def test_a_signal_while_pip_runs_ends_it_too(tmp_path: Path) -> None:
    """Outside of the loop SIGTERM is as orderly: the folder for wheels is removed, and so is the process that fetched them."""
    requirements, temporary = tmp_path / "r.txt", tmp_path / "tmp"
    requirements.write_text(f"demo==1 --hash=sha256:{'0' * 64}\n")
    temporary.mkdir()
    slow = "import sys, time; print('up', file=sys.stderr, flush=True); time.sleep(60)"
    program = (
        "import subprocess, sys\nfrom engine.faces import cli\nfrom engine.images import fetch\n"
        f"fetch._pip = lambda *_: subprocess.run([sys.executable, '-c', {slow!r}])\n"
        f"cli.main(['layer', 'add', {str(requirements)!r}, '--json'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        env=environment(tmp_path, TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == [b"fetching the pinned wheels with pip ...\n", b"up\n"]
        below = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["reason"], list(temporary.iterdir())) == (130, "cancelled.caller", [])
    assert [child for child in below if child.is_running()] == []
