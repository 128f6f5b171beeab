"""``engine.http`` in a tool: the host makes the request, within what the policy grants, whatever kind of worker the tool is in."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trio

from engine.egress.resolver import FixedResolver
from engine.host import Engine
from engine.outcome import Outcome
from tests import kit

NAME = "api.example.com"
TOOLS = """
from collections.abc import AsyncIterator, Iterator
from typing import Any
from engine import Context, http, tool

BASE = "http://{place}"
try:
    FIRST = http.get(BASE).status
except OSError as error:
    FIRST = [type(error).__name__, str(error)]

@tool(effect="read", description="d", network=["{place}"])
def every(path: str) -> Any:
    body = bytes(range(256))
    answer = http.post(BASE + path, body=body, headers={{"X-Own": "y"}}, params={{"q": "a b"}})
    told = {{name: answer.header(name) for name in ("Asked", "X-Own")}}
    return [answer.status, answer.content == body, told, FIRST]

@tool(effect="external", description="d", network=["{place}"], nested_tools=["double"])
def numbered(context: Context) -> list[int]:
    return [http.get(BASE).status, context.call("double", {{"n": 2}}), http.head(BASE).status, context.call("double", {{"n": 3}})]

@tool(effect="read", description="d", network=["{place}"])
def streamed() -> Iterator[int]:
    for path in ("/a", "/b"):
        yield http.get(BASE + path).status

@tool(effect="read", description="d", network=["{place}"])
async def waiting() -> AsyncIterator[int]:
    for path in ("/a", "/b"):
        yield http.get(BASE + path).status

@tool(effect="read", description="d", network=["{place}"])
def direct(context: Context) -> list[Any]:
    asked = {{"method": "PUT", "url": BASE + "/a", "headers": [], "body": "\\xff"}}
    value = context.call("engine.http", asked)
    return [value["status"], value["body"]]

@tool(effect="read", description="d", network=["{place}"])
def threaded() -> list[int]:
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda n: http.get(f"{{BASE}}/{{n}}").status, range(24)))

@tool(effect="read", description="d", network=["{place}"])
def elsewhere(url: str) -> list[Any]:
    try:
        return [http.get(url).status]
    except OSError as error:
        return [type(error).__name__, url in str(error)]

@tool(effect="read", description="d")
def ungranted() -> list[Any]:
    try:
        return [http.get(BASE).status]
    except OSError as error:
        return [type(error).__name__, "{name}" in str(error)]

@tool(effect="read", description="d")
def double(n: int) -> int:
    return n * 2
