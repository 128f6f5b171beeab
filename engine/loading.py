"""One load: from a path to tools that can be called, without running any of it outside a jail.

Its job: parse and close the graph, find the layers, publish the bundle, have a jailed child describe it, check what it says.
Not its job: calls (``call.py``), which tools are loaded already (``host.py``).
Laws:
1. The host never imports the source (tests/security/test_promise_outside.py).
2. With nobody asking for a kind, an image that cannot start on this host leaves the source to the native kind, which says so
   (tests/contract/test_wasm.py).
3. What was read by parsing and what the imported declaration says must be equal, or the source is refused (tests/contract/test_loading.py).
4. A source that brings a secret along is refused before anything of it runs (tests/security/test_secret_sources.py).
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from engine.authoring import canonical
from engine.declaration import Declaration, check_all
from engine.describing import describe
from engine.errors import EngineError
from engine.images.image import Image
from engine.images.publishing import Source
from engine.jail.plan import Places
from engine.launchers import Launchers
from engine.leaving import Leaving
from engine.outcome import error_for
from engine.policy.load import describe_policy, load_preload
from engine.policy.model import Kind, Policy
from engine.policy.resolve import Tightening, resolve_describe
from engine.preparing import Loaded, LoadedTool, Preparation
from engine.results.journal import Journal
from engine.results.sources import source_problems
from engine.secrecy import Secrecy
from engine.staging import bundle, code, graph, layers
from engine.staging.facts import Written
from engine.state import Stores
from engine.supervision.pool import Pool
from engine.worker.kinds import Choice, Needs, choose
from engine.worker.launcher import Launcher
from engine.worker.parser import open_parser

_LINES = 20  # problems told at once
_DESCRIBED = 256  # sources whose declarations are remembered; thousands would be held for as long as the engine lives
_FEW_BYTES = 256 << 10  # of a source, looked through in half a millisecond; more is for another thread
GUEST_NAMES = frozenset({"engine", "guest", "enter"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parsed:
    """A source that was read, and nothing more: its graph, its layers, and the byte code that the parser made of it."""

    closed: graph.Graph
    layers: tuple[layers.Layer, ...]
    code: Mapping[str, bytes]
    made_by: str
    policy: Policy

    @property
    def needs(self) -> Needs:
        """What a kind of worker is chosen by."""
        standard, named = self.closed.standard, self.closed.named
        return Needs(
            standard=standard | {name for name in named if name.rpartition(".")[0] in standard},
            externals=frozenset(self.closed.externals) - self.modules,
            native_layers=tuple(layer.name for layer in self.layers if layer.native),
            mode=self.policy.mode,
            freshness=self.policy.freshness,
            folders=tuple(sorted(self.policy.grants.folders)),
            memory_bytes=self.policy.limits.memory_bytes,
            clock_ms=self.policy.clock_ms,
            network=bool(self.policy.network.rules),
            http=any(f"{name}.".startswith(("engine.http.", "engine.authoring.http.")) for name in named),
        )

    @property
    def modules(self) -> frozenset[str]:
        """What the layers hold."""
        return frozenset().union(*(layer.modules for layer in self.layers))


class Loading:
    """Loads sources on one host; ``native`` is the native image's digest, ``launchers`` find the other ones.

    Raises PolicyError when the policy of describing or the list of modules to preload cannot be read.
    """

    def __init__(
        self,
        stores: Stores,
        places: Places,
        preparation: Preparation,
        native: str,
        launchers: Launchers,
        journal: Journal,
        secrecy: Secrecy,
    ) -> None:
        self._stores, self._places, self._preparation, self._journal, self._secrecy = stores, places, preparation, journal, secrecy
        self._native, self._launchers = native, launchers
        self._describe = describe_policy(stores.policies)
        self._preload = load_preload(stores.policies)
        self._described: dict[str, tuple[tuple[Declaration, ...], Mapping[str, Any]]] = {}  # and the receipt of describing

    async def stage(self, launcher: Launcher, source: Path, policy: Policy, kind: Kind = Kind.AUTO) -> tuple[Loaded, graph.Graph]:
        """The source as a bundle for that kind of worker, and its graph; nothing is described yet. Raises a ``refused.*`` error."""
        parsed = await self._parse(launcher, source, policy)
        return await self._stage(launcher, parsed, {"caller": kind, "policy": policy.worker}), parsed.closed

    async def load(self, launcher: Launcher, pool: Pool, source: Path, policy: Policy, kind: Kind) -> list[LoadedTool]:
        """The source's tools. Raises a ``refused.*`` error, or the error of the verdict that describing it ended with."""
        parsed = await self._parse(launcher, source, policy)
        asked = {"caller": kind, "policy": policy.worker}
        staged = await self._stage(launcher, parsed, asked)
        declarations, described = await self._declared(staged, pool)
        wanted = _kind_of(declarations)
        if wanted not in (Kind.AUTO, staged.kind):  # described in the other kind, which cost time and told the same
            staged = await self._stage(launcher, parsed, {**asked, "declaration": wanted})
            declarations, described = await self._declared(staged, pool)
        _compare(parsed.closed, declarations)
        digest = canonical.digest([made.data for made in declarations])
        loaded = dataclasses.replace(staged, declarations=digest, described=described, published=await self._published(staged))
        return await trio.to_thread.run_sync(lambda: [LoadedTool(made, loaded) for made in declarations])

    async def _parse(self, launcher: Launcher, source: Path, policy: Policy) -> Parsed:
        await self._secrecy.hold(policy)
        async with open_parser(launcher, self._places) as parse:
            standard = launcher.facts.standard_modules
            with _cleaned(self._secrecy.leaving(policy.on_secret)):
                closed = await graph.close_graph(source, parse, trio.to_thread.run_sync, standard=standard, reserved=GUEST_NAMES)
        await self._require_innocent(closed, policy)
        found = self._layers(closed.layers, policy)
        compiled = {path: made for path, made in parse.code.items() if path in closed.files}
        return Parsed(closed=closed, layers=found, code=compiled, made_by=parse.python, policy=policy)

    async def _require_innocent(self, closed: graph.Graph, policy: Policy) -> None:
        """Refuse a source that brings a secret along. Raises ToolError ``refused.secret_source`` with file and line."""
        look = functools.partial(source_problems, closed.files, self._secrecy.watch, policy.grants.secret_files)
        few = sum(map(len, closed.files.values())) <= _FEW_BYTES
        if lines := look() if few else await trio.to_thread.run_sync(look):
            raise error_for("refused.secret_source", *lines)

    async def _stage(self, launcher: Launcher, parsed: Parsed, asked: Mapping[str, Kind]) -> Loaded:
        """The bundle, published, for the kind of worker that is chosen for it."""
        choice, image = await self._chosen(parsed, asked)
        held = image.modules | image.packages if image else frozenset[str]()
        python = image.python if image else launcher.facts.python
        _require_met(parsed, held)
        for layer in parsed.layers:
            layers.check_python(layer, python)
        made = await trio.to_thread.run_sync(bundle.publish, parsed.closed, self._stores.stage)
        named = {name.split(".")[0] for name in made.standard}
        kept = None
        if image is None:  # the other kind's interpreter is of another version
            kept = await trio.to_thread.run_sync(code.publish, parsed.code, parsed.made_by, self._stores.stage / "code")
        return Loaded(
            bundle=made,
            layers=parsed.layers,
            policy=parsed.policy,
            declarations="",
            preload=() if image else tuple(name for name in self._preload if name in named),
            choice=choice,
            python=python,
            image=image.digest if image else self._native,
            inode=os.stat(made.path).st_ino,
            code=kept,
        )

    async def _chosen(self, parsed: Parsed, asked: Mapping[str, Kind]) -> tuple[Choice, Image | None]:
        """The kind of worker, and the image when it is wasm."""
        if Kind.NATIVE in asked.values():
            return choose(asked, parsed.needs, ""), None
        try:
            found = await self._launchers.image(parsed.policy)
            if isinstance(found, EngineError):
                raise found
            if Kind.WASM in asked.values():
                _require_met(parsed, found.modules | found.packages)
            choice = choose(asked, parsed.needs, found)
            if choice.kind is not Kind.WASM:
                return choice, None
            await self._launchers.start(found)  # what cannot start on this host serves nobody
        except EngineError as error:
            if Kind.WASM in asked.values() or not error.code.startswith("refused."):  # the engine's end chooses no kind
                raise
            return choose(asked, parsed.needs, error.lines[0]), None
        return choice, found

    async def _published(self, staged: Loaded) -> str | None:
        """The image to run in place of the one that it is described in, where one was published for it."""
        base = await self._launchers.image(staged.policy) if staged.kind is Kind.WASM else None
        if not isinstance(base, Image) or base.digest != staged.image:
            return None
        return await self._launchers.published(base, source_of(staged.bundle, staged.layers))

    async def _declared(self, staged: Loaded, pool: Pool) -> tuple[tuple[Declaration, ...], Mapping[str, Any]]:
        """What the source declares, and the receipt of its describing."""
        leaving = self._secrecy.leaving(staged.policy.on_secret)
        key = canonical.digest([staged.bundle.digest, [layer.digest for layer in staged.layers], staged.image])
        if key not in self._described:
            names = [layer.name for layer in staged.layers]
            resolved = resolve_describe(self._describe, staged.policy, names, Tightening())
            prepared = self._preparation.prepared(resolved, staged, tenant=None, describing=True)
            told, made = await describe(staged, prepared, pool, self._journal, leaving)
            if len(self._described) >= _DESCRIBED:
                del self._described[next(iter(self._described))]
            # in a thread: a hundred schemas full of patterns take seconds to compile
            with _cleaned(leaving):
                self._described[key] = (await trio.to_thread.run_sync(check_all, told), made)
        # security: what was no secret when it was described may be held as one by now
        elif lines := await leaving.declared([made.data for made in self._described[key][0]]):
            raise error_for("refused.secret_source", *lines)
        return self._described[key]

    def _layers(self, names: Sequence[str], policy: Policy) -> tuple[layers.Layer, ...]:
        refused = [name for name in names if name not in policy.grants.layers]
        if refused:
            raise error_for("refused.not_granted", *(f"layer {name} is not granted by policy {policy.name}" for name in refused))
        return tuple(layers.find(name, self._stores.layers) for name in names)


