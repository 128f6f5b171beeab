"""``engine.http`` leads nowhere but to the granted places, by whatever a tool says to the host, in either kind of worker.

Each attempt is judged by the servers; that the request is carried when it is right, and that the other server is there, is beside it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.egress.traffic import DENIALS
from engine.host import Engine
from tests import kinds, kit, machine
from tests.network import scoped
from tests.network.servers import Authority, Server
from tests.network.test_attempts import BAD_ANSWERS

pytestmark = pytest.mark.slow
CANARY = "canary.example.test"
MIB = 1 << 20
TOOLS = """
from typing import Any
from engine import http, tool

AT_IMPORT = "nothing"
try:
    AT_IMPORT = http.get({url!r}).text
except OSError as error:
    AT_IMPORT = f"refused: {{error}}"

def asked(act):
    try:
        return act()
    except OSError as error:
        return f"refused: {{error}}"

@tool(effect="read", network={places!r})
def ask(url: str, times: int, size: int) -> list[str]:
    "What came of as many requests, with a body of that size."
    if size:
        return [asked(lambda: http.post(url, body=bytes(size)).text[:80]) for _ in range(times)]
    return [asked(lambda: http.get(url).text[:80]) for _ in range(times)]

@tool(effect="read", network={places!r})
def say(words: dict[str, Any]) -> list[Any]:
    "What the host says to these very words, past the face that tools have."
    if http.door is None:
        return [False, "bare"]
    ok, value = http.door(http.NAME, words)
    return [ok, value if not ok else value["body"]]

@tool(effect="read", network={places!r})
def imported() -> str:
    "What came of a request while the source was imported."
    return AT_IMPORT

@tool(effect="read")
def without(url: str) -> str:
    "A tool beside them that asked for no place."
    return asked(lambda: http.get(url).text)
"""


def _loaded(folder: Path, kind: str, answers: scoped.Said, rules: tuple[scoped.Rule, ...], **options: Any) -> Iterator[scoped.Held]:
    place = scoped.policy(folder, *rules, **options)
    with scoped.Held(folder / "state", policy=place, resolver=answers, worker=kind, image_dir=machine.IMAGE_DIR) as made:
        text = TOOLS.format(url=f"https://{rules[0].to}/", places=[rule.to for rule in rules])
        made.load(folder / "source", text)
        yield made


@pytest.fixture(scope="module", params=kinds.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Of the workers."""
    if request.param != "native":
        kinds.require_image()
    return str(request.param)


@pytest.fixture(scope="module")
def answers() -> scoped.Said:
    """The engine's resolver."""
    return scoped.Said()


@pytest.fixture(scope="module")
def rules(api: Server, web: Server) -> tuple[scoped.Rule, ...]:
    """Both servers'."""
    return scoped.Rule(f"{scoped.API}:{api.port}"), scoped.Rule(f"{scoped.WEB}:{web.port}", transport="http")


@pytest.fixture(scope="module")
def held(
    tmp_path_factory: pytest.TempPathFactory, kind: str, authority: Authority, answers: scoped.Said, rules: tuple[scoped.Rule, ...]
) -> Iterator[scoped.Held]:
    """An engine with the bounds as they are."""
    folder = tmp_path_factory.mktemp("mediated")
    yield from _loaded(folder, kind, answers, rules, trust=authority.write(folder))


@pytest.fixture(scope="module")
def small(
    tmp_path_factory: pytest.TempPathFactory, kind: str, authority: Authority, answers: scoped.Said, rules: tuple[scoped.Rule, ...]
) -> Iterator[scoped.Held]:
    """One with small bounds."""
    folder = tmp_path_factory.mktemp("small")
    bounds = {"total": 6, "denials": 4, "in": "1 MiB", "out": "1 MiB"}
    yield from _loaded(folder, kind, answers, rules, trust=authority.write(folder), bounds=bounds)


@pytest.fixture(autouse=True)
def afresh(answers: scoped.Said, api: Server, web: Server, outsider: Server) -> Iterator[None]:
    """Names lead to the servers, which saw nothing; afterwards no connection is left, of a server's or of an engine's."""
    answers.answers = {scoped.API: [scoped.LOOPBACK], scoped.WEB: [scoped.LOOPBACK]}
    answers.rounds.clear()
    answers.asked.clear()
    for server in (api, web, outsider):
        server.forget()
    yield
    for server in (api, web, outsider):
        server.settle()
    assert scoped.connected() == 0


