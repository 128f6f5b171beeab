"""Starts the command line as a user does, in a process of its own, with a state folder of the test's own."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kit import PROJECT

TOOLS = '''
import os, sys, time
from collections.abc import Iterator
from engine import Context, tool

@tool(effect="read")
def double(number: int) -> int:
    """Twice the number."""
    print("doubling")
    return 2 * number

@tool(effect="read")
def fail() -> None:
    """Fails."""
    raise ValueError("on purpose")

@tool(effect="read")
def leave() -> None:
    """Ends its process."""
    os._exit(3)

@tool(effect="read")
def spin(ctx: Context) -> None:
    """Says that it runs, then never ends."""
    ctx.progress(1, None, "running")
    while True:
        continue

@tool(effect="read")
def count(upto: int, ctx: Context) -> Iterator[int]:
    """Counts."""
    ctx.log.info("counting", upto=upto)
    ctx.emit({"begin": 1})
    for number in range(1, upto + 1):
        ctx.progress(number, upto, "on")
        yield number

@tool(effect="read")
def drive() -> str:
    """Tries to drive the terminal."""
    print("  \\x1b[2J\\x1b]0;owned\\x07shown\\x9b31m\\u202e")
    sys.stderr.write("below\\x1b[1A\\n")
    return "\\x1b[2Jletters \\u00e9\\u202e\\x7f"

@tool(effect="read")
def large() -> list[str]:
    """More than a pipe holds."""
    return ["x" * 100] * 5000

@tool(effect="write", dangerous=True)
def erase() -> None:
    """Dangerous."""
'''


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout; more or less than one is a failure."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """The test's own environment, with a home and a state folder below the folder."""
    return {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), **extra}


def command(*arguments: str) -> list[str]:
    """The words that start it."""
    return [sys.executable, "-m", "engine", *arguments]


def stockade(folder: Path, *arguments: str, given: bytes = b"", variables: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end."""
    done = subprocess.run(
        command(*arguments),
        cwd=PROJECT,
        env=environment(folder, **(variables or {})),
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


def tools(folder: Path) -> str:
    """A source with tools that end in every way."""
    place = folder / "tools.py"
    place.write_text(TOOLS, encoding="utf-8")
    return str(place)
