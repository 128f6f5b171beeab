"""What tests of endings share: a tool that runs any text it is given, the moment at which it runs, and the processes around it.

A test knows that a tool is running because the tool said so through the engine; it never waits for a time to pass.
"""

import contextlib
import os
import select
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import trio

from engine.events import ToolOutput
from engine.host import Engine
from engine.outcome import Outcome
from tests import kit

RUN = '''
import os, sys
from typing import Any
from engine import Context, tool

def frame(number, *fields):
    """One frame, as the guest would write it."""
    return sys.modules["guest.wire"].pack(number, list(fields))

def forge(data):
    """Write to the channel, past the guest."""
    while data:
        data = data[os.write(3, data):]

@tool(effect="read")
def run(code: str, context: Context) -> Any:
    """Run a text; its answer is what it names value."""
    scope = {"context": context, "forge": forge, "frame": frame, "os": os, "sys": sys}
    exec(compile(code, "text.py", "exec"), scope)
    return scope.get("value")

@tool(effect="read")
def echo(word: str) -> str:
    """The word."""
    return word
'''
HERE = "context.emit('here')\n"  # for a text that is to be caught while it runs
FOREVER = "while True:\n    pass\n"
# true in a call and false while a source is described: only a call's child takes the rules of declarations as applied (guest/describe.py)
CALLED = "import sys\nCALLED = sys.modules['engine.authoring.rules'].problems.__module__ == 'guest.describe'\n"


async def run(engine: Engine, folder: Path, code: str, **options: Any) -> Outcome:
    """The outcome of a text that is run as a tool. A time that is given is the text's: its worker is ready before."""
    await _ready(engine, folder, options)
    return await engine.call("run", {"code": code}, **options)


async def assert_works(engine: Engine) -> None:
    """A call of a tool that means no harm is answered, by the same engine."""
    with trio.fail_after(30):
        outcome = await engine.call("echo", {"word": "still here"})
        await outcome.concluded()
    assert (outcome.reason, outcome.value) == ("ok.done", "still here")


async def _ready(engine: Engine, folder: Path, options: Mapping[str, Any]) -> None:
    """Load the tool; where its call has a deadline of its own, have a worker wait that a call without limits of its own would take."""
    await engine.load(kit.write(folder, RUN))
    if "timeout_ms" in options and not options.get("limits"):
        await engine.warm("run", tenant=options.get("tenant"))


@contextlib.asynccontextmanager
async def running(engine: Engine, folder: Path, code: str, **options: Any) -> AsyncIterator[AsyncIterator[ToolOutput | Outcome]]:
    """What comes of a text, from the moment at which it runs and has said so. A time that is given is the text's, as above."""
    await _ready(engine, folder, options)
    async with engine.stream("run", {"code": HERE + code}, **options) as items:
        await anext(items)
        yield items


async def last(items: AsyncIterator[ToolOutput | Outcome]) -> Outcome:
    """The outcome, after all that came before it."""
    return (await taken(items))[1]


async def taken(items: AsyncIterator[ToolOutput | Outcome]) -> tuple[list[ToolOutput], Outcome]:
    """All that came before the outcome, and the outcome."""
    shown: list[ToolOutput] = []
    async for item in items:
        if isinstance(item, Outcome):
            return shown, item
        shown.append(item)
    raise AssertionError("the stream ended without an outcome")


class Tree:
    """The processes of an engine, seen from outside: launchers, and of each jail its monitor, its first process and its children.

    ``launcher`` is the one that makes the jails of tools: an engine of WebAssembly workers has a second. A jail that was made ahead of
    any order is none yet.
    """

    def __init__(self, engine: Engine) -> None:
        self.launchers = [psutil.Process(pid) for pid in engine.launcher_pids]
        self.launcher = self.launchers[-1]
        self.monitors = ordered(below(self.launchers))
        self.firsts = below(self.monitors)
        self.children = below(self.firsts)

    def all(self) -> list[psutil.Process]:
        """Every process below the supervisor."""
        return [*self.launchers, *self.monitors, *self.firsts, *self.children]


UNBOUND = "unbound-jail"  # as its processes are called; the monitor's name stays when it was bound


def ordered(monitors: list[psutil.Process]) -> list[psutil.Process]:
    """Those of the launcher's children that somebody ordered: all but the jail that was made ahead of its order."""
    return [one for one in monitors if not all(_name(part) == UNBOUND for part in (one, *below([one])))]


async def made_ahead(launcher: int) -> tuple[psutil.Process, psutil.Process]:
    """Monitor and first process of the jail that waits to be ordered, as soon as there is one."""
    with trio.fail_after(30):
        while True:
            monitors = below([psutil.Process(launcher)])
            for monitor in set(monitors) - set(ordered(monitors)):
                for first in below([monitor]):
                    return monitor, first
            await trio.sleep(0.001)


def _name(one: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return one.name()
    return ""


def below(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The living children of these processes."""
    found: list[psutil.Process] = []
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += one.children()
    return living(found)


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a number that was given to another process is not one of them, nor is one that waits to be buried."""
    return [one for one in processes if _lives(one)]


def _lives(one: psutil.Process) -> bool:
    try:
        # "dead" is what one that is being buried shows for a moment
        return one.is_running() and one.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


async def wait_gone(processes: list[psutil.Process], seconds: float = 20) -> None:
    """Until the kernel says of each that it has ended; the test fails when that takes longer."""
    await trio.to_thread.run_sync(wait_gone_sync, processes, seconds)


def wait_gone_sync(processes: list[psutil.Process], seconds: float = 20) -> None:
    """The same outside trio. A zombie that its new parent has not buried yet has ended."""
    deadline = time.monotonic() + seconds
    for one in living(processes):
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(one.pid)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.poll(max(0, int((deadline - time.monotonic()) * 1000)))
            os.close(pidfd)
    assert living(processes) == []


def policy(folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> Path:
    """A policy file: the default one with these entries instead of its own."""
    lines = ['extends = "required"']
    for table, entries in tables.items():
        lines.append(f"[{table}]")
        for name, value in entries.items():
            shown = str(value).lower() if isinstance(value, int) else f'"{value}"'
            lines.append(f'{name} = {{ value = {shown}, reason = "a test needs it so" }}')
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / "policy.toml"
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


def resident_kib() -> int:
    """What this process holds in memory now."""
    return psutil.Process(os.getpid()).memory_info().rss >> 10
