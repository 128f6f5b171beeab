"""Names to addresses: this host's way, a fixed table, and what is no answer."""

import contextlib
import socket
import threading
from typing import Any

import pytest
import trio
import trio.testing

from engine.egress.resolver import LONGEST, FixedResolver, HostResolver, NoAddress


async def test_this_host_knows_its_own_name() -> None:
    """As plain addresses."""
    assert "127.0.0.1" in await HostResolver().addresses("localhost")


@pytest.mark.parametrize("name", ["a" * 64 + ".test", "nobody.invalid\0x", ""])
async def test_a_name_without_an_address_is_not_repeated(name: str) -> None:
    """In no error, and none that is the cause of it."""
    with pytest.raises(NoAddress) as caught:
        await HostResolver().addresses(name)
    assert (str(caught.value), caught.value.__suppress_context__) == ("", True)


async def test_a_table_knows_what_is_in_it() -> None:
    """Each address once, in order; nothing about other names."""
    table = FixedResolver({"api.example.test": ["10.0.0.2", "10.0.0.1", "10.0.0.2"], "empty.test": []})
    assert await table.addresses("api.example.test") == ("10.0.0.2", "10.0.0.1")
    for name in ("empty.test", "other.example.test"):
        with pytest.raises(NoAddress):
            await table.addresses(name)


@pytest.mark.parametrize(("count", "known"), [(LONGEST, True), (LONGEST + 1, False)])
async def test_a_name_has_at_most_so_many_addresses(count: int, known: bool) -> None:
    """Beyond them none is taken: the rest would not be judged."""
    table = FixedResolver({"api.example.test": [f"10.0.0.{number}" for number in range(count)]})
    with contextlib.nullcontext() if known else pytest.raises(NoAddress):
        assert len(await table.addresses("api.example.test")) == count


async def test_a_lookup_that_hangs_can_be_left_and_holds_no_shared_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that everybody shares are all free while it hangs."""
    started, go_on = threading.Event(), threading.Event()

    def hang(*_: Any) -> list[Any]:
        started.set()
        go_on.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(HostResolver().addresses, "api.example.test")
            await trio.to_thread.run_sync(started.wait)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
            nursery.cancel_scope.cancel()
    finally:
        go_on.set()
