"""Plain HTTP inside, TLS outside: whom it trusts, what is attached, and that nothing attached comes back."""

import base64
import dataclasses
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trustme

from engine.errors import PolicyError
from engine.policy.network import Attachment, Destination, Transport
from tests.doors import NAME, destination, doors, was_reset, way
from tests.servers import Said, Seen, Server, https_server

SECRET = "canary-0123456789/+x"
SECRETS = {"key": SECRET}
ASK = b"GET /a?b HTTP/1.1\r\nHost: api.example.test\r\nAuthorization: mine\r\nAccept-Encoding: gzip\r\nRange: bytes=1-2\r\n\r\n"
HEADER = Attachment(secret="key", header="Authorization", form="Bearer {}")


def answers(seen: Seen) -> Said:
    """All forms of what was attached, and whatever the path says."""
    if seen.target.startswith("/packed"):
        return Said(headers=(("Content-Encoding", "gzip"),), body=b"x")
    if seen.target.startswith("/portions"):
        text = f"<{SECRET}>".encode()
        return Said(body=tuple(text[at : at + 1] for at in range(len(text))))
    coded = base64.b64encode(f"user:{SECRET}".encode()).decode()
    body = json.dumps({"raw": dict(seen.headers), "quoted": urllib.parse.quote(SECRET, safe=""), "coded": coded})
    return Said(headers=(("X-Echo", seen.header("Authorization")[0] if seen.header("Authorization") else "none"),), body=body.encode())


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A test's own."""
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Server]:
    """One with a certificate for the name and for its address."""
    with https_server(authority, NAME, "127.0.0.1", answer=answers) as made:
        yield made


@pytest.fixture
def trust(authority: trustme.CA, tmp_path: Path) -> str:
    """A file of the test's authority."""
    authority.cert_pem.write_to_path(str(tmp_path / "trust.pem"))
    return str(tmp_path / "trust.pem")


def granted(server: Server, *attach: Attachment, host: str = NAME) -> Destination:
    """The server behind port 80 of its name."""
    return destination(80, Transport.UPGRADE, host=host, upstream_port=server.port, attach=attach)


async def test_certificates_that_changed_are_not_used(server: Server, trust: str) -> None:
    """Nor said to be good; the control is the file as it was."""
    known = way(trust=trust)
    known.check()
    kept = await trio.Path(trust).read_bytes()
    await trio.Path(trust).write_bytes(kept + b"\n")
    with pytest.raises(PolicyError) as caught:
        known.check()
    assert (caught.value.code, caught.value.lines) == (
        "refused.policy",
        ("trust: the certificates changed since the policy was read: load again",),
    )
    with pytest.raises(OSError, match="cannot be used"):
        await known.tls()
    await trio.Path(trust).write_bytes(kept)
    assert await known.tls()


