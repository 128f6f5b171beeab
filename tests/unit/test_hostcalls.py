"""What a tool asks of the host, by its context and by ``engine.http``: one row of numbers, one at a time, during the call alone."""

import itertools
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from engine import Context, tool
from engine.authoring import convert, http
from guest import hostcalls, loader, main, wire

URL = "https://api.example.com/"
ANSWER = {"status": 200, "url": URL, "headers": [], "body": "\xff"}
INIT: list[Any] = ["", "/bundle", "tools", [], None, None, {}, {}]
Frame = tuple[int, list[Any]]


class Fake:
    """A link to a host that says what it is given to say; what is sent to it is kept."""

    def __init__(self, *frames: Frame) -> None:
        self.sent: list[Frame] = []
        self.frames = list(frames)

    def send(self, number: int, fields: list[Any]) -> None:
        """Keep it."""
        self.sent.append((number, fields))

    def send_last_words(self) -> None:
        """Nobody does here."""
        raise AssertionError

    def receive(self, *, wait: bool) -> Frame | None:
        """The next one."""
        return self.frames.pop(0) if self.frames else None


def reply(number: int, value: object = ANSWER, *, ok: bool = True) -> Frame:
    """The host's answer to the call of that number."""
    return wire.HOST_REPLY, [number, ok, value]


