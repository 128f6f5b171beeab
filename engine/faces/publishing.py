"""``stockade image publish``: an image in which one source is imported already.

Its job: load the source as any caller would, so that it is staged, described in a jail and checked; then have its image made.
Not its job: making it, and when it is used (``images/publishing.py``), the wall around its import (``images/wall.py``).
Laws:
1. What cannot be loaded is not published (tests/e2e/test_cli_publish.py).
2. What does not come up with the declarations that were described in a jail is not kept (tests/e2e/test_cli_publish.py).
3. A signal ends the build with everything it started (tests/e2e/test_cli_publish.py).
"""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import trio

from engine.declaration import Declaration
from engine.errors import EngineError, one_line
from engine.faces.images import Steps, cache_at, shipped
from engine.faces.printing import Answer, Printer
from engine.host import Engine
from engine.images import publishing
from engine.images.builder import Means
from engine.images.cache import Entry
from engine.images.image import find
from engine.loading import source_of
from engine.outcome import error_for
from engine.preparing import Loaded
from engine.staging import layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the options say."""

    source: str
    policy: str = "required"
    image_dir: str | None = None
    state_dir: str | None = None
    python: str | None = None


class _Stoppable(Steps):
    """Tells the steps of a build in a thread, and ends it when the command was cancelled."""

    def tick(self) -> None:
        """The step still runs."""
        trio.from_thread.check_cancelled()
        super().tick()


async def publish(printer: Printer, wanted: Wanted, environment: Mapping[str, str]) -> Answer:
    """Make the image of a source, unless it is there. Raises what a load would, refused.image_build, refused.storage."""
    means = Means(environment=environment, interpreter=None if wanted.python is None else Path(wanted.python))
    steps = _Stoppable(printer)
    async with Engine(policy=wanted.policy, state_dir=wanted.state_dir, worker="wasm", image_dir=wanted.image_dir) as engine:
        declared = await engine.load(wanted.source)
        loaded = engine.loaded(declared[0].name).loaded
        try:
            made = await trio.to_thread.run_sync(_made, loaded, wanted.image_dir, means, steps)
        finally:
            steps.end()
        await _try(engine, wanted, declared[0].name, made)
    return _answer(loaded, declared, made)


async def _try(engine: Engine, wanted: Wanted, name: str, made: Entry) -> None:
    """See that a worker of the new image comes up as one of the base does, or remove it. Raises refused.image_build."""
    await engine.load(wanted.source)  # which finds it
    try:
        await engine.warm(name)
    except EngineError as error:
        if not error.code.startswith(("violation.", "crashed.")):
            return  # the policy lets nobody call it, or the host has no room: no fault of the image
        with cache_at(wanted.image_dir).writing(lambda: None):
            shutil.rmtree(made.path)
        why = f"image {made.manifest.name} for {name} is removed: its source does not start in it as it does when it is loaded"
        raise error_for("refused.image_build", why, *error.lines) from None


def _made(loaded: Loaded, image_dir: str | None, means: Means, steps: Steps) -> Entry:
    policy, images = loaded.policy, cache_at(image_dir)
    base = find(policy.image, images, shipped(), allowed=policy.images.get(policy.image))
    for layer in loaded.layers:
        layers.verify(layer, layer.path.parents[2])  # unlike a bundle, a layer is not hashed by a load
    return publishing.publish(source_of(loaded.bundle, loaded.layers), base, images, means, steps)


def _answer(loaded: Loaded, declared: list[Declaration], made: Entry) -> Answer:
    held = sorted(layer.name for layer in loaded.layers)
    apart = [one.name for one in declared if sorted(one.layers) != held]
    lines = [
        f"image {made.manifest.name} for {loaded.bundle.entry}: {made.component}",
        "every load of just this source runs in it from now on; another source, layer or version of this program makes it one of no use",
        *(f"{one_line(name)} asks for fewer layers than its source, and runs in the base image" for name in apart),
    ]
    value = {
        "name": made.manifest.name,
        "digest": made.component,
        "recipe": made.manifest.recipe,
        "base": loaded.image,
        "source": loaded.bundle.digest,
        "layers": {layer.name: layer.digest for layer in loaded.layers},
        "bytes": made.manifest.component.size,
        "tools": [one.name for one in declared if one.name not in apart],
    }
    return Answer(value=value, text="\n".join(lines))
