"""Connections belong to one call: none before it, none after it, and never more than its bounds.

Each is judged by the server: when its connection ended, and how much came over it. That a bound is not reached by less is beside each.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.host import Engine
from tests.network import attempted, scoped
from tests.network.servers import Authority, Server

pytestmark = pytest.mark.slow
OTHER = "other.example.test"
SMALL = {"connections": 4, "total": 12, "denials": 8, "in": "1 MiB", "out": "1 MiB"}
MIB = 1 << 20
_AT_IMPORT = """
def connecting():
    try:
        tries.start(WHERE, "any")
    except OSError as error:
        return type(error).__name__
    return "connected"
found = connecting()
tries.at_import = lambda: found
"""
ENDED = ("cut", "ended", "")  # of a connection: by a reset, or with nothing more to come


def _held(folder: Path, authority: Authority, api: Server, before: str = "", **options: Any) -> Iterator[scoped.Held]:
    rule = scoped.Rule(f"{scoped.API}:{api.port}")
    place = scoped.policy(folder, rule, trust=authority.write(folder), **options)
    with scoped.Held(folder / "state", policy=place, resolver=scoped.Said(**{scoped.API: [scoped.LOOPBACK]})) as made:
        made.load(folder / "source", attempted.source([rule.to], before))
        yield made


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, authority: Authority, api: Server) -> Iterator[scoped.Held]:
    """An engine with the bounds as they are."""
    yield from _held(tmp_path_factory.mktemp("lifetimes"), authority, api)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, authority: Authority, api: Server) -> Iterator[scoped.Held]:
    """One with small bounds."""
    yield from _held(tmp_path_factory.mktemp("small"), authority, api, bounds=SMALL)


@pytest.fixture(autouse=True)
def afresh(api: Server) -> Iterator[None]:
    """The server saw nothing; afterwards no connection is left, of the server's or of the engine's."""
    api.forget()
    yield
    api.settle()
    assert scoped.connected() == 0


def attempt(held: scoped.Held, kind: str, *arguments: Any, **options: Any) -> tuple[str, Any, Mapping[str, int]]:
    """Reason and value of a call, and what its receipt counts as denied."""
    outcome, receipt = held.call("attempt", attempted.given(kind, *arguments), **options)
    return outcome.reason, outcome.value, scoped.denied(receipt)


class TestBefore:
    """Nothing is carried for an import."""

    def test_an_import_is_refused(
        self, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, authority: Authority, api: Server
    ) -> None:
        """At once, so that its start takes no longer; on no books; and a connection of the call is carried."""
        before = _AT_IMPORT.replace("WHERE", repr([scoped.API, api.port]))
        for held in _held(tmp_path_factory.mktemp("import"), authority, api, before):
            reason, value, denied = attempt(held, "at_import")
            assert (reason, value, denied, api.settle().reached) == ("ok.done", "ConnectionRefusedError", {}, 0)
            assert attempt(held, "tls", [scoped.API, api.port], scoped.API) == ("ok.done", "hello", {})
        bare = f"tries.start(['{scoped.LOOPBACK}', {api.port}], '{scoped.API}')"
        attempted.bare(tmp_path, "len", ([],), bare)
        assert [connection.sni for connection in api.settle().connections] == [scoped.API, scoped.API]


class TestAfter:
    """Nothing is carried once there is an answer."""

    def test_a_thread_that_goes_on_sending(self, held: scoped.Held, api: Server, tmp_path: Path) -> None:
        """What the server has of it was counted before the receipt was written, and its connection has ended."""
        outcome, receipt = held.call("attempt", attempted.given("sending", [scoped.API, api.port], scoped.API))
        assert outcome.reason == "ok.done", outcome
        api.settle()
        (connection,) = api.connections
        assert 0 < connection.received < scoped.egress(receipt)["out_bytes"]
        received = api.received
        attempted.bare(tmp_path, "sending", ([scoped.LOOPBACK, api.port], scoped.API))
        assert api.settle().received > received

    def test_a_connection_that_was_kept_for_the_next_call(
        self, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, authority: Authority, api: Server
    ) -> None:
        """Under the freshness warm the same process finds it, ended; the server had one request."""
        head, loosenings = {"freshness": "warm"}, {"state_kept_warm": True}
        for held in _held(tmp_path_factory.mktemp("warm"), authority, api, head=head, loosenings=loosenings):
            where = [scoped.API, api.port], scoped.API
            assert attempt(held, "kept", *where, tenant="one") == ("ok.done", "hello", {})
            reason, value, _ = attempt(held, "kept", *where, tenant="one")
            assert (reason, value in ENDED, len(api.settle().requests)) == ("ok.done", True, 1), value
        assert attempted.bare(tmp_path, "kept", ([scoped.LOOPBACK, api.port], scoped.API)) == "hello"

    @pytest.mark.parametrize("path", ["/endless", "/half"])
    @pytest.mark.parametrize(("then", "reason"), [("return", "ok.done"), ("exit", "crashed.exit")])
    def test_a_call_that_ends_in_the_middle(self, held: scoped.Held, api: Server, path: str, then: str, reason: str) -> None:
        """With an answer half read: the server's connection ends with the call."""
        found, _, _ = attempt(held, "in_the_middle", [scoped.API, api.port], scoped.API, path, then)
        assert (found, [asked.target for asked in api.settle().requests]) == (reason, [path])

    @pytest.mark.parametrize("path", ["/endless", "/half", "/silent"])
    def test_a_call_that_is_given_up_in_the_middle(self, held: scoped.Held, api: Server, path: str) -> None:
        """The server has its request; then nobody waits for the tool any more."""
        arguments = attempted.given("in_the_middle", [scoped.API, api.port], scoped.API, path, "wait")

        async def give_up(engine: Engine) -> None:
            with trio.fail_after(60):
                async with engine.stream("attempt", arguments):
                    await api.wait_async(lambda server: len(server.requests) == 1)
                await engine.concluded()

        held.run(give_up, held.engine)
        assert [asked.target for asked in api.settle().requests] == [path]

    def test_a_server_that_never_answers(self, held: scoped.Held, api: Server) -> None:
        """The call has its deadline all the same, and the connection ends with it."""
        reason, _, _ = attempt(held, "in_the_middle", [scoped.API, api.port], scoped.API, "/silent", "return", timeout_ms=2000)
        assert (reason, api.settle().living) == ("limit_exceeded.wall", 0)

    @pytest.mark.parametrize("freshness", ["fresh", "warm"])
    def test_what_waits_when_a_call_ends(
        self, tmp_path_factory: pytest.TempPathFactory, authority: Authority, api: Server, freshness: str
    ) -> None:
        """It is on the books of no other call, also where the process that began it goes on."""
        kept: dict[str, Any] = {"head": {"freshness": "warm"}, "loosenings": {"state_kept_warm": True}} if freshness == "warm" else {}
        for held in _held(tmp_path_factory.mktemp("waiting"), authority, api, **kept):
            where = [scoped.API, api.port]
            for _ in range(3):
                assert attempt(held, "leave", where, 40, tenant="one")[0] == "ok.done"
                outcome, receipt = held.call("attempt", attempted.given("tls", where, scoped.API), tenant="one")
                assert (outcome.value, scoped.egress(receipt)["connections"], scoped.denied(receipt)) == ("hello", 1, {})


