"""What belongs to this machine and not to a test: where its WebAssembly images lie.

Tests do not see the user's cache: an engine that finds an image there would run in it what a test means for the native wall.
"""

import os

from engine.errors import EngineError
from engine.images.cache import Cache, default_folder
from engine.images.image import Image, Shipped, find
from tests.kit import PROJECT

IMAGE_DIR = default_folder()  # before any test hides it


def hide(folder: str) -> None:
    """From here on the user's cache is that folder."""
    os.environ["XDG_CACHE_HOME"] = folder


def image() -> Image | EngineError:
    """The image of this checkout as it lies here, or why there is none: `make images` builds it."""
    shipped = Shipped(worker_images=PROJECT / "worker_images", engine=PROJECT / "engine", policies=PROJECT / "policies")
    try:
        found = find("python_wasm", Cache(folder=IMAGE_DIR), shipped, allowed=None)
        os.close(found.open_code().descriptor)
    except EngineError as error:
        return error
    return found
