"""Clients as people use them reach an allowed server by TLS, in a worker, with no change to their code; and they are told plainly when
a place is not allowed.

What a client trusts is what its worker shows it: the certificate of a test's own authority, in place of the system's.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.images import fetch
from engine.staging import layers
from tests.network import clients, scoped
from tests.network.servers import Authority, Server, serving

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default:unproven")]
LARGE = 8 << 20
AT_ONCE = 20
OTHER = "files.example.test"
OFFLINE = ("No matching distribution", "connection", "Connection", "resolve", "timed out")  # of what pip says where no index is reached
Load = Callable[[str], str]  # has a client's source loaded; its namespace


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Whom the workers trust."""
    return Authority()


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Server]:
    """The allowed one."""
    with serving(authority.serving(scoped.API)) as made:
        yield made


@pytest.fixture(scope="module")
def other(authority: Authority) -> Iterator[Server]:
    """Another that is allowed."""
    with serving(authority.serving(OTHER)) as made:
        yield made


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, authority: Authority, server: Server, other: Server) -> Iterator[scoped.Held]:
    """An engine whose policy allows both servers and the layer."""
    folder = tmp_path_factory.mktemp("clients")
    place = scoped.policy(
        folder,
        scoped.Rule(f"{scoped.API}:{server.port}"),
        scoped.Rule(f"{OTHER}:{other.port}"),
        trust=authority.write(folder),
        bounds={"connections": AT_ONCE + 4},
        grants={"layers": [clients.LAYER]},
    )
    answers = scoped.Said(**{scoped.API: [scoped.LOOPBACK], OTHER: [scoped.LOOPBACK]})
    yield from scoped.held(folder / "state", policy=place, resolver=answers)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory, held: scoped.Held) -> str | None:
    """None when the layer of clients is in the engine's store, else why it cannot be."""
    wheels = tmp_path_factory.mktemp("fetched") / "wheels"
    try:
        fetched = fetch.download_wheels(Path(__file__).parent / "clients.txt", wheels, environment=dict(os.environ))
    except EngineError as error:
        if not any(word in str(error) for word in OFFLINE):
            raise
        return f"unproven: the clients cannot be fetched here: {error}"
    store = held.engine._state.stores.layers
    layers.add(clients.LAYER, fetched.wheels, fetched.pins, store, native=layers.NativeCode.GRANTED)
    return None


@pytest.fixture(scope="module")
def load(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, held: scoped.Held, server: Server, other: Server
) -> Load:
    """Loads a client's source when a test first wants it."""
    loaded: set[str] = set()

    def load(client: str) -> str:
        if client in clients.INSTALLED and (problem := request.getfixturevalue("layer")) is not None:
            warnings.warn(problem, stacklevel=2)
            pytest.skip(problem)
        if client not in loaded:
            places = [f"{scoped.API}:{server.port}", f"{OTHER}:{other.port}"]
            held.load(tmp_path_factory.mktemp("source"), clients.source(client, places), namespace=client)
            loaded.add(client)
        server.forget()
        other.forget()
        return client

    return load


