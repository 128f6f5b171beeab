"""What carries a connection besides its rule and its bounds: who resolves, who knows secrets, whom TLS trusts.

Its job: the record of it, and what follows from it, made once: the TLS context, the masks; the same for one call.
Not its job: secrets themselves (``vault.py``), when TLS is spoken (``forward.py``, ``client.py``).
Laws:
1. A certificate of another authority, or for another name, is refused (tests/egress/test_upgrade.py).
2. Certificates that are not those of the digest are not used (tests/egress/test_upgrade.py).
3. What a call attaches and masks are the values of its beginning, whatever is reloaded meanwhile (tests/egress/test_upgrade.py).
"""

import dataclasses
import ssl
from collections.abc import Callable, Iterable

import trio

from engine.egress import attach
from engine.egress.mask import Mask
from engine.egress.resolver import Resolver
from engine.errors import PolicyError
from engine.policy.network import Rule
from engine.policy.trust import certificates

_MASKS = 16  # kept; each knows the values of one scope, as they once were


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """``secret`` gives the value of an id; ``trust`` is a file of certificates in PEM form, None for the system's.

    ``digest`` is of that file's content.
    """

    resolver: Resolver
    secret: Callable[[str], str] = dataclasses.field(repr=False)
    trust: str | None
    digest: str | None = None
    _made: list[ssl.SSLContext] = dataclasses.field(default_factory=list, repr=False, compare=False)
    _masks: dict[frozenset[str], Mask] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def during(self, rules: Iterable[Rule]) -> "Way":
        """The same for one call under those rules: their secrets stay as they are now."""
        # security: a value that came later would be attached, and come back through a mask that does not know it
        return dataclasses.replace(self, secret=attach.held(rules, self.secret).__getitem__)

    def mask(self, rules: Iterable[Rule]) -> Mask:
        """What takes out all that those rules attach: one host may give back what another one was sent."""
        values = frozenset(attach.held(rules, self.secret).values())
        if values not in self._masks:
            if len(self._masks) >= _MASKS:
                self._masks.clear()
            self._masks[values] = Mask(values)
        return self._masks[values]

    async def tls(self) -> ssl.SSLContext:
        """The context of all its connections. Raises OSError when the file cannot be used."""
        if not self._made:  # in a thread: the system's certificates take tens of milliseconds
            self._made.append(await trio.to_thread.run_sync(_context, self.trust, self.digest))
        return self._made[0]

    def check(self) -> None:
        """Raises PolicyError ``refused.policy`` when the file is no longer the one of the digest, also where its content is known."""
        if self.trust is not None:
            certificates(self.trust, self.digest)


def _context(trust: str | None, digest: str | None) -> ssl.SSLContext:
    # not create_default_context: that one writes keys to the file that SSLKEYLOGFILE names
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # demands a certificate, and that it is for the host's name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if trust is None:
        context.load_default_certs()
    else:
        try:
            data = certificates(trust, digest)
        except PolicyError:
            raise OSError("the file of certificates cannot be used") from None
        context.load_verify_locations(cadata=data.decode("ascii", "replace"))
    return context
