"""The secrets of one engine: who holds their values, what watches over all that leaves, how a connection gets at one.

Its job: one vault and one watch for all calls, renewed together.
Not its job: the values (``egress/vault.py``), finding them (``results/redact.py``), one call's way out (``leaving.py``, ``outward.py``).
Laws:
1. A policy's values are held before anything runs under it (tests/contract/test_vault_engine.py).
2. What was held once is watched for as long as the engine lives (tests/contract/test_vault_engine.py).
"""

from collections.abc import Mapping
from pathlib import Path

import trio

from engine.egress import vault
from engine.egress.resolver import Resolver
from engine.egress.traffic import Traffic
from engine.egress.way import Way
from engine.errors import PolicyError
from engine.leaving import Leaving
from engine.outward import Outward
from engine.policy.model import OnSecret, Policy
from engine.policy.network import EgressBounds, Scope
from engine.policy.resolve import Resolved
from engine.policy.shapes import load_shapes
from engine.results.redact import Watch

_NOWHERE = Scope(profile="none", destinations=(), bounds=EgressBounds())


class Secrecy:
    """Raises PolicyError when the shapes of secrets cannot be read."""

    def __init__(self, policies: Path, resolver: Resolver) -> None:
        self._shapes, self._resolver = load_shapes(policies), resolver
        self._vault = vault.of_this_process()
        self._ways: dict[tuple[str | None, str | None], Way] = {}  # by whom they trust: reading all of a system's certificates takes long
        self._watched: dict[str, str] = {}
        self.watch = Watch(self._watched, self._shapes)

    @trio.lowlevel.enable_ki_protection  # an interrupt comes while it waits, never between a value that is held and the watch for it
    async def hold(self, policy: Policy) -> None:
        """Take a policy's secrets. Raises PolicyError ``refused.secret``."""
        await self._vault.hold(policy)
        self._renew()

    @trio.lowlevel.enable_ki_protection  # as above
    async def reload(self) -> None:
        """Read all of them again. Raises PolicyError ``refused.secret``; then the old values stay."""
        await self._vault.reload()
        self._renew()

    def variables(self, families: Mapping[str, tuple[str, ...]], capabilities: tuple[str, ...]) -> Mapping[str, str]:
        """The variables of the one capability that was granted. Raises PolicyError ``refused.credential_*``."""
        return self._vault.variables(families, capabilities)

    def leaving(self, on_secret: OnSecret) -> Leaving:
        """The way out of one call."""
        return Leaving(self.watch, on_secret)

    def outward(self, resolved: Resolved) -> Outward:
        """The network of one call; without a scope nothing is in it, and what asks for more is refused and counted."""
        scope = _NOWHERE if resolved.scope is None else resolved.scope
        trusted = (scope.trust, scope.trust_digest)
        if trusted not in self._ways:
            self._ways[trusted] = Way(resolver=self._resolver, secret=self._secret, trust=scope.trust, digest=scope.trust_digest)
        way = self._ways[trusted].during(one.rule for one in scope.destinations)
        return Outward(scope=scope, way=way, traffic=Traffic(scope.bounds), longest=resolved.limits.result_bytes)

    def _secret(self, name: str) -> str:
        """As a ``Way`` wants it. Raises LookupError for one that nobody holds."""
        try:
            return self._vault.secret(name)
        except PolicyError:
            raise LookupError from None

    def _renew(self) -> None:
        held = dict(self._vault.held())
        if held != self._watched:  # making a watch takes long, and most loads bring nothing new
            self.watch, self._watched = Watch(held, self._shapes), held