@contextlib.contextmanager
def _cleaned(leaving: Leaving) -> Iterator[None]:
    """Errors of what is within repeat what stands in a source; none of them repeats a secret."""
    try:
        yield
    except EngineError as error:
        if (lines := tuple(map(leaving.said, error.lines))) == error.lines:
            raise
        raise error_for(error.code, *lines) from None


def source_of(made: bundle.Bundle, held: Sequence[layers.Layer]) -> Source:
    """A staged source as an image of it is made of it."""
    return Source(
        bundle=made.digest,
        entry=made.entry,
        layers={layer.name: layer.digest for layer in held},
        place=made.source,
        sites={layer.name: layer.site for layer in held},
    )


def _require_met(parsed: Parsed, held: frozenset[str]) -> None:
    """Refuse a source that imports what is nowhere, with the line that does. ``held`` is what an image has beyond the standard library."""
    if lines := graph.unmet(parsed.closed, parsed.modules, held):
        raise error_for("refused.source_import", *lines)


def _kind_of(declarations: Sequence[Declaration]) -> Kind:
    """The kind of worker that a source's tools ask for. Raises ``refused.worker_kind`` when they ask for different ones."""
    asked = {made.worker: made.name for made in declarations if made.worker is not None}
    if len(asked) > 1:
        lines = (f"tool {name} asks for {kind}: tools of different kinds go into different sources" for kind, name in asked.items())
        raise error_for("refused.worker_kind", *lines)
    return Kind(next(iter(asked), "auto"))


