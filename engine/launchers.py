"""The launchers of one engine: the native one, and one for each WebAssembly image that a policy of it runs.

Its job: find an image once, start a launcher when it is first needed and again when it died, end them all.
Not its job: orders to a launcher (``worker/launcher.py``), which kind runs what (``worker/kinds.py``), making images (``images/``).
Laws:
1. A launcher that died is replaced by the next call that needs one (tests/security/test_promise_ends.py).
2. An image is looked at and hashed once for each launcher of it; what was hashed is what is loaded (tests/contract/test_wasm.py).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import trio

from engine.errors import EngineError
from engine.images.cache import Cache, default_folder
from engine.images.image import Image, Shipped, find
from engine.places import data_dir
from engine.policy.model import Policy
from engine.supervision.spare import Recipe
from engine.worker.launcher import NATIVE, Launcher, wasm_program

_NATIVE = ""  # in the place of an image's digest


class Launchers:
    """Starts none by itself. ``close`` ends all of them, also those that are on their way."""

    def __init__(self, image_dir: Path | None) -> None:
        images, engine = data_dir("worker_images"), Path(__file__).resolve().parent
        self._cache = Cache(folder=default_folder() if image_dir is None else image_dir)
        self._shipped = Shipped(worker_images=images, engine=engine, policies=data_dir("policies"))
        self._running: dict[str, Launcher] = {}
        self._found: dict[tuple[str, str | None], Image] = {}
        self._turn = trio.Lock()

    @property
    def native_pid(self) -> int:
        """The native launcher's process id, -1 when it is not running."""
        launcher = self._running.get(_NATIVE)
        return -1 if launcher is None else launcher.pid

    @property
    def pids(self) -> Iterator[int]:
        """Those of all that run."""
        return (launcher.pid for launcher in self._running.values())

    async def native(self) -> Launcher:
        """The one that makes native jails, parsers and probes. Raises HostError."""
        return await self._launcher(_NATIVE)

    async def of(self, recipe: Recipe) -> Launcher:
        """The one that makes the jails of that recipe. Raises HostError, or what keeps its image from being used."""
        return await self._launcher(recipe.wasm or _NATIVE)

    async def image(self, policy: Policy) -> Image | EngineError:
        """The image of a policy, or why there is none that may run."""
        key = (policy.image, policy.images.get(policy.image))
        if key not in self._found:
            try:
                self._found[key] = await trio.to_thread.run_sync(lambda: find(key[0], self._cache, self._shipped, allowed=key[1]))
            except EngineError as error:
                return error  # somebody may build it meanwhile
        return self._found[key]

    async def _launcher(self, digest: str) -> Launcher:
        async with self._turn:
            launcher = self._running.get(digest)
            if launcher is not None and launcher.dead:
                await self._running.pop(digest).close()
                launcher = None
            if launcher is None:
                launcher = self._running[digest] = await self._started(digest)
            return launcher

    async def _started(self, digest: str) -> Launcher:
        if digest == _NATIVE:
            return await Launcher.start(NATIVE)
        image = next(image for image in self._found.values() if image.digest == digest)
        code = await trio.to_thread.run_sync(image.open_code)
        try:
            return await Launcher.start(wasm_program(code.descriptor))
        finally:
            os.close(code.descriptor)

    async def close(self) -> None:
        """End all of them. Raises HostError when one would not end."""
        first: EngineError | None = None
        while self._running:
            try:
                await self._running.popitem()[1].close()
            except EngineError as error:
                first = first or error
        if first is not None:
            raise first
