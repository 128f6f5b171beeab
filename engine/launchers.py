"""The launchers of one engine: the native one, and one for each WebAssembly image that a policy or a published source of it runs.

Its job: find an image once, start a launcher when it is first needed and again when it died, end those of no further use, and all.
Not its job: orders to a launcher (``worker/launcher.py``), which kind runs what (``worker/kinds.py``), making images (``images/``).
Laws:
1. A launcher that died is replaced by the next call that needs one (tests/security/test_promise_ends.py).
2. An image is looked at and hashed once for each launcher of it; what was hashed is what is loaded (tests/contract/test_wasm.py).
3. The launcher of a published source goes with the source; at most ``_PUBLISHED`` sources have one (tests/unit/test_launchers.py).
4. One that starts or ends keeps nobody from another one (tests/unit/test_launchers_turns.py).
5. After ``close`` none runs and none is started, whoever waits for one (tests/unit/test_launchers_turns.py).
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import trio

from engine.errors import EngineError
from engine.images import publishing
from engine.images.cache import Cache, default_folder
from engine.images.image import Image, Shipped, find
from engine.outcome import error_for
from engine.places import data_dir
from engine.policy.model import Policy
from engine.supervision.spare import Recipe
from engine.worker.launcher import NATIVE, Launcher, wasm_program

_NATIVE = ""  # in the place of an image's digest
_PUBLISHED = 16  # images of one source each that are used at once: each has a launcher; further sources run in the base image


class Launchers:
    """Starts none by itself. ``close`` ends all of them, also those that are on their way."""

    def __init__(self, image_dir: Path | None) -> None:
        images, engine = data_dir("worker_images"), Path(__file__).resolve().parent
        self._cache = Cache(folder=default_folder() if image_dir is None else image_dir)
        self._shipped = Shipped(worker_images=images, engine=engine, policies=data_dir("policies"))
        self._running: dict[str, Launcher] = {}
        self._found: dict[tuple[str, str | None], Image] = {}
        self._published: dict[str, Image] = {}  # by digest
        self._wanted: Collection[str] = ()  # of those
        self._turns: dict[str, trio.Lock] = {}  # as those that run
        self._closed = False

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

    async def published(self, base: Image, source: publishing.Source) -> str | None:
        """The digest of the image to run in the base's place, where one was published for just this source; its launcher runs then."""
        found = await trio.to_thread.run_sync(publishing.find, source, base, self._cache)
        if found is None or (found.digest not in self._wanted and len(self._wanted) >= _PUBLISHED):
            return None
        self._published[found.digest] = found
        try:
            await self._launcher(found.digest)  # now, because it takes as long as many calls
        except EngineError:
            return None  # its code is not as it was made, which `stockade image verify` tells; the base serves as well
        return found.digest

    async def keep(self, wanted: Collection[str]) -> None:
        """End the launchers of published sources whose image's digest is none of these. Raises HostError when one would not end."""
        self._wanted = {digest for digest in wanted if digest in self._published}
        for digest in self._running.keys() & self._published.keys() - self._wanted:
            async with self._turn(digest):
                if digest in self._running and digest not in self._wanted:
                    await self._running.pop(digest).close()

    async def _launcher(self, digest: str) -> Launcher:
        async with self._turn(digest):
            launcher = self._running.get(digest)
            if launcher is not None and launcher.dead:
                await self._running.pop(digest).close()
                launcher = None
            if launcher is None and not self._closed:
                launcher = self._running[digest] = await self._started(digest)
            if launcher is None or self._closed:
                raise error_for("cancelled.shutdown", "the engine was closed while a launcher was waited for")
            return launcher

    def _turn(self, digest: str) -> trio.Lock:
        return self._turns.setdefault(digest, trio.Lock())

    async def _started(self, digest: str) -> Launcher:
        if digest == _NATIVE:
            return await Launcher.start(NATIVE)
        known = (*self._found.values(), *self._published.values())
        image = next(image for image in known if image.digest == digest)
        code = await trio.to_thread.run_sync(image.open_code)
        try:
            return await Launcher.start(wasm_program(code.descriptor))
        finally:
            os.close(code.descriptor)

    async def close(self) -> None:
        """End all of them, for good. Raises HostError when one would not end."""
        self._closed = True
        first: EngineError | None = None
        for digest, turn in [*self._turns.items()]:
            async with turn:  # one that is on its way is there in seconds, and nobody else would end it
                try:
                    if digest in self._running:
                        await self._running.pop(digest).close()
                except EngineError as error:
                    first = first or error
        if first is not None:
            raise first
