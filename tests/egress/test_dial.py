"""From a place to a connection: every answer of one lookup is judged, and no other address is connected to."""

import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from engine.egress import dial
from engine.egress.dial import dialled, vetted
from engine.egress.resolver import LONGEST, FixedResolver
from engine.egress.traffic import Denied
from engine.policy.network import Destination
from tests.doors import NAME, destination, listener


class Rebinding:
    """One answer for the first lookup, another one for every later one."""

    def __init__(self, first: Sequence[str], later: Sequence[str]) -> None:
        self._first, self._later = first, later
        self.asked = 0

    async def addresses(self, host: str) -> Sequence[str]:
        """As the engine's resolvers."""
        self.asked += 1
        return self._first if self.asked == 1 else self._later


async def kind(granted: Destination, answers: Sequence[str]) -> str | None:
    """Why a place with those answers is refused."""
    try:
        await vetted(granted.place, granted.rule, FixedResolver({granted.place.host: answers}))
    except Denied as denied:
        return denied.kind
    return None


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (["127.0.0.1"], None),
        (["8.8.8.8", "2606:4700::1111", "127.0.0.1"], None),
        (["169.254.169.254"], "address"),
        (["127.0.0.1", "169.254.169.254"], "address"),
        (["169.254.169.254", "127.0.0.1"], "address"),
        (["127.0.0.1", "::ffff:127.0.0.1"], "address"),
        (["127.0.0.1", "10.0.0.1"], "address"),
        (["8.8.8.8", "::1"], "address"),
        (["fe80::1%eth0"], "address"),
        (["other.example.test"], "address"),
        ([], "resolve"),
    ],
)
async def test_a_name_is_refused_for_any_answer(answers: Sequence[str], found: str | None) -> None:
    """Wherever it stands; the control has good ones alone."""
    assert await kind(destination(443), answers) == found


@pytest.mark.parametrize(
    ("host", "private", "found"),
    [("127.0.0.1", ("127.0.0.0/8",), None), ("127.0.0.1", (), "address"), ("169.254.169.254", ("169.254.0.0/16",), "address")],
)
async def test_a_literal_is_judged_without_being_looked_up(host: str, private: tuple[str, ...], found: str | None) -> None:
    """The resolver knows nothing of it."""
    granted = destination(80, host=host, private=private)
    try:
        answers: Sequence[str] | str = await vetted(granted.place, granted.rule, FixedResolver({}))
    except Denied as denied:
        answers = denied.kind
    assert answers == (found or (host,))


@pytest.mark.parametrize(
    "said",
    [
        ValueError("canary.example.test"),
        ExceptionGroup("canary.example.test", [OSError()]),
        None,
        "127.0.0.1",
        b"127.0.0.1",
        [7],
        ["127.0.0.1", None],
        [f"10.0.0.{number}" for number in range(LONGEST + 1)],
        [],
    ],
)
async def test_whatever_a_resolver_does_is_no_answer_at_worst(said: Any) -> None:
    """And what it raised is repeated nowhere."""

    class Odd:
        async def addresses(self, host: str) -> Any:
            if isinstance(said, Exception):
                raise said
            return said

    granted = destination(443)
    with pytest.raises(Denied) as caught:
        await vetted(granted.place, granted.rule, Odd())
    assert (caught.value.kind, caught.value.__suppress_context__) == ("resolve", True)


async def test_an_address_of_this_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public one; the control is not this host's."""
    monkeypatch.setattr(dial, "own_addresses", lambda: frozenset({"8.8.8.8"}))
    assert [await kind(destination(443), [one]) for one in ("8.8.8.8", "8.8.4.4")] == ["address", None]


async def test_a_name_that_changes_its_address_is_connected_to_where_it_was_judged() -> None:
    """One lookup for one connection; the next one is judged again."""
    with listener() as server:
        port = server.getsockname()[1]
        granted, names = destination(port), Rebinding(["127.0.0.1"], ["169.254.169.254"])
        with await dialled(granted.place, port, granted.rule, names, 10) as made:
            assert (made.getpeername(), names.asked) == (("127.0.0.1", port), 1)
        with pytest.raises(Denied) as caught:
            await dialled(granted.place, port, granted.rule, names, 10)
        assert caught.value.kind == "address"


async def test_an_address_that_refuses_is_followed_by_the_next_one() -> None:
    """In the order of the answers."""
    with listener() as server:
        port = server.getsockname()[1]
        granted = destination(port)
        with await dialled(granted.place, port, granted.rule, FixedResolver({NAME: ["127.0.0.2", "127.0.0.1"]}), 10) as made:
            assert made.getpeername() == ("127.0.0.1", port)


async def test_a_place_where_nobody_listens_is_unreachable() -> None:
    """Counted by its kind."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    granted = destination(port)
    with pytest.raises(Denied) as caught:
        await dialled(granted.place, port, granted.rule, FixedResolver({NAME: ["127.0.0.1"]}), 10)
    assert caught.value.kind == "unreachable"


async def test_a_lookup_without_an_end_is_left_when_its_time_is_over(autojump_clock: object) -> None:
    """The time is for all of it."""

    class Hanging:
        async def addresses(self, host: str) -> Sequence[str]:
            await trio.sleep(3600)
            return ()

    granted = destination(443)
    with pytest.raises(Denied) as caught:
        await dialled(granted.place, 443, granted.rule, Hanging(), 10)
    assert caught.value.kind == "unreachable"