def ask(held: scoped.Held, url: str, *, times: int = 1, size: int = 0) -> tuple[str, Any, Mapping[str, int]]:
    """Reason and value of a call, and what its receipt counts as denied."""
    outcome, receipt = held.call("ask", {"url": url, "times": times, "size": size})
    return outcome.reason, outcome.value, scoped.denied(receipt)


def refused(kind: str) -> str:
    """What a tool is told of such a refusal."""
    return f"refused: {DENIALS[kind]}"


def test_a_granted_place_answers(held: scoped.Held, api: Server, web: Server) -> None:
    """By TLS made on the host's side, with the name of the place and nobody else's; and plain where the rule is plain."""
    assert ask(held, f"https://{scoped.API}:{api.port}/") == ("ok.done", ["hello"], {})
    assert ask(held, f"http://{scoped.WEB}:{web.port}/") == ("ok.done", ["hello"], {})
    assert (api.settle().names, [asked.headers["host"] for asked in api.requests]) == ([scoped.API], [f"{scoped.API}:{api.port}"])
    assert [asked.headers["host"] for asked in web.settle().requests] == [f"{scoped.WEB}:{web.port}"]


@pytest.mark.parametrize(
    "url",
    [
        "http://{loopback}:{outsider}/",
        "http://localhost:{outsider}/",
        "http://{web}:{outsider}/",
        "http://{canary}:{webport}/",
        "https://{web}:{webport}/",
        "http://{api}:{apiport}/",
        "http://{web}:{webport}@{loopback}:{outsider}/",
        "http://{web}%00.{canary}:{webport}/",
        "http://2130706433:{outsider}/",
        "http://0x7f.1:{outsider}/",
        "http://[::ffff:{loopback}]:{outsider}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
    ],
)
def test_another_place_is_refused(held: scoped.Held, api: Server, web: Server, outsider: Server, url: str, tmp_path: Path) -> None:
    """Before anything is looked up or connected to, in words that repeat none of it; bare, the one beside the granted ones answers."""
    ports = {"apiport": api.port, "webport": web.port, "outsider": outsider.port}
    written = url.format(loopback=scoped.LOOPBACK, canary=CANARY, web=scoped.WEB, api=scoped.API, **ports)
    reason, value, denied = ask(held, written)
    assert (reason, value[0].startswith("refused: "), sum(denied.values())) == ("ok.done", True, 1), value
    assert not [word for word in (CANARY, scoped.LOOPBACK, "169.254", str(outsider.port)) if word in value[0]]
    assert [server.settle().connections for server in (api, web, outsider)] == [[], [], []]


def test_the_place_beside_them_is_there(outsider: Server, tmp_path: Path) -> None:
    """The control of those attempts: the same tool in a plain process has its answer."""
    text = TOOLS.format(url="http://127.0.0.1:1/", places=[])
    url = f"http://{scoped.LOOPBACK}:{outsider.port}/"
    assert kit.bare(tmp_path, text, "ask", {"url": url, "times": 1, "size": 0}).value == ["hello"]
    assert len(outsider.settle().requests) == 1


@pytest.mark.parametrize("with_good", [False, True], ids=["alone", "beside the allowed one"])
def test_a_bad_answer_of_the_resolver_leads_nowhere(held: scoped.Held, api: Server, answers: scoped.Said, with_good: bool) -> None:
    """Each of the list in one call; then the allowed address, which answers."""
    answers.rounds = [[scoped.LOOPBACK, bad] if with_good else [bad] for bad in BAD_ANSWERS if bad]
    count = len(answers.rounds)
    found = ask(held, f"https://{scoped.API}:{api.port}/", times=count + 1)
    assert found == ("ok.done", [refused("address")] * count + ["hello"], {"address": count})
    assert len(api.settle().connections) == 1


