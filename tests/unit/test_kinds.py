"""Which kind of worker runs a source: what each can serve, and how one is chosen."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine.errors import HostError
from engine.loading import Parsed
from engine.policy.model import Freshness, Kind, Mode, Policy
from engine.policy.network import Profile, Rule, place_of
from engine.worker.kinds import Needs, choose, doubts, problems
from tests import hosts
from tests.staged import staged


@dataclasses.dataclass(frozen=True)
class Held:
    """An image as far as a choice looks at it."""

    name: str = "python_wasm"
    modules: frozenset[str] = frozenset({"json", "re", "threading", "tempfile"})
    packages: frozenset[str] = frozenset({"jinja2"})


IMAGE = Held()
ABSENT = "image python_wasm is not there"
PLAIN = Needs(standard=frozenset({"json", "re"}))


def needs(**changes: Any) -> Needs:
    """A source that any kind can serve, but for these changes."""
    return dataclasses.replace(PLAIN, **changes)


def parsed(folder: Path, files: dict[str, str], policy: Policy | None = None) -> Parsed:
    """A source of these files, read under that policy."""
    return Parsed(closed=staged(folder, files), layers=(), code={}, made_by="", policy=policy or hosts.policy())


UNSERVED = [
    ({"standard": frozenset({"json", "ssl"})}, "its image python_wasm has no module ssl"),
    ({"standard": frozenset({"ctypes.util"})}, "its image python_wasm has no module ctypes"),
    ({"externals": frozenset({"yaml"})}, "yaml is neither in a granted layer nor in its image python_wasm"),
    ({"native_layers": ("numbers",)}, "layer numbers holds native code"),
    ({"mode": Mode.HOST}, "the mode host has no wall, and it always has one"),
    ({"freshness": Freshness.WARM}, "freshness warm is not there, every call is fresh"),
    ({"freshness": Freshness.SNAPSHOT}, "freshness snapshot is not there, every call is fresh"),
    ({"folders": ("reports",)}, "the granted folder reports cannot be seen from there"),
    ({"memory_bytes": (64 << 20) - 1}, "it needs limits.memory of 64 MiB"),
]


class TestWasm:
    """What wasm can serve."""

    def test_a_plain_source(self) -> None:
        """The control of all refusals below."""
        assert problems(Kind.WASM, PLAIN, IMAGE) == ()
        assert problems(Kind.WASM, needs(externals=frozenset({"jinja2"}), memory_bytes=64 << 20), IMAGE) == ()

    @pytest.mark.parametrize(("changes", "line"), UNSERVED)
    def test_what_it_cannot_serve_is_named(self, changes: dict[str, Any], line: str) -> None:
        """One line for each feature that is missing."""
        assert problems(Kind.WASM, needs(**changes), IMAGE) == (line,)
        with pytest.raises(HostError) as caught:
            choose({"caller": Kind.WASM}, needs(**changes), IMAGE)
        assert (caught.value.code, caught.value.lines) == ("refused.worker_kind", (f"wasm cannot serve this source: {line}",))

    def test_without_its_image(self) -> None:
        """The way out is in the line."""
        assert problems(Kind.WASM, PLAIN, ABSENT) == (ABSENT,)

    def test_modules_that_fail_when_they_are_used_are_doubts_alone(self) -> None:
        """Whoever asks for wasm gets it; unasked it is not chosen."""
        threaded = needs(standard=frozenset({"threading"}))
        assert doubts(threaded) == ("the source imports threading, and there are no threads",)
        assert choose({"caller": Kind.WASM}, threaded, IMAGE).kind is Kind.WASM
        assert choose({"caller": Kind.AUTO}, threaded, IMAGE).kind is Kind.NATIVE

    @pytest.mark.parametrize(
        ("taken", "named"),
        [
            ("urllib.request", "urllib.request"),
            ("urllib.request.urlopen", "urllib.request"),
            ("http.client", "http.client"),
            ("xmlrpc.client", "xmlrpc.client"),
            ("ftplib", "ftplib"),
            ("smtplib.SMTP", "smtplib"),
            ("ssl", "ssl"),
            ("socket.socket", "socket"),
        ],
    )
    def test_what_opens_connections_is_a_doubt(self, taken: str, named: str) -> None:
        """By its whole name, with what is below it."""
        assert doubts(needs(standard=frozenset({taken}))) == (f"the source imports {named}, and there are no sockets",)

    @pytest.mark.parametrize(
        "taken", ["http", "http.cookies", "http.HTTPStatus", "urllib", "urllib.parse", "xmlrpc", "sockets", "socketless.x"]
    )
    def test_what_stands_beside_it_is_none(self, taken: str) -> None:
        """Cookies, quoting, names that begin alike."""
        assert doubts(needs(standard=frozenset({taken}))) == ()

    def test_hosts_are_reached_by_http_alone(self) -> None:
        """A source that could not reach what is granted is native; one that names ``engine.http`` need not be, nor one without hosts."""
        line = "the policy grants hosts, and only engine.http reaches them there"
        assert doubts(needs(network=True)) == (line,)
        found = choose({}, needs(network=True), IMAGE)
        assert (found.kind, found.why) == (Kind.NATIVE, f"wasm, which is stronger, cannot serve: {line}")
        assert choose({"policy": Kind.WASM}, needs(network=True), IMAGE).kind is Kind.WASM
        assert [choose({}, needs(network=network, http=True), IMAGE).kind for network in (True, False)] == [Kind.WASM] * 2


class TestNeeds:
    """What a source needs, as its files say it."""

    @pytest.mark.parametrize(
        ("source", "http"),
        [
            ("from engine import http", True),
            ("from engine import http as web, tool", True),
            ("import engine.authoring.http", True),
            ("from engine.authoring import http", True),
            ("from engine.authoring.http import get", True),
            ("def f():\n    from engine import http", True),
            ("import helper", True),
            ("import http", False),
            ("import engine", False),
            ("from engine import *", False),
            ("from engine import tool", False),
            ("from http import client", False),
        ],
    )
    def test_whether_it_asks_the_host(self, tmp_path: Path, source: str, http: bool) -> None:
        """In any of its files, by any spelling of the import; what does not name it is taken not to."""
        files = {"tool.py": source, "helper.py": "from engine import http"}
        assert parsed(tmp_path, files).needs.http is http

    def test_what_it_takes_of_the_standard_library(self, tmp_path: Path) -> None:
        """A module is one whether it is imported or taken from its package."""
        source = "import urllib.request, json.decoder\nfrom http import client, HTTPStatus\nfrom os.path import join\n"
        found = parsed(tmp_path, {"tool.py": f"{source}from helper import socket\nfrom layer import ssl", "helper.py": "socket = 1"}).needs
        modules = {"urllib.request", "json.decoder", "http", "os.path"}
        assert found.standard == modules | {"http.client", "http.HTTPStatus", "os.path.join"}
        assert doubts(found) == tuple(f"the source imports {name}, and there are no sockets" for name in ("http.client", "urllib.request"))

    def test_whether_hosts_are_granted(self, tmp_path: Path) -> None:
        """By any rule of the policy's profile."""
        rule = Rule(place=place_of("api.example.com:443"), upstream_port=443)
        granting = hosts.policy(network=Profile(name="own", rules=(rule,)))
        assert parsed(tmp_path, {"tool.py": ""}).needs.network is False
        assert parsed(tmp_path, {"tool.py": ""}, granting).needs.network is True


