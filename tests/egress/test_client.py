"""The host call for HTTP: granted places alone, hop by hop, with what belongs to each of them."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from engine.egress.client import answer
from engine.egress.traffic import DENIALS, Exceeded, Traffic
from engine.egress.way import Way
from engine.policy.network import Attachment, Destination, EgressBounds, Scope, Transport
from tests.doors import NAME, destination, way
from tests.servers import Said, Seen, Server, echo, http_server, https_server

SECRET = "canary-0123456789"
OTHER = "other.example.test"
KEY = Attachment(secret="key", header="Authorization", form="Bearer {}")


@dataclasses.dataclass(kw_only=True)
class Site:
    """Servers and the way to them."""

    plain: Server
    secure: Server
    way: Way

    def scope(self, *destinations: Destination, **bounds: int) -> Scope:
        """What a call gets."""
        return Scope(profile="test", destinations=destinations, bounds=EgressBounds(**bounds))

    @property
    def http(self) -> Destination:
        """The plain server."""
        return destination(self.plain.port, Transport.HTTP)

    @property
    def tls(self) -> Destination:
        """The secure one."""
        return destination(self.secure.port, host=OTHER)

    def upgraded(self, *attach: Attachment) -> Destination:
        """The secure one, behind port 80 of its name."""
        return destination(80, Transport.UPGRADE, host=OTHER, upstream_port=self.secure.port, attach=attach)

    def at(self, path: str) -> str:
        """At the plain server."""
        return f"http://{NAME}:{self.plain.port}{path}"

    def secured(self, path: str) -> str:
        """At the secure one."""
        return f"https://{OTHER}:{self.secure.port}{path}"


@pytest.fixture
def goes() -> dict[str, tuple[int, str]]:
    """By path: the status and place of a redirect."""
    return {}


@pytest.fixture
def site(tmp_path: Path, goes: dict[str, tuple[int, str]]) -> Iterator[Site]:
    """Both servers, which redirect as ``goes`` says."""

    def said(seen: Seen) -> Said:
        path = seen.target.partition("?")[0]
        if path in goes:
            return Said(status=goes[path][0], headers=(("Location", goes[path][1]),), body=b"moved")
        return Said(status=204) if path == "/empty" else echo(seen)

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "trust.pem"))
    with http_server(said) as plain, https_server(authority, OTHER, answer=said) as secure:
        names = {NAME: ["127.0.0.1"], OTHER: ["127.0.0.1"]}
        yield Site(plain=plain, secure=secure, way=way(names, {"key": SECRET}, str(tmp_path / "trust.pem")))


async def ask(
    site: Site, scope: Scope, url: str, method: str = "GET", longest: int = 1 << 20, **more: Any
) -> tuple[bool, Any, dict[str, int]]:
    """The answer, and what was refused."""
    traffic = Traffic(scope.bounds)
    good, value = await answer({"method": method, "url": url, **more}, scope, site.way, traffic, longest=longest)
    return good, value, traffic.facts()["denied"]


async def test_a_request_is_answered_as_plain_data(site: Site) -> None:
    """Status, address, fields and body, from the host that was asked."""
    headers = [["X-One", "1"], ["X-One", "é"], ["Host", "evil.test"], ["Connection", "x-gone"], ["X-Gone", "1"]]
    good, value, denied = await ask(site, site.scope(site.http), site.at("/a?b"), "POST", headers=headers, body="b\xff")
    assert (good, value["status"], value["url"], denied) == (True, 200, site.at("/a?b"), {})
    assert ["Content-Type", "application/json"] in value["headers"]
    assert json.loads(value["body"])["body"] == "b\xff"
    seen = site.plain.seen[0]
    assert (seen.method, seen.target, seen.body) == ("POST", "/a?b", b"b\xff")
    assert seen.headers == (
        ("Host", f"{NAME}:{site.plain.port}"),
        ("X-One", "1"),
        ("X-One", "é"),
        ("Accept-Encoding", "identity"),
        ("Content-Length", "2"),
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_every_method_is_asked(site: Site, method: str) -> None:
    """With the answer that belongs to it."""
    good, value, _ = await ask(site, site.scope(site.http), site.at("/"), method)
    assert (good, value["status"], value["body"] == "", site.plain.seen[0].method) == (True, 200, method == "HEAD", method)


async def test_tls_is_spoken_where_it_is_granted(site: Site) -> None:
    """By its own address, and by that of a rule that adds TLS, in either scheme."""
    for granted, url in (
        (site.tls, site.secured("/a")),
        (site.upgraded(), f"http://{OTHER}/a"),
        (site.upgraded(), f"https://{OTHER}:80/a"),
        (site.upgraded(), site.secured("/a")),
    ):
        good, value, denied = await ask(site, site.scope(granted), url)
        assert (good, value["status"], denied) == (True, 200, {})
    assert site.secure.names == [OTHER] * 4


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.test/",
        f"http://{NAME}/",
        "https://{name}:{port}/",
        "http://{name}:1/",
        "http://127.0.0.1:{port}/",
        "http://sub.{name}:{port}/",
    ],
)
async def test_a_place_that_was_not_granted_is_refused_without_its_name(site: Site, url: str) -> None:
    """Another host, port, scheme or spelling as an address."""
    found = await ask(site, site.scope(site.http), url.format(name=NAME, port=site.plain.port))
    assert found == (False, "the destination is not one that the tool was granted", {"destination": 1})
    assert site.plain.accepted == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": 1},
        {"url": None},
        {"method": "TRACE"},
        {"method": "CONNECT"},
        {"method": "get"},
        {"method": "GET / HTTP/1.1\r\nX: y"},
        {"body": "\u20ac"},
        {"body": 1},
        {"headers": {}},
        {"headers": [["a"]]},
        {"headers": [["a", 1]]},
        {"headers": [["a b", "c"]]},
        {"headers": [["a\r\nb", "c"]]},
        {"headers": [["a", "c\r\nd: e"]]},
        {"headers": [["a", "c\0d"]]},
        {"headers": [["a", "\u20ac"]]},
        {"headers": [["", "c"]]},
        {"headers": [["Transfer_Encoding", "chunked"]]},
        {"headers": [["content_length", "1"]]},
        {"headers": [["a", "b"]] * 101},
        {"url": "http://evil@api.example.test/"},
        {"url": "http://api.example.test\\@evil.test/"},
        {"url": "http://evil.test/\r\nX: y"},
    ],
)
async def test_what_is_no_request_is_refused_without_being_repeated(site: Site, arguments: dict[str, Any]) -> None:
    """And counted."""
    traffic = Traffic(EgressBounds())
    good, line = await answer({"method": "GET", "url": site.at("/"), **arguments}, site.scope(site.http), site.way, traffic, longest=99)
    assert (good, traffic.facts()["denied"], "evil" in line, "\n" in line) == (False, {"not_http": 1}, False, False)
    assert site.plain.accepted == 0


@pytest.mark.parametrize(("answers", "kind"), [(["169.254.169.254"], "address"), (["127.0.0.1", "::1"], "address"), ([], "resolve")])
async def test_an_address_that_no_tool_may_reach_is_refused(site: Site, answers: list[str], kind: str) -> None:
    """Behind a name that was granted."""
    site.way = way({NAME: answers})
    assert await ask(site, site.scope(site.http), site.at("/")) == (False, DENIALS[kind], {kind: 1})
    assert site.plain.accepted == 0


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "GET", "GET"),
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (302, "PUT", "PUT"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
async def test_a_redirect_is_followed_as_its_status_says(
    site: Site, goes: dict[str, tuple[int, str]], status: int, method: str, then: str
) -> None:
    """The body goes along with its method, or with what describes it is left out."""
    goes["/a"] = (status, "/b?c#d")
    body = "" if method in ("GET", "HEAD") else "body"
    good, value, denied = await ask(site, site.scope(site.http), site.at("/a"), method, body=body, headers=[["Content-Type", "x"]])
    assert (good, value["url"], denied) == (True, site.at("/b?c"), {})
    seen = site.plain.seen[1]
    assert (seen.method, seen.body, seen.header("Content-Type")) == (then, body.encode(), ["x"]) if then == method else (then, b"", [])


@pytest.mark.parametrize(
    "place", ["http://evil.test/", "http://169.254.169.254/latest", "//evil.test", "ftp://x/", "http://u@api.example.test/"]
)
async def test_a_redirect_to_another_place_is_not_followed(site: Site, goes: dict[str, tuple[int, str]], place: str) -> None:
    """Not one byte is sent there, and the tool is not told where it led."""
    goes["/a"] = (302, place)
    assert await ask(site, site.scope(site.http), site.at("/a")) == (False, DENIALS["destination"], {"destination": 1})
    assert len(site.plain.seen) == 1


async def test_a_redirect_is_judged_anew(site: Site, goes: dict[str, tuple[int, str]]) -> None:
    """A granted place whose name has a bad address by then."""
    goes["/a"] = (302, site.secured("/b"))
    site.way = way({NAME: ["127.0.0.1"], OTHER: ["10.0.0.1"]})
    assert await ask(site, site.scope(site.http, site.tls), site.at("/a")) == (False, DENIALS["address"], {"address": 1})
    assert site.secure.accepted == 0


@pytest.mark.parametrize(("hops", "good"), [(5, True), (6, False)])
async def test_redirects_have_an_end(site: Site, goes: dict[str, tuple[int, str]], hops: int, good: bool) -> None:
    """Five are followed."""
    goes.update({f"/{number}": (302, f"/{number - 1}") for number in range(1, hops + 1)})
    found, value, denied = await ask(site, site.scope(site.http), site.at(f"/{hops}"))
    assert (found, denied) == ((True, {}) if good else (False, {"redirect": 1}))
    assert good or value == DENIALS["redirect"]


async def test_credentials_stay_with_their_host(site: Site, goes: dict[str, tuple[int, str]]) -> None:
    """The tool's are dropped at another place, whatever they are called, kept at the same one; attached ones are those of the place."""
    goes["/a"], goes["/same"] = (307, site.secured("/b")), (307, "/c")
    mine = [["Authorization", "mine"], ["Cookie", "mine"], ["X-Api-Key", "mine"], ["X", "1"], ["Accept", "text/plain"]]
    scope = site.scope(site.http, site.upgraded(KEY))
    good, value, _ = await ask(site, scope, site.at("/a"), headers=mine)
    there = site.secure.seen[0]
    assert (good, there.header("Authorization"), there.header("Accept")) == (True, [f"Bearer {SECRET}"], ["text/plain"])
    assert [there.header(name) for name in ("Cookie", "X-Api-Key", "X")] == [[], [], []]
    assert "canary" not in json.dumps(value)
    await ask(site, scope, site.at("/same"), headers=mine)
    assert [site.plain.seen[-1].header(name) for name in ("Authorization", "X-Api-Key")] == [["mine"], ["mine"]]
    goes["/back"] = (307, site.at("/d"))
    await ask(site, scope, site.secured("/back"))
    assert (site.plain.seen[-1].target, site.plain.seen[-1].header("Authorization")) == ("/d", [])


