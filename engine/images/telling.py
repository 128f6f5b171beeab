"""Who is told how far the making of an image has come."""

from typing import Protocol


class Told(Protocol):
    """Is told of each step as it begins, and now and then that one still runs."""

    def step(self, text: str) -> None:
        """A step begins."""

    def tick(self) -> None:
        """The step still runs."""


class Nobody:
    """Is told, and says nothing."""

    def step(self, text: str) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""
