"""Sources are parsed in a process that can be lost: what it dies of refuses that file, and nothing of the host."""

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio

from engine.errors import HostError, ToolError
from engine.host import Engine
from engine.worker import parser as parsers
from engine.worker.parser import Parser, open_parser
from tests import kit, moments


@asynccontextmanager
async def parsing(engine: Engine) -> AsyncIterator[tuple[Parser, psutil.Process]]:
    """A parser of the engine's launcher, and its process."""
    launcher = await engine._launchers.native()
    before = set(psutil.Process(launcher.pid).children())
    async with open_parser(launcher, engine._state.places) as parse:
        (process,) = set(psutil.Process(launcher.pid).children()) - before
        yield parse, process


async def told(parse: Parser, source: bytes) -> str:
    """What becomes of a source, in a word."""
    try:
        facts = await parse(source, "hostile.py")
    except ToolError as error:
        return error.code
    return "parsed" if facts["ok"] else "limits" if "limit" in facts else "broken"


async def test_facts_of_a_source(engine: Engine) -> None:
    """Imports and tools, as many sources one after the other as there are."""
    async with parsing(engine) as (parse, _):
        first = await parse(b"import json\n", "a.py")
        second = await parse(b"x = (", "b.py")
    assert (first["ok"], [row[1] for row in first["imports"]], second["ok"]) == (True, ["json"], False)


async def test_a_file_name_of_any_bytes(engine: Engine) -> None:
    """The name is the file system's: it need not be text."""
    async with parsing(engine) as (parse, _):
        assert (await parse(b"import json\n", "caf\udce9.py"))["ok"] is True
        assert (await parse(b"import re\n", "after.py"))["ok"] is True


@pytest.mark.parametrize(
    "source",
    [
        b"x = " + b"(" * 100_000 + b")" * 100_000,
        b"x = " + b"-" * 1_000_000 + b"1",
        b"x = " + b"[" * 300_000,
        b"x = 1" + b" + 1" * 200_000,
        b"x" + b".a" * 300_000,
        b"if x:\n" + b"".join(b" " * n + b"if x:\n" for n in range(1, 1200)),
        b"\0" * 1000,
        b"# coding: rot13\nvzcbeg bf\n",
        b"# coding: utf-7\n+AGk-mport os\n",
        b"\xff\xfe\xfd",
        b"def f(" + b"a," * 100_000 + b"a): pass",
        b"'''" + b"x" * (1 << 20),
        b"x = " + b"9" * 1_000_000,
    ],
    ids=[
        "parentheses",
        "minuses",
        "open brackets",
        "sums",
        "attributes",
        "indents",
        "zeros",
        "rot13",
        "utf-7",
        "no utf-8",
        "parameters",
        "open string",
        "digits",
    ],
)  # fmt: skip  names beside each other
async def test_a_source_that_is_hostile_to_parsers(engine: Engine, tmp_path: Path, source: bytes) -> None:
    """It is told of as broken or too much, in bounded time, and the next source parses with the same engine."""
    with trio.fail_after(60):
        async with parsing(engine) as (parse, _):
            assert await told(parse, source) in ("broken", "limits", "refused.source_limits")
        async with parsing(engine) as (parse, _):
            assert (await parse(b"import json\n", "benign.py"))["ok"] is True


async def test_a_parser_that_died_refuses_the_file(engine: Engine, tmp_path: Path) -> None:
    """Killed before it was asked, and then for each further file of that load; a new load has a new one."""
    with trio.fail_after(30):
        async with parsing(engine) as (parse, process):
            process.kill()
            await moments.wait_gone([process])
            for name in ("first.py", "second.py"):
                with pytest.raises(ToolError) as caught:
                    await parse(b"import json\n", name)
                assert (caught.value.code, caught.value.lines[0].split(":")[0]) == ("refused.source_limits", name)
        await moments.run(engine, tmp_path, "value = 1")
        await moments.assert_works(engine)


async def test_a_parser_that_is_silent_refuses_the_file(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped: after its time the file is refused, and the process is gone with the block."""
    monkeypatch.setattr(parsers, "_SECONDS", 0.2)
    with trio.fail_after(30):
        async with parsing(engine) as (parse, process):
            process.suspend()
            with pytest.raises(ToolError) as caught:
                await parse(b"import json\n", "silent.py")
        assert (caught.value.code, moments.living([process])) == ("refused.source_limits", [])


async def test_the_process_is_gone_with_the_block(engine: Engine) -> None:
    """Left in order, by an exception, and by cancellation in mid-parse."""
    seen = []
    with trio.fail_after(30):
        async with parsing(engine) as (_, process):
            seen.append(process)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the exception is raised in the block on purpose
            async with parsing(engine) as (_, process):
                seen.append(process)
                raise ZeroDivisionError
        with trio.CancelScope() as scope:
            async with parsing(engine) as (parse, process):
                seen.append(process)
                process.suspend()
                scope.cancel()
                await parse(b"import json\n", "never.py")
        assert scope.cancelled_caught
    assert (len(set(seen)), moments.living(seen)) == (3, [])


async def test_a_load_that_is_cancelled_leaves_no_parser(engine: Engine, tmp_path: Path) -> None:
    """At each of its first steps; the load after it works."""
    source = kit.write(tmp_path, moments.RUN)
    with trio.fail_after(60):
        for steps in range(1, 40, 3):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(engine.load, source)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert moments.Tree(engine).all() == [psutil.Process(engine.launcher_pid)]
        await engine.load(source)
        await moments.assert_works(engine)


async def test_a_launcher_that_died_starts_no_parser(engine: Engine) -> None:
    """The order says so, as a fault of this host."""
    launcher = await engine._launchers.native()
    os.kill(launcher.pid, signal.SIGKILL)
    with trio.fail_after(20), pytest.raises(HostError) as caught:
        async with open_parser(launcher, engine._state.places):
            pass
    assert caught.value.code == "refused.start_failed"


async def test_a_parser_that_answers_without_an_answer_refuses_the_file() -> None:
    """Taken over by what it parsed, it sends a frame that holds nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(b"\0\0\0\x02\x91\x02")
        with trio.fail_after(10), pytest.raises(ToolError) as caught:
            await Parser(ours)(b"import json\n", "hostile.py")
    assert caught.value.code == "refused.source_limits"
