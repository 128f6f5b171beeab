"""Runs one attempt twice: jailed by an engine, and bare as a plain process of this user, which is the attempt's control.

A test of a wall writes one source, asserts that ``bare`` succeeds (else the test proves nothing), that ``jailed`` fails for the named
reason, and looks from outside for the effect.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import trio

from engine.host import Engine
from engine.outcome import Outcome

_DEFAULTS: dict[str, Any] = {"worker": "native"}  # of engines, until a test says otherwise
PROJECT = Path(__file__).resolve().parents[1]
_DRIVER = """
import json, os, sys
folder, project, name, arguments, answer = sys.argv[1:]
sys.path += [project]
sys.path[:0] = [folder]
import tools
from engine.authoring import convert
tool = next(value for value in vars(tools).values() if getattr(value, "name", None) == name)
value = tool.function(**convert.arguments_for(tool, json.loads(arguments)))
if hasattr(value, "__next__"):
    value = list(value)
elif hasattr(value, "__await__"):
    import asyncio
    value = asyncio.run(value)
with open(answer, "w") as file:
    json.dump(convert.to_data(value), file)
"""


@dataclasses.dataclass(frozen=True)
class Bare:
    """What a plain process made of a source: its tool's value, None when it gave none."""

    value: Any
    returncode: int
    stdout: str
    stderr: str


def write(folder: Path, source: str | Mapping[str, str]) -> Path:
    """The source as files below the folder (one text is tools.py); the path of tools.py."""
    files = {"tools.py": source} if isinstance(source, str) else source
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return folder / "tools.py"


def bare(
    folder: Path,
    source: str | Mapping[str, str],
    tool: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    seconds: float = 20,
    **options: Any,
) -> Bare:
    """The control: the same tool in a plain ``python -I -S`` without any wall, as this user."""
    place = write(folder, source).parent
    answer = place / "answer.json"
    answer.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _DRIVER, str(place), str(PROJECT), tool, json.dumps(dict(arguments or {})), str(answer)],
        capture_output=True,
        timeout=seconds,
        check=False,
        **options,
    )
    value = json.loads(answer.read_text()) if answer.exists() else None
    return Bare(value, done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


async def jailed(
    engine: Engine, folder: Path, source: str | Mapping[str, str], tool: str, arguments: Mapping[str, Any] | None = None, **options: Any
) -> Outcome:
    """The same tool by way of the engine; ``options`` go to ``Engine.call``."""
    await engine.load(write(folder, source))
    return await engine.call(tool, dict(arguments or {}), **options)


def call_receipts(state: Path) -> list[dict[str, Any]]:
    """The receipts of calls in a state folder's journal, oldest first; those of describing are left out."""
    lines = (state / "journal" / "receipts.jsonl").read_text(encoding="utf-8").splitlines()
    return [made for line in lines if (made := json.loads(line))["kind"] == "call"]


@dataclasses.dataclass(frozen=True)
class Belongings:
    """What this process holds that an engine could leave behind."""

    descriptors: int
    children: frozenset[int]
    threads: int

    @classmethod
    def now(cls) -> "Belongings":
        """As it is; dead children that nobody has waited for count as well."""
        own = psutil.Process()
        # trio keeps a thread of its pool for ten idle seconds, so one may end while a test looks
        idle = sum(thread.name.startswith("Trio thread") for thread in threading.enumerate())
        return cls(own.num_fds(), frozenset(child.pid for child in own.children(recursive=True)), own.num_threads() - idle)


def cgroups_of(launcher: int) -> list[str]:
    """The cgroups that the launcher of that pid has made and not removed."""
    found = []
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{root}/{name}" for name in folders if name.startswith(f"stockade-{launcher}-")]
    return found


def members(cgroup: str) -> list[int]:
    """The processes in a cgroup."""
    return [int(pid) for pid in Path(cgroup, "cgroup.procs").read_text().split()]


def mounts_below(folder: Path) -> list[str]:
    """Mounts of this process's namespace below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{folder}/")]


@contextlib.contextmanager
def default_kind(kind: str, image_dir: Path) -> Iterator[None]:
    """Have engines that are made in this block run their sources in that kind of worker."""
    before = dict(_DEFAULTS)
    _DEFAULTS.update(worker=kind, image_dir=image_dir)
    try:
        yield
    finally:
        _DEFAULTS.clear()
        _DEFAULTS.update(before)


def engine_text() -> str:
    """The same for a program that is written out: keyword arguments of ``Engine``, as its text; ``Path`` is a name there."""
    return ", ".join(
        f"{name}=Path({str(value)!r})" if isinstance(value, Path) else f"{name}={value!r}" for name, value in _DEFAULTS.items()
    )


def plain_engine(state: Path | None, **options: Any) -> Engine:
    """An engine for tests that look themselves at what it leaves."""
    return Engine(state_dir=state, **{**_DEFAULTS, **options})


@contextlib.asynccontextmanager
async def clean_engine(state: Path | None, **options: Any) -> AsyncIterator[Engine]:
    """An engine that must leave nothing: no process, descriptor, cgroup or mount when its block ends."""
    await trio.to_thread.run_sync(lambda: None)  # trio's own worker thread is there before the count
    before = Belongings.now()
    launchers: list[int] = []
    async with plain_engine(state, **options) as engine:
        yield engine
        launchers += engine.launcher_pids
    after = Belongings.now()
    assert after.children == before.children
    assert after.descriptors == before.descriptors
    left = [cgroup for launcher in launchers for cgroup in cgroups_of(launcher)]
    assert left == [], left
    if state is not None:
        assert mounts_below(state) == []
