"""A network and a secret from the command line, as a newcomer meets them; and the examples of the front page, with servers of our own."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.egress.resolver import FixedResolver
from engine.errors import EngineError
from tests import kinds, kit, machine
from tests.e2e.commands import stockade
from tests.kit import PROJECT
from tests.network import scoped
from tests.network.servers import Authority, Server, serving

pytestmark = pytest.mark.slow
CANARY = "canary-5f0b1c9e7a3d4b62"
TOOL = '''
import urllib.request
from engine import tool

@tool(effect="read", network=["{place}"])
def ask(path: str) -> str:
    """What the place answers, and the same backwards."""
    with urllib.request.urlopen("http://{place}" + path, timeout=20) as answer:
        text = answer.read().decode()
    return text + " | " + text[::-1]
'''
BOTH_WAYS = "hello | olleh"


@pytest.fixture
def web() -> Iterator[Server]:
    """A plain server."""
    with serving() as made:
        yield made


@pytest.fixture
def api(authority: Authority) -> Iterator[Server]:
    """A server with TLS."""
    with serving(authority.serving("127.0.0.1", "prices.example.com", "orders.example.com")) as made:
        yield made


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Whom the policy trusts."""
    return Authority()


def tool(folder: Path, place: str) -> str:
    """A source whose tool asks that place."""
    return str(kit.write(folder / "source", TOOL.format(place=place)))


def test_a_granted_place_is_reached_and_nothing_of_it_without_the_grant(tmp_path: Path, web: Server) -> None:
    """With the profile there is the answer and a receipt that counts; without it a refusal that names no place."""
    place = f"127.0.0.1:{web.port}"
    source, policy = tool(tmp_path, place), scoped.policy(tmp_path, scoped.Rule(place, "http"))
    ended = stockade(tmp_path, "run", source, "ask", '{"path": "/"}', "--policy", str(policy), "--json")
    assert (ended.code, ended.document["value"]) == (0, BOTH_WAYS), ended
    receipt = ended.document["receipt"]
    egress = receipt["egress"]
    assert (egress["connections"], egress["egress_denied"], receipt["secrets"]) == (1, {}, {})
    assert min(egress["in_bytes"], egress["out_bytes"]) > 0
    assert receipt["policy"]["loosenings"] == ["network_private_destinations"]
    assert [asked.target for asked in web.settle().requests] == ["/"]
    web.forget()
    refused = stockade(tmp_path, "run", source, "ask", '{"path": "/"}', "--json")
    assert (refused.code, refused.document["reason"]) == (3, "refused.not_granted")
    assert refused.document["lines"] == ["network: 1 of the hosts asked for are not granted"]
    assert web.settle().connections == []


def test_a_private_address_is_not_reached_unless_the_profile_names_it(tmp_path: Path, web: Server) -> None:
    """The place is granted, its address is not: the tool has a connection that ends, and the receipt says why."""
    place = f"127.0.0.1:{web.port}"
    policy = scoped.policy(tmp_path, scoped.Rule(place, "http", private=()))
    ended = stockade(tmp_path, "run", tool(tmp_path, place), "ask", '{"path": "/"}', "--policy", str(policy), "--json")
    assert (ended.code, ended.document["reason"]) == (1, "tool_error.exception")
    assert ended.document["receipt"]["egress"]["egress_denied"] == {"address": 1}
    assert web.settle().connections == []


def test_a_name_that_this_host_knows(tmp_path: Path, web: Server) -> None:
    """Looked up by the host's own resolver, outside of the jail."""
    names = ("stockade.localhost", "localhost.localdomain", "localhost4.localdomain4")
    known = [name for name in names if _leads_to_loopback(name)]
    if not known:
        pytest.skip("unproven: no name of two labels leads to loopback on this host")
    place = f"{known[0]}:{web.port}"
    policy = scoped.policy(tmp_path, scoped.Rule(place, "http", private=("127.0.0.1/32", "::1/128")))
    ended = stockade(tmp_path, "run", tool(tmp_path, place), "ask", '{"path": "/"}', "--policy", str(policy), "--json")
    assert (ended.code, ended.document["value"]) == (0, BOTH_WAYS), ended