def _compare(closed: graph.Graph, declarations: Sequence[Declaration]) -> None:
    """Refuse when what staging read from the source is not what the imported declarations say, tool by tool."""
    read: dict[tuple[str, str], list[Written]] = {}
    for made in closed.written:
        read.setdefault((made.file, made.tool), []).append(made)
    shared = [made for made in closed.written if not made.tool]  # an inline table speaks for every tool of its source
    lines: list[str] = []
    twice: list[str] = []
    for declaration in declarations:
        path = declaration.module.replace(".", "/")
        own = [made for file in (f"{path}.py", f"{path}/__init__.py") for made in read.get((file, declaration.qualname), ())]
        if len(own) > 1:  # the later one hid the earlier without a word
            homes = " and ".join(made.where for made in own)
            twice.append(f"tool {declaration.name}: the function {declaration.qualname} is declared twice, in {homes}: rename one")
        said = {"includes": declaration.includes, "data": declaration.data_files, "layers": declaration.layers}
        for name, entries in said.items():
            literal = {entry for made in own for entry in getattr(made, name)}
            allowed = literal | {entry for made in shared for entry in getattr(made, name)}
            if not literal <= set(entries) <= allowed:
                lines.append(f"tool {declaration.name}: {name} says {sorted(literal)} in the source and {sorted(entries)} after import")
    if twice:
        raise error_for("refused.declaration", *twice)
    if lines:
        raise error_for("refused.source_literals", *lines)
