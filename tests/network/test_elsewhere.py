"""A tool that may connect to one place has no more of the host than one that may connect to none, and a place that no worker can hold is
had by nobody.

The attempts are those on a worker without network; each is judged by listeners of this process, and bare it gets its word across.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import kit
from tests.network import scoped
from tests.security.test_promise_network import ATTEMPTS, DENIED, SOURCE, TARGETS, Listener, lan_address

pytestmark = pytest.mark.slow
UNREACHED = {"ECONNREFUSED", "ENETUNREACH", "EAFNOSUPPORT", "EPROTONOSUPPORT", "EISCONN"}  # of a network in which nobody else is


def asking(place: str) -> str:
    """The source of these attempts, whose tool asks for that place."""
    return ATTEMPTS.replace("{extra}", f", network=[{place!r}]")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name fits into a socket's address."""
    with tempfile.TemporaryDirectory(prefix="net-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("target", TARGETS)
async def test_nothing_else_reaches_a_listener_of_the_host(tmp_path: Path, short: Path, target: str) -> None:
    """The one place has the very port of the listener, so that no rule about ports can be what holds the attempt."""
    kind, make = TARGETS[target]
    if "LAN" in target and lan_address() is None:
        pytest.skip("unproven here: this host has no address but its loopback")
    made, where = make(short)
    if kind == "kernel call" and os.uname().machine != "x86_64":
        made.close()
        pytest.skip("the numbers are those of x86_64")
    place = f"api.example.com:{where[1] if len(where) > 1 else 443}"
    listener = Listener(made)
    try:
        arguments = {"kind": kind, "where": where}
        policy = scoped.policy(tmp_path / "policy", scoped.Rule(place, private=()))
        async with kit.clean_engine(tmp_path / "state", policy=policy, resolver=scoped.Said()) as engine:
            for _ in range(2):
                outcome = await kit.jailed(engine, tmp_path / "source", asking(place), "attempt", arguments)
                assert (outcome.reason, outcome.value in DENIED | UNREACHED) == ("ok.done", True), outcome
                assert scoped.denied(await outcome.concluded()) == {}
        assert listener.received == []
        assert kit.bare(tmp_path / "bare", SOURCE, "attempt", arguments).value == "through"
    finally:
        listener.close()
    assert listener.received == [b"canary"]


async def test_no_address_leads_out(tmp_path: Path) -> None:
    """Of a metadata service or of anybody: there is no route, and the host's side hears nothing of it."""
    policy = scoped.policy(tmp_path / "policy", scoped.Rule("api.example.com:80", private=()))
    async with kit.clean_engine(tmp_path / "state", policy=policy, resolver=scoped.Said()) as engine:
        await engine.load(kit.write(tmp_path / "source", asking("api.example.com:80")))
        found = {}
        for host in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "1.1.1.1"):
            outcome, receipt = await scoped.called(engine, "attempt", {"kind": "tcp", "where": [host, 80]})
            found[host] = outcome.value, scoped.egress(receipt)["connections"]
    assert found == dict.fromkeys(found, ("ENETUNREACH", 0))


@pytest.mark.parametrize("place", ["0.0.0.0:443", "224.0.0.1:443"])
async def test_a_place_that_no_worker_can_hold_refuses(tmp_path: Path, place: str) -> None:
    """Never a worker with more, and never one with less in silence: a listener there would answer for every address, or for none."""
    policy = scoped.policy(tmp_path / "policy", scoped.Rule(place, private=()))
    async with kit.clean_engine(tmp_path / "state", policy=policy, resolver=scoped.Said()) as engine:
        outcome = await kit.jailed(engine, tmp_path / "source", asking(place), "attempt", {"kind": "listen", "where": ["127.0.0.1"]})
        started = (await outcome.concluded())["worker"]["started"]
    line = "1 of the places are addresses that a loopback device cannot have: IPv6, or no host's"
    assert (outcome.reason, outcome.lines, started) == ("refused.network_scoped", (line,), False)


async def test_without_a_wall_no_place_is_had(tmp_path: Path) -> None:
    """A plain process has all of the host's network, so it gets none of it by name."""
    policy = scoped.policy(
        tmp_path / "policy",
        scoped.Rule("api.example.com:443", private=()),
        head={"mode": "host"},
        loosenings={"host_mode_without_any_wall": True},
    )
    async with kit.clean_engine(tmp_path / "state", policy=policy, resolver=scoped.Said()) as engine:
        outcome = await kit.jailed(
            engine, tmp_path / "source", asking("api.example.com:443"), "attempt", {"kind": "listen", "where": ["127.0.0.1"]}
        )
        started = (await outcome.concluded())["worker"]["started"]
    assert (outcome.reason, started) == ("refused.network_scoped", False)