async def ask(one: Destination, said: bytes, trust: str | None) -> tuple[bytes, dict[str, int]]:
    """What a tool gets for those bytes, none when it was reset; and what was refused."""
    async with doors(one, by=way(secrets=SECRETS, trust=trust)) as served, await served.connect() as tool:
        await tool.send_all(said.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        got = b""
        try:
            while data := await tool.receive_some(65536):
                got += data
        except trio.BrokenResourceError:
            got = b""
        return got, served.traffic.facts()["denied"]


async def test_the_host_is_asked_by_its_name_over_tls(server: Server, trust: str) -> None:
    """Without attachments a request is as the tool wrote it, and its Host is the upstream's."""
    got, denied = await ask(granted(server), ASK, trust)
    assert (got[:15], denied, server.names) == (b"HTTP/1.1 200 OK", {}, [NAME])
    assert [(seen.target, seen.header("Host"), seen.header("Authorization")) for seen in server.seen] == [
        ("/a?b", [f"{NAME}:{server.port}"], ["mine"])
    ]


async def test_a_secret_is_attached_and_does_not_come_back(server: Server, trust: str) -> None:
    """In its field and parameter, in place of the tool's; in no form in the answer, whose length is what it says."""
    query = Attachment(secret="key", query="b")
    got, denied = await ask(granted(server, HEADER, query), ASK, trust)
    seen = server.seen[0]
    assert (seen.header("Authorization"), seen.target) == ([f"Bearer {SECRET}"], f"/a?b={urllib.parse.quote(SECRET, safe='')}")
    assert (seen.header("Accept-Encoding"), seen.header("Range")) == (["identity"], [])
    head, _, body = got.partition(b"\r\n\r\n")
    assert f"X-Echo: Bearer {'*' * len(SECRET)}".encode() in head
    stars = json.loads(body)
    assert stars["raw"]["Authorization"] == "Bearer " + "*" * len(SECRET)
    assert set(stars["quoted"]) == {"*"}
    assert b"canary" not in got
    assert base64.b64encode(b"123456789")[2:8] not in got
    assert denied == {}


async def test_a_secret_in_portions_does_not_come_back(server: Server, trust: str) -> None:
    """Byte by byte."""
    got, _ = await ask(granted(server, HEADER), ASK.replace(b"/a?b", b"/portions"), trust)
    assert b"canary" not in got
    assert got.count(b"*") == len(SECRET)


async def test_a_packed_answer_is_refused_where_something_is_attached(server: Server, trust: str) -> None:
    """The control has nothing attached."""
    packed = ASK.replace(b"/a?b", b"/packed")
    assert await ask(granted(server, HEADER), packed, trust) == (b"", {"coding": 1})
    got, denied = await ask(granted(server), packed, trust)
    assert (got[:15], denied) == (b"HTTP/1.1 200 OK", {})


async def test_a_secret_that_is_missing_reaches_nobody(server: Server, trust: str) -> None:
    """The request is refused before anything is connected to."""
    missing = Attachment(secret="missing", header="Authorization")
    assert await ask(granted(server, missing), ASK, trust) == (b"", {"secret": 1})
    assert server.accepted == 0


async def test_an_authority_that_is_not_trusted_is_refused(server: Server, tmp_path: Path) -> None:
    """Another one's file, the system's, and a file that is none: no request is sent."""
    other, none = tmp_path / "other.pem", tmp_path / "none.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    none.write_text("nothing")
    for trust in (str(other), None, str(none), str(tmp_path / "missing.pem")):
        assert await ask(granted(server, HEADER), ASK, trust) == (b"", {"certificate": 1})
    assert server.seen == []


async def test_a_certificate_for_another_name_is_refused(authority: trustme.CA, trust: str) -> None:
    """Although its authority is trusted."""
    with https_server(authority, "other.example.test", answer=answers) as server:
        assert await ask(granted(server, HEADER), ASK, trust) == (b"", {"certificate": 1})
        assert server.seen == []


async def test_an_address_is_checked_as_an_address(server: Server, authority: trustme.CA, trust: str) -> None:
    """By a certificate for it; one for a name is none."""
    said = ASK.replace(NAME.encode(), b"127.0.0.1")
    got, denied = await ask(granted(server, host="127.0.0.1"), said, trust)
    assert (got[:15], denied) == (b"HTTP/1.1 200 OK", {})
    with https_server(authority, NAME, answer=answers) as named:
        assert await ask(granted(named, host="127.0.0.1"), said, trust) == (b"", {"certificate": 1})


async def test_many_requests_and_large_bodies_go_over_one_connection(server: Server, trust: str) -> None:
    """Kept between them, and read and written at once."""
    async with doors(granted(server, HEADER), by=way(secrets=SECRETS, trust=trust)) as served, await served.connect() as tool:
        for number in range(5):
            size = number * 700_000
            async with trio.open_nursery() as nursery:
                head = b"POST /b HTTP/1.1\r\nHost: api.example.test\r\nContent-Length: %d\r\n\r\n" % size
                nursery.start_soon(tool.send_all, head + bytes(size))
                got = b""
                while b'"coded"' not in got or not got.endswith(b"}"):
                    got += await tool.receive_some(65536)
        assert (served.traffic.facts()["denied"], served.traffic.connections) == ({}, 1)
    assert [len(seen.body) for seen in server.seen] == [number * 700_000 for number in range(5)]
    assert server.accepted == 1


async def test_a_host_that_does_not_speak_tls_is_refused(trust: str) -> None:
    """And gets no request."""
    listening = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listening[0]:
        one = destination(80, Transport.UPGRADE, upstream_port=listening[0].socket.getsockname()[1], attach=(HEADER,))
        async with doors(one, by=way(secrets=SECRETS, trust=trust)) as served, await served.connect() as tool:
            await tool.send_all(ASK)
            async with await listening[0].accept() as host:
                got = await host.receive_some(9999)
                await host.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                assert await was_reset(tool)
            assert (got[:1], b"canary" in got, served.traffic.facts()["denied"]) == (b"\x16", False, {"certificate": 1})


async def test_a_reload_during_a_call_does_not_matter_to_it(server: Server, trust: str) -> None:
    """It attaches and masks what was held when it began; the next call has the new value, which does not come back either."""
    held, one = dict(SECRETS), granted(server, HEADER)
    known = dataclasses.replace(way(trust=trust), secret=held.__getitem__)
    for value, new in ((SECRET, "canary-new-9876543210"), ("canary-new-9876543210", "canary-none")):
        during = known.during([one.rule])
        held["key"] = new
        async with doors(one, by=during) as served, await served.connect() as tool:
            held["key"] = new
            await tool.send_all(ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            got = b""
            while data := await tool.receive_some(65536):
                got += data
        assert server.seen[-1].header("Authorization") == [f"Bearer {value}"]
        assert (value.encode() in got, b"Bearer " + b"*" * len(value) in got) == (False, True)


def test_a_mask_is_made_once_for_the_same_values() -> None:
    """Whichever call asks; another value has another one."""
    rule = destination(80, Transport.UPGRADE, attach=(HEADER,)).rule
    held = dict(SECRETS)
    known = dataclasses.replace(way(), secret=held.__getitem__)
    first = known.during([rule]).mask([rule])
    assert known.during([rule]).mask([rule]) is first
    held["key"] = "canary-new-9876543210"
    assert known.during([rule]).mask([rule]) is not first
