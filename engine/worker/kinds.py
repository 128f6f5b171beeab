"""The kinds of worker, the strongest first, and what each of them can serve.

Its job: say what keeps a kind from running a source under a policy; choose one when nobody asked for one.
Not its job: making workers (``native.py``), images (``engine/images``), what the caller, the policy or the declaration asks (they say it).
Laws:
1. A kind that somebody asked for is taken or refused by name, never replaced (tests/unit/test_kinds.py).
2. With nobody asking, the strongest kind that can serve is taken, and what kept a stronger one from it is told (tests/unit/test_kinds.py).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from engine.outcome import error_for
from engine.policy.model import Freshness, Kind, Mode

# what can be imported in the wasm guest and fails when it is used there, by dotted name with all below it: who imports it means to use it
_USELESS_IN_WASM: Mapping[str, str] = MappingProxyType(
    {
        "_thread": "threads",
        "concurrent": "threads",
        "ftplib": "sockets",
        "http.client": "sockets",
        "http.server": "sockets",
        "imaplib": "sockets",
        "multiprocessing": "processes",
        "poplib": "sockets",
        "pty": "processes",
        "select": "sockets",
        "selectors": "sockets",
        "shutil": "files that are written",
        "signal": "signals",
        "smtplib": "sockets",
        "socket": "sockets",
        "socketserver": "sockets",
        "ssl": "sockets",
        "subprocess": "processes",
        "tempfile": "files that are written",
        "threading": "threads",
        "urllib.request": "sockets",
        "urllib.robotparser": "sockets",
        "wsgiref.simple_server": "sockets",
        "xmlrpc.client": "sockets",
        "xmlrpc.server": "sockets",
    }
)
_LEAST_MEMORY = 64 << 20  # the guest's interpreter with its standard library takes the first 40 MiB


class Image(Protocol):
    """What the wasm image on this machine holds: modules of its standard library, and of its bundled packages."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def modules(self) -> frozenset[str]:
        """Top-level modules of its standard library."""

    @property
    def packages(self) -> frozenset[str]:
        """Top-level modules of what is bundled with it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """What a source and its policy need of a worker. ``externals`` are imports that neither source, standard library nor layer holds.

    ``standard`` are dotted names that its imports take of the standard library, ``network``: the policy grants hosts, ``http``: the source
    imports ``engine.http``.
    """

    standard: frozenset[str]
    externals: frozenset[str] = frozenset()
    native_layers: tuple[str, ...] = ()
    mode: Mode = Mode.REQUIRED
    freshness: Freshness = Freshness.FRESH
    folders: tuple[str, ...] = ()
    memory_bytes: int = 256 << 20
    clock_ms: int = 0
    network: bool = False
    http: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The kind that runs a source, and why that one, in words for a receipt."""

    kind: Kind
    why: str


def kind_named(name: str) -> Kind:
    """The kind of that name. Raises RequestError."""
    if name not in [*Kind]:
        raise error_for("refused.request", f"there is no worker kind {name!r}: use {', '.join(Kind)}")
    return Kind(name)


def choose(asked: Mapping[str, Kind], needs: Needs, image: Image | str) -> Choice:
    """The kind for a source; ``asked`` is who asks for which: caller, policy, declaration. ``image``, or in a line why there is none.

    Raises ``refused.worker_kind`` naming what is missing, or who asks for different kinds.
    """
    named = {who: kind for who, kind in asked.items() if kind is not Kind.AUTO}
    if len({*named.values()}) > 1:
        raise error_for("refused.worker_kind", "; ".join(f"the {who} asks for {kind}" for who, kind in named.items()))
    if named:
        kind = next(iter(named.values()))
        if lines := problems(kind, needs, image):
            raise error_for("refused.worker_kind", *(f"{kind} cannot serve this source: {line}" for line in lines))
        return Choice(kind=kind, why=f"asked for by the {' and the '.join(named)}")
    lines, native = problems(Kind.WASM, needs, image), problems(Kind.NATIVE, needs, image)
    if lines and native:
        raise error_for("refused.worker_kind", *(f"wasm cannot serve this source: {line}" for line in lines), f"native cannot: {native[0]}")
    lines = lines or (doubts(needs) if not native else ())
    if lines:
        return Choice(kind=Kind.NATIVE, why=f"wasm, which is stronger, cannot serve: {'; '.join(lines)}")
    return Choice(kind=Kind.WASM, why="the strongest there is")


def problems(kind: Kind, needs: Needs, image: Image | str) -> tuple[str, ...]:
    """What keeps that kind from serving, a line each; empty when nothing does."""
    if kind is Kind.NATIVE:  # a module in no layer was told with its line in the source
        return ("its clocks cannot be made coarse",) if needs.clock_ms else ()
    if isinstance(image, str):
        return (image,)
    held = image.modules | image.packages
    lines = [f"its image {image.name} has no module {name}" for name in sorted(_tops(needs.standard) - held)]
    lines += [f"{name} is neither in a granted layer nor in its image {image.name}" for name in sorted(needs.externals - held)]
    lines += [f"layer {name} holds native code" for name in needs.native_layers]
    lines += ["the mode host has no wall, and it always has one"] if needs.mode is Mode.HOST else []
    lines += [f"freshness {needs.freshness} is not there, every call is fresh"] if needs.freshness is not Freshness.FRESH else []
    lines += [f"the granted folder {name} cannot be seen from there" for name in needs.folders]
    lines += [f"it needs limits.memory of {_LEAST_MEMORY >> 20} MiB"] if needs.memory_bytes < _LEAST_MEMORY else []
    return tuple(lines)


def doubts(needs: Needs) -> tuple[str, ...]:
    """What makes wasm the wrong kind to choose unasked: modules that are there, and fail when they are used; hosts out of reach."""
    found = {name for name in _USELESS_IN_WASM if any(taken == name or taken.startswith(f"{name}.") for taken in needs.standard)}
    lines = [f"the source imports {name}, and there are no {_USELESS_IN_WASM[name]}" for name in sorted(found)]
    lines += ["the policy grants hosts, and only engine.http reaches them there"] if needs.network and not needs.http else []
    return tuple(lines)


def _tops(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in names)
