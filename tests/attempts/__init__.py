"""What the tests of the walls share: a source around an attempt, and the module that is staged beside it."""

import json
import textwrap
from pathlib import Path
from typing import Any

from engine.outcome import Outcome

_BESIDE = (Path(__file__).parent / "attempt.py").read_text(encoding="utf-8")
_HEAD = """
import os
from attempt import *
from engine import schema, tool

@tool(description="Try.", input=schema.object({"given": {"type": "object"}}), output={}, effect="read")
def attempt(given: dict):
"""


def source(body: str, before: str = "", **files: str) -> dict[str, str]:
    """A source whose tool ``attempt`` runs the lines of ``body`` on the dict ``given``; ``before`` runs at import."""
    indented = "".join(f"    {line}\n" for line in textwrap.dedent(body).strip("\n").splitlines())
    return {"tools.py": _HEAD.replace("\n@tool", f"\n{before}\n@tool") + indented, "attempt.py": _BESIDE, **files}


def given(**values: Any) -> dict[str, Any]:
    """The arguments of that tool."""
    return {"given": values}


async def said(outcome: Outcome) -> str:
    """Everything of an outcome that reaches somebody, as one text to look for a canary in."""
    return json.dumps([outcome.value, outcome.lines, outcome.stdout, outcome.stderr, dict(await outcome.concluded())], default=str)