"""
POLICY = """
extends = "required"
[network]
profile = { value = "api", reason = "a test needs it" }
[loosenings]
network_private_destinations = { value = true, reason = "the server of the test is on loopback" }
"""
PROFILE = """
purpose = "a server of a test"
[[allow]]
to = "PLACE"
transport = "http"
private = ["127.0.0.0/8"]
reason = "the server of the test"
[examples]
allowed = ["PLACE"]
denied = ["api.example.com:1"]
"""


class Server:
    """On loopback, in this program: it sends back what it is sent, and "/moved?PLACE" redirects there."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self.port: int = listener.socket.getsockname()[1]
        self.asked: list[str] = []  # in the order in which they came

    async def answer(self, stream: trio.SocketStream) -> None:
        """One request of one connection."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += (part := await stream.receive_some())
            if not part:
                return
        head, _, body = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += await stream.receive_some()
        asked = first.removesuffix(" HTTP/1.1")
        self.asked.append(asked)
        _, moved, place = asked.partition("/moved?")
        told = f"HTTP/1.1 {'302 Found' if moved else '200 OK'}\r\nContent-Length: {len(body)}\r\nConnection: close\r\nAsked: {asked}\r\n"
        told += f"Location: {place}\r\n" if moved else ""
        own = headers.get("x-own", "")
        await stream.send_all(f"{told}X-Own: {own}\r\n\r\n".encode("latin-1") + body)
        await stream.aclose()


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Engine, Server]]:
    """An engine that has the tools, under a policy that grants them the server."""
    async with (
        kit.clean_engine(folder / "state", resolver=FixedResolver({NAME: ["127.0.0.1"]})) as engine,
        trio.open_nursery() as nursery,
    ):
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = Server(listener)
        nursery.start_soon(trio.serve_listeners, server.answer, [listener])
        place = f"{NAME}:{server.port}"
        kit.write(folder / "policy", {"own.toml": POLICY, "network/api.toml": PROFILE.replace("PLACE", place)})
        source = kit.write(folder / "source", TOOLS.format(place=place, name=NAME))
        await engine.load(source, policy=folder / "policy" / "own.toml")
        with trio.fail_after(60):
            yield engine, server
        nursery.cancel_scope.cancel()


async def called(engine: Engine, tool: str, **arguments: Any) -> Any:
    """The value, or why there is none."""
    outcome = await engine.call(tool, arguments)
    return outcome.value if outcome.reason == "ok.done" else (outcome.reason, outcome.lines)


async def test_every_byte_goes_there_and_back(tmp_path: Path) -> None:
    """The server is sent what the tool says, and the tool what the server says; nothing leads out while the source is imported."""
    async with served(tmp_path) as (engine, server):
        found = await called(engine, "every", path="/x")
    own = {"Asked": "POST /x?q=a+b", "X-Own": "y"}
    before = ["Refused", "requests are made during a call alone, not while a source is imported"]
    assert (found, server.asked) == ([200, True, own, before], ["POST /x?q=a+b"])


async def test_a_redirect_is_followed_where_the_tool_may_go(tmp_path: Path) -> None:
    """Within the places that it asked for, and nowhere else: there it is refused."""
    async with served(tmp_path) as (engine, server):
        assert await called(engine, "elsewhere", url=f"http://{NAME}:{server.port}/moved?/there") == [200]
        assert await called(engine, "elsewhere", url=f"http://{NAME}:{server.port}/moved?http://other.example.com/") == ["Refused", False]
    assert server.asked == ["GET /moved?/there", "GET /there", "GET /moved?http://other.example.com/"]


async def test_nested_calls_and_requests_take_turns(tmp_path: Path) -> None:
    """Each gets its own answer."""
    async with served(tmp_path) as (engine, server):
        assert await called(engine, "numbered") == [200, 4, 200, 6]
    assert server.asked == ["GET /", "HEAD /"]


async def test_generators_and_coroutines_ask_as_functions_do(tmp_path: Path) -> None:
    """Between their partials."""
    async with served(tmp_path) as (engine, server):
        for tool in ("streamed", "waiting"):
            async with engine.stream(tool, {}) as items:
                found = [item async for item in items]
            assert [getattr(item, "value", None) for item in found[:-1]] == [200, 200]
            assert isinstance(found[-1], Outcome)
            assert found[-1].reason == "ok.done"
    assert server.asked == ["GET /a", "GET /b"] * 2


async def test_a_tool_may_ask_by_its_context(tmp_path: Path) -> None:
    """It is the same door."""
    async with served(tmp_path) as (engine, server):
        assert await called(engine, "direct") == [200, "\xff"]
    assert server.asked == ["PUT /a"]


async def test_threads_take_turns(tmp_path: Path) -> None:
    """Eight of them, and each request has its answer."""
    async with served(tmp_path) as (engine, server):
        assert await called(engine, "threaded") == [200] * 24
    assert sorted(server.asked) == sorted(f"GET /{number}" for number in range(24))


async def test_what_the_tool_did_not_ask_for_is_refused(tmp_path: Path) -> None:
    """Another port, another host, an address; the refusal is an OSError that repeats none of it, and the server hears nothing."""
    async with served(tmp_path) as (engine, server):
        places = [f"http://{NAME}:1/", f"http://other.example.com:{server.port}/", f"http://127.0.0.1:{server.port}/"]
        found = [await called(engine, "elsewhere", url=url) for url in places]
        assert (found, server.asked) == ([["Refused", False]] * 3, [])
        assert await called(engine, "elsewhere", url=f"http://{NAME}:{server.port}/") == [200]


async def test_a_tool_that_asks_for_no_host_gets_none(tmp_path: Path) -> None:
    """Whatever the policy would grant, and whatever its neighbour in the source asks for."""
    async with served(tmp_path) as (engine, server):
        assert await called(engine, "ungranted") == ["Refused", False]
    assert server.asked == []
