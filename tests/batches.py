"""Batches over an engine of the test's own, which answers at once or when it is told to."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import trio

from engine.batch.lines import Defaults
from engine.batch.run import Batch, Wanted, opened
from engine.declaration import Declaration
from engine.errors import HostError
from engine.host import WorkerKind
from engine.outcome import REASONS, Outcome, error_for
from engine.preparing import LoadedTool

EFFECTS = {**dict.fromkeys(("double", "fail", "hold", "late", "bug", "left", "full"), "read"), "pay": "write", "send": "external"}
LINE_BYTES = 4096


class FakeEngine:
    """Answers as an engine would; ``calls`` counts what it was asked for, by tool and number."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        self.loads: list[str] = []
        self.unloaded: list[str] = []
        self.in_flight = self.most = 0
        self.lanes: Counter[tuple[str, str | None]] = Counter()
        self.most_in_lane = 0
        self.holding = trio.Event()  # a call of ``hold`` is there
        self.gate = trio.Event()  # lets calls of ``hold`` go on

    async def load(self, source: str, *, worker: WorkerKind, namespace: str) -> list[Declaration]:
        """Tools of every effect; sources named after a reason are refused for it."""
        self.loads.append(source)
        await trio.lowlevel.checkpoint()
        if source in REASONS:
            raise error_for(source, "on purpose")
        return [cast(Declaration, SimpleNamespace(name=name, effect=effect)) for name, effect in EFFECTS.items()]

    async def unload(self, namespace: str) -> None:
        """Noted."""
        self.unloaded.append(namespace)
        await trio.lowlevel.checkpoint()

    def loaded(self, name: str, *, namespace: str) -> LoadedTool:
        """One bundle a source, those whose names begin with the same letter alike."""
        return cast(LoadedTool, SimpleNamespace(loaded=SimpleNamespace(bundle=SimpleNamespace(digest=namespace[0]))))

    async def call(self, name: str, arguments: object, *, timeout_ms: int | None, tenant: str | None, namespace: str) -> Outcome:
        """Twice the number, or what the tool's name says."""
        number = cast(Mapping[str, int], arguments).get("number", 0)
        lane = (namespace[0], tenant)
        self.in_flight += 1
        self.lanes[lane] += 1
        self.most, self.most_in_lane = max(self.most, self.in_flight), max(self.most_in_lane, self.lanes[lane])
        try:
            return await self._answer(name, number)
        finally:
            self.in_flight -= 1
            self.lanes[lane] -= 1

    async def _conclude(self) -> None:
        self.holding.set()
        await self.gate.wait()

    async def _answer(self, name: str, number: int) -> Outcome:
        self.calls[name, number] += 1
        if name == "hold":
            self.holding.set()
            await self.gate.wait()
        await trio.lowlevel.checkpoint()
        match name:
            case "bug":
                raise RuntimeError("on purpose")
            case "left":
                raise HostError("engine_failed.not_clean", "something is alive")
            case "full":
                return outcome("refused.storage")
            case "fail":
                return outcome("tool_error.exception")
            case "late":
                return outcome("ok.done", 2 * number, self._conclude)
        return outcome("ok.done", 2 * number) if name in EFFECTS else outcome("refused.unknown_tool")


def outcome(reason: str, value: Any = None, first: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint) -> Outcome:
    """An outcome with a receipt, and what that waits for."""
    usage = {"wall_ms": 1.5, "cpu_ms": 1, "peak_rss_bytes": 4096, "events": 0}
    receipt = MappingProxyType({"id": "r", "worker": {"started": reason == "ok.done"}, "usage": usage})

    async def told() -> Mapping[str, Any]:
        await first()
        return receipt

    lines = () if reason == "ok.done" else ("on purpose",)
    return Outcome(status=REASONS[reason].status, reason=reason, value=value, lines=lines, conclusion=told)


def asked(id: str, tool: str = "double", number: int = 0, source: str = "a.py", **more: Any) -> dict[str, Any]:
    """One call, as data."""
    return {"id": id, "source": source, "tool": tool, "arguments": {"number": number}, **more}


def write_calls(folder: Path, lines: Iterable[Mapping[str, Any] | str]) -> Path:
    """The calls as a file; texts stand there as they are."""
    path = folder / "calls.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    return path


async def run(engine: FakeEngine, folder: Path, *, resume: bool = False, allow_repeat: bool = False, **more: Any) -> Batch:
    """Run the calls in the folder to their end; the batch as it stands then."""
    wanted = Wanted(**{"concurrency": 4, "jails": 4, "line_bytes": LINE_BYTES, "defaults": Defaults(), **more}, allow_repeat=allow_repeat)
    with (folder / "calls.jsonl").open("rb") as calls, opened(folder / "results.jsonl", resume=resume) as (results, started):
        batch = Batch(engine, calls, results, started, wanted)
        await batch.run()
    return batch


def results(folder: Path) -> list[dict[str, Any]]:
    """What stands in the file of outcomes, in the order of the calls' lines."""
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    return sorted(found, key=lambda record: int(record["line"]))


def ends(folder: Path) -> list[tuple[str | None, str]]:
    """Id and reason of each outcome, in the order of the calls' lines."""
    return [(record["id"], record["reason"]) for record in results(folder)]