def _leads_to_loopback(name: str) -> bool:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    return "127.0.0.1" in found and found <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize("machine_readable", [["--json"], []], ids=["json", "text"])
def test_an_attached_secret_is_seen_by_the_server_alone(
    tmp_path: Path, api: Server, authority: Authority, machine_readable: list[str]
) -> None:
    """The server has it and sends it back; the tool, which would turn it round, has a mark in its place."""
    place = f"127.0.0.1:{api.port}"
    attach = 'attach = [{ secret = "orders_key", header = "Authorization", form = "Bearer {}" }]'
    rule = scoped.Rule(place, "upgrade", more=f"upstream_port = {api.port}\n{attach}")
    policy = scoped.policy(tmp_path, rule, trust=authority.write(tmp_path), secrets={"orders_key": "env:ORDERS_API_KEY"})
    source, given = tool(tmp_path, place), {"ORDERS_API_KEY": CANARY}
    call = (source, "ask", '{"path": "/headers"}', "--policy", str(policy), *machine_readable)
    ended = stockade(tmp_path, "run", *call, variables=given)
    assert (ended.code, "authorization" in ended.out) == (0, True), ended
    assert [asked.headers["authorization"] for asked in api.settle().requests] == [f"Bearer {CANARY}"]
    told = stockade(tmp_path, "explain", *call, variables=given)
    assert (told.code, "orders_key" in told.out) == (0, True)
    journal = (tmp_path / "state" / "stockade" / "journal" / "receipts.jsonl").read_text(encoding="utf-8")
    for text in (ended.out, ended.err, told.out, told.err, journal):
        assert CANARY not in text
        assert CANARY[::-1] not in text
    assert "ORDERS_API_KEY" not in told.out


def test_a_secret_that_is_not_there_refuses_before_anything_starts(tmp_path: Path, web: Server) -> None:
    """By its id, and with neither the variable nor a value."""
    place = f"127.0.0.1:{web.port}"
    policy = scoped.policy(tmp_path, scoped.Rule(place, "http"), secrets={"orders_key": "env:ORDERS_API_KEY"})
    ended = stockade(tmp_path, "run", tool(tmp_path, place), "ask", '{"path": "/"}', "--policy", str(policy), "--json")
    assert (ended.code, ended.document["reason"]) == (3, "refused.secret")
    assert ended.document["lines"] == ["orders_key: the variable that it is taken from is not set"]


def examples(heading: str) -> dict[str, str]:
    """The files that a section of the front page shows, by the names in their first lines."""
    page = (PROJECT / "README.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", section, flags=re.S))


def laid(folder: Path, api: Server, authority: Authority) -> dict[str, str]:
    """These files in that folder, with our server in place of the hosts that they name, at its port."""
    shown = examples("A tool that needs the network")
    private, trust = 'private = ["127.0.0.1/32"]\n', 'trust = { value = "./ca.pem", reason = "a test\'s own" }\n'
    profile = shown["network/shop.toml"].replace(":443", f":{api.port}").replace("[[allow]]\n", "[[allow]]\n" + private)
    profile = profile.replace('transport = "upgrade"\n', f'transport = "upgrade"\nupstream_port = {api.port}\n')
    shown["network/shop.toml"] = profile.replace("\n[[allow]]", f"\n{trust}[[allow]]", 1)
    shown["policy.toml"] += '[loosenings]\nnetwork_private_destinations = { value = true, reason = "a test needs it so" }\n'
    for name in ("shop.py", "prices.py"):
        shown[name] = shown[name].replace("prices.example.com:443", f"prices.example.com:{api.port}")
        shown[name] = shown[name].replace("//prices.example.com/", f"//prices.example.com:{api.port}/")
    kit.write(folder, shown)
    authority.write(folder / "network")
    return shown


