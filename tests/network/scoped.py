"""What tests of egress share: policies with a profile, a resolver that says what the test wants, and an engine for a whole module.

Every destination of these tests is a server of the test's own on loopback, so every rule names its loopback address as allowed.
"""

import contextlib
import dataclasses
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import trio

from engine.egress.resolver import NoAddress
from engine.host import Engine
from engine.outcome import Outcome
from tests import kit

API = "api.example.test"  # a name that no name server has (RFC 6761)
WEB = "web.example.test"
LOOPBACK = "127.0.0.1"
_CLOSED = 7  # a state of TCP, as the kernel counts them
_SECONDS = 60.0  # a bound for a test that goes wrong
T = TypeVar("T")


class Said:
    """A resolver: what a test put into ``answers``, for names as the engine asks for them; ``asked`` are these.

    ``rounds`` come before, for any name: one for each question.
    """

    def __init__(self, **answers: Sequence[str]) -> None:
        self.answers: dict[str, Sequence[str]] = dict(answers)
        self.rounds: list[Sequence[str]] = []
        self.asked: list[str] = []

    async def addresses(self, host: str) -> Sequence[str]:
        """The answers for that name."""
        self.asked.append(host)
        found = self.rounds.pop(0) if self.rounds else self.answers.get(host)
        if not found:
            raise NoAddress
        return found


@dataclasses.dataclass(frozen=True)
class Rule:
    """One entry of a profile. ``more``: further lines of it, as TOML."""

    to: str
    transport: str = "tls"
    private: tuple[str, ...] = (f"{LOOPBACK}/32",)
    more: str = ""

    def text(self) -> str:
        """As a profile has it."""
        lines = ["[[allow]]", f"to = {json.dumps(self.to)}", 'reason = "a test needs it so"', f'transport = "{self.transport}"']
        return "\n".join([*lines, *([f"private = {json.dumps(list(self.private))}"] if self.private else []), self.more, ""])


def _entries(values: Mapping[str, Any]) -> str:
    return "".join(f'{name} = {{ value = {json.dumps(value)}, reason = "a test needs it so" }}\n' for name, value in values.items())


def policy(
    folder: Path,
    *rules: Rule,
    trust: Path | None = None,
    bounds: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] | None = None,
    **tables: Mapping[str, Any],
) -> Path:
    """A policy file whose profile has these rules and bounds. ``head``: entries before its tables; ``tables``: entries of them."""
    (folder / "network").mkdir(parents=True, exist_ok=True)
    lines = ['purpose = "servers of a test"\n']
    if trust is not None:
        (folder / "network" / "ca.pem").write_bytes(trust.read_bytes())
        lines.append(_entries({"trust": "./ca.pem"}))
    lines += [rule.text() for rule in rules]
    if bounds:
        lines.append("[bounds]\n" + _entries(bounds))
    allowed = [rule.to for rule in rules if not rule.to.startswith("*")]
    lines.append(f'[examples]\nallowed = {json.dumps(allowed)}\ndenied = ["elsewhere.example.test:443", "169.254.169.254:80"]\n')
    (folder / "network" / "servers.toml").write_text("\n".join(lines), encoding="utf-8")
    private = {"network_private_destinations": True} if any(rule.private for rule in rules) else {}
    kept = {
        "network": {"profile": "servers"},
        **tables,
        "limits": {"start": "20 s", **tables.get("limits", {})},
        "loosenings": {**private, **tables.get("loosenings", {})},
    }
    parts = ['extends = "required"\n', _entries(head or {})]
    parts += [f"[{name}]\n{_entries(values)}" for name, values in kept.items() if values]
    place = folder / "policy.toml"
    place.write_text("".join(parts), encoding="utf-8")
    return place


def egress(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """What a receipt says of a call's connections."""
    found = receipt["egress"]
    assert isinstance(found, dict), receipt
    return found


def denied(receipt: Mapping[str, Any]) -> dict[str, int]:
    """What was denied, by kind; those kinds alone that were."""
    return {kind: count for kind, count in egress(receipt)["egress_denied"].items() if count}


def connected() -> int:
    """How many sockets of connections this process has: none is left of a call that is over, when its servers have none either."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # gone meanwhile
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                kind = one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                count += one.family in (socket.AF_INET, socket.AF_INET6) and kind == (socket.SOCK_STREAM, 0) and _had_peer(one)
    return count


def _had_peer(one: socket.socket) -> bool:
    """Whether it is, was or is to be connected: a jail's door between two calls is bound, and no more."""
    told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 144)  # tcp_info of linux/tcp.h: the state first, segments received last
    return told[0] != _CLOSED or struct.unpack_from("I", told, 140) != (0,)


class Held:
    """An engine that lives in a thread of its own, for tests that are no coroutines: one for a whole module."""

    def __init__(self, state: Path, **options: Any) -> None:
        self._state, self._options = state, options
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> "Held":
        self._thread.start()
        assert self._ready.wait(_SECONDS)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._failure is None:
            self.run(self._end)
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _live(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _main(self) -> None:
        async with kit.plain_engine(self._state, **self._options) as self.engine:
            self._token, self._over = trio.lowlevel.current_trio_token(), trio.Event()
            self._ready.set()
            await self._over.wait()

    async def _end(self) -> None:
        self._over.set()

    def run(self, act: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """What the coroutine gives, run where the engine lives."""
        return trio.from_thread.run(act, *arguments, trio_token=self._token)

    def load(self, folder: Path, source: str | Mapping[str, str], **options: Any) -> None:
        """Load a source."""

        async def act() -> None:
            await self.engine.load(kit.write(folder, source), **options)

        self.run(act)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> tuple[Outcome, Mapping[str, Any]]:
        """The outcome of a call and its receipt, when all of it is over."""
        return self.run(_concluded, self.engine, tool, arguments, options)


async def _concluded(
    engine: Engine, tool: str, arguments: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> tuple[Outcome, Mapping[str, Any]]:
    with trio.fail_after(_SECONDS):
        outcome = await engine.call(tool, dict(arguments or {}), **options)
        return outcome, await outcome.concluded()


async def called(
    engine: Engine, tool: str, arguments: Mapping[str, Any] | None = None, **options: Any
) -> tuple[Outcome, Mapping[str, Any]]:
    """The same for tests that are coroutines."""
    return await _concluded(engine, tool, arguments, options)


def held(state: Path, **options: Any) -> Iterator[Held]:
    """For a fixture."""
    with Held(state, **options) as made:
        yield made
