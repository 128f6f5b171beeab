"""What carries a connection besides its rule and its bounds: who resolves, who knows secrets, whom TLS trusts.

Its job: the record of it, and the TLS context that follows from it, made once.
Not its job: secrets themselves (``vault.py``), when TLS is spoken (``forward.py``, ``client.py``).
Laws:
1. A certificate of another authority, or for another name, is refused (tests/egress/test_upgrade.py).
"""

import dataclasses
import ssl
from collections.abc import Callable

import trio

from engine.egress.resolver import Resolver


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """``secret`` gives the value of an id; ``trust`` is a file of certificates in PEM form, None for the system's."""

    resolver: Resolver
    secret: Callable[[str], str] = dataclasses.field(repr=False)
    trust: str | None
    _made: list[ssl.SSLContext] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    async def tls(self) -> ssl.SSLContext:
        """The context of all its connections. Raises OSError when the file cannot be used."""
        if not self._made:  # in a thread: the system's certificates take tens of milliseconds
            self._made.append(await trio.to_thread.run_sync(_context, self.trust))
        return self._made[0]


def _context(trust: str | None) -> ssl.SSLContext:
    # not create_default_context: that one writes keys to the file that SSLKEYLOGFILE names
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # demands a certificate, and that it is for the host's name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if trust is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cafile=trust)
    return context
