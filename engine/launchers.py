"""The launchers of one engine: the native one, and one for each WebAssembly image that a policy or a published source of it runs.

Its job: find an image once, start a launcher when it is first needed and again when it died, end those of no further use, and all.
Not its job: orders to a launcher (``worker/launcher.py``), which kind runs what (``worker/kinds.py``), making images (``images/``).
Laws:
1. A launcher that died is replaced by the next call that needs one (tests/security/test_promise_ends.py).
2. An image is looked at and hashed once for each launcher of it; what was hashed is what is loaded (tests/contract/test_wasm.py).
3. The launcher of a published source goes with the source; at most ``_PUBLISHED`` sources have one (tests/unit/test_launchers.py).
4. One that starts or ends keeps nobody from another one (tests/unit/test_launchers_turns.py).
5. An image whose code is gone is looked for again by the next load; what was found once stays known (tests/unit/test_launchers.py).
6. After ``close`` none runs and none is started, whoever waits for one (tests/unit/test_launchers_turns.py).
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

import trio

from engine.errors import EngineError
from engine.images import publishing
from engine.images.cache import Cache, default_folder
from engine.images.image import Image, Shipped, find, uncompiled
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
        self._images: dict[str, Image] = {}  # by digest, all that were found: a call may ask for one that no load finds any more
        self._published: set[str] = set()  # those of one source each
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
        known = self._found.get(key)
        if known is not None and self._runs(known.digest):
            return known
        try:
            found = await trio.to_thread.run_sync(self._looked_for, key, known)
        except EngineError as error:
            self._found.pop(key, None)
            return error  # somebody may build it meanwhile
        self._found[key] = self._images[found.digest] = found
        return found

    def _looked_for(self, key: tuple[str, str | None], known: Image | None) -> Image:
        if known is not None and known.compiled:
            return known
        found = find(key[0], self._cache, self._shipped, allowed=key[1])
        if not found.compiled:
            raise uncompiled(found.name)
        return found

    async def start(self, image: Image) -> None:
        """Let the launcher of that image run, found before by ``image``. Raises HostError, or what keeps its code from being used."""
        await self._launcher(image.digest)

    async def published(self, base: Image, source: publishing.Source) -> str | None:
        """The digest of the image to run in the base's place, where one was published for just this source; its launcher runs then."""
        found = await trio.to_thread.run_sync(publishing.find, source, base, self._cache)
        if found is None or (found.digest not in self._wanted and len(self._wanted) >= _PUBLISHED):
            return None
        self._images[found.digest] = found
        self._published.add(found.digest)
        try:
            await self._launcher(found.digest)  # now, because it takes as long as many calls
        except EngineError:
            return None  # its code is not as it was made, which `stockade image verify` tells; the base serves as well
        return found.digest

    async def keep(self, wanted: Collection[str]) -> None:
        """End the launchers of published sources whose image's digest is none of these. Raises HostError when one would not end."""
        self._wanted = {digest for digest in wanted if digest in self._published}
        for digest in self._running.keys() & self._published - self._wanted:
            async with self._turn(digest):
                if digest in self._running and digest not in self._wanted:
                    await self._running.pop(digest).close()

    def _runs(self, digest: str) -> bool:
        launcher = self._running.get(digest)
        return launcher is not None and not launcher.dead

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
        image = self._images.get(digest)
        if image is None:
            raise error_for("refused.image_missing", f"the image {digest} is not known here: load the source again")
        try:
            code = await trio.to_thread.run_sync(image.open_code)
        except EngineError:
            self._found = {key: found for key, found in self._found.items() if found.digest != digest}  # the next load looks again
            raise
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
