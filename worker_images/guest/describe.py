"""Says which tools a source declares, and proves again that a tool is the one that was loaded.

Its job: declarations as plain data, their digest computed inside the worker.
Not its job: believing them (the host checks them like any worker output).
Laws:
1. The digest is computed from the declaration as imported here, never taken from the host (tests/security/test_promise_checked.py).
"""

from collections.abc import Mapping
from typing import Any

from engine.authoring import canonical, rules
from engine.authoring.tool import Tool

_RULES = rules.problems  # held: a child that freed the function would write to each page where a part of it lies


def declarations(tools: list[Tool[..., Any]]) -> list[dict[str, Any]]:
    """The declaration of each tool, as plain data."""
    return [tool.declaration for tool in tools]


def named(tools: list[Tool[..., Any]], name: str) -> Tool[..., Any] | None:
    """The tool of that name, or None."""
    return next((tool for tool in tools if tool.name == name), None)


def digest(tools: list[Tool[..., Any]]) -> str:
    """The digest of all declarations as they are here; empty, which is none, when one of them is no plain data."""
    try:
        return canonical.digest(declarations(tools))
    except ValueError:
        return ""


def expect_checked() -> None:
    """For a child that must prove a digest: the rules were applied to what has that digest, here and by the host, when it was loaded."""
    rules.problems = _no_problems


def _no_problems(data: Mapping[str, Any]) -> list[str]:
    return []