async def test_a_secret_in_a_redirect_is_masked_and_attached_again(site: Site, goes: dict[str, tuple[int, str]]) -> None:
    """In the address that the tool is told it is stars."""
    goes["/a"] = (302, f"/b?key={SECRET}")
    good, value, _ = await ask(site, site.scope(site.upgraded(Attachment(secret="key", query="key"))), f"http://{OTHER}/a")
    assert (good, value["url"]) == (True, f"http://{OTHER}/b?key={'*' * len(SECRET)}")
    assert [seen.target for seen in site.secure.seen] == [f"/a?key={SECRET}", f"/b?key={SECRET}"]


@pytest.mark.parametrize("more", [0, 1])
async def test_an_answer_has_a_bound(site: Site, more: int) -> None:
    """At it, it passes; beyond it the tool is told, and nothing is counted as refused."""
    site.plain.answer = lambda seen: Said(body=b"x" * (1000 + more))
    good, value, denied = await ask(site, site.scope(site.http), site.at("/"), longest=1000)
    assert (good, denied) == (not more, {})
    assert value["body"] == "x" * 1000 if good else value == "the answer is longer than the call may take"


async def test_the_bounds_of_the_call_are_those_of_its_doors(site: Site) -> None:
    """Bytes are refused with a sentence; a connection too many ends the call."""
    found = await ask(site, site.scope(site.http, out_bytes=10), site.at("/"))
    assert found == (False, DENIALS["bytes"], {"bytes": 1})
    scope = site.scope(site.http, total=1)
    traffic = Traffic(scope.bounds)
    arguments = {"method": "GET", "url": site.at("/empty")}
    assert (await answer(arguments, scope, site.way, traffic, longest=99))[0]
    with pytest.raises(Exceeded):
        await answer(arguments, scope, site.way, traffic, longest=99)


async def test_refusals_without_end_end_the_call(site: Site) -> None:
    """The last allowed one is a sentence."""
    scope = site.scope(site.http, denials=1)
    traffic = Traffic(scope.bounds)
    arguments = {"method": "GET", "url": "http://evil.test/"}
    assert not (await answer(arguments, scope, site.way, traffic, longest=99))[0]
    with pytest.raises(Exceeded) as caught:
        await answer(arguments, scope, site.way, traffic, longest=99)
    assert "evil" not in caught.value.line
