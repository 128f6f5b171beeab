"""What each protection does on this host, found out by trying it alone.

Its job: have the launcher try one after the other, each in a process that is thrown away, and take what each one says.
Not its job: the attempts (``worker_images/enter/probe.py``), what is enough (``engine/faces/doctor.py``), whole jails (``native.py``).
Laws:
1. An attempt that dies, hangs or cannot be made is told as level 0, with the reason (tests/e2e/test_cli_doctor.py).
"""

import dataclasses
import os
import re
import signal
import socket
from collections.abc import Mapping
from typing import Any

import trio

from engine.errors import EngineError, one_line
from engine.jail.facts import Way
from engine.jail.plan import Places, parser_order
from engine.policy.protections import PROTECTIONS
from engine.worker.launcher import Launcher

_ANSWER_BYTES = 4096
_SECONDS = 10.0
_ANSWER = re.compile(rb"([0-9]{1,2})\n(.*)", re.DOTALL)
_UNUSED_UID = 65_599  # just below the uids that jails claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The level of one protection that was seen to work here, 0 for none, and what was seen."""

    protection: str
    level: int
    text: str


async def probe(launcher: Launcher, places: Places) -> tuple[Found, ...]:
    """Every protection there is, in order. Raises HostError only when the launcher itself is lost."""
    facts = launcher.facts
    user = facts.way is Way.USER
    uid = 1000 if user else _UNUSED_UID
    details: dict[str, Any] = {
        "user": user,
        "uid": uid,
        "gid": uid,
        "mountpoint": str(places.mountpoint),
        "filter": "",
        "landlock": [0, 0, 0],
    }
    try:
        order = parser_order(facts, places)
        details |= {"filter": order["filter"], "landlock": order["landlock"]}
    except (EngineError, ValueError):  # no filter for this architecture
        unfiltered = Found(protection="seccomp", level=0, text=f"there is no filter for the architecture {facts.machine}")
        return tuple(
            [unfiltered if name == "seccomp" else await _attempt(launcher, {**details, "protection": name}) for name in PROTECTIONS]
        )
    return tuple([await _attempt(launcher, {**details, "protection": name}) for name in PROTECTIONS])


async def _attempt(launcher: Launcher, details: Mapping[str, Any]) -> Found:
    name = str(details["protection"])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    pidfd = -1
    with ours:
        try:
            with theirs:
                _, _, pidfd = await launcher.order("probe", details, theirs)
            with trio.move_on_after(_SECONDS):
                await trio.lowlevel.wait_readable(ours)
                match = _ANSWER.fullmatch(ours.recv(_ANSWER_BYTES))
                if match is None:
                    return Found(protection=name, level=0, text="the attempt ended its process without a word")
                return Found(protection=name, level=int(match[1]), text=one_line(match[2].decode("utf-8", "replace")))
            return Found(protection=name, level=0, text=f"the attempt did not end within {_SECONDS:g} s")
        finally:
            trio.lowlevel.notify_closing(ours)
            if pidfd >= 0:
                await _end(pidfd)


async def _end(pidfd: int) -> None:
    """See the process gone, by its own doing or ours."""
    with trio.CancelScope(shield=True):
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended by itself
        with trio.move_on_after(2):
            await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
