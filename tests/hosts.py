"""A host, a policy and a loaded source for tests that start nothing: everything about a call that stands before a worker."""

import dataclasses
from pathlib import Path
from typing import Any

from engine.authoring.tool import tool
from engine.declaration import check
from engine.jail.facts import HostFacts
from engine.jail.plan import Places
from engine.limits import Limits
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.model import Kind, Policy
from engine.policy.resolve import Asked, Resolved, Tightening, resolve
from engine.preparing import Loaded, LoadedTool
from engine.staging.bundle import Bundle
from engine.staging.layers import Layer
from engine.worker.kinds import Choice

ALL_CAPABILITIES = (1 << 41) - 1
FACTS = HostFacts(
    machine="x86_64",
    kernel="6.18.0",
    python="3.11.7",
    euid=0,
    capabilities=ALL_CAPABILITIES,
    uid_map=((0, 1 << 32),),
    tasks_bound=True,
    landlock=7,
    peer_pidfd=True,
    stdlib="/opt/python/lib/python3.11",
    stdlib_inside="/python/lib/python3.11",
    standard_modules=frozenset({"json", "sys"}),
    libraries=("/usr/lib/x86_64-linux-gnu",),
    links=(("usr/lib", "/lib"),),
    cgroups=frozenset({"memory", "pids"}),
)
PLACES = Places(
    engine=Path("/opt/engine"),
    mountpoint=Path("/state/root"),
    empty=Path("/state/empty"),
    syscalls=data_dir("policies") / "syscalls",
    scratch=Path("/state/scratch"),
)
HEX = "ab" * 32


@tool(effect="read", description="says it")
def say(word: str = "said") -> str:
    """The word."""
    return word


def policy(name: str = "required", **changes: Any) -> Policy:
    """A policy of the project's, with these fields in the place of its own."""
    return dataclasses.replace(load_policy(name, data_dir("policies")), **changes)


def resolved(given: Policy | None = None, **changes: Any) -> Resolved:
    """What a plain reading tool gets by a policy, with these fields changed afterwards."""
    asked = Asked(name="say", effect="read", timeout_ms=30_000, dangerous=False, read_only=True)
    return dataclasses.replace(resolve(given or policy(), asked, Tightening()), **changes)


def layer(name: str, digest: str = HEX) -> Layer:
    """A layer as it is found in a store."""
    where = Path(f"/state/layers/{name}")
    return Layer(
        name=name, digest=f"sha256:{digest}", path=where, modules=frozenset(), native=False, python="py3", wheels=(), dropped=()
    )  # fmt: skip  one record


def loaded(given: Policy | None = None, *, digest: str = HEX, layers: tuple[Layer, ...] = (), image: str = "sha256:image") -> Loaded:
    """A source of one tool, staged and described."""
    where = Path(f"/state/stage/{digest}")
    bundle = Bundle(
        digest=f"sha256:{digest}",
        path=where,
        entry="tools",
        standard=frozenset(),
        externals={},
        layers=(),
        includes=(),
        data=(),
        tools=("say",),
        files={},
    )  # fmt: skip  one record
    return Loaded(
        bundle=bundle,
        layers=layers,
        policy=given or policy(),
        declarations="sha256:declared",
        preload=("json",),
        choice=Choice(kind=Kind.NATIVE, why="asked for by the caller"),
        python="3.11.7",
        image=image,
        inode=1,
    )


def loaded_tool(given: Policy | None = None, *, source: Loaded | None = None, **fields: Any) -> LoadedTool:
    """The tool of that source, its declaration with these fields changed."""
    return LoadedTool(check({**say.declaration, **fields}), source or loaded(given))


def small_limits(**changes: int) -> Limits:
    """The default limits with these changed."""
    return dataclasses.replace(Limits(), **changes)
