"""What one call may reach while it runs, and nothing before or after.

Its job: open the way out when the call's request is about to be sent, answer its requests for ``engine.http``, close all with the call.
Not its job: carrying and judging connections (``engine/egress``), where a tool may connect (``policy/network.py``).
Laws:
1. What connected before the call's request was sent is reset: an import has no network (tests/network/test_lifetimes.py).
2. Nothing is carried once the call has its answer, or has ended otherwise (tests/network/test_lifetimes.py).
3. A call that is denied too often ends (tests/network/test_lifetimes.py).
4. What a call's child left waiting when it ended is on no other call's books (tests/network/test_lifetimes.py).
"""

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from engine.egress import client, relay
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

    @asynccontextmanager
    async def opened(self, jail: Jail, end: Callable[[str], None]) -> AsyncIterator[None]:
        """The way out, until the block is left. ``end`` is told the line when a bound says that the call must end."""
        relay.reset_waiting(jail.listeners, self.traffic)
        doors = list(zip(jail.listeners, self.scope.destinations, strict=bool(jail.listeners)))
        caught: BaseException | None = None
        async with trio.open_nursery() as nursery:
            if doors:
                nursery.start_soon(self._serve, doors, end)
            try:
                yield
            except BaseException as error:
                caught = error  # raised below, where no nursery wraps it in a group
            nursery.cancel_scope.cancel()
        if caught is not None:
            raise caught

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _serve(self, doors: list[Any], end: Callable[[str], None]) -> None:
        try:
            await relay.serve(doors, self.way, self.traffic)
        except Exceeded as excess:
            end(excess.line)

    def forget(self, jail: Jail) -> None:
        """Reset what the child left waiting; once it is gone, and before the next one is made."""
        relay.reset_waiting(jail.listeners, None)

    async def answer(self, arguments: dict[str, Any]) -> tuple[bool, Any]:
        """The answer to a request for ``engine.http``. Raises Exceeded when the call must end."""
        return await client.answer(arguments, self.scope, self.way, self.traffic, longest=self.longest)

    def facts(self) -> Mapping[str, Any]:
        """For the receipt: what was carried, and what was denied, by kind."""
        facts = self.traffic.facts()
        return {**{name: facts[name] for name in ("connections", "in_bytes", "out_bytes")}, "egress_denied": facts["denied"]}


def unreachable() -> tuple[bool, Any]:
    """The answer to the same in a call that has no network."""
    return False, "the tool was not granted any destination"