@pytest.fixture
def url(server: Server) -> str:
    """Of the allowed server."""
    return f"https://{scoped.API}:{server.port}"


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_it_gets_what_is_there(held: scoped.Held, load: Load, server: Server, url: str, client: str) -> None:
    """By TLS from end to end: the server saw the name by SNI and in the request, and the receipt tells of one connection."""
    outcome, receipt = held.call("get", {"url": f"{url}/"}, namespace=load(client))
    assert (outcome.reason, outcome.value) == ("ok.done", "hello")
    assert (server.names, [asked.headers["host"] for asked in server.requests]) == ([scoped.API], [f"{scoped.API}:{server.port}"])
    assert (scoped.egress(receipt)["connections"], scoped.denied(receipt)) == (1, {})


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_large_body_comes_down_whole(held: scoped.Held, load: Load, url: str, client: str) -> None:
    """8 MiB, each byte of them, and the receipt counts no fewer."""
    outcome, receipt = held.call("down", {"url": f"{url}/large?bytes={LARGE}"}, namespace=load(client))
    assert (outcome.reason, outcome.value) == ("ok.done", f"{LARGE} {hashlib.sha256(bytes(LARGE)).hexdigest()}")
    assert scoped.egress(receipt)["in_bytes"] >= LARGE


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_large_body_goes_up_whole(held: scoped.Held, load: Load, url: str, client: str) -> None:
    """The same the other way, by what the server says of it."""
    outcome, receipt = held.call("up", {"url": f"{url}/up", "size": LARGE}, namespace=load(client))
    digest = hashlib.sha256(bytes(range(256)) * (LARGE // 256)).hexdigest()
    assert (outcome.reason, outcome.value) == ("ok.done", f"POST {LARGE} {digest}")
    assert scoped.egress(receipt)["out_bytes"] >= LARGE


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_session_keeps_its_connection_within_a_call(held: scoped.Held, load: Load, server: Server, url: str, client: str) -> None:
    """Three requests on one connection; urllib, which keeps none, has three."""
    outcome, receipt = held.call("several", {"url": f"{url}/", "count": 3}, namespace=load(client))
    assert (outcome.reason, outcome.value) == ("ok.done", ["hello"] * 3)
    expected = 3 if client == "urllib.request" else 1
    assert (len(server.connections), scoped.egress(receipt)["connections"]) == (expected, expected)


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_nothing_of_a_call_is_connected_after_it(held: scoped.Held, load: Load, server: Server, url: str, client: str) -> None:
    """What one call kept alive, the next one does not find: it makes a connection of its own."""
    for _ in range(2):
        outcome, _ = held.call("get", {"url": f"{url}/"}, namespace=load(client))
        assert outcome.value == "hello"
        server.wait(lambda server: len(server.connections) == 1 and server.living == 0)


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_redirect_is_followed_where_that_is_allowed(held: scoped.Held, load: Load, other: Server, url: str, client: str) -> None:
    """To the other server, which the tool asked for as well."""
    target = f"https://{OTHER}:{other.port}/"
    outcome, _ = held.call("get", {"url": f"{url}/redirect?to={target}"}, namespace=load(client))
    assert (outcome.reason, outcome.value, other.names) == ("ok.done", "hello", [OTHER])


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_redirect_elsewhere_ends_at_the_name(held: scoped.Held, load: Load, server: Server, url: str, client: str) -> None:
    """As any name that does not exist: the client's own error, caused by the resolver's."""
    target = f"https://elsewhere.example.test:{server.port}/"
    outcome, receipt = held.call("failing", {"url": f"{url}/redirect?to={target}"}, namespace=load(client))
    assert (outcome.reason, "gaierror" in outcome.value) == ("ok.done", True), outcome
    assert ([asked.method for asked in server.requests], scoped.denied(receipt)) == (["GET"], {})


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_another_port_of_an_allowed_host_is_refused(held: scoped.Held, load: Load, server: Server, other: Server, client: str) -> None:
    """By the jail's own loopback, where nobody listens; nothing reaches the server there."""
    outcome, _ = held.call("failing", {"url": f"https://{scoped.API}:{other.port}/"}, namespace=load(client))
    assert (outcome.reason, "ConnectionRefusedError" in outcome.value) == ("ok.done", True), outcome
    assert (server.settle().connections, other.settle().connections) == ([], [])


@pytest.mark.parametrize("client", clients.ASYNCHRONOUS)
def test_many_connections_live_at_once(held: scoped.Held, load: Load, server: Server, url: str, client: str) -> None:
    """Twenty, of which the server answers none before it has all."""
    outcome, receipt = held.call("together", {"url": f"{url}/together?count={AT_ONCE}", "count": AT_ONCE}, namespace=load(client))
    assert (outcome.reason, outcome.value) == ("ok.done", ["together"] * AT_ONCE)
    assert (len(server.connections), scoped.egress(receipt)["connections"], scoped.denied(receipt)) == (AT_ONCE, AT_ONCE, {})


@pytest.mark.parametrize("client", clients.CLIENTS)
def test_a_certificate_of_another_authority_is_refused(held: scoped.Held, load: Load, server: Server, url: str, client: str) -> None:
    """The control of the trust: the client checks it from end to end, and asks for nothing. With the trusted one it did, above."""
    namespace = load(client)
    with server.certified(Authority().serving(scoped.API)):
        outcome, _ = held.call("failing", {"url": f"{url}/"}, namespace=namespace)
        server.settle()
    assert (outcome.reason, "SSLCertVerificationError" in outcome.value) == ("ok.done", True), outcome
    assert (server.names, server.requests) in (([], []), ([scoped.API], []))
