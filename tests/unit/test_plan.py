"""Plans: every protection that the policy needs is in them or there is none, and nothing of the host is in a jail but what is listed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine.errors import HostError, PolicyError
from engine.jail import plan as plans
from engine.jail.facts import HostFacts, Way
from engine.policy.model import LIMIT_KEYS, Freshness, Mode
from tests import hosts

CONTENT = plans.Content(source=Path("/state/stage/x/source"), layers=(("numbers", Path("/state/layers/numbers/site")),), preload=("json",))
NAMESPACES = ("pid", "ipc", "uts", "cgroup", "network", "mount")


def made(facts: HostFacts = hosts.FACTS, content: plans.Content = CONTENT, **changes: Any) -> plans.Plan:
    """The plan for this host and a reading tool."""
    return plans.make(hosts.resolved(**changes), facts, hosts.PLACES, content)


def refused(facts: HostFacts = hosts.FACTS, **changes: Any) -> tuple[str, ...]:
    """The lines that planning refuses with, always for the one reason."""
    with pytest.raises(HostError) as caught:
        made(facts, **changes)
    assert caught.value.code == "refused.cannot_enforce"
    return caught.value.lines


def host(**changes: Any) -> HostFacts:
    """The host with these facts changed."""
    return dataclasses.replace(hosts.FACTS, **changes)


def needing(**levels: int) -> dict[str, int]:
    """The required protections with these levels changed."""
    return {**hosts.policy().protections, **levels}


class TestRefusals:
    """What the host lacks is named with what was found and what is needed."""

    def test_an_old_landlock_refuses(self) -> None:
        """One ABI below the needed one; at the needed one there is a plan."""
        assert refused(host(landlock=5)) == ("landlock: found level 5, needed 6 (kernel 6.18.0)",)
        assert made(host(landlock=6)).needed["landlock"] == 6

    def test_a_kernel_without_pidfds_of_peers_refuses(self) -> None:
        """Also when the policy does not ask for it: no exit could be believed."""
        assert refused(host(peer_pidfd=False)) == ("peer_pidfd: found level 0, needed 1 (kernel 6.18.0)",)
        lines = refused(host(peer_pidfd=False), protections=needing(peer_pidfd=0))
        assert lines == ("peer_pidfd: found level 0, needed 1 (SO_PASSPIDFD, Linux 6.5; kernel 6.18.0)",)

    @pytest.mark.parametrize("kind", ["memory", "pids"])
    def test_a_cgroup_that_is_demanded_and_cannot_be_made_refuses(self, kind: str) -> None:
        """Where it can be made there is a plan; where it is not demanded, it may be missing."""
        wanted = needing(**{f"{kind}_cgroup": 1})
        assert refused(host(cgroups=frozenset()), protections=wanted) == (f"{kind}_cgroup: found level 0, needed 1 (kernel 6.18.0)",)
        assert made(protections=wanted).needed[f"{kind}_cgroup"] == 1
        assert made(host(cgroups=frozenset())).order["cgroup_limits"] == {}

    def test_a_memory_cgroup_has_room_for_all_who_may_hold_memory(self) -> None:
        """A call and its spare, and under snapshot the process that imported for them: each may fill its own limit before the cgroup's."""
        room = {level: made(freshness=level).order["cgroup_limits"]["memory"] for level in Freshness}
        usual = (2 * (256 + 64) + 64) << 20
        assert room == {Freshness.FRESH: usual, Freshness.SNAPSHOT: usual + (256 << 20), Freshness.WARM: usual}

    @pytest.mark.parametrize("name", plans._ALWAYS)
    def test_a_part_of_the_wall_that_cannot_be_left_out_refuses(self, name: str) -> None:
        """No policy can ask this worker kind for a wall without it, by a zero or by silence."""
        line = f"{name} cannot be switched off for this worker kind: needed 0, must be 1"
        assert refused(protections=needing(**{name: 0})) == (line,)
        silent = needing()
        del silent[name]
        assert refused(protections=silent) == (line,)

    def test_tasks_that_nobody_counts_refuse(self) -> None:
        """Root in a user namespace is exempt from RLIMIT_NPROC: then a pids cgroup holds the bound exactly, or there is no plan."""
        exempt = host(uid_map=((0, 1),), tasks_bound=False)
        assert exempt.way is Way.USER
        order = made(exempt).order
        assert (order["cgroup_limits"]["pids"], made(exempt).means["threads"]) == (64 + 4, "pids cgroup")
        line = "rlimits: RLIMIT_NPROC does not bind root in a user namespace of its own, and no pids cgroup can be made"
        assert refused(dataclasses.replace(exempt, cgroups=frozenset())) == (line,)

    def test_root_without_a_uid_to_spare_enters_as_a_user(self) -> None:
        """A container's own user namespace often maps 65 536 uids, all in use or spoken for."""
        assert host(uid_map=((0, 65_536),)).way is Way.USER
        assert host(uid_map=((0, 65_536), (65_536, 65_536))).way is Way.ROOT

    def test_an_architecture_without_a_filter_refuses(self) -> None:
        """There is no plan without system call filters."""
        assert refused(host(machine="riscv64")) == ("seccomp: no filter for the architecture riscv64",)

    def test_everything_that_is_missing_is_told_at_once(self) -> None:
        """One line for each."""
        assert len(refused(host(landlock=0, peer_pidfd=False, machine="mips"))) == 3


