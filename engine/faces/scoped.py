"""Whether this host holds a scoped network: a tool that was granted one place, tried, and looked at from outside.

Its job: a policy with one place in it beside the one that is examined, a server for that place, the verdict with what would mend it.
Not its job: the attempts (``worker_images/selfcheck/outward.py``), listeners (``canary.py``), the table (``doctor.py``).
Laws:
1. It holds only when the word arrived at the granted listener, and nothing at the other one (tests/e2e/test_cli_doctor.py).
2. An attempt that is missing from the tool's report counts as one that got through (tests/e2e/test_cli_doctor.py).
"""

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import trio

from engine.egress.resolver import FixedResolver
from engine.errors import EngineError
from engine.faces.canary import Canary, canary
from engine.faces.run import Wanted
from engine.host import Engine
from engine.outcome import Outcome
from engine.places import data_dir
from engine.policy.model import Policy

ATTEMPTS = (
    "reach the granted place",
    "look up another name",
    "reach another listener of this host",
    "reach another host",
    "make a socket without a connection",
)  # what the tool must report, in its order
REMEDY = (
    "Linux 6.7 or newer with landlock among the security modules (boot parameter lsm=); as root CAP_NET_ADMIN and CAP_NET_BIND_SERVICE; "
    "/proc/sys not mounted read-only; in a container: --cap-add NET_ADMIN --security-opt systempaths=unconfined, or an ordinary user "
    "who may make user namespaces"
)
_HOST = "held.example.test"  # a name that no name server has (RFC 6761)
_LONGEST = 64 << 10  # bytes of a request; ours has some hundred
_SECONDS = 10  # for one of them
_NETWORK_LOOSENINGS = frozenset({"network_wildcards", "network_private_destinations"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scoped:
    """How it ended: ``held``, ``unheld`` (this host cannot make such a jail), ``leaks`` (it made one that lets through what it may not)."""

    state: Literal["held", "unheld", "leaks"]
    text: str


async def scoped(policy: Policy, wanted: Wanted) -> Scoped:
    """Try it behind the wall of that policy."""
    with canary() as granted, canary() as other, tempfile.TemporaryDirectory(prefix="stockade-doctor-") as folder:
        place, word = f"{_HOST}:{granted.port}", secrets.token_hex(8)
        laid = _laid(Path(folder), place, policy, wanted)
        arrived: list[bytes] = []
        try:
            async with Engine(
                policy=laid, state_dir=wanted.state_dir, image_dir=wanted.image_dir, resolver=FixedResolver({_HOST: ("127.0.0.1",)})
            ) as engine:
                await engine.load(Path(folder) / "outward.py", worker="native")
                outcome = await _called(engine, granted, {"word": word, "other": other.port}, arrived)
        except EngineError as error:
            return Scoped(state="unheld", text="; ".join(error.lines))
        came = [asked.startswith(f"GET /{word} HTTP/1.1\r\n".encode("ascii")) for asked in arrived]
        return judged(outcome, came=came == [True], elsewhere=other.harm())


def judged(outcome: Outcome, *, came: bool, elsewhere: Iterable[str]) -> Scoped:
    """The verdict. ``came``: the word arrived, once and by itself; ``elsewhere``: what was seen at the listener that was not granted."""
    if outcome.reason.startswith(("refused.", "limit_exceeded.start")):
        return Scoped(state="unheld", text="; ".join(outcome.lines))
    if outcome.reason != "ok.done":
        return Scoped(state="unheld", text=f"{outcome.reason}: {'; '.join(outcome.lines)}")
    told = {tried["name"]: tried for tried in outcome.value}
    missing = {"held": False, "how": "it was not reported"}
    tried = [(name, told.get(name, missing)) for name in ATTEMPTS]
    through = [*(f"{name}: {found['how']}" for name, found in tried[1:] if not found["held"]), *elsewhere]
    if through:
        return Scoped(state="leaks", text="; ".join(through))
    if not tried[0][1]["held"] or not came:
        return Scoped(state="unheld", text=f"{ATTEMPTS[0]}: {tried[0][1]['how']}, and {'the' if came else 'no'} request arrived there")
    return Scoped(state="held", text="the granted place answered; another name, listener, host and kind of socket were refused")


def _laid(folder: Path, place: str, policy: Policy, wanted: Wanted) -> Path:
    """The tool, its policy and its profile in that folder. The policy has the wall of the one that is examined."""
    shutil.copyfile(data_dir("worker_images") / "selfcheck" / "outward.py", folder / "outward.py")
    (folder / "place.json").write_text(json.dumps(place), encoding="ascii")
    (folder / "network").mkdir()
    (folder / "network" / "doctor.toml").write_text(
        f'purpose = "a listener of the doctor\'s own"\n[[allow]]\nto = "{place}"\nreason = "it is what the tool has to reach"\n'
        'transport = "http"\nprivate = ["127.0.0.1/32"]\n'
        f'[examples]\nallowed = ["{place}"]\ndenied = ["{_HOST}:1", "169.254.169.254:80"]\n',
        encoding="ascii",
    )
    base = os.path.abspath(wanted.policy) if "/" in wanted.policy else wanted.policy
    named = sorted({*policy.loosenings} - _NETWORK_LOOSENINGS | {"network_private_destinations"})
    loosenings = "".join(f'{name} = {{ value = true, reason = "as the policy that is examined has it" }}\n' for name in named)
    file = folder / "doctor.toml"
    file.write_text(
        f'extends = {json.dumps(base)}\n[network]\nprofile = {{ value = "doctor", reason = "to try it" }}\n[loosenings]\n{loosenings}',
        encoding="utf-8",
    )
    return file


async def _called(engine: Engine, granted: Canary, arguments: dict[str, Any], arrived: list[bytes]) -> Outcome:
    made: Outcome | EngineError
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_serve, granted, arrived)
        try:
            made = await engine.call("reach", arguments)
        except EngineError as error:
            made = error  # raised below, where no nursery wraps it in a group
        nursery.cancel_scope.cancel()
    if isinstance(made, EngineError):
        raise made
    return made


async def _serve(granted: Canary, arrived: list[bytes]) -> None:
    """Answer what connects, one after the other, with the word that it asked for."""
    while True:
        await trio.lowlevel.wait_readable(granted.listener)
        with contextlib.suppress(OSError):  # whoever connected went away
            end, _ = granted.listener.accept()
            with end, trio.move_on_after(_SECONDS):
                end.setblocking(False)
                await _answer(end, arrived)


async def _answer(end: Any, arrived: list[bytes]) -> None:
    asked = b""
    while b"\r\n\r\n" not in asked and len(asked) < _LONGEST:
        await trio.lowlevel.wait_readable(end)
        if not (piece := end.recv(4096)):
            break
        asked += piece
    arrived.append(asked)
    body = asked.partition(b" ")[2].partition(b" ")[0].removeprefix(b"/")
    end.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
