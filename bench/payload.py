"""What the cases run: the tools' sources, and the engine that runs them.

Its job: sources as text, written where a part wants them; an engine whose state lies in the part's own folder; the image, or why not.
Not its job: measuring.
Laws:
1. Without an image that may run, a part is absent and says what makes one (tests/unit/test_bench_payload.py).
"""

import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.measurement import Absent, Run
from bench.walls import Wall
from engine import Engine

_MAKE = "`make images` makes the one that is pinned"

LOOKUP = """
from engine import schema, tool


@tool(
    description="Read current refund policy.",
    input=schema.object({"region": schema.string()}),
    output=schema.object({"region": schema.string(), "refundWindowDays": schema.integer()}),
    effect="read",
)
def lookup_policy(region: str) -> dict:
    return {"region": region, "refundWindowDays": 14}
"""


def write(folder: Path, source: str | Mapping[str, str]) -> Path:
    """A source below the folder: one text is ``tools.py``; the path of that file."""
    files = {"tools.py": source} if isinstance(source, str) else source
    for name, text in files.items():
        place = folder / "source" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return folder / "source" / "tools.py"


def engine(run: Run, wall: Wall = "native", *, policy: str | Path = "required") -> Engine:
    """An engine under the policy, receipts and all, whose state lies in the part's folder. Raises Absent where its image is missing."""
    if wall != "native":
        os.close(open_image())
    worker = "native" if wall == "native" else "wasm"
    chosen: dict[str, Any] = {"worker": worker} if "worker" in inspect.signature(Engine).parameters else {}  # a base may know one kind
    return Engine(policy=policy, state_dir=run.folder / "state", **chosen)


def published(place: Path, wall: Wall) -> Path:
    """The source, published where that is asked for: its image is made unless it is there. Raises Absent where that does not work."""
    if wall == "published":
        if importlib.util.find_spec("engine.images.publishing") is None:
            raise Absent("this engine publishes no images")
        os.close(open_image())
        done = subprocess.run([sys.executable, "-m", "engine", "image", "publish", str(place)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Absent(f"stockade image publish: {((done.stderr or done.stdout).strip().splitlines() or ['nothing said'])[-1]}")
    return place


def open_image() -> int:
    """The compiled image of this tree, checked as an engine checks it, and open. Raises Absent."""
    # here, because a base that is compared with may have no images at all
    from engine.errors import EngineError
    from engine.images.cache import Cache, default_folder
    from engine.images.image import Shipped, find
    from engine.places import data_dir

    shipped = Shipped(worker_images=data_dir("worker_images"), engine=Path(inspect.getfile(Engine)).parent, policies=data_dir("policies"))
    try:
        return find("python_wasm", Cache(folder=default_folder()), shipped, allowed=None).open_code().descriptor
    except EngineError as error:
        raise Absent(f"{'; '.join(error.lines)}: {_MAKE}") from None
