"""The sources that the lines of a batch name, each loaded once and let go of when it was not used for long.

Its job: load a source for the first line that needs it, remember what it is or why it cannot be loaded, keep only so many.
Not its job: loading (``loading.py``), calls (``run.py``).
Laws:
1. A source is loaded once while lines use it; tools of two sources may have one name (tests/unit/test_batch_sources.py).
2. At most so many sources are kept, and none that a call uses is let go of (tests/unit/test_batch_sources.py).
3. What another try would not change is remembered; what it may change is tried again (tests/unit/test_batch_sources.py).
"""

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import trio

from engine.declaration import Declaration
from engine.errors import EngineError
from engine.host import WorkerKind
from engine.outcome import REASONS, Fault, Outcome, error_for
from engine.preparing import LoadedTool

_LASTING_FAULTS = (Fault.AUTHOR, Fault.OPERATOR)
_LASTING = ("refused.source_missing", "refused.worker_kind")


class Runs(Protocol):
    """What a batch needs of an engine."""

    async def load(self, source: str, *, worker: WorkerKind, namespace: str) -> list[Declaration]:
        """As the engine's."""

    async def unload(self, namespace: str) -> None:
        """As the engine's."""

    def loaded(self, name: str, *, namespace: str) -> LoadedTool:
        """As the engine's."""

    async def call(self, name: str, arguments: object, *, timeout_ms: int | None, tenant: str | None, namespace: str) -> Outcome:
        """As the engine's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """A loaded source: its bundle's digest, and the effects of its tools by name."""

    bundle: str
    effects: Mapping[str, str]


class _Entry:
    def __init__(self) -> None:
        self.users = 0
        self.turn = trio.Lock()
        self.held: Held | None = None
        self.refusal: tuple[str, tuple[str, ...]] | None = None  # no exception: one that is raised again and again grows


class Sources:
    """The sources of one batch, at most ``keep`` of them beside those in use."""

    def __init__(self, engine: Runs, worker: WorkerKind, keep: int = 256) -> None:
        self._engine, self._worker, self._keep = engine, worker, keep
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first

    @contextlib.asynccontextmanager
    async def hold(self, source: str) -> AsyncIterator[Held]:
        """The source, loaded, and not let go of before the block ends. Raises EngineError when it cannot be loaded."""
        entry = self._entries.setdefault(source, _Entry())
        self._entries.move_to_end(source)
        entry.users += 1
        try:
            if len(self._entries) > self._keep:
                await self._let_go()
            if entry.held is None:
                async with entry.turn:
                    entry.held = entry.held or await self._load(source, entry)
            yield entry.held
        finally:
            entry.users -= 1  # and nothing that an interrupt could cut: what is finished in the block must not be lost

    async def _load(self, source: str, entry: _Entry) -> Held:
        if entry.refusal is not None:
            raise error_for(entry.refusal[0], *entry.refusal[1])
        try:
            made = await self._engine.load(source, worker=self._worker, namespace=source)
        except EngineError as error:
            if REASONS[error.code].fault in _LASTING_FAULTS or error.code in _LASTING:
                entry.refusal = error.code, error.lines
            raise
        bundle = self._engine.loaded(made[0].name, namespace=source).loaded.bundle.digest
        return Held(bundle=bundle, effects={declaration.name: declaration.effect for declaration in made})

    async def _let_go(self) -> None:
        unused = [source for source, entry in self._entries.items() if not entry.users]
        gone = [(source, self._entries.pop(source)) for source in unused[: len(self._entries) - self._keep]]
        for source, entry in gone:
            if entry.held is not None and source not in self._entries:  # meanwhile another line may have asked for it again
                await self._engine.unload(source)
