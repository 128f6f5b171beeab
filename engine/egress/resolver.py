"""Which addresses a name has: as this host says, or as a fixed table says.

Its job: names to addresses, unjudged.
Not its job: whether an address may be used (``address.py``), how long one waits for it (``dial.py``).
Laws:
1. A lookup that hangs holds none of the threads that others need, and can be left (tests/egress/test_resolver.py).
2. An error never repeats the name (tests/egress/test_resolver.py).
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

import trio

LONGEST = 32  # addresses of one name; more of them are no name's that is used in earnest
_THREADS = 16  # a lookup that is left stays in its thread until the name server answers or the C library gives up


class NoAddress(Exception):
    """The name has no address, or none that can be had now."""


class Resolver(Protocol):
    """Whoever knows addresses of names."""

    async def addresses(self, host: str) -> Sequence[str]:
        """All addresses of a name, best first, at most ``LONGEST``. Raises NoAddress."""
        ...


class HostResolver:
    """This host's own way of looking names up: its files, its name servers. The caller bounds the time."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(_THREADS)

    async def addresses(self, host: str) -> Sequence[str]:
        """As in ``Resolver``."""
        try:
            # no port: a service's name would be looked up as well
            found = await trio.to_thread.run_sync(
                socket.getaddrinfo, host, None, socket.AF_UNSPEC, socket.SOCK_STREAM, abandon_on_cancel=True, limiter=self._threads
            )
        except (OSError, UnicodeError):
            raise NoAddress from None
        return _bounded([str(answer[4][0]) for answer in found])


class FixedResolver:
    """A table and nothing else."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names = {name: tuple(addresses) for name, addresses in names.items()}

    async def addresses(self, host: str) -> Sequence[str]:
        """As in ``Resolver``; without a turn for others, as nothing is waited for."""
        return _bounded(self._names.get(host, ()))


def _bounded(found: Sequence[str]) -> Sequence[str]:
    answers = tuple(dict.fromkeys(found))
    if not answers or len(answers) > LONGEST:
        raise NoAddress
    return answers