class TestTrust:
    """Whom it trusts, and what a tool is shown of that."""

    def test_certificates_that_changed_since_the_policy_was_read(
        self, tmp_path_factory: pytest.TempPathFactory, authority: Authority, api: Server
    ) -> None:
        """No call begins; with the old content back it does."""
        folder = tmp_path_factory.mktemp("trust")
        for held in _held(folder, authority, api):
            where, file = [scoped.API, api.port], folder / "network" / "ca.pem"
            kept = file.read_bytes()
            assert attempt(held, "tls", where, scoped.API) == ("ok.done", "hello", {})
            file.write_bytes(kept + b"canary")
            outcome, receipt = held.call("attempt", attempted.given("tls", where, scoped.API))
            line = "trust: the certificates changed since the policy was read: load again"
            assert (outcome.reason, outcome.lines, receipt["egress"]) == ("refused.policy", (line,), {})
            file.write_bytes(kept)
            assert attempt(held, "tls", where, scoped.API) == ("ok.done", "hello", {})


class TestBounds:
    """What one call may take."""

    def test_denied_tries_without_end(self, small: scoped.Held, api: Server) -> None:
        """As many as the bound are the tool's to handle; with the next one the call ends."""
        where = [scoped.API, api.port]
        most = SMALL["denials"]
        reason, value, denied = attempt(small, "one_after_the_other", where, OTHER, most)
        assert (reason, value, denied) == ("ok.done", ["cut"] * 8, {"sni_mismatch": 8})
        reason, value, denied = attempt(small, "one_after_the_other", where, OTHER, 1000)
        assert (reason, value, denied) == ("limit_exceeded.egress", None, {"sni_mismatch": 9})
        assert api.settle().reached == 0

    def test_connections_without_end(self, small: scoped.Held, api: Server) -> None:
        """Twelve are carried; with the next one the call ends."""
        where = [scoped.API, api.port]
        assert attempt(small, "one_after_the_other", where, scoped.API, 12) == ("ok.done", ["hello"] * 12, {})
        api.forget()
        reason, value, _ = attempt(small, "one_after_the_other", where, scoped.API, 1000)
        assert (reason, value, len(api.settle().requests)) == ("limit_exceeded.egress", None, 12)

    def test_connections_at_once(self, small: scoped.Held, api: Server) -> None:
        """Four are carried; what comes beside them is cut, and the call goes on."""
        reason, value, denied = attempt(small, "side_by_side", [scoped.API, api.port], scoped.API, 6)
        assert (reason, value, denied) == ("ok.done", ["hello"] * 4 + ["cut"] * 2, {"connections": 2})
        assert len(api.settle().requests) == 4

    def test_bytes_that_come(self, small: scoped.Held, api: Server) -> None:
        """An answer below the bound comes whole; one without end is cut there."""
        where = [scoped.API, api.port], scoped.API
        reason, value, denied = attempt(small, "taken", *where, f"/large?bytes={MIB // 2}", MIB // 2)
        assert (reason, value >= MIB // 2, denied) == ("ok.done", True, {})
        reason, value, denied = attempt(small, "taken", *where, "/endless", 64 * MIB)
        assert (reason, value <= MIB, sorted(denied)) == ("ok.done", True, ["bytes"])

    def test_bytes_that_go(self, small: scoped.Held, api: Server) -> None:
        """The same the other way, by what the server has."""
        where = [scoped.API, api.port], scoped.API
        assert attempt(small, "given_up", *where, MIB // 2) == ("ok.done", "whole", {})
        api.forget()
        reason, value, denied = attempt(small, "given_up", *where, 64 * MIB)
        assert (reason, value, sorted(denied)) == ("ok.done", "cut", ["bytes"])
        assert api.settle().received <= MIB

    def test_nothing_more_is_carried_when_the_bytes_are_used_up(self, small: scoped.Held, api: Server) -> None:
        """A further connection of that call is cut; the next call has its own."""
        reason, value, _ = attempt(small, "taken_and_more", [scoped.API, api.port], scoped.API, "/endless")
        assert (reason, value, len(api.settle().requests)) == ("ok.done", "cut", 1)
        assert attempt(small, "tls", [scoped.API, api.port], scoped.API) == ("ok.done", "hello", {})


class TestWaiting:
    """Who holds a connection open and says nothing."""

    def test_half_of_a_hello(self, tmp_path_factory: pytest.TempPathFactory, authority: Authority, api: Server) -> None:
        """It is cut in time, and nothing of it reached the server."""
        for held in _held(tmp_path_factory.mktemp("half"), authority, api, bounds={"connect": "1 s"}):
            assert attempt(held, "half_a_hello", [scoped.API, api.port], scoped.API) == ("ok.done", "ended", {"silent": 1})
            assert api.settle().reached == 0

    def test_a_connection_that_idles(self, tmp_path_factory: pytest.TempPathFactory, authority: Authority, api: Server) -> None:
        """It is cut in time on both sides, though the call goes on."""
        for held in _held(tmp_path_factory.mktemp("idle"), authority, api, bounds={"idle": "3 s"}):
            reason, value, _ = attempt(held, "idle", [scoped.API, api.port], scoped.API)
            assert (reason, value, len(api.settle().requests)) == ("ok.done", "ended", 1)

    def test_a_connection_that_is_used_meanwhile(self, held: scoped.Held, api: Server) -> None:
        """The control: with the usual bounds nobody cuts what waits, until the call ends."""
        reason, _, denied = attempt(held, "idle", [scoped.API, api.port], scoped.API, timeout_ms=4000)
        assert (reason, denied) == ("limit_exceeded.wall", {})
