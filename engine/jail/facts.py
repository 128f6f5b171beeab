"""What the launcher told of this host, checked and frozen.

Its job: the record that plans are made from, and which of the two ways into a jail this host offers.
Not its job: finding the facts out (``worker_images/enter/facts.py``), judging them (``plan.py``).
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from engine.errors import HostError

UIDS = range(65_600, 66_624)  # one per jail: above the 16 bits that services use, below the first subordinate id (subuid(5))
_NEEDED_CAPABILITIES = {"CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SETPCAP": 8, "CAP_SYS_ADMIN": 21}  # capabilities(7)


class Way(enum.StrEnum):
    """How a jail is entered: as root with an unused uid, or as an ordinary user in a user namespace of its own."""

    ROOT = "root"
    USER = "user"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFacts:
    """This host as the launcher sees it; levels of 0 mean absent."""

    machine: str
    kernel: str
    python: str
    euid: int
    capabilities: int
    uid_map: tuple[tuple[int, int], ...]
    tasks_bound: bool
    landlock: int
    peer_pidfd: bool
    stdlib: str
    stdlib_inside: str
    standard_modules: frozenset[str]
    libraries: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    cgroups: frozenset[str]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "HostFacts":
        """The facts out of the launcher's words. Raises HostError when one is missing."""
        try:
            return cls(
                **{
                    name: told[name]
                    for name in (
                        "machine",
                        "kernel",
                        "python",
                        "euid",
                        "capabilities",
                        "landlock",
                        "peer_pidfd",
                        "tasks_bound",
                        "stdlib",
                        "stdlib_inside",
                    )
                },
                uid_map=tuple((first, count) for first, count in told["uid_map"]),
                standard_modules=frozenset(told["standard_modules"]),
                libraries=tuple(told["libraries"]),
                links=tuple((text, path) for text, path in told["links"]),
                cgroups=frozenset(told["cgroups"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise HostError("refused.start_failed", f"the launcher told no {error}") from None

    @property
    def way(self) -> Way:
        """Root only where all that it takes is held: a container's root often may not mount, or has no uid to spare."""
        held = all(self.capabilities >> bit & 1 for bit in _NEEDED_CAPABILITIES.values())
        spare = any(first <= UIDS.start and UIDS.stop < first + count for first, count in self.uid_map)  # and one for the parser
        return Way.ROOT if self.euid == 0 and held and spare else Way.USER