class TestOrders:
    """What the launcher is told."""

    def test_root_and_user_differ_in_how_they_enter_only(self) -> None:
        """A borrowed uid for root; a user namespace for everybody else, and for a root that may not mount."""
        root, user = made(), made(host(euid=1000, capabilities=0))
        assert (root.order["namespaces"], root.order["uids"]) == ([*NAMESPACES], ["/run/stockade/uids", 65_600, 1024])
        assert (user.order["namespaces"], user.order["uids"]) == (["user", *NAMESPACES], None)
        assert host(capabilities=0).way is Way.USER
        differs = {name for name in root.order if root.order[name] != user.order[name]}
        assert differs == {"namespaces", "uids", "limits"}
        assert user.order["limits"]["tasks"] - root.order["limits"]["tasks"] == 1  # the monitor has the same uid there

    def test_every_bind_is_on_the_list(self) -> None:
        """Interpreter, libraries, guest, source, layer: nothing else of the host, and no folder above any of them."""
        binds = made().order["binds"]
        expected = [
            ["/opt/python/lib/python3.11", "/python/lib/python3.11", "folder"],
            ["/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "folder"],
            ["/opt/engine/__init__.py", "/guest/engine/__init__.py", "file"],
            ["/opt/engine/errors.py", "/guest/engine/errors.py", "file"],
            ["/opt/engine/authoring", "/guest/engine/authoring", "folder"],
            ["/state/stage/x/source", "/bundle", "folder"],
            ["/state/layers/numbers/site", "/layers/numbers", "folder"],
        ]
        assert [bind for bind in binds if bind[1] != "/usr/share/zoneinfo"] == expected

    def test_installed_packages_beside_the_standard_library_are_covered(self, tmp_path: Path) -> None:
        """By an empty folder each, after the standard library itself."""
        (tmp_path / "site-packages").mkdir()
        (tmp_path / "dist-packages").mkdir()
        binds = made(host(stdlib=str(tmp_path))).order["binds"]
        assert [str(tmp_path), "/python/lib/python3.11", "folder"] == binds[0]
        covers = [["/state/empty", f"/python/lib/python3.11/{name}", "folder"] for name in ("site-packages", "dist-packages")]
        assert binds[1:3] == covers

    def test_only_granted_folders_are_shown(self, tmp_path: Path) -> None:
        """Below /granted, by the name the operator gave."""
        plan = made(folders={"docs": str(tmp_path)})
        assert [str(tmp_path), "/granted/docs", "folder"] in plan.order["binds"]
        assert "/granted/docs" in [path for path, _ in plan.order["landlock"]["paths"]]
        assert not [bind for bind in made().order["binds"] if bind[1].startswith("/granted")]

    def test_a_granted_folder_lies_where_it_says(self, tmp_path: Path) -> None:
        """A link on the way could lead to what no policy may grant; a folder that is not there is the policy's fault."""
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("/")
        for path, line in (("link", "leads through a link: write where it leads"), ("gone", "")):
            with pytest.raises(PolicyError) as caught:
                made(folders={"docs": str(tmp_path / path)})
            assert caught.value.code == "refused.policy"
            assert line in caught.value.lines[0]
        assert made(folders={"docs": str(tmp_path / "real")}).walls

    def test_no_path_may_be_written_by_landlock(self) -> None:
        """Folders are read only (bits 2 and 3), devices read and written (1 and 2), and no TCP port is open."""
        landlock = made().order["landlock"]
        rights = dict(landlock["paths"])
        assert {right for path, right in rights.items() if not path.startswith("/dev/")} == {0b1100}
        assert {right for path, right in rights.items() if path.startswith("/dev/")} == {0b0110}
        assert (landlock["network"], landlock["scope"]) == (3, 3)

    def test_limits_are_those_of_the_policy(self) -> None:
        """Whole seconds of CPU, rounded up and never 0; each other amount as it is."""
        limits = hosts.small_limits(cpu_ms=1001, memory_bytes=5 << 20, scratch_bytes=7 << 20, descriptors=33, threads=2)
        order = made(limits=limits).order
        assert order["limits"] == {
            "cpu_s": 2,
            "memory_bytes": 5 << 20,
            "file_bytes": 7 << 20,
            "descriptors": 33,
            "tasks": 2 + 3,
            "stack_bytes": 256 << 10,
        }
        assert (order["slots"]["bytes"], order["slots"]["count"]) == (7 << 20, 2)
        assert made(limits=hosts.small_limits(cpu_ms=1)).order["limits"]["cpu_s"] == 1

    def test_the_filters_are_those_of_this_architecture(self) -> None:
        """Both there, and other ones on another machine."""
        here, there = made().order["filters"], made(host(machine="aarch64")).order["filters"]
        assert len(here["jail"]) > 1000 < len(here["child"])
        assert here["tgid"]
        assert here["jail"] != there["jail"]

    def test_the_parser_has_no_file_and_no_network(self) -> None:
        """Its order names no path at all."""
        order = plans.parser_order(hosts.FACTS, hosts.PLACES)
        assert order["landlock"] == [0xFFFF, 3, 3]
        assert (order["cpu_s"], order["address_bytes"]) == (20, 512 << 20)
        assert 0 < len(order["filter"]) < len(made().order["filters"]["jail"])  # computing alone: no scratch, no children


class TestHostMode:
    """Without a wall, on the operator's word."""

    def test_a_plan_without_a_wall_says_so(self) -> None:
        """No namespace, no bind, no filter; the paths are the host's own, and rlimits still hold."""
        plan = made(mode=Mode.HOST)
        assert (plan.walls, plan.root, plan.layers) == (False, "/state/stage/x/source", ("/state/layers/numbers/site",))
        assert [plan.order[name] for name in ("namespaces", "binds", "devices", "links", "cgroup_limits")] == [[], [], [], [], {}]
        assert plan.order["filters"] == {"jail": "", "child": "", "tgid": []}
        assert plan.order["limits"]["memory_bytes"] == 256 << 20

    def test_a_host_that_can_enforce_nothing_still_runs_it(self) -> None:
        """The wall's refusals are the wall's; the control is the same host with one."""
        bare = host(landlock=0, peer_pidfd=False)
        assert made(bare, mode=Mode.HOST).walls is False
        assert len(refused(bare)) == 2


class TestMeans:
    """What holds each limit."""

    @pytest.mark.parametrize("mode", [Mode.REQUIRED, Mode.FIXTURE, Mode.HOST])
    def test_every_limit_has_its_means(self, mode: Mode) -> None:
        """The same names as a policy has, none left out."""
        assert set(made(mode=mode).means) == set(LIMIT_KEYS)

    def test_what_is_not_held_is_not_said_to_be(self) -> None:
        """Threads and inodes without the wall; with it both are."""
        assert [made(mode=Mode.HOST).means[name] for name in ("threads", "scratch_inodes")] == ["nothing", "nothing"]
        walled = made().means
        assert [walled[name] for name in ("threads", "scratch_inodes")] == ["RLIMIT_NPROC + pids cgroup", "tmpfs nr_inodes"]

    def test_a_cgroup_is_named_only_where_there_is_one(self) -> None:
        """By the facts of the host."""
        assert made().means["memory"] == "RLIMIT_AS + memory cgroup"
        assert made(host(cgroups=frozenset())).means["memory"] == "RLIMIT_AS"