class TestNative:
    """What native can serve."""

    def test_everything(self) -> None:
        """Whatever a graph was closed with; what is in no layer was refused before."""
        assert problems(Kind.NATIVE, PLAIN, ABSENT) == ()
        assert problems(Kind.NATIVE, needs(freshness=Freshness.WARM, native_layers=("numbers",)), ABSENT) == ()


class TestChoice:
    """Who gets which."""

    def test_the_strongest_that_can_serve(self) -> None:
        """Wasm when it can, native when wasm cannot, with the reason."""
        assert choose({}, PLAIN, IMAGE) == choose({"caller": Kind.AUTO, "policy": Kind.AUTO}, PLAIN, IMAGE)
        found = choose({}, PLAIN, IMAGE)
        assert (found.kind, found.why) == (Kind.WASM, "the strongest there is")
        found = choose({}, PLAIN, ABSENT)
        why = "wasm, which is stronger, cannot serve: image python_wasm is not there"
        assert (found.kind, found.why) == (Kind.NATIVE, why)

    @pytest.mark.parametrize("kind", [Kind.NATIVE, Kind.WASM])
    @pytest.mark.parametrize("who", ["caller", "policy", "declaration"])
    def test_whoever_asks_for_one_gets_that_one(self, who: str, kind: Kind) -> None:
        """And the receipt says who it was."""
        found = choose({"caller": Kind.AUTO, who: kind}, PLAIN, IMAGE)
        assert (found.kind, found.why) == (kind, f"asked for by the {who}")

    def test_two_that_ask_for_different_kinds_are_refused(self) -> None:
        """Nobody's word counts for more."""
        with pytest.raises(HostError) as caught:
            choose({"caller": Kind.NATIVE, "policy": Kind.WASM}, PLAIN, IMAGE)
        assert caught.value.lines == ("the caller asks for native; the policy asks for wasm",)

    def test_coarse_clocks_are_wasms_alone(self) -> None:
        """Where wasm cannot serve either, nobody does: a clock as fine as ever is not what was asked for."""
        coarse = needs(clock_ms=1, standard=frozenset({"threading"}))
        assert choose({}, coarse, IMAGE).kind is Kind.WASM
        for asked in ({"caller": Kind.NATIVE}, {}):
            with pytest.raises(HostError) as caught:
                choose(asked, coarse, ABSENT)
            assert "its clocks cannot be made coarse" in caught.value.lines[-1]