async def called(folder: Path, source: str, calls: dict[str, dict[str, Any]], **options: Any) -> dict[str, Any]:
    """The values of calls of that source under the policy of the page."""
    resolver = FixedResolver(dict.fromkeys(("prices.example.com", "orders.example.com"), ("127.0.0.1",)))
    made = {}
    async with kit.plain_engine(folder / "state", policy=folder / "policy.toml", resolver=resolver) as engine:
        await engine.load(folder / source, **options)
        for name, arguments in calls.items():
            outcome = await engine.call(name, arguments)
            made[name] = outcome.value if outcome.reason == "ok.done" else (outcome.reason, outcome.lines, outcome.stderr)
    return made


async def test_the_example_of_the_front_page(tmp_path: Path, api: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tools have their answers, one by TLS of its own and one with a key that is attached."""
    monkeypatch.setenv("ORDERS_API_KEY", CANARY)
    laid(tmp_path, api, authority)
    assert await called(tmp_path, "shop.py", {"price": {"item": "tea"}, "order": {"number": 7}}) == {"price": "hello", "order": "hello"}
    seen = [(asked.target, asked.headers["host"].partition(":")[0], asked.headers.get("authorization")) for asked in api.settle().requests]
    assert seen == [("/items/tea", "prices.example.com", None), ("/orders/7", "orders.example.com", f"Bearer {CANARY}")]


@pytest.mark.parametrize("kind", kinds.KINDS)
async def test_the_example_for_both_kinds_of_worker(
    tmp_path: Path, api: Server, authority: Authority, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The client that the host answers works in either."""
    options: dict[str, Any] = {"worker": kind}
    if kind == "wasm":
        kinds.require_image()
        monkeypatch.setenv("XDG_CACHE_HOME", str(machine.IMAGE_DIR.parent))
    monkeypatch.setenv("ORDERS_API_KEY", CANARY)
    laid(tmp_path, api, authority)
    assert await called(tmp_path, "prices.py", {"price": {"item": "tea"}}, **options) == {"price": "hello"}
    assert [asked.target for asked in api.settle().requests] == ["/items/tea"]


SAY = """
from engine import tool

@tool(effect="read")
def say(text: str) -> str:
    'Prints the text backwards.'
    print(text[::-1])
    return "said"
"""


async def test_the_secrets_of_the_front_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source is read, from a place of the test's own; what one becomes on a receipt is what the page shows."""
    page = (PROJECT / "README.md").read_text(encoding="utf-8")
    section = page.partition("\n## Secrets\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"```toml\n(\[secrets\]\n.*?)```", section, flags=re.S)
    kept = {"store_key": tmp_path / "store_key", "mail_key": tmp_path / "mail_key"}
    for name, place in kept.items():
        place.write_text(f"{name}-{CANARY}\n", encoding="ascii")
        place.chmod(0o400)
    text = text.replace("/run/secrets/store_key", str(kept["store_key"]))
    text = text.replace("/usr/bin/pass show mail", f"/bin/cat {kept['mail_key']}")
    (tmp_path / "policy.toml").write_text(f'extends = "required"\n{text}', encoding="utf-8")
    monkeypatch.setenv("ORDERS_API_KEY", CANARY)
    source = kit.write(tmp_path / "source", SAY)
    async with kit.plain_engine(tmp_path / "state", policy=tmp_path / "policy.toml") as engine:
        await engine.load(source)
        said = {name: f"{name}-{CANARY}" for name in kept} | {"orders_key": CANARY}
        for name, value in said.items():
            outcome = await engine.call("say", {"text": value[::-1]})
            assert (outcome.value, f"[redacted:{name}]" in outcome.stdout) == ("said", True), outcome
        receipt = await outcome.concluded()
        refused = await engine.call("say", {"text": CANARY})
        kept["store_key"].chmod(0o444)
        with pytest.raises(EngineError) as caught:
            await engine.reload_secrets()
    assert f'"secrets": {json.dumps(receipt["secrets"])}' in section
    assert (refused.reason, refused.lines) == ("refused.secret_in", ("the arguments hold the secret orders_key",))
    assert caught.value.lines == ("store_key: its file is open to others (mode 0444); want 0400, 0600 or 0640",)
