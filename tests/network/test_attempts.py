"""A tool that was granted two destinations gets nowhere else, whatever it says on the connections that it has.

Each attempt is judged by the servers: what it is after never reached them; the same from a plain process did, which is its control.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.network import attempted, scoped
from tests.network.servers import Authority, Server
from tests.network.tries import ENCRYPTED_HELLO

pytestmark = pytest.mark.slow
OTHER = "other.example.test"


@pytest.fixture(scope="module")
def answers() -> scoped.Said:
    """The engine's resolver."""
    return scoped.Said()


@pytest.fixture(scope="module")
def held(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, api: Server, web: Server, answers: scoped.Said
) -> Iterator[scoped.Held]:
    """An engine that has the tool, by a policy that allows both servers."""
    folder = tmp_path_factory.mktemp("attempts")
    rules = scoped.Rule(f"{scoped.API}:{api.port}"), scoped.Rule(f"{scoped.WEB}:{web.port}", transport="http")
    place = scoped.policy(folder, *rules, trust=authority.write(folder))
    with scoped.Held(folder / "state", policy=place, resolver=answers) as made:
        made.load(folder / "source", attempted.source([rule.to for rule in rules]))
        yield made


@pytest.fixture(autouse=True)
def afresh(answers: scoped.Said, api: Server, web: Server, outsider: Server) -> None:
    """Names lead to the servers, which saw nothing."""
    answers.answers = {scoped.API: [scoped.LOOPBACK], scoped.WEB: [scoped.LOOPBACK]}
    answers.asked.clear()
    for server in (api, web, outsider):
        server.forget()


def jailed(held: scoped.Held, kind: str, *arguments: Any) -> tuple[Any, dict[str, int]]:
    """What the tool had of it, and what the receipt counts as denied."""
    outcome, receipt = held.call("attempt", attempted.given(kind, *arguments))
    assert outcome.reason == "ok.done", outcome
    return outcome.value, scoped.denied(receipt)


class TestHello:
    """At a door for TLS: the name in the hello is the host's, or nothing of it leaves."""

    def test_the_right_name_is_carried(self, held: scoped.Held, api: Server) -> None:
        """The control of the door itself."""
        assert jailed(held, "tls", [scoped.API, api.port], scoped.API) == ("hello", {})
        assert api.settle().names == [scoped.API]

    @pytest.mark.parametrize(("name", "kind"), [(OTHER, "sni_mismatch"), (None, "sni_missing")])
    def test_another_name_and_none(self, held: scoped.Held, api: Server, tmp_path: Path, name: str | None, kind: str) -> None:
        """By a client of TLS that checks nothing."""
        assert jailed(held, "tls", [scoped.API, api.port], name) == ("cut", {kind: 1})
        assert api.settle().reached == 0
        assert attempted.bare(tmp_path, "tls", ([scoped.LOOPBACK, api.port], name)) == "hello"
        assert api.settle().names == [name]

    @pytest.mark.parametrize(
        "name",
        [
            f"{scoped.API}\0",
            f"{scoped.API}\0.{OTHER}",
            f"{OTHER}\0.{scoped.API}",
            f"{scoped.API}.{OTHER}",
            f"other.{scoped.API}",
            f" {scoped.API}",
            f"{scoped.API}\r\n",
            f"{scoped.API}:443",
            "\u0430pi.example.test".encode("idna").decode(),
            "127.0.0.1",
            "*.example.test",
        ],
        ids=repr,
    )
    def test_names_that_are_nearly_it(self, held: scoped.Held, api: Server, tmp_path: Path, name: str) -> None:
        """Each byte as it is; bare, the server has the hello."""
        assert jailed(held, "by_hello", [scoped.API, api.port], name) == ("cut", {"sni_mismatch": 1})
        assert api.settle().reached == 0
        attempted.bare(tmp_path, "by_hello", ([scoped.LOOPBACK, api.port], name))
        assert api.settle().reached == 1

    def test_a_hidden_name_behind_the_right_one(self, held: scoped.Held, api: Server, tmp_path: Path) -> None:
        """An encrypted hello is refused, though the outer name is allowed; without it the same bytes are carried."""
        arguments = scoped.API, ENCRYPTED_HELLO
        assert jailed(held, "by_hello", [scoped.API, api.port], *arguments) == ("cut", {"encrypted_hello": 1})
        assert api.settle().reached == 0
        assert jailed(held, "by_hello", [scoped.API, api.port], scoped.API) == ("greeted", {})
        assert attempted.bare(tmp_path, "by_hello", ([scoped.LOOPBACK, api.port], *arguments)) == "greeted"

    @pytest.mark.parametrize("cut", [1, 4, 40, 150])
    def test_a_hello_in_two_records(self, held: scoped.Held, api: Server, tmp_path: Path, cut: int) -> None:
        """Another name is seen across them, and the right one is carried."""
        assert jailed(held, "by_hello", [scoped.API, api.port], OTHER, 0, cut) == ("cut", {"sni_mismatch": 1})
        assert api.settle().reached == 0
        assert jailed(held, "by_hello", [scoped.API, api.port], scoped.API, 0, cut) == ("greeted", {})
        assert attempted.bare(tmp_path, "by_hello", ([scoped.LOOPBACK, api.port], OTHER, 0, cut)) == "greeted"

    def test_no_tls_at_all(self, held: scoped.Held, api: Server, tmp_path: Path) -> None:
        """Plain bytes at a door for TLS go nowhere; bare they arrive."""
        text = f"GET / HTTP/1.1\r\nHost: {scoped.API}\r\n\r\n"
        assert jailed(held, "plain", [scoped.API, api.port], text) in (("cut", {"not_tls": 1}), ("", {"not_tls": 1}))
        assert api.settle().reached == 0
        attempted.bare(tmp_path, "plain", ([scoped.LOOPBACK, api.port], text))
        assert api.settle().reached == 1


