"""What one call may reach while it runs, and nothing before or after.

Its job: open the way out when the call's request is about to be sent, answer its requests for ``engine.http``, close all with the call.
Not its job: carrying and judging connections (``engine/egress``), where a tool may connect (``policy/network.py``).
Laws:
1. Before the call's request is sent whoever connects is refused: an import has no network (tests/network/test_lifetimes.py).
2. Nothing is carried once the call has its answer, or has ended otherwise (tests/network/test_lifetimes.py).
3. A call that is denied too often ends (tests/network/test_lifetimes.py).
4. What a call left waiting when it ended is on no other call's books (tests/network/test_lifetimes.py).
5. There is no call whose certificates are others than those its policy was read with (tests/network/test_lifetimes.py).
"""

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from engine.egress import client, relay
from engine.egress.link import plainly
from engine.egress.traffic import Exceeded, Traffic
from engine.egress.way import Way
from engine.policy.network import Scope
from engine.worker.native import Jail

HTTP = "engine.http"  # the host call behind ``from engine import http``; no tool's name has a dot


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outward:
    """The network of one call: its scope, how a connection is made, what was carried."""

    scope: Scope
    way: Way
    traffic: Traffic
    longest: int  # bytes of an answer's body that the tool is handed in one piece

    def __post_init__(self) -> None:
        """Raises PolicyError ``refused.policy`` when the certificates to trust are no longer the policy's."""
        self.way.check()

    @asynccontextmanager
    async def opened(self, jail: Jail, end: Callable[[str], None]) -> AsyncIterator[None]:
        """The way out, until the block is left. Raises HostError when it cannot be opened.

        ``end`` is told the line when a bound says that the call must end.
        """
        doors = list(zip(jail.listeners, self.scope.destinations, strict=bool(jail.listeners)))
        async with plainly() as nursery:
            # inside: nobody can connect any more when the connections are reset
            with relay.opened([listener for listener, _ in doors], jail.kill):
                if doors:
                    nursery.start_soon(self._serve, doors, end)
                yield
            nursery.cancel_scope.cancel()

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _serve(self, doors: list[Any], end: Callable[[str], None]) -> None:
        try:
            await relay.serve(doors, self.way, self.traffic)
        except Exceeded as excess:
            end(excess.line)

    async def answer(self, arguments: dict[str, Any]) -> tuple[bool, Any]:
        """The answer to a request for ``engine.http``. Raises Exceeded when the call must end."""
        return await client.answer(arguments, self.scope, self.way, self.traffic, longest=self.longest)

    def facts(self) -> Mapping[str, Any]:
        """For the receipt: what was carried, and what was denied, by kind."""
        facts = self.traffic.facts()
        return {**{name: facts[name] for name in ("connections", "in_bytes", "out_bytes")}, "egress_denied": facts["denied"]}
