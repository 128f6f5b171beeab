"""Options that commands share, so that each has one wording.

Its job: the decorator that adds them, the printer they ask for.
Not its job: commands (``cli.py``, ``image_commands.py``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from engine.faces.printing import Printer

F = TypeVar("F", bound=Callable[..., Any])


def shared(*names: str) -> Callable[[F], F]:
    """The options that commands have alike; ``--json`` and ``--debug`` are on all of them."""
    known = {
        "policy": click.option("--policy", default="required", metavar="P", help="Policy by name, or by a path beginning with ./ or /."),
        "worker": click.option("--worker", type=click.Choice(["auto", "native", "wasm"]), default="auto", help="Kind of worker."),
        "timeout": click.option("--timeout", "timeout_ms", type=int, metavar="MS", help="Less time than the policy grants, in ms."),
        "tenant": click.option("--tenant", metavar="T", help="Calls of different tenants never share a worker."),
        "images": click.option("--image-dir", metavar="D", help="Folder for images; left out, the user's cache folder."),
        "state": click.option("--state-dir", metavar="D", help="Folder for bundles, layers and the journal."),
    }
    ending = (
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
        click.option("--debug", is_flag=True, help="Show the trace of a bug of ours."),
    )

    def decorate(function: F) -> F:
        for option in (*reversed(ending), *(known[name] for name in reversed(names))):
            function = option(function)
        return function

    return decorate


def printer(as_json: bool) -> "Printer":
    """Prints for one command."""
    from engine.faces.printing import Printer

    return Printer(as_json=as_json)
