"""What the cases run: the tools' sources, and the engine that runs them.

Its job: sources as text, written where a part wants them; an engine whose state lies in the part's own folder.
Not its job: measuring.
"""

from collections.abc import Mapping
from pathlib import Path

from bench.measurement import Run
from engine import Engine

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


def engine(run: Run) -> Engine:
    """An engine under the policy ``required``, receipts and all, whose state lies in the part's folder."""
    return Engine(policy="required", state_dir=run.folder / "state")