def _request(host: str, target: str = "/", *lines: str, method: str = "GET", version: str = "HTTP/1.1", body: str = "") -> str:
    return "\r\n".join([f"{method} {target} {version}", *([f"Host: {host}"] if host else []), *lines, "", body])


SMUGGLED = _request("{outsider}", "/smuggled")
# what is sent, with the allowed host and another one in it
REQUESTS = {
    "another host": _request("{outsider}"),
    "no host": _request(""),
    "two hosts": _request("{web}", "/", "Host: {outsider}"),
    "a host with a user": _request("{web}@{outsider}"),
    "a host of two": _request("{web}, {outsider}"),
    "the allowed host on another port": _request("web.example.test:1"),
    "another host in the target": _request("{web}", "http://{outsider}/"),
    "another host in the target, with a user": _request("{web}", "http://{web}@{outsider}/"),
    "a tunnel": _request("{web}", "{outsider}", method="CONNECT"),
    "a tunnel, its host said so": _request("{outsider}", "{outsider}", method="CONNECT"),
    "an old version without a host": _request("", version="HTTP/1.0"),
    "a change of protocol": _request("{web}", "/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"),
    "no HTTP": "SSH-2.0-canary\r\n\r\n",
    "the second version": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}
PAIRS = {
    "a length and chunks": _request(
        "{web}", "/", "Content-Length: 5", "Transfer-Encoding: chunked", method="POST", body="0\r\n\r\n" + SMUGGLED
    ),
    "chunks and a length": _request(
        "{web}", "/", "Transfer-Encoding: chunked", "Content-Length: 5", method="POST", body="0\r\n\r\n" + SMUGGLED
    ),
    "two lengths": _request("{web}", "/", "Content-Length: 0", "Content-Length: 9", method="POST", body=SMUGGLED),
    "a length of two": _request("{web}", "/", "Content-Length: 0, 9", method="POST", body=SMUGGLED),
    "a length with a sign": _request("{web}", "/", "Content-Length: +0", method="POST", body=SMUGGLED),
    "a blank before the colon": _request("{web}", "/", "Content-Length : 9", method="POST", body=SMUGGLED),
    "chunks by another name": _request("{web}", "/", "Transfer-Encoding: xchunked", method="POST", body="0\r\n\r\n" + SMUGGLED),
    "chunks twice": _request("{web}", "/", "Transfer-Encoding: chunked, identity", method="POST", body="0\r\n\r\n" + SMUGGLED),
    "a folded line": _request("{web}", "/", "Transfer-Encoding:", " chunked", method="POST", body="0\r\n\r\n" + SMUGGLED),
    "a bare line feed": _request("{web}", "/", "X: y\n\nGET /smuggled HTTP/1.1\nHost: {outsider}\n"),
    "a bare carriage return": _request("{web}", "/", "X: y\r\rGET /smuggled HTTP/1.1\rHost: {outsider}"),
    "a NUL in a line": _request("{web}", "/", "X: y\0Host: {outsider}"),
    "a size of a chunk with more in it": _request(
        "{web}", "/", "Transfer-Encoding: chunked", method="POST", body="0;\n\r\n\r\n" + SMUGGLED
    ),
    "the next one right behind": _request("{web}") + SMUGGLED,
}