class TestNumbers:
    """Whoever asks."""

    def test_the_context_and_http_share_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each gets its own answer; a reply to what is waited for no more is nobody's."""
        link = Fake(reply(1, [1]), reply(2), reply(1, "late"), reply(3, ok=False, value="no"), (wire.CANCEL, []), reply(4))
        calls = hostcalls.Calls(link)
        context = hostcalls.GuestContext(calls)
        monkeypatch.setattr(http, "door", calls.ask)
        assert context.call("other", {"a": (1,)}) == [1]
        assert http.get(URL).content == b"\xff"
        with pytest.raises(hostcalls.HostCallError, match=r"\Ano\Z"):
            context.call("other")
        assert http.get(URL).status == 200
        assert context.cancelled
        asked = {"method": "GET", "url": URL, "headers": [], "body": ""}
        assert link.sent == [
            (wire.HOST_CALL, [1, "other", {"a": [1]}]),
            (wire.HOST_CALL, [2, "engine.http", asked]),
            (wire.HOST_CALL, [3, "other", {}]),
            (wire.HOST_CALL, [4, "engine.http", asked]),
        ]

    def test_a_tool_may_ask_by_its_context(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is the same door."""
        asked = {"method": "GET", "url": URL, "headers": [], "body": ""}
        by_context, by_face = Fake(reply(1)), Fake(reply(1))
        assert hostcalls.GuestContext(hostcalls.Calls(by_context)).call("engine.http", asked) == ANSWER
        monkeypatch.setattr(http, "door", hostcalls.Calls(by_face).ask)
        http.get(URL)
        assert by_context.sent == by_face.sent

    def test_what_is_no_data_is_not_asked(self) -> None:
        """It takes no number, and the next call has one that no other had."""
        link = Fake(reply(1, "a"))
        context = hostcalls.GuestContext(hostcalls.Calls(link))
        with pytest.raises(convert.NotData):
            context.call("other", {"a": float("inf")})
        assert (context.call("other"), link.sent) == ("a", [(wire.HOST_CALL, [1, "other", {}])])


class TestThreads:
    """Of one tool, where there are any."""

    def test_each_gets_its_own_reply(self) -> None:
        """Nothing is asked between a thread's question and its answer."""
        turns: list[tuple[str, int, int]] = []

        class Strict(Fake):
            def send(self, number: int, fields: list[Any]) -> None:
                turns.append(("asked", threading.get_ident(), fields[0]))

            def receive(self, *, wait: bool) -> Frame | None:
                turns.append(("told", threading.get_ident(), turns[-1][2]))
                return reply(turns[-1][2], turns[-1][1])

        calls = hostcalls.Calls(Strict())
        found: list[bool] = []

        def ask() -> None:
            found.extend(calls.ask("other", {}) == (True, threading.get_ident()) for _ in range(50))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 400
        assert [turn[2] for turn in turns] == [number for number in range(1, 401) for _ in range(2)]
        assert all(first[1] == second[1] for first, second in itertools.pairwise(turns) if first[2] == second[2])

    def test_who_looks_for_a_cancel_takes_no_others_reply(self) -> None:
        """While a thread waits, nobody else reads; what it reads meanwhile is known to all."""
        seen: list[bool] = []

        class Waiting(Fake):
            def receive(self, *, wait: bool) -> Frame | None:
                if wait:
                    other = threading.Thread(target=lambda: seen.append(calls.cancelled()))
                    other.start()
                    other.join()
                return super().receive(wait=wait)

        calls = hostcalls.Calls(Waiting((wire.CANCEL, []), reply(1, "mine")))
        assert (calls.ask("other", {}), seen) == ((True, "mine"), [False, True])

    def test_frames_stay_whole(self) -> None:
        """Each is larger than what the channel takes at once."""
        texts = [character * 300_000 for character in "abcd"]
        here, there = socket.socketpair()
        with here, there:
            channel = main.Channel(here.fileno(), wire.Codec())

            def write(text: str) -> None:
                for _ in range(5):
                    channel.send(wire.EVENT, [text])

            threads = [threading.Thread(target=write, args=(text,)) for text in texts]
            for thread in threads:
                thread.start()
            reader = wire.Reader()
            found: list[Any] = []
            while len(found) < 20:
                reader.feed(os.read(there.fileno(), 1 << 16))
                found += [wire.unpack(payload) for payload in reader]
            for thread in threads:
                thread.join()
        assert sorted(found) == [[wire.EVENT, text] for text in sorted(texts * 5)]


held: list[http.Door | None] = []


def _fetched() -> int:
    held.append(http.door)
    return http.get(URL).content[0]


@tool(effect="read", description="d")
def plain(context: Context) -> list[Any]:
    """Asks both ways."""
    return [_fetched(), context.call("other", {})["status"]]


@tool(effect="read", description="d")
def streamed(context: Context) -> Iterator[int]:
    """Asks between its partials."""
    yield _fetched()
    yield context.call("other", {})["status"]


@tool(effect="read", description="d")
async def waiting(context: Context) -> list[Any]:
    """Asks within a loop."""
    return [_fetched(), context.call("other", {})["status"]]


@tool(effect="read", description="d")
async def both(context: Context) -> AsyncIterator[int]:
    """The same in parts."""
    yield _fetched()
    yield context.call("other", {})["status"]


class TestCall:
    """The guest's program around it."""

    @pytest.fixture(autouse=True)
    def home(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """What the program sets, set back."""
        monkeypatch.setenv("HOME", "/")
        monkeypatch.setenv("TMPDIR", "/")
        monkeypatch.setattr(http, "door", None)
        held.clear()
        yield
        held.clear()

    @pytest.mark.parametrize(
        ("declared", "told"),
        [
            (plain, [(wire.RESULT, [[255, 200]])]),
            (waiting, [(wire.RESULT, [[255, 200]])]),
            (streamed, [(wire.PARTIAL, [255]), (wire.PARTIAL, [200]), (wire.RESULT, [None])]),
            (both, [(wire.PARTIAL, [255]), (wire.PARTIAL, [200]), (wire.RESULT, [None])]),
        ],
        ids=lambda value: getattr(value, "name", ""),
    )
    def test_in_every_kind_of_function(self, declared: Any, told: list[Frame]) -> None:
        """One row of numbers in each."""
        link = Fake((wire.INIT, INIT), (wire.CALL, [declared.name, {}, ""]), reply(1), reply(2))
        main.serve_over(link, "/", loader.Folders("/", {}), [declared])
        calls = [fields[:2] for number, fields in link.sent if number == wire.HOST_CALL]
        assert calls == [[1, "engine.http"], [2, "other"]]
        assert [frame for frame in link.sent if frame[0] in (wire.PARTIAL, wire.RESULT, wire.FAILURE)] == told

    def test_there_is_no_door_before_and_none_after(self) -> None:
        """Of two calls of one process each has its own numbers, and none leads anywhere once it is over."""
        asked = (wire.CALL, ["plain", {}, ""])
        link = Fake((wire.INIT, [*INIT[:-1], {"calls": 2}]), asked, reply(1), reply(2), asked, reply(1), reply(2))
        seen: list[http.Door | None] = []
        take = link.receive

        def receive(*, wait: bool) -> Frame | None:
            frame = take(wait=wait)
            if frame is not None and frame[0] == wire.CALL:
                seen.append(http.door)
            return frame

        link.receive = receive  # type: ignore[method-assign]  # looks at each call as it comes
        main.serve_over(link, "/", loader.Folders("/", {}), [plain])
        assert [fields[0] for number, fields in link.sent if number == wire.HOST_CALL] == [1, 2, 1, 2]
        assert (seen, http.door, len({*held})) == ([hostcalls.closed] * 2, None, 2)
        told = [door("engine.http", {}) for door in (*held, hostcalls.closed) if door is not None]
        over = (False, "the call is over")
        assert told == [over, over, (False, "requests are made during a call alone, not while a source is imported")]

    @pytest.mark.parametrize("end", [ImportError, SystemExit, ValueError])
    def test_nothing_leads_out_while_a_zygote_imports(self, end: type[BaseException]) -> None:
        """Nor in the children that it is forked into, until each has its call."""
        seen: list[object] = []

        class Importing(loader.Folders):
            def import_entry(self, entry: str, layers: list[str]) -> Any:
                seen.append(http.door)
                raise end

        here, there = socket.socketpair()
        with here, there:
            there.sendall(wire.pack(wire.INIT, INIT))
            assert main.learn(here.fileno(), wire.Codec(), "/", Importing("/", {}), lambda: None) is None
        assert [*seen, http.door] == [hostcalls.closed] * 2
