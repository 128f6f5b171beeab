"""What the launcher must do for one WebAssembly worker: a native worker's plan, less all that a guest does not need.

Its job: the same wall with nothing to see behind it, the narrower filters, the limits of a process that holds a guest.
Not its job: whether a declaration can be served by this kind (``worker/kinds.py``), doing any of it (``worker_images``).
Laws:
1. The jail shows the source and its layers, and /dev/null; a child may not open even those (tests/unit/test_wasm_plan.py).
2. Every protection of the native plan is in this one, or there is no plan (tests/unit/test_wasm_plan.py).
3. What a plan of this kind holds is listed in whole by its test: nothing comes along unseen (tests/unit/test_wasm_plan.py).
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import HostError
from engine.jail import bpf, plan, syscalls
from engine.jail.facts import HostFacts, Way
from engine.policy.model import Freshness, Mode
from engine.policy.resolve import Resolved

GUEST_BYTES = 192 << 20  # of a process beside its guest's own memory: the image's pages, copies of what crosses, 64 MiB of stack
_THREADS = 4  # of a child: its own, one that the timer starts with a guest's first sleep, and two to spare
_DESCRIPTORS = 64  # of a child: five to begin with, and the timer's; a guest can open none
_NULL = "/dev/null"


def make(resolved: Resolved, facts: HostFacts, places: plan.Places, content: plan.Content) -> plan.Plan:
    """The plan. Raises HostError ``refused.cannot_enforce``."""
    lines = _unfit(resolved)
    if lines:
        raise HostError("refused.cannot_enforce", *lines)
    # a scope is the supervisor's to answer, by host calls: there is no socket in this jail, and nothing to reach
    native = plan.make(dataclasses.replace(resolved, scope=None), facts, places, content)
    landlock = native.order["landlock"]
    order = {
        **native.order,
        "binds": [bind for bind in native.order["binds"] if bind[1] == "/bundle" or bind[1].startswith("/layers/")],
        "shared": 0,
        "devices": ["null"],  # what a child has for its input
        "links": [],
        "slots": {"count": 0, "bytes": 0, "inodes": 0},
        # the zygote's domain: its children's allows nothing at all
        "landlock": {**landlock, "slot": 0, "paths": [rule for rule in landlock["paths"] if rule[0] == _NULL]},
        "filters": _filters(places.syscalls, facts.machine),
        "limits": _limits(resolved, facts),
        "cgroup_limits": _cgroup_limits(resolved, facts),
        "preload": [],
        "python": [],
        "code": None,
        "clock_ns": resolved.clock_ms * 1_000_000,
    }
    return dataclasses.replace(native, order=order, means=_means(native.means, order))


def _unfit(resolved: Resolved) -> list[str]:
    """What was asked for that no WebAssembly worker has; the choice of a kind refuses it earlier, with better words."""
    lines = [f"grants.folders.{name}: a WebAssembly worker shows no folder" for name in sorted(resolved.folders)]
    if resolved.mode is Mode.HOST:
        lines.append("a WebAssembly worker always has the wall")
    if resolved.freshness is not Freshness.FRESH:
        lines.append(f"freshness {resolved.freshness}: a WebAssembly worker is fresh for each call")
    return lines


def _limits(resolved: Resolved, facts: HostFacts) -> dict[str, int]:
    """The launcher adds what the image takes, which it measures: to the guest's own memory, to RLIMIT_DATA and to RLIMIT_AS."""
    others = 1 if facts.way is Way.ROOT else 2  # tasks beside those of a child and its spare: pid 1, and a monitor that has the same uid
    return {
        "cpu_s": max(1, -(-resolved.limits.cpu_ms // 1000)),
        "memory_bytes": resolved.limits.memory_bytes,
        "file_bytes": 0,
        "descriptors": min(resolved.limits.descriptors, _DESCRIPTORS),
        "tasks": 2 * _THREADS + others,
        "stack_bytes": 256 << 10,  # of threads that Python would start: it starts none
    }


def _cgroup_limits(resolved: Resolved, facts: HostFacts) -> dict[str, int]:
    """Above what rlimits hold for a call and its spare, so that a clean error comes first; catches the rest."""
    wanted = {"memory": 2 * (resolved.limits.memory_bytes + GUEST_BYTES) + (64 << 20), "pids": 2 * _THREADS + 8}
    return {name: amount for name, amount in wanted.items() if name in facts.cgroups}


def _means(native: Mapping[str, str], order: Mapping[str, Any]) -> dict[str, str]:
    """Limit -> what holds it, as the receipt says it."""
    memory = "guest's memory + RLIMIT_DATA"
    held = {"scratch": "no files", "scratch_inodes": "no files", "threads": "no threads"}
    held["descriptors"] = f"RLIMIT_NOFILE of {order['limits']['descriptors']}"
    return {**native, **held, "memory": f"{memory} + memory cgroup" if "memory" in order["cgroup_limits"] else memory}


@functools.cache
def _filters(folder: Path, machine: str) -> dict[str, Any]:
    """Both filters as the launcher takes them, compiled once for a policy folder."""
    profiles, arch = syscalls.load_profiles(folder), syscalls.Arch(machine)

    def compiled(names: Sequence[str]) -> bpf.Program:
        return bpf.compile_filter(syscalls.compose(profiles, names, arch))

    child = compiled(syscalls.WASM_CHILD)
    return {"jail": compiled(syscalls.WASM_JAIL).blob.hex(), "child": child.blob.hex(), "tgid": list(child.tgid_offsets)}