class TestRequests:
    """At a door for plain HTTP: each request is for the host whose door it is, or it goes nowhere."""

    def filled(self, text: str, web: Server, outsider: Server) -> str:
        """With the servers' places."""
        return text.replace("{web}", f"{scoped.WEB}:{web.port}").replace("{outsider}", f"{scoped.LOOPBACK}:{outsider.port}")

    def test_the_right_host_is_carried(self, held: scoped.Held, web: Server, outsider: Server) -> None:
        """The control of the door itself, twice on one connection."""
        text = self.filled(_request("{web}"), web, outsider)
        assert jailed(held, "plain", [scoped.WEB, web.port], text, text) == ("hello hello", {})
        assert [asked.headers["host"] for asked in web.settle().requests] == [f"{scoped.WEB}:{web.port}"] * 2

    @pytest.mark.parametrize("case", REQUESTS)
    def test_a_request_for_somebody_else(self, held: scoped.Held, web: Server, outsider: Server, tmp_path: Path, case: str) -> None:
        """Neither server sees it, and it counts once; bare, it is carried."""
        text = self.filled(REQUESTS[case], web, outsider)
        _, denied = jailed(held, "plain", [scoped.WEB, web.port], text)
        assert (sum(denied.values()), web.settle().reached, outsider.settle().reached) == (1, 0, 0), denied
        attempted.bare(tmp_path, "plain", ([scoped.LOOPBACK, web.port], text))
        assert web.settle().reached == 1

    def test_the_second_request_of_a_connection(self, held: scoped.Held, web: Server, outsider: Server, tmp_path: Path) -> None:
        """Each one is looked at, not the first alone."""
        texts = [self.filled(text, web, outsider) for text in (_request("{web}"), _request("{outsider}", "/second"))]
        _, denied = jailed(held, "plain", [scoped.WEB, web.port], *texts)
        assert (denied, [asked.target for asked in web.settle().requests]) == ({"host_header": 1}, ["/"])
        web.forget()
        attempted.bare(tmp_path, "plain", ([scoped.LOOPBACK, web.port], *texts))
        assert [asked.target for asked in web.settle().requests] == ["/", "/second"]

    @pytest.mark.parametrize("case", PAIRS)
    def test_no_request_hides_in_another(self, held: scoped.Held, web: Server, outsider: Server, tmp_path: Path, case: str) -> None:
        """Whatever the server makes of what reaches it, that second request it never sees; bare, its bytes arrive."""
        text = self.filled(PAIRS[case], web, outsider)
        _, denied = jailed(held, "plain", [scoped.WEB, web.port], text)
        seen = [(asked.target, asked.headers.get("host")) for asked in web.settle().requests]
        assert {*seen} <= {("/", f"{scoped.WEB}:{web.port}")}, seen
        # the call may be over with the answer to what stands before it
        assert sum(denied.values()) == 1 or len(seen) == 1, denied
        assert not any("smuggled" in connection.began.decode("latin-1") for connection in web.connections)
        attempted.bare(tmp_path, "plain", ([scoped.LOOPBACK, web.port], text))
        web.wait(
            lambda server: any("/smuggled" in connection.began.decode("latin-1") for connection in server.connections) or "NUL" in case
        )

    def test_an_allowed_server_that_forwards(self, held: scoped.Held, web: Server, outsider: Server, tmp_path: Path) -> None:
        """No chain of proxies: the third server is not reached; bare it is."""
        target = f"{scoped.LOOPBACK}:{outsider.port}"
        value, _ = jailed(held, "chained", [scoped.WEB, web.port], target)
        assert (value != "hello", outsider.settle().connections) == (True, [])
        assert attempted.bare(tmp_path, "chained", ([scoped.LOOPBACK, web.port], target)) == "hello"
        assert len(outsider.settle().requests) == 1

    def test_an_allowed_server_that_redirects(self, held: scoped.Held, web: Server, outsider: Server, tmp_path: Path) -> None:
        """To a private address, by a client that follows; bare it gets there."""
        path = f"/redirect?to=http://{scoped.LOOPBACK}:{outsider.port}/"
        value, denied = jailed(held, "redirected", [scoped.WEB, web.port], path)
        assert (value, denied, outsider.settle().connections) == ("URLError", {}, [])
        assert [asked.target for asked in web.settle().requests] == [path]
        assert attempted.bare(tmp_path, "redirected", ([scoped.LOOPBACK, web.port], path)) == "hello"
        assert len(outsider.settle().requests) == 1


