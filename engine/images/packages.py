"""The packages that an image carries: read, fetched, unpacked and looked through by pyodide-build, in an environment of its own.

Its job: the order of these steps, and their lock file.
Not its job: what a package may hold (``worker_images/packages/collect.py``), the environment (``builder.py``), pip (``fetch.py``).
Laws:
1. A package is the wheel that its recipe names by SHA-256, or the build refuses (tests/unit/test_image_build.py).
2. Nothing of a package runs here (tests/unit/test_image_packages.py).
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.images import running
from engine.images.builder import Builder, Means, lines_of
from engine.images.fetch import download_exact
from engine.images.recipe import Package
from engine.images.telling import Told
from engine.outcome import error_for

_SECONDS = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """Folders to put on the guest's module path, the lock file's bytes, the version of each package, and what can be imported of them."""

    folders: tuple[Path, ...]
    lock: bytes
    versions: Mapping[str, str]
    modules: tuple[str, ...]


def collect(packages: tuple[Package, ...], guest: Path, work: Path, builder: Builder, means: Means, told: Told) -> Collected:
    """Collect them below ``work``; ``guest`` holds their recipes. Raises refused.image_build with the package and the reason."""
    program, site, lock = guest / "packages" / "collect.py", work / "site", work / "packages.json"
    names = [package.name for package in packages]
    told.step(f"fetching {len(names)} packages by their hashes")
    read = _step(builder, program, "read", {"recipes": str(guest / "packages"), "names": names}, work, told)
    wanted: list[dict[str, Any]] = json.loads(read.strip().splitlines()[-1])
    try:
        wheels = {package["file"]: package["sha256"] for package in wanted}
        download_exact(wheels, work / "wheels", pip=builder.python, environment=means.environment, tick=told.tick)
    except running.Failed as failed:
        raise error_for("refused.image_build", *lines_of("the image's packages", failed)) from None
    without = {package.name: list(package.without) for package in packages if package.without}
    spec = {"packages": wanted, "wheels": str(work / "wheels"), "without": without, "into": str(site), "lock": str(lock)}
    _step(builder, program, "unpack", spec, work, told)
    locked = json.loads(lock.read_bytes())["packages"]
    return Collected(
        folders=tuple(site / name for name in names),
        lock=lock.read_bytes(),
        modules=tuple(module for package in locked.values() for module in package["imports"]),
        versions={package["name"]: package["version"] for package in wanted},
    )


def _step(builder: Builder, program: Path, step: str, spec: Mapping[str, Any], work: Path, told: Told) -> str:
    """What the collector prints."""
    written = work / f"{step}.json"
    written.write_text(json.dumps(dict(spec)))
    # what looks for its settings in a home, and for programs on a path, finds its own
    environment = {"HOME": str(work), "TMPDIR": str(work), "PATH": str(builder.python.parent), "LANG": "C.UTF-8"}
    try:
        return running.run([builder.python, program, step, written], environment=environment, seconds=_SECONDS, tick=told.tick)
    except running.Failed as failed:
        raise error_for("refused.image_build", *(f"packages: {line}" for line in failed.lines[-1:])) from None
