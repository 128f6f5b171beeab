"""One load: from a path to tools that can be called, without running any of it outside a jail.

Its job: parse and close the graph, find the layers, publish the bundle, have a jailed child describe it, check what it says.
Not its job: calls (``call.py``), which tools are loaded already (``host.py``).
Laws:
1. The host never imports the source (tests/security/test_promise_outside.py).
2. What was read by parsing and what the imported declaration says must be equal, or the source is refused (tests/contract/test_loading.py).
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from engine.authoring import canonical
from engine.declaration import Declaration, check_all
from engine.describing import describe
from engine.jail.plan import Places
from engine.outcome import error_for
from engine.policy.load import describe_policy, load_preload
from engine.policy.model import Policy
from engine.policy.resolve import Tightening, resolve_describe
from engine.preparing import Loaded, LoadedTool, Preparation
from engine.results.journal import Journal
from engine.staging import bundle, code, graph, layers
from engine.staging.facts import Written
from engine.state import Stores
from engine.supervision.pool import Pool
from engine.worker.launcher import Launcher
from engine.worker.parser import open_parser

_LINES = 20  # problems told at once
_DESCRIBED = 256  # sources whose declarations are remembered; thousands would be held for as long as the engine lives
GUEST_NAMES = frozenset({"engine", "guest", "enter"})


class Loading:
    """Loads sources on one host. Raises PolicyError when the policy of describing or the list of modules to preload cannot be read."""

    def __init__(self, stores: Stores, places: Places, preparation: Preparation, image: str, journal: Journal) -> None:
        self._stores, self._places, self._preparation, self._image, self._journal = stores, places, preparation, image, journal
        self._describe = describe_policy(stores.policies)
        self._preload = load_preload(stores.policies)
        self._described: dict[str, tuple[tuple[Declaration, ...], Mapping[str, Any]]] = {}  # and the receipt of describing

    async def stage(self, launcher: Launcher, source: Path, policy: Policy) -> tuple[Loaded, graph.Graph]:
        """The source as a bundle with its layers found, and its graph; nothing is described yet. Raises a ``refused.*`` error."""
        async with open_parser(launcher, self._places) as parse:
            standard = launcher.facts.standard_modules
            closed = await graph.close_graph(source, parse, trio.to_thread.run_sync, standard=standard, reserved=GUEST_NAMES)
        found = self._layers(closed.layers, policy, launcher.facts.python)
        if lines := graph.unmet(closed, frozenset().union(*(layer.modules for layer in found))):
            raise error_for("refused.source_import", *lines)
        made = await trio.to_thread.run_sync(bundle.publish, closed, self._stores.stage)
        compiled = {path: made for path, made in parse.code.items() if path in closed.files}
        kept = await trio.to_thread.run_sync(code.publish, compiled, parse.python, self._stores.stage / "code")
        named = {name.split(".")[0] for name in made.standard}
        preload = tuple(name for name in self._preload if name in named)
        place = os.stat(made.path)
        loaded = Loaded(
            bundle=made,
            layers=found,
            policy=policy,
            declarations="",
            preload=preload,
            image=self._image,
            inode=place.st_ino,
            code=kept,
        )
        return loaded, closed

    async def load(self, launcher: Launcher, pool: Pool, source: Path, policy: Policy) -> list[LoadedTool]:
        """The source's tools. Raises a ``refused.*`` error, or the error of the verdict that describing it ended with."""
        staged, closed = await self.stage(launcher, source, policy)
        key = canonical.digest([staged.bundle.digest, [layer.digest for layer in staged.layers], self._image])
        if key not in self._described:
            names = [layer.name for layer in staged.layers]
            resolved = resolve_describe(self._describe, staged.policy, names, Tightening())
            prepared = self._preparation.prepared(resolved, staged, tenant=None, describing=True)
            told, made = await describe(staged, prepared, pool, self._journal)
            if len(self._described) >= _DESCRIBED:
                del self._described[next(iter(self._described))]
            # in a thread: a hundred schemas full of patterns take seconds to compile
            self._described[key] = (await trio.to_thread.run_sync(check_all, told), made)
        declarations, described = self._described[key]
        _compare(closed, declarations)
        digest = canonical.digest([made.data for made in declarations])
        loaded = dataclasses.replace(staged, declarations=digest, described=described)
        return await trio.to_thread.run_sync(lambda: [LoadedTool(made, loaded) for made in declarations])

    def _layers(self, names: Sequence[str], policy: Policy, python: str) -> tuple[layers.Layer, ...]:
        refused = [name for name in names if name not in policy.grants.layers]
        if refused:
            raise error_for("refused.not_granted", *(f"layer {name} is not granted by policy {policy.name}" for name in refused))
        found = tuple(layers.find(name, self._stores.layers) for name in names)
        for layer in found:
            layers.check_python(layer, python)
        return found


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
