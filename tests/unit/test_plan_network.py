"""The part of a plan that a scope makes: its places and no more, or a refusal that names what is missing."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import HostError, PolicyError
from engine.jail import network, wasm
from engine.jail import plan as plans
from engine.jail.facts import HostFacts
from engine.policy.model import Mode
from engine.policy.network import Attachment, Transport
from tests import hosts
from tests.attempts.scopes import scope
from tests.unit.test_plan import CONTENT, host, needing

WANTED = scope("api.example.com:443", "api.example.com:8080", "b.example.com:443", "203.0.113.7:5432", "127.0.0.1:9000")


@pytest.fixture(autouse=True)
def bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without certificates of its own, whose settings can be written."""
    monkeypatch.setattr(network, "_BUNDLES", ())
    monkeypatch.setattr(network, "_read_only", lambda place: False)


def made(facts: HostFacts = hosts.FACTS, **changes: Any) -> plans.Plan:
    """The plan for this host and a tool with that scope."""
    return plans.make(hosts.resolved(**{"scope": WANTED, **changes}), facts, hosts.PLACES, CONTENT)


def refused(facts: HostFacts = hosts.FACTS, **changes: Any) -> tuple[str, ...]:
    """The lines that planning refuses with, always for the one reason."""
    with pytest.raises(HostError) as caught:
        made(facts, **changes)
    assert caught.value.code == "refused.network_scoped"
    return caught.value.lines


class TestOrders:
    """What the launcher is told."""

    def test_the_order_in_whole(self) -> None:
        """A listener for each place in the scope's order, an address for each host, and the names by which they are found."""
        assert made().order["network"] == {
            "settings": [["/proc/sys/net/ipv4/tcp_rmem", "4096 65536 131072"], ["/proc/sys/net/ipv4/tcp_wmem", "4096 16384 131072"]],
            "addresses": ["203.0.113.7"],
            "listeners": [
                ["127.0.0.1", 9000],
                ["203.0.113.7", 5432],
                ["127.1.0.1", 443],
                ["127.1.0.1", 8080],
                ["127.1.0.2", 443],
            ],
            "files": [
                ["/etc/hosts", "127.0.0.1 localhost\n127.1.0.1 api.example.com\n127.1.0.2 b.example.com\n"],
                ["/etc/nsswitch.conf", "hosts: files\n"],
                ["/etc/resolv.conf", ""],
            ],
        }
        assert made().listeners == WANTED.destinations

    def test_what_differs_from_a_plan_without_a_scope(self) -> None:
        """The network, the filters, and of Landlock the ports to connect to and the folder of those files."""
        with_it, without = made(), made(scope=None)
        assert {name for name in with_it.order if with_it.order[name] != without.order[name]} == {"network", "filters", "landlock"}
        rules, plain = with_it.order["landlock"], without.order["landlock"]
        assert {name for name in rules if rules[name] != plain[name]} == {"ports", "paths"}
        assert (rules["ports"], plain["ports"]) == ([443, 5432, 8080, 9000], [])
        assert [rule for rule in rules["paths"] if rule not in plain["paths"]] == [["/etc", 0b1100]]
        assert (without.order["network"], without.listeners) == (None, ())
        for filters in ("jail", "child"):
            assert len(with_it.order["filters"][filters]) > len(without.order["filters"][filters])

    def test_nothing_of_a_rule_goes_to_the_jail(self) -> None:
        """Not how it is carried, where to, which secrets are attached, nor which networks are allowed."""
        attach = (Attachment(secret="canary_secret", header="X-Canary"),)
        rule: dict[str, Any] = {"transport": Transport.UPGRADE, "attach": attach, "private": ("10.77.0.0/16",)}
        told = json.dumps(dict(made(scope=scope("api.example.com:80", **rule)).order))
        assert [mark for mark in ("canary", "Canary", "10.77", "upgrade", "tested") if mark in told] == []
        assert "api.example.com" in told

    def test_a_name_never_gets_the_address_of_a_place(self) -> None:
        """Where a place is itself one of those that are given to names, the names go around it."""
        wanted = scope("a.example.com:443", "b.example.com:443", "127.1.0.1:443", "127.1.0.3:80")
        listeners = {tuple(listener) for listener in made(scope=wanted).order["network"]["listeners"]}
        assert listeners == {("127.1.0.1", 443), ("127.1.0.3", 80), ("127.1.0.2", 443), ("127.1.0.4", 443)}

    def test_a_webassembly_worker_has_nothing_of_it(self) -> None:
        """Its scope is held by host calls: the plan is what it is without one."""
        with_it, without = (wasm.make(hosts.resolved(scope=given), hosts.FACTS, hosts.PLACES, CONTENT) for given in (WANTED, None))
        assert with_it == without
        assert (with_it.order["network"], with_it.listeners, with_it.order["landlock"]["ports"]) == (None, (), [])


