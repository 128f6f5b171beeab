"""What the connections of one call took together, and what was refused to them.

Its job: the books of one call, its bounds, the closed list of refusals with a sentence for each.
Not its job: carrying anything (``tunnel.py``, ``forward.py``, ``client.py``), the receipt it is written to.
Laws:
1. What is at a bound passes, and the next of it is refused or ends the call (tests/unit/test_egress_traffic.py).
2. Nothing a worker chose is in a refusal: kinds come from one list (tests/unit/test_egress_traffic.py).
3. When the bytes are used up, every connection of the call is reset, and none is made any more (tests/unit/test_egress_traffic.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import trio

from engine.policy.network import EgressBounds

# the kinds of refusals, and what a tool is told of one where it can be told anything
DENIALS: Mapping[str, str] = MappingProxyType(
    {
        "address": "the destination has an address that no tool may reach",
        "resolve": "the destination has no address at this time",
        "unreachable": "the destination did not take the connection in time",
        "certificate": "the destination could not show that it is the one it should be",
        "silent": "nothing was asked for in time",
        "sni_missing": "a TLS client has to name the host that it wants",
        "sni_mismatch": "a TLS client named another host than the one it connected to",
        "encrypted_hello": "a TLS client may not hide which host it wants",
        "not_tls": "only TLS is carried to this destination",
        "not_http": "the request is not one of HTTP/1.1",
        "method": "the request has a method that is not carried",
        "switch": "a change of the protocol is not carried",
        "host_header": "the request names another host than the one it was sent to",
        "destination": "the destination is not one that the tool was granted",
        "redirect": "the destination redirects too often",
        "answer": "the destination's answer is not one of HTTP/1.1",
        "coding": "the destination's answer is coded although it was asked for as it is",
        "secret": "a secret that belongs to this destination cannot be attached",
        "connections": "there are too many connections at once",
        "bytes": "the call has sent or received all that it may",
    }
)
_BURST_S = 0.1  # of the rate, taken at once after a pause
_LEAST_CHUNK, _LARGEST_CHUNK = 1024, 256 << 10


class Denied(Exception):
    """One connection, or one request, is refused; ``kind`` is a key of ``DENIALS``, ``counted`` when it is in the books."""

    def __init__(self, kind: str, *, counted: bool = False) -> None:
        self.kind, self.counted = kind, counted
        super().__init__(kind)


class Exceeded(Exception):
    """The call has to end: it was refused too often or connected too often. ``line`` says it without a name."""

    def __init__(self, line: str) -> None:
        self.line = line
        super().__init__(line)


class Traffic:
    """The books of one call. ``exceeded`` says why the call has to end, once it has."""

    def __init__(self, bounds: EgressBounds) -> None:
        self.bounds = bounds
        self.connections = self.in_bytes = self.out_bytes = 0
        self.exceeded: str | None = None
        self._denied: Counter[str] = Counter()
        self._open: set[Callable[[], None]] = set()
        self._spent = False
        self._paid = float("-inf")  # the moment at which all that was carried fits the rate

    def enter(self, cut: Callable[[], None]) -> None:
        """One more connection; ``cut`` resets it at once, from anywhere. Raises Denied, Exceeded."""
        if self._spent:
            raise Denied("bytes")
        if len(self._open) >= self.bounds.connections:
            raise Denied("connections")
        self.count()
        self._open.add(cut)

    def count(self) -> None:
        """A connection to a host, the first for an entry or a further one. Raises Exceeded."""
        if self.connections >= self.bounds.total:
            self._exceed("more connections than a call may make")
        self.connections += 1

    def leave(self, cut: Callable[[], None]) -> None:
        """That connection is over, or was never counted."""
        self._open.discard(cut)

    def deny(self, kind: str) -> None:
        """Count a refusal. Raises Exceeded beyond the bound."""
        if kind not in DENIALS:
            raise ValueError("not a kind of refusal")
        self._denied[kind] += 1
        if self._denied.total() > self.bounds.denials:
            self._exceed("more refused connections than a call may make")

    def refused(self, denied: Denied) -> None:
        """Count that refusal, once. Raises Exceeded beyond the bound."""
        if not denied.counted:
            self.deny(denied.kind)

    def carry(self, *, sent: int = 0, received: int = 0) -> float:
        """Count bytes before they are passed on; seconds to wait until the rate allows for them. Raises Denied."""
        if self._spent or self.out_bytes + sent > self.bounds.out_bytes or self.in_bytes + received > self.bounds.in_bytes:
            self._spend()
            raise Denied("bytes", counted=True)
        self.out_bytes += sent
        self.in_bytes += received
        now = trio.current_time()
        self._paid = max(self._paid, now - _BURST_S) + (sent + received) / self.bounds.rate_bytes
        return max(0.0, self._paid - now)

    def _spend(self) -> None:
        """No byte more. Raises Exceeded."""
        if self._spent:
            return
        self._spent = True
        try:
            self.deny("bytes")
        finally:
            for cut in tuple(self._open):
                cut()

    @property
    def chunk(self) -> int:
        """How many bytes are carried in one go: no more than the rate has for a burst."""
        return max(_LEAST_CHUNK, min(_LARGEST_CHUNK, int(self.bounds.rate_bytes * _BURST_S)))

    def facts(self) -> dict[str, Any]:
        """For the receipt: numbers alone."""
        denied = {kind: self._denied[kind] for kind in sorted(self._denied)}
        return {"connections": self.connections, "in_bytes": self.in_bytes, "out_bytes": self.out_bytes, "denied": denied}

    def _exceed(self, line: str) -> None:
        self.exceeded = line
        raise Exceeded(line)
