"""What a child of every kind of worker offers, and how it ended.

Its job: the protocol, and the record of the end.
Not its job: a kind (``native.py``).
"""

import dataclasses
from collections.abc import Collection
from typing import Protocol


@dataclasses.dataclass(frozen=True, kw_only=True)
class End:
    """How a child ended. ``status`` is as from waitpid(2), None when the worker around it died first; times in us, RSS in KiB."""

    status: int | None
    user_us: int = 0
    system_us: int = 0
    peak_rss_kib: int = 0
    forced: bool = False  # we had to kill it

    def by_force(self) -> "End":
        """The same, of a process that we had to kill."""
        return End(status=self.status, user_us=self.user_us, system_us=self.system_us, peak_rss_kib=self.peak_rss_kib, forced=True)

    @property
    def cpu_ms(self) -> float | None:
        """CPU time of user and kernel together, in ms; None where nobody could tell."""
        return None if self.status is None else (self.user_us + self.system_us) / 1000


class Child(Protocol):
    """One process for one call: a channel, two outputs, a way to know and to end it."""

    async def wait(self) -> None:
        """Until there is something to read, or the process is gone."""

    def ready(self, seconds: float = 0.0) -> Collection[str]:
        """Which of ``channel``, ``stdout``, ``stderr`` has something to read, and ``gone``; blocks until one does, at most so long."""

    def read(self) -> bytes | None:
        """What came on the channel: bytes, ``b""`` at its end, None when there is nothing yet."""

    def read_output(self, name: str) -> bytes:
        """What came on ``stdout`` or ``stderr`` since; empty when nothing did."""

    async def write(self, data: bytes) -> None:
        """Write it all. Raises BrokenPipeError when the process closed its end."""

    def gone(self) -> bool:
        """Whether the kernel says that the process has ended."""

    def kill(self) -> None:
        """SIGKILL, through its pidfd."""

    def close(self) -> None:
        """Let go of our ends of its descriptors."""
