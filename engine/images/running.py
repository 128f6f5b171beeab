"""Starts the programs that fetch wheels and make images: pip, an interpreter's venv, a builder, the compiler.

Its job: one program at a time, with an environment from nothing, ended with everything it started when we are interrupted.
Not its job: what is started and what its failure means (the modules beside this one).
Laws:
1. Nothing of a program outlives an interruption or its time, and the program not its starter (tests/unit/test_image_running.py).
2. A program sees the variables it is given, the language, and no others (tests/unit/test_image_running.py).
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from engine.places import data_dir

_BOUND = str(data_dir("worker_images") / "enter" / "bound.py")
_LANGUAGE = {"LANG": "C.UTF-8"}  # without any, Python sets a variable of its own
_LOOK_MS = 250  # between looks at a program, each of which may show that time passes
_SAID_BYTES = 64 << 10  # of what it printed, its end
_SAID_LINES = 5


class Failed(Exception):
    """A program ended with an error, or did not end in its time; ``lines`` are its last words."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


def run(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    seconds: float,
    folder: Path | None = None,
    tick: Callable[[], None] = lambda: None,
) -> str:
    """What the program printed, when it has ended well. ``tick`` is called now and then while it runs. Raises Failed."""
    with tempfile.TemporaryFile() as said:  # a file, so that a program left behind by the program holds no pipe open
        try:
            process = subprocess.Popen(  # noqa: S603 - fixed programs of ours and paths, no shell
                [sys.executable, "-I", "-S", _BOUND, str(os.getpid()), *(str(word) for word in command)],
                env={**_LANGUAGE, **environment},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, so that it can be ended with all that it started
            )
        except OSError as error:
            raise Failed(f"{command[0]} cannot be started: {error.strerror}") from None
        try:
            _wait(process, seconds, tick)
        finally:
            _end(process)
        text = _end_of(said)
    if process.returncode:
        lines = [line.strip() for line in text.splitlines() if line.strip()][-_SAID_LINES:]
        if process.returncode < 0:
            lines.append(f"{Path(command[0]).name} died of {signal.Signals(-process.returncode).name}")
        raise Failed(*(lines or [f"{Path(command[0]).name} ended with {process.returncode} and said nothing"]))
    return text


def _wait(process: subprocess.Popen[bytes], seconds: float, tick: Callable[[], None]) -> None:
    """Until it has ended, without burying it."""
    until = time.monotonic() + seconds
    ended = select.poll()
    descriptor = os.pidfd_open(process.pid)
    try:
        ended.register(descriptor, select.POLLIN)
        while not ended.poll(_LOOK_MS):
            tick()
            if time.monotonic() > until:
                raise Failed(f"it did not end within {seconds:.0f} s")
    finally:
        os.close(descriptor)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program's whole group, whose number is surely its own: the leader is not buried yet."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_of(said: IO[bytes]) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _SAID_BYTES))
    return said.read().decode("utf-8", "replace")
