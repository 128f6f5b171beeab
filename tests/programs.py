"""Programs that embed the engine, each in a process of its own: what they print as JSON is what a test compares."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import kit

SAY = 'from engine import tool\n\n@tool(effect="read", description="says it")\ndef say(word: str = "said") -> str:\n    return word\n'
# every program begins with this: `told(value)` is its answer, `source(text)` a tool file, `run(main)` a trio program
_HEAD = """
import json, os, signal, sys, threading
from pathlib import Path
import trio
from engine.errors import EngineError
from engine.host import Engine

FOLDER = Path(sys.argv[1])
ARGUMENTS = sys.argv[2:]

def told(value):
    sys.stdout.write("\\n" + json.dumps(value) + "\\n")
    sys.stdout.flush()

def source(name, text):
    place = FOLDER / name / "tools.py"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place

def within(seconds, main):
    async def bounded():
        with trio.fail_after(seconds):
            return await main()
    return trio.run(bounded)
"""


def command(folder: Path, text: str, arguments: Sequence[str] = (), *, interpreter: str = sys.executable) -> list[str]:
    """How the program is started; its text is written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("program-*.py")))
    program = folder / f"program-{number}.py"
    program.write_text(_HEAD + text)
    return [interpreter, "-X", "dev", "-W", "ignore", str(program), str(folder), *arguments]


def environment(**changes: str | None) -> dict[str, str]:
    """The test's own environment with the project on the module path and these changes; None takes a name away."""
    paths = [str(kit.PROJECT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def answer(output: str) -> Any:
    """What the program told last."""
    return json.loads(output.strip().splitlines()[-1])


def run(
    folder: Path,
    text: str,
    *arguments: str,
    variables: Mapping[str, str | None] | None = None,
    before: Sequence[str] = (),
    interpreter: str = sys.executable,
    seconds: float = 60,
    **options: Any,
) -> Any:
    """What the program told; it must have ended well within the time. ``before`` are words in front of its command."""
    started = [*before, *command(folder, text, arguments, interpreter=interpreter)]
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):  # files, because a process left behind would hold a pipe open
        done = subprocess.run(
            started, stdout=output, stderr=errors, timeout=seconds, check=False, env=environment(**(variables or {})), **options
        )
        output.seek(0)
        errors.seek(0)
        assert done.returncode == 0, errors.read().decode("utf-8", "replace")[-4000:]
        return answer(output.read().decode())
