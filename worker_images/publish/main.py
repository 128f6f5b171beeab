"""Makes the image of one source: ``python main.py SPEC.json`` in a builder's environment, which holds componentize-py.

Its job: lay out what the image carries, wall in this process for good, then have the source imported by the builder's own runtime.
Not its job: what an image carries (``python_wasm/build.py``), what the wall holds (``engine/images/wall.py``), what comes of it.

The spec: "out", "guest", "engine" and "packages" as for ``build.py``; "source" (the bundle's folder), "layers" (folders by name), "entry",
and "wall". It lies in a folder of its own, in which "tmp" is for the builder.
Laws:
1. Nothing of the source runs before the last part of the wall stands; a part that fails ends all (tests/security/test_publishing.py).
2. From then on one folder can be read and two can be written, which hold nothing of anybody else (tests/security/test_publishing.py).
3. The image is prepared with exactly the text that a jail of this source hands its guests (tests/unit/test_wasm_sources.py).
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from enter import kernel
from enter.kernel import Step
from wasm import sources


def main(spec: dict[str, Any], work: Path) -> None:
    """Make what the spec says in this folder."""
    sys.path.insert(1, os.path.join(spec["guest"], "python_wasm"))
    import build  # type: ignore[import-not-found]  # the recipe's own
    import componentize_py  # type: ignore[import-not-found]  # noqa: F401 - loaded while its files can be read

    out, given = Path(spec["out"]), work / "given"
    root, empty, world = given / "root", given / "empty", given / "world.wit"
    (empty / "lib" / "python3" / "site-packages").mkdir(parents=True)
    build.assemble({**spec, "prepared": _prepared(spec, work / "layers")}, root)
    world.write_bytes(Path(spec["guest"], "python_wasm", "world.wit").read_bytes())
    out.parent.mkdir()
    wall_in(spec["wall"], given, (work / "tmp", out.parent))
    build.componentize(root, world, out, empty)


def _prepared(spec: dict[str, Any], layers: Path) -> dict[str, Any]:
    """The source with its layers, as a jail of it reads them: a layer is called as its folder is."""
    layers.mkdir()
    for name, folder in spec["layers"].items():
        (layers / name).symlink_to(folder, target_is_directory=True)
    text = sources.text_of(spec["source"], [str(layers / name) for name in sorted(spec["layers"])])
    return {**json.loads(text), "entry": spec["entry"]}


def wall_in(wall: dict[str, Any], readable: Path, writable: tuple[Path, ...]) -> None:
    """Leave this process one folder to read and some to write, memory and time within bounds, and nothing else. Raises Step."""
    found = kernel.landlock_abi()
    if found < wall["landlock"]:
        raise Step("enter the Landlock domain", 0, f"this kernel's Landlock is of level {found}, and {wall['landlock']} is needed")
    rights = [(str(readable), wall["read"]), *((str(folder), wall["write"]) for folder in writable)]
    opened = [(place, kernel.opened(place), right) for place, right in rights]
    ruleset = kernel.landlock_ruleset(tuple(wall["handled"]), opened)
    for _, descriptor, _ in opened:
        os.close(descriptor)
    if os.geteuid() == 0:
        kernel.drop_bounding_set()
    kernel.drop_capabilities()
    kernel.prctl("set no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl("forbid dumps", kernel.PR_SET_DUMPABLE, 0)
    for name, amount in wall["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (amount, amount))
    kernel.landlock_enter(ruleset)
    os.close(ruleset)
    kernel.seccomp(bytes.fromhex(wall["filter"]))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    try:
        main(json.loads(place.read_bytes()), place.parent)
    except Step as step:
        sys.exit(f"step '{step.name}' failed: {step.text}")