class TestTrust:
    """Which certificates a tool trusts."""

    def binds(self, trust: Path | None) -> list[list[str]]:
        """Those of /etc."""
        return [bind for bind in made(scope=scope("a.example.com:443", trust=trust)).order["binds"] if bind[1].startswith("/etc")]

    def test_the_profiles_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In the place of the system's; else the first of those that this host has; else none."""
        own, first, second = (tmp_path / name for name in ("own.pem", "first.pem", "second.pem"))
        own.write_text("x")
        assert (self.binds(own), self.binds(None)) == ([[str(own), "/etc/ssl/cert.pem", "file"]], [])
        monkeypatch.setattr(network, "_BUNDLES", (str(first), str(second)))
        second.write_text("x")
        assert self.binds(None) == [[str(second), "/etc/ssl/cert.pem", "file"]]
        first.write_text("x")
        assert self.binds(None) == [[str(first), "/etc/ssl/cert.pem", "file"]]
        assert self.binds(own) == [[str(own), "/etc/ssl/cert.pem", "file"]]

    @pytest.mark.parametrize("name", ["link", "gone", "folder", "through/own.pem"])
    def test_a_file_lies_where_it_says(self, tmp_path: Path, name: str) -> None:
        """A link, on the way or at its end, could be turned to any file of the host."""
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "own.pem").write_text("x")
        (tmp_path / "link").symlink_to(tmp_path / "folder" / "own.pem")
        (tmp_path / "through").symlink_to(tmp_path / "folder")
        with pytest.raises(PolicyError) as caught:
            self.binds(tmp_path / name)
        line = "trust: there is no file of certificates at that path, or the path leads through a link"
        assert (caught.value.code, caught.value.lines) == ("refused.policy", (line,))
        assert self.binds(tmp_path / "folder" / "own.pem")

    def test_other_certificates_than_those_of_the_policy(self, tmp_path: Path) -> None:
        """What was written to the file since then is shown to no tool; the policy that is read again has them."""
        own = tmp_path / "own.pem"
        own.write_text("x")
        read = scope("a.example.com:443", trust=own)
        own.write_text("y")
        with pytest.raises(PolicyError) as caught:
            made(scope=read)
        line = "trust: the certificates changed since the policy was read: load again"
        assert (caught.value.code, caught.value.lines) == ("refused.policy", (line,))
        assert self.binds(own) == [[str(own), "/etc/ssl/cert.pem", "file"]]


class TestRefusals:
    """What cannot be held is said before anything is started; without a scope none of it matters."""

    @pytest.mark.parametrize(
        ("facts", "changes", "line"),
        [
            (hosts.FACTS, {"mode": Mode.HOST}, "mode host: without the wall a tool has the host's own network"),
            (
                hosts.FACTS,
                {"protections": needing(network_namespace=0)},
                "network_namespace: needed 0, must be 1 for a scoped network",
            ),
            (
                host(landlock=3),
                {"protections": needing(landlock=3)},
                "landlock: found level 3, needed 4 for a scoped network (kernel 6.18.0)",
            ),
            (host(capabilities=hosts.ALL_CAPABILITIES & ~(1 << 12)), {}, "CAP_NET_ADMIN is missing: root needs it for a scoped network"),
            (
                host(capabilities=hosts.ALL_CAPABILITIES & ~(1 << 10)),
                {},
                "CAP_NET_BIND_SERVICE is missing: root needs it for a scoped network",
            ),
        ],
    )
    def test_what_this_host_or_policy_lacks(self, facts: HostFacts, changes: dict[str, Any], line: str) -> None:
        """By name, one line each; the same without a scope has a plan."""
        assert refused(facts, **changes) == (line,)
        assert made(facts, **changes, scope=None).listeners == ()

    def test_landlock_from_the_abi_that_knows_ports(self) -> None:
        """At 4 there is a plan."""
        assert made(host(landlock=4), protections=needing(landlock=4)).order["landlock"]["network"] == 3

    def test_an_ordinary_user_needs_no_capability(self) -> None:
        """It has them over a network of its own."""
        assert made(host(euid=1000, capabilities=0)).listeners == WANTED.destinations

    def test_settings_that_cannot_be_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in many containers; it is what the kernel says of /proc/sys that counts, and silence is no leave."""
        monkeypatch.undo()
        found: dict[str, Any] = {}
        monkeypatch.setattr(os, "statvfs", lambda place: found[place])
        line = "/proc/sys is mounted read-only: no jail can bound what its connections hold of the kernel's memory"
        found["/proc/sys"] = SimpleNamespace(f_flag=os.ST_RDONLY)
        assert refused() == (line,)
        found["/proc/sys"] = SimpleNamespace(f_flag=0)
        assert made().listeners
        monkeypatch.setattr(os, "statvfs", lambda place: os.stat("/nowhere"))
        assert refused() == (line,)

    def test_more_places_than_one_message_brings(self) -> None:
        """32 are held, 33 are not."""
        names = [f"h{number}.example.com:443" for number in range(33)]
        assert len(made(scope=scope(*names[:32])).listeners) == 32
        assert refused(scope=scope(*names)) == ("33 places, and a call may reach 32 at most",)

    @pytest.mark.parametrize("place", ["[2001:db8::1]:443", "0.0.0.0:443", "0.1.2.3:443", "224.0.0.1:443", "255.255.255.255:443"])
    def test_an_address_that_no_loopback_device_can_have(self, place: str) -> None:
        """Counted, never repeated; a listener on 0.0.0.0 would take what is meant for every other address."""
        line = "1 of the places are addresses that a loopback device cannot have: IPv6, or no host's"
        assert refused(scope=scope("api.example.com:443", place)) == (line,)

    def test_everything_at_once(self) -> None:
        """One line for each."""
        lines = refused(host(landlock=0, peer_pidfd=False), mode=Mode.HOST, scope=scope("[2001:db8::1]:443"))
        assert [line.split(":")[0] for line in lines] == [
            "mode host",
            "landlock",
            "1 of the places are addresses that a loopback device cannot have",
        ]
