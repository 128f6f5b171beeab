"""The books of one call: each bound with what is just within and just beyond it."""

import pytest
import trio
import trio.testing

from engine.egress.traffic import DENIALS, Denied, Exceeded, Traffic
from engine.policy.network import EgressBounds


def test_a_refusal_beyond_the_bound_ends_the_call() -> None:
    """Three are allowed and counted by kind, the fourth is counted and ends it."""
    traffic = Traffic(EgressBounds(denials=3))
    for kind in ("address", "address", "not_tls"):
        traffic.deny(kind)
    with pytest.raises(Exceeded) as caught:
        traffic.deny("resolve")
    assert caught.value.line == traffic.exceeded == "more refused connections than a call may make"
    assert traffic.facts() == {"connections": 0, "in_bytes": 0, "out_bytes": 0, "denied": {"address": 2, "not_tls": 1, "resolve": 1}}


def test_a_kind_that_is_not_on_the_list_is_refused() -> None:
    """So nothing that a worker chose becomes one; the control is every kind of the list."""
    with pytest.raises(ValueError, match="not a kind of refusal"):
        Traffic(EgressBounds()).deny("api.example.test")
    traffic = Traffic(EgressBounds(denials=len(DENIALS)))
    for kind in DENIALS:
        traffic.deny(kind)
    assert traffic.facts()["denied"] == dict.fromkeys(sorted(DENIALS), 1)


def test_connections_at_once_and_in_total() -> None:
    """One too many at once is refused, one that ended makes room, one too many in total ends the call."""
    traffic = Traffic(EgressBounds(connections=2, total=3))
    first, second, third, fourth = [lambda number=number: None for number in range(4)]
    traffic.enter(first)
    traffic.enter(second)
    with pytest.raises(Denied) as denied:
        traffic.enter(third)
    assert denied.value.kind == "connections"
    traffic.leave(first)
    traffic.enter(third)
    traffic.leave(second)
    with pytest.raises(Exceeded) as caught:
        traffic.enter(fourth)
    assert caught.value.line == "more connections than a call may make"
    assert traffic.connections == 3


@pytest.mark.parametrize("way", ["sent", "received"])
async def test_the_last_byte_passes_and_the_next_one_cuts_all(way: str) -> None:
    """Every connection is cut, none is made any more, and nothing is counted that did not pass."""
    traffic = Traffic(EgressBounds(out_bytes=10, in_bytes=10))
    cut: list[int] = []
    for number in (1, 2):
        traffic.enter(lambda number=number: cut.append(number))  # type: ignore[misc]  # mypy cannot infer a default
    traffic.carry(**{way: 10})
    assert cut == []
    with pytest.raises(Denied) as denied:
        traffic.carry(**{way: 1})
    assert (denied.value.kind, sorted(cut)) == ("bytes", [1, 2])
    traffic.refused(denied.value)
    assert traffic.facts()["denied"] == {"bytes": 1}
    with pytest.raises(Denied) as again:
        traffic.enter(lambda: None)
    assert again.value.kind == "bytes"
    assert (traffic.out_bytes, traffic.in_bytes) == ((10, 0) if way == "sent" else (0, 10))


async def test_beyond_the_rate_one_waits(mock_clock: trio.testing.MockClock) -> None:
    """A tenth of a second's share passes at once, then each byte has its time; a pause gives no more than that share."""
    traffic = Traffic(EgressBounds(rate_bytes=1000))
    assert traffic.carry(sent=100) == 0
    assert traffic.carry(received=500) == pytest.approx(0.5)
    assert traffic.carry(sent=100) == pytest.approx(0.6)
    mock_clock.jump(1000)
    assert traffic.carry(sent=100) == 0
    assert traffic.carry(sent=1) == pytest.approx(0.001)


@pytest.mark.parametrize(("rate", "chunk"), [(1, 1024), (100_000, 10_000), (1 << 30, 256 << 10)])
def test_a_portion_is_no_larger_than_the_rate_has_at_once(rate: int, chunk: int) -> None:
    """Nor smaller than what is worth a turn."""
    assert Traffic(EgressBounds(rate_bytes=rate)).chunk == chunk
