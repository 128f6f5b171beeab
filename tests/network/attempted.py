"""A tool that makes the attempts of ``tries.py``: its source for a worker, and the same run bare, which is each attempt's control."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import kit

_TRIES = (Path(__file__).parent / "tries.py").read_text(encoding="utf-8")
_TOOL = '''
from typing import Any
from engine import tool
import tries
{before}
@tool(effect="read", description="Tries."{asked})
def attempt(kind: str, arguments: list[Any]) -> Any:
    """What came of it."""
    return tries.tried(lambda: tries.listed(kind)(*arguments))
'''


def source(places: Sequence[str], before: str = "") -> dict[str, str]:
    """The tool, which asks for these places; ``before`` runs when it is imported."""
    asked = f", network={list(places)!r}" if places else ""
    return {"tools.py": _TOOL.replace("{asked}", asked).replace("{before}", before), "tries.py": _TRIES}


def bare(folder: Path, kind: str, arguments: Sequence[Any], before: str = "") -> Any:
    """What comes of the same in a plain process."""
    found = kit.bare(folder, source((), before), "attempt", {"kind": kind, "arguments": list(arguments)})
    assert found.value is not None or found.returncode == 0, found.stderr
    return found.value


def given(kind: str, *arguments: Any) -> dict[str, Any]:
    """The tool's arguments."""
    return {"kind": kind, "arguments": json.loads(json.dumps(arguments))}
