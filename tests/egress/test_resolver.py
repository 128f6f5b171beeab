"""Names to addresses: this host's way, a fixed table, and what is no answer."""

import contextlib
import socket
import threading
from collections.abc import Iterator
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
    assert (str(caught.value), caught.value.__cause__, caught.value.__context__) == ("", None, None)


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


class Hanging:
    """Lookups of ``*.slow.test`` hang until ``go_on`` is set; each of another name has its answer. ``asked``: names, as they came."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.started, self.go_on = threading.Semaphore(0), threading.Event()

    def __call__(self, host: str, *_: Any) -> list[Any]:
        self.asked.append(host)
        if host.endswith(".slow.test"):
            self.started.release()
            self.go_on.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """In the place of this host's lookups."""
    made = Hanging()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.go_on.set()


async def begun(hanging: Hanging, times: int = 1) -> None:
    """So many lookups hang."""
    for _ in range(times):
        await trio.to_thread.run_sync(hanging.started.acquire)


async def test_a_lookup_that_hangs_can_be_left_and_holds_no_shared_thread(hanging: Hanging) -> None:
    """The threads that everybody shares are all free while it hangs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HostResolver().addresses, "api.slow.test")
        await begun(hanging)
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        nursery.cancel_scope.cancel()


async def test_one_name_is_looked_up_once_at_a_time(hanging: Hanging) -> None:
    """Also for those who come when the first one has given up; once there is an answer, the next one asks again."""
    resolver, found = HostResolver(), []

    async def ask() -> None:
        found.append(await resolver.addresses("api.slow.test"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await begun(hanging)
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        hanging.go_on.set()
    assert (found, hanging.asked) == ([("10.0.0.1",)] * 40, ["api.slow.test"])
    await ask()
    assert hanging.asked == ["api.slow.test"] * 2


async def test_names_that_hang_keep_no_other_domain_waiting(hanging: Hanging) -> None:
    """A few of a domain are looked up at once; the others of it wait for these, and are looked up then."""
    resolver, found = HostResolver(), []

    async def ask(name: str) -> None:
        found.append(await resolver.addresses(name))

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, f"h{number}.slow.test")
        await begun(hanging, 16)
        assert await resolver.addresses("api.example.test") == ("10.0.0.1",)
        assert [name.endswith(".slow.test") for name in hanging.asked].count(True) == 16
        hanging.go_on.set()
    assert (len(found), len(hanging.asked)) == (200, 201)


async def test_a_lookup_of_another_run_is_waited_for_by_nobody(hanging: Hanging) -> None:
    """It can tell nobody here."""
    resolver = HostResolver()

    async def leave() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(resolver.addresses, "api.slow.test")
            await begun(hanging)
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(trio.run, leave)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(resolver.addresses, "api.slow.test")
        await begun(hanging)
        hanging.go_on.set()
