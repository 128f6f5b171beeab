"""Builds one image: ``python build.py SPEC.json`` in the builder's environment, which holds componentize-py.

Its job: assemble exactly what the image carries, have it pre-initialised, say what came out.
Not its job: the environment, the cache, which packages and sources (whoever wrote the spec).

The spec: "out" (the component to write), "guest" (the folder of worker images), "engine" (the folder of the engine), "packages" (folders of
unpacked pure-Python packages), "prepared" (None, or the files, layers and entry of a source to import beforehand), "facts" (where to write
what came out; without it ``<out>.json``).
Laws:
1. Nothing of the builder's own environment gets into an image (tests/wasm/test_places.py).
2. The image carries the same files of the engine as a native jail does (tests/wasm/test_build.py).
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

_ENGINE = ("__init__.py", "errors.py")  # and the folder authoring/
_GUEST = ("guest", "python_wasm")
_APART = {"build.py", "world.wit", "requirements.txt", "recipe.toml"}
ENTRY = "entry"
_PROBE = "probe.json"
_ZONES = "tzdata/zoneinfo"  # of the builder's environment, pinned there by hash


def assemble(spec: dict[str, Any], root: Path) -> None:
    """Put the carried files into the folder, each where the guest looks for it."""
    guest, engine = Path(spec["guest"]), Path(spec["engine"])
    for name in _GUEST:
        for path in sorted((guest / name).glob("*.py")):
            if path.name not in _APART:
                _copy(path, root / name / path.name)
    shutil.move(root / "python_wasm" / f"{ENTRY}.py", root / f"{ENTRY}.py")
    for name in _ENGINE:
        _copy(engine / name, root / "engine" / name)
    for path in sorted((engine / "authoring").glob("*.py")):
        _copy(path, root / "engine" / "authoring" / path.name)
    _copy(guest / "rehearsal" / "sample.py", root / "sample.py")
    for number, folder in enumerate(spec["packages"]):
        shutil.copytree(folder, root / "packages" / str(number), ignore=shutil.ignore_patterns("__pycache__"))
    zones = [place for path in sys.path if (place := Path(path, _ZONES)).is_dir()]
    if zones:
        shutil.copytree(zones[0], root / "zones", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    if spec["prepared"] is not None:
        (root / "prepared.json").write_text(json.dumps(spec["prepared"], sort_keys=True), encoding="utf-8")
    for name in ("guest", "engine"):
        (root / name).mkdir(exist_ok=True)


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def componentize(root: Path, world: Path, out: Path, empty: Path) -> None:
    """Have componentize-py make the component. Raises AssertionError with its words when it cannot."""
    import componentize_py  # type: ignore[import-not-found]  # of the builder's environment

    # security: without an empty one here the builder's own site-packages stand on the path of the pre-initialisation
    os.environ["VIRTUAL_ENV"] = str(empty)
    sys.argv[:] = ["componentize-py", "-q", "-d", str(world), "-w", "worker", "componentize", "-p", str(root), ENTRY, "-o", str(out)]
    componentize_py.script()


def main(spec: dict[str, Any]) -> None:
    """Build what the spec says, in folders of its own."""
    out = Path(spec["out"]).resolve()
    world = Path(spec["guest"]).resolve() / "python_wasm" / "world.wit"
    with tempfile.TemporaryDirectory(prefix="stockade-image-") as folder:
        root, probe, empty = Path(folder) / "root", Path(folder) / "probe", Path(folder) / "empty"
        (empty / "lib" / "python3" / "site-packages").mkdir(parents=True)
        assemble(spec, root)
        assemble({**spec, "packages": [], "prepared": None}, probe)
        (probe / _PROBE).touch()
        componentize(root, world, out, empty)
        componentize(probe, world, Path(folder) / "probe.wasm", empty)
        facts = json.loads((probe / _PROBE).read_bytes())
    facts |= {"bytes": out.stat().st_size, "packages": packages_of(spec)}
    place = Path(spec.get("facts") or f"{out}.json")
    place.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def packages_of(spec: dict[str, Any]) -> list[str]:
    """The distributions that the image carries, as name and version."""
    found = [path.name.removesuffix(".dist-info") for folder in spec["packages"] for path in Path(folder).glob("*.dist-info")]
    return sorted(name.replace("-", " ") for name in found)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