BAD_ANSWERS = (
    "127.0.0.2",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.1.1",
    "169.254.169.254",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%lo",
    "127.0.0.1%lo",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::1",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0177.0.0.1",
    "localhost",
    "",
    "127.0.0.1 ",
    "[::1]",
    "not an address",
)  # fmt: skip  one list


class TestAnswers:
    """What the resolver says is looked at, all of it; the tool sees a connection that is cut."""

    @pytest.mark.parametrize("with_good", [False, True], ids=["alone", "beside the allowed one"])
    def test_a_bad_answer_leads_nowhere(self, held: scoped.Held, api: Server, web: Server, answers: scoped.Said, with_good: bool) -> None:
        """Each of the list; the control of all is the allowed address, which the next call has."""
        for bad in BAD_ANSWERS:
            answers.answers[scoped.API] = [scoped.LOOPBACK, bad] if with_good else [bad]
            assert (bad, jailed(held, "tls", [scoped.API, api.port], scoped.API)) == (bad, ("cut", {"address": 1}))
        assert (api.settle().reached, web.settle().reached) == (0, 0)
        answers.answers[scoped.API] = [scoped.LOOPBACK]
        assert jailed(held, "tls", [scoped.API, api.port], scoped.API) == ("hello", {})

    def test_no_answer_leads_nowhere(self, held: scoped.Held, api: Server, answers: scoped.Said) -> None:
        """A name without addresses, of which the tool learns no more."""
        del answers.answers[scoped.API]
        assert jailed(held, "tls", [scoped.API, api.port], scoped.API) == ("cut", {"resolve": 1})
        assert api.settle().connections == []

    def test_the_resolver_is_asked_for_the_granted_name_alone(self, held: scoped.Held, api: Server, answers: scoped.Said) -> None:
        """A name that a tool makes up never leaves its worker: not by looking it up, not in a hello."""
        jailed(held, "tls", ["canary.example.test", api.port], "canary.example.test")
        jailed(held, "tls", [scoped.API, api.port], "canary.example.test")
        jailed(held, "tls", [scoped.API, api.port], scoped.API)
        assert answers.asked == [scoped.API]

    @pytest.mark.parametrize(
        "name",
        [
            f"{scoped.API}\0.{OTHER}",
            f"{scoped.API}\r\n{OTHER}",
            f"{scoped.API} {OTHER}",
            "\u0430pi.example.test",
            "api\u3002example.test\0",
            f"{scoped.API}%lo",
            "x" * 300,
            "",
        ],
        ids=ascii,
    )
    def test_a_malformed_name_leads_nowhere_else(
        self, held: scoped.Held, api: Server, web: Server, answers: scoped.Said, name: str
    ) -> None:
        """It is no name, or it is cut to the granted one by who looks it up in the worker: the destination is the door's all the same."""
        value, denied = jailed(held, "tls", [name, api.port], scoped.API)
        # an empty name is the worker's own loopback, on which nobody listens
        assert (value in ("no such name", "ValueError", "UnicodeError", "UnicodeEncodeError", "cut", "hello"), denied) == (True, {}), value
        assert ({*answers.asked} <= {scoped.API}, web.settle().connections) == (True, [])
        assert (value == "hello") == (api.settle().names == [scoped.API])
