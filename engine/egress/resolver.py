"""Which addresses a name has: as this host says, or as a fixed table says.

Its job: names to addresses, unjudged.
Not its job: whether an address may be used (``address.py``), how long one waits for it (``dial.py``).
Laws:
1. A lookup that hangs holds none of the threads that others need, and can be left (tests/egress/test_resolver.py).
2. Of one name there is one lookup at a time, whoever asks, and of one domain there are few (tests/egress/test_resolver.py).
3. An error never repeats the name (tests/egress/test_resolver.py).
"""

import contextlib
import dataclasses
import functools
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import trio

LONGEST = 32  # addresses of one name; more of them are no name's that is used in earnest
_AT_ONCE = 128  # lookups; each has a thread until the name server answers or the C library gives up, also when nobody waits for it
_OF_A_DOMAIN = 16  # of them


class NoAddress(Exception):
    """The name has no address, or none that can be had now."""


class Resolver(Protocol):
    """Whoever knows addresses of names."""

    async def addresses(self, host: str) -> Sequence[str]:
        """All addresses of a name, best first, at most ``LONGEST``. Raises NoAddress."""
        ...


@dataclasses.dataclass(eq=False)
class _Lookup:
    """One that runs. ``found`` is what came of it, once ``over`` is set."""

    domain: str
    token: trio.lowlevel.TrioToken
    over: trio.Event = dataclasses.field(default_factory=trio.Event)
    found: Sequence[str] = ()


class HostResolver:
    """This host's own way of looking names up: its files, its name servers. The caller bounds the time."""

    def __init__(self) -> None:
        self._running: dict[str, _Lookup] = {}
        self._waiting = trio.lowlevel.ParkingLot()

    async def addresses(self, host: str) -> Sequence[str]:
        """As in ``Resolver``; whoever asks for a name that is being looked up has the answer of that."""
        domain = ".".join(host.rsplit(".", 2)[-2:])
        while (lookup := self._of(host)) is None and not self._free(domain):
            await self._waiting.park()
        lookup = lookup or self._begun(host, domain)
        await lookup.over.wait()
        return bounded(lookup.found)

    def _of(self, host: str) -> _Lookup | None:
        found = self._running.get(host)
        # one of another run of trio tells nobody here
        return found if found is not None and found.token is trio.lowlevel.current_trio_token() else None

    def _free(self, domain: str) -> bool:
        # security: whoever has a name server that never answers would take the threads that others' names need; a call that
        # ends does not give its threads back, so they are bounded by what hangs, and not by call
        return len(self._running) < _AT_ONCE and sum(one.domain == domain for one in self._running.values()) < _OF_A_DOMAIN

    def _begun(self, host: str, domain: str) -> _Lookup:
        lookup = self._running[host] = _Lookup(domain, trio.lowlevel.current_trio_token())

        def told(found: Any) -> None:  # an outcome of trio's
            try:
                lookup.token.run_sync_soon(self._over, host, lookup, found)
            except trio.RunFinishedError:
                self._forget(host, lookup)

        # no port: a service's name would be looked up as well
        work = functools.partial(socket.getaddrinfo, host, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
        try:
            trio.lowlevel.start_thread_soon(work, told)
        except RuntimeError:  # this host has no more threads
            self._forget(host, lookup)
            raise NoAddress from None
        return lookup

    def _over(self, host: str, lookup: _Lookup, found: Any) -> None:
        with contextlib.suppress(Exception):  # then it has none; the error holds the name
            lookup.found = [str(answer[4][0]) for answer in found.unwrap()]
        self._forget(host, lookup)
        lookup.over.set()
        self._waiting.unpark_all()

    def _forget(self, host: str, lookup: _Lookup) -> None:
        if self._running.get(host) is lookup:
            del self._running[host]


class FixedResolver:
    """A table and nothing else."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names = {name: tuple(addresses) for name, addresses in names.items()}

    async def addresses(self, host: str) -> Sequence[str]:
        """As in ``Resolver``; without a turn for others, as nothing is waited for."""
        return bounded(self._names.get(host, ()))


def bounded(found: object) -> Sequence[str]:
    """An answer, each address of it once. Raises NoAddress when it is none: empty, too long, or not of text."""
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise NoAddress
    if not all(isinstance(one, str) for one in found):
        raise NoAddress
    answers = tuple(dict.fromkeys(found))
    if not answers or len(answers) > LONGEST:
        raise NoAddress
    return answers
