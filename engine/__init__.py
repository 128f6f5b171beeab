"""Stockade: runs agent tools that nobody vouches for, each call in a fresh jail, and hands back checked data.

Its job: the public names, each found when it is first asked for.
Not its job: anything else; nothing inside the engine imports this file's names.
Laws:
1. ``import engine`` loads no other module (tests/house/test_guest_tree.py).
2. The authoring names work with nothing of the engine present but ``errors.py`` and ``authoring/`` (tests/house/test_guest_tree.py).
"""

TYPE_CHECKING = False  # type checkers read it as true; importing it from typing would cost more than the rest of this file
if TYPE_CHECKING:
    from engine.authoring import http as http
    from engine.authoring import schema as schema
    from engine.authoring.tool import Context as Context
    from engine.authoring.tool import Tool as Tool
    from engine.authoring.tool import artifact as artifact
    from engine.authoring.tool import tool as tool
    from engine.host import Engine as Engine
    from engine.outcome import Outcome as Outcome
    from engine.outcome import Status as Status

__all__ = ("Context", "Engine", "Outcome", "Status", "Tool", "artifact", "http", "schema", "tool")


def __getattr__(name: str) -> object:
    """The public name, from the module that holds it. Raises AttributeError for any other."""
    if name == "schema":
        from engine.authoring import schema

        return schema
    if name == "http":
        from engine.authoring import http

        return http
    if name in ("tool", "artifact", "Context", "Tool"):
        from engine.authoring import tool

        return getattr(tool, name)
    if name == "Engine":
        from engine import host

        return host.Engine
    if name in ("Outcome", "Status"):
        from engine import outcome

        return getattr(outcome, name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
