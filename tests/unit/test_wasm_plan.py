"""The plan of a WebAssembly worker: the native wall around less."""

from pathlib import Path
from typing import Any

import pytest

from engine.errors import HostError
from engine.jail import plan as plans
from engine.jail import wasm
from engine.jail.facts import HostFacts
from engine.policy.model import LIMIT_KEYS, Freshness, Mode
from tests import hosts
from tests.unit.test_plan import CONTENT, NAMESPACES, host, needing

MIB = 1 << 20


def made(facts: HostFacts = hosts.FACTS, **changes: Any) -> plans.Plan:
    """The plan for this host and a reading tool."""
    return wasm.make(hosts.resolved(**changes), facts, hosts.PLACES, CONTENT)


def refused(facts: HostFacts = hosts.FACTS, **changes: Any) -> tuple[str, ...]:
    """The lines that planning refuses with, always for the one reason."""
    with pytest.raises(HostError) as caught:
        made(facts, **changes)
    assert caught.value.code == "refused.cannot_enforce"
    return caught.value.lines


def test_the_order_in_whole() -> None:
    """Nothing is in it but this: what the native plan gains, this one does not get unseen."""
    order = dict(made().order)
    filters = order.pop("filters")
    assert len(filters["jail"]) > len(filters["child"]) > 100
    assert filters["tgid"]
    assert order == {
        "walls": True,
        "namespaces": [*NAMESPACES],
        "uids": ["/run/stockade/uids", 65_600, 1024],
        "uid": 1000,
        "gid": 1000,
        "mountpoint": "/state/root",
        "hostname": "jail",
        "binds": [["/state/stage/x/source", "/bundle", "folder"], ["/state/layers/numbers/site", "/layers/numbers", "folder"]],
        "shared": 0,
        "devices": ["null"],
        "links": [],
        "slots": {"count": 0, "bytes": 0, "inodes": 0},
        "scratch": "/tmp",
        "landlock": {"abi": 7, "files": 0xFFFF, "network": 3, "ports": [], "scope": 3, "slot": 0, "paths": [["/dev/null", 0b0110]]},
        "network": None,
        "limits": {
            "cpu_s": 30,
            "memory_bytes": 256 * MIB,
            "file_bytes": 0,
            "descriptors": 64,
            "tasks": 9,
            "stack_bytes": 256 << 10,
        },
        "cgroup_limits": {"memory": 2 * (256 + 192) * MIB + 64 * MIB, "pids": 16},
        "preload": [],
        "python": [],
        "root": "/bundle",
        "code": None,
        "layers": ["/layers/numbers"],
        "clock_ns": 0,
    }


def test_it_refuses_what_the_native_plan_refuses() -> None:
    """The same lines for the same lacks; and it needs the same protections."""
    for lack in ({"landlock": 5}, {"peer_pidfd": False}, {"machine": "riscv64"}):
        with pytest.raises(HostError) as caught:
            plans.make(hosts.resolved(), host(**lack), hosts.PLACES, CONTENT)
        assert refused(host(**lack)) == caught.value.lines
    assert refused(protections=needing(seccomp=0)) == ("seccomp cannot be switched off for this worker kind: needed 0, must be 1",)
    assert made().needed == plans.make(hosts.resolved(), hosts.FACTS, hosts.PLACES, CONTENT).needed


def test_what_no_guest_has_is_refused(tmp_path: Path) -> None:
    """A granted folder, a freshness other than fresh, and no wall."""
    assert refused(folders={"docs": str(tmp_path)}) == ("grants.folders.docs: a WebAssembly worker shows no folder",)
    assert refused(mode=Mode.HOST) == ("a WebAssembly worker always has the wall",)
    for level in (Freshness.SNAPSHOT, Freshness.WARM):
        assert refused(freshness=level) == (f"freshness {level}: a WebAssembly worker is fresh for each call",)
    assert made(freshness=Freshness.FRESH).walls


def test_an_ordinary_users_monitor_counts() -> None:
    """It has the same uid there."""
    user = host(euid=1000, capabilities=0)
    assert made(user).order["limits"]["tasks"] - made().order["limits"]["tasks"] == 1
    assert made(user).order["namespaces"] == ["user", *NAMESPACES]


def test_limits_are_those_of_the_policy() -> None:
    """Memory and CPU as they are; descriptors are never more than a guest's process needs."""
    limits = hosts.small_limits(cpu_ms=1001, memory_bytes=5 * MIB, descriptors=33)
    order = made(limits=limits).order
    assert [order["limits"][name] for name in ("cpu_s", "memory_bytes", "descriptors")] == [2, 5 * MIB, 33]
    assert made(limits=hosts.small_limits(descriptors=1000)).order["limits"]["descriptors"] == 64


def test_clocks_are_as_coarse_as_asked() -> None:
    """The launcher is told."""
    assert made(clock_ms=1).order["clock_ns"] == 1_000_000


def test_every_limit_has_its_means() -> None:
    """The same names as a policy has; a cgroup is named only where there is one."""
    assert set(made().means) == set(LIMIT_KEYS)
    assert [made().means[name] for name in ("memory", "threads", "scratch")] == [
        "guest's memory + RLIMIT_DATA + memory cgroup",
        "no threads",
        "no files",
    ]
    assert made(host(cgroups=frozenset())).means["memory"] == "guest's memory + RLIMIT_DATA"


def test_the_filters_are_those_of_this_architecture() -> None:
    """And not the native ones."""
    here, there = made().order["filters"], made(host(machine="aarch64")).order["filters"]
    native = plans.make(hosts.resolved(), hosts.FACTS, hosts.PLACES, CONTENT).order["filters"]
    assert here["child"] != there["child"]
    assert here["child"] not in (native["child"], native["jail"])