def test_each_hop_of_a_redirect_is_a_place_that_was_granted(held: scoped.Held, api: Server, web: Server, outsider: Server) -> None:
    """To a private address, a name, a metadata service, the granted host on another port: refused; to a granted place: followed."""
    url = f"https://{scoped.API}:{api.port}/redirect?to="
    for target in (
        f"http://{scoped.LOOPBACK}:{outsider.port}/",
        f"https://{CANARY}/",
        "http://169.254.169.254/",
        f"https://{scoped.API}:{outsider.port}/",
        f"//{scoped.LOOPBACK}:{outsider.port}/",
    ):
        assert (target, *ask(held, url + target)) == (target, "ok.done", [refused("destination")], {"destination": 1})
    assert (outsider.settle().connections, web.settle().connections) == ([], [])
    assert ask(held, url + f"https://{scoped.API}:{api.port}/") == ("ok.done", ["hello"], {})


def test_each_hop_of_a_redirect_is_looked_up_anew(held: scoped.Held, api: Server, answers: scoped.Said) -> None:
    """A name that leads elsewhere by then is refused by then."""
    url = f"https://{scoped.API}:{api.port}/redirect?to=https://{scoped.API}:{api.port}/second"
    answers.rounds = [[scoped.LOOPBACK], ["127.0.0.2"]]
    assert ask(held, url) == ("ok.done", [refused("address")], {"address": 1})
    assert [asked.target.partition("?")[0] for asked in api.settle().requests] == ["/redirect"]


def test_a_redirect_without_end_ends(held: scoped.Held, api: Server) -> None:
    """After a few hops, each of which was made."""
    url = f"https://{scoped.API}:{api.port}/around"
    reason, value, denied = ask(held, url)
    assert (reason, value, denied) == ("ok.done", [refused("redirect")], {"redirect": 1})
    assert 1 < len(api.settle().requests) < 20


WORDS: Mapping[str, Mapping[str, Any]] = {
    "no words": {},
    "no address": {"url": None},
    "an address that is a list": {"url": ["{url}"]},
    "a request in the method": {"method": "GET / HTTP/1.1\r\nHost: canary.example.test\r\n\r\nGET"},
    "a tunnel": {"method": "CONNECT"},
    "a trace": {"method": "TRACE"},
    "a line in a value": {"headers": [["X", "y\r\nHost: canary.example.test"]]},
    "a line in a name": {"headers": [["X: y\r\nHost", "canary.example.test"]]},
    "a name with a colon": {"headers": [["Host:", "canary.example.test"]]},
    "a line feed alone": {"headers": [["X", "y\nHost: canary.example.test"]]},
    "a NUL": {"headers": [["X", "y\0"]]},
    "a header that is no pair": {"headers": [["X"]]},
    "headers that are a text": {"headers": "X: y"},
    "headers without end": {"headers": [["X", "y"]] * 1000},
    "a value of no single byte": {"headers": [["X", "\u20ac"]]},
    "a body of no bytes": {"body": "\u20ac"},
    "a body that is a number": {"body": 1},
    "a line in the address": {"url": "{url}\r\nHost: canary.example.test\r\n\r\n"},
    "a blank in the address": {"url": "{url} HTTP/1.1"},
    "another scheme": {"url": "file:///etc/passwd"},
    "no scheme": {"url": "//api.example.test/"},
}


@pytest.mark.parametrize("case", WORDS)
def test_words_that_are_no_request_are_refused(held: scoped.Held, api: Server, case: str) -> None:
    """They reach no server, and count; the same words made right are answered."""
    url = f"https://{scoped.API}:{api.port}/"
    right = {"method": "GET", "url": url, "headers": [], "body": ""}
    wrong = {name: value.replace("{url}", url) if isinstance(value, str) else value for name, value in WORDS[case].items()}
    outcome, receipt = held.call("say", {"words": {**right, **wrong} if wrong else {}})
    assert (outcome.reason, outcome.value[0], sum(scoped.denied(receipt).values())) == ("ok.done", False, 1), outcome
    assert ("canary" in outcome.value[1], api.settle().connections) == (False, [])
    outcome, _ = held.call("say", {"words": right})
    assert outcome.value == [True, "hello"]


