"""Two tools that never end by themselves, for the limits that end a call from outside."""

from engine import tool


@tool(effect="read")
def spin() -> None:
    """Use the processor until somebody ends it."""
    while True:
        continue


@tool(effect="read")
def print_on() -> None:
    """Print until somebody ends it."""
    while True:
        print("x" * 1000)
