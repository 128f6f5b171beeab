"""The tool of the rehearsal: it uses what most tools use, and does nothing.

Its job: to be imported and called by the launcher's rehearsal (``enter/rehearsal.py``), over and over, before there is any jail.
Not its job: being of use.
"""

from typing import Any

from engine import schema, tool


@tool(
    effect="read",
    description="A built schema.",
    input=schema.object({"text": schema.string(), "number": schema.integer(minimum=0)}),
    output=schema.object({"text": schema.string()}),
)
def built(text: str, number: int) -> dict[str, str]:
    """Give back what came."""
    return {"text": text * number}


@tool(effect="read")
def derived(name: str, many: list[int], rest: dict[str, Any] | None = None, ratio: float = 0.5) -> dict[str, Any]:
    """A derived schema."""
    return {"name": name, "many": many, "rest": rest, "ratio": ratio, "yes": True}