@pytest.mark.parametrize("header", ["Host", "HOST", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Upgrade", "TE"])
def test_headers_that_frame_a_request_are_the_hosts(held: scoped.Held, api: Server, header: str) -> None:
    """Whatever a tool says there, the server has one request, for its own host."""
    words = {"method": "POST", "url": f"https://{scoped.API}:{api.port}/up", "headers": [[header, "canary.example.test"]], "body": "body"}
    outcome, _ = held.call("say", {"words": words})
    assert outcome.reason == "ok.done", outcome
    seen = [(asked.headers["host"], asked.size) for asked in api.settle().requests]
    assert seen in ([(f"{scoped.API}:{api.port}", 4)], []), seen
    assert not any(b"canary" in connection.began for connection in api.connections)


def test_an_import_has_no_network(held: scoped.Held, api: Server) -> None:
    """Nor has describing a source: the request of its import was refused, and the server saw none."""
    outcome, receipt = held.call("imported")
    assert (outcome.reason, outcome.value.startswith("refused: ")) == ("ok.done", True), outcome
    assert (api.settle().connections, scoped.egress(receipt)["connections"]) == ([], 0)


def test_a_tool_that_asked_for_no_place_has_none(held: scoped.Held, api: Server) -> None:
    """Though it is of the same source as others that have; that it asked is counted."""
    outcome, receipt = held.call("without", {"url": f"https://{scoped.API}:{api.port}/"})
    denied = receipt["egress"]["egress_denied"]
    assert (outcome.reason, outcome.value.startswith("refused: "), denied) == ("ok.done", True, {"destination": 1}), outcome
    assert api.settle().connections == []


class TestBounds:
    """What one call may take of it."""

    def test_refused_requests_without_end(self, small: scoped.Held, api: Server) -> None:
        """As many as the bound are the tool's to handle; with the next one the call ends."""
        url = f"https://{CANARY}/"
        assert ask(small, url, times=4) == ("ok.done", [refused("destination")] * 4, {"destination": 4})
        assert ask(small, url, times=1000) == ("limit_exceeded.egress", None, {"destination": 5})

    def test_requests_without_end(self, small: scoped.Held, api: Server) -> None:
        """The same of those that are answered."""
        url = f"https://{scoped.API}:{api.port}/"
        assert ask(small, url, times=6) == ("ok.done", ["hello"] * 6, {})
        reason, value, _ = ask(small, url, times=1000)
        assert (reason, value, len(api.settle().requests)) == ("limit_exceeded.egress", None, 12)

    def test_bytes_that_come(self, small: scoped.Held, api: Server) -> None:
        """An answer below the bound comes; one without end is cut, and its connection with it."""
        assert ask(small, f"https://{scoped.API}:{api.port}/large?bytes={MIB // 2}") == ("ok.done", ["\0" * 80], {})
        reason, value, denied = ask(small, f"https://{scoped.API}:{api.port}/endless")
        assert (reason, value[0].startswith("refused: "), sum(denied.values()) <= 1) == ("ok.done", True, True), (value, denied)
        assert api.settle().living == 0

    def test_bytes_that_go(self, small: scoped.Held, api: Server) -> None:
        """The same the other way."""
        url = f"https://{scoped.API}:{api.port}/up"
        reason, value, denied = ask(small, url, size=MIB // 2)
        assert (reason, value[0].startswith(f"POST {MIB // 2} "), denied) == ("ok.done", True, {})
        api.forget()
        reason, value, denied = ask(small, url, size=2 * MIB)
        assert (reason, value, denied) == ("ok.done", [refused("bytes")], {"bytes": 1})
        assert api.settle().received <= MIB

    @pytest.mark.parametrize("path", ["/silent", "/half"])
    def test_a_server_that_never_ends_its_answer(self, held: scoped.Held, api: Server, path: str) -> None:
        """The call has its deadline, and the connection ends with it."""
        arguments = {"url": f"https://{scoped.API}:{api.port}{path}", "times": 1, "size": 0}
        outcome, _ = held.call("ask", arguments, timeout_ms=2000)
        assert (outcome.reason, api.settle().living) == ("limit_exceeded.wall", 0)

    def test_a_call_that_is_given_up(self, held: scoped.Held, api: Server) -> None:
        """While the server has its request."""
        arguments = {"url": f"https://{scoped.API}:{api.port}/silent", "times": 1, "size": 0}

        async def give_up(engine: Engine) -> None:
            with trio.move_on_after(60) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lambda: engine.call("ask", arguments))
                    await api.wait_async(lambda server: len(server.requests) == 1)
                    nursery.cancel_scope.cancel()
            assert not scope.cancelled_caught
            await engine.concluded()

        held.run(give_up, held.engine)
        assert [asked.target for asked in api.settle().requests] == ["/silent"]
