"""``stockade doctor``: does this host hold what a policy needs, judged by effect.

Its job: each protection tried alone, a real jail attacked from inside by our own selfcheck, leftovers; one table each and a verdict.
Not its job: the attempts (``worker_images/enter/probe.py``, ``worker_images/selfcheck``), trying a scoped network (``scoped.py``), what a
policy needs (``policy``).
Laws:
1. When no jail can be started, the tables still say which protection is missing and what to do (tests/e2e/test_cli_doctor.py).
2. An attempt that is missing from the jail's report counts as one that got through (tests/e2e/test_cli_doctor.py).
3. What reaches outside is looked for from outside, not taken from the report (tests/e2e/test_cli_doctor.py).
4. Without WebAssembly workers a policy still holds: the native kind serves (tests/e2e/test_cli_doctor.py).
5. A host that cannot hold a scoped network fails the policies that have one, and no other (tests/e2e/test_cli_doctor.py).
"""

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trio

from engine.errors import EngineError
from engine.faces import leftovers
from engine.faces.printing import Answer, Printer, table
from engine.faces.run import Wanted
from engine.faces.scoped import REMEDY, Scoped, scoped
from engine.host import Engine
from engine.launchers import Launchers
from engine.outcome import Outcome, error_for
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.model import Mode, Policy
from engine.policy.protections import PROTECTIONS
from engine.state import open_state
from engine.worker.launcher import Launcher
from engine.worker.probe import Found, probe

ATTEMPTS = (
    "make a socket",
    "fork",
    "start a program",
    "read outside",
    "list outside",
    "climb above the root",
    "write outside",
    "signal others",
    "see other processes",
    "raise a limit",
    "call the kernel",
    "be somebody",
    "read the environment",
    "take memory",
    "fill the scratch folder",
    "start threads",
    "open descriptors",
)  # fmt: skip  what the selfcheck must report, in its order
_MEMORY_MIB, _SCRATCH_MIB = 64, 4
_USER_NAMESPACES = (
    "be root with CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID and CAP_SETPCAP, or allow user namespaces (sysctl user.max_user_namespaces; "
    "kernel.unprivileged_userns_clone=1 on Debian, kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu); "
    "in a container, allow it to make namespaces and mounts"
)
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "no_new_privileges": "a kernel of Linux 3.5 or newer",
        "seccomp": "a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
        "landlock": "Linux 6.12 or newer with landlock among the security modules (boot parameter lsm=), or the loosening landlock_below_6",
        "rlimits": "a kernel that honours setrlimit: some sandboxes of containers do not",
        "peer_pidfd": "Linux 6.5 or newer",
        "memory_cgroup": "a delegated cgroup: systemd-run --user --scope -p Delegate=yes, or root with a writable /sys/fs/cgroup",
        "pids_cgroup": "a delegated cgroup: systemd-run --user --scope -p Delegate=yes, or root with a writable /sys/fs/cgroup",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that was tried: ``verdict`` is held, missing, extra (there, not needed) or absent (neither); ok for a kind of worker."""

    name: str
    verdict: str
    text: str
    needed: int = 1
    found: int = 0
    remedy: str | None = None


async def doctor(printer: Printer, wanted: Wanted) -> Answer:
    """The whole examination. Raises EngineError for a policy or a state folder that cannot be used."""
    policy = load_policy(wanted.policy, data_dir("policies"))
    if policy.mode is Mode.HOST:
        raise error_for("refused.host_mode", f"policy {policy.name} has no wall: there is nothing to examine")
    left = [*leftovers.orphans(), *(f"cgroup {path}" for path in leftovers.orphaned_cgroups())]
    printer.note("trying each protection by itself ...")
    protections = await _protections(policy, wanted)
    printer.note("starting WebAssembly's launcher ...")
    wasm = await _wasm(policy, wanted)
    printer.note("attacking a jail from inside ...")
    launchers: list[int] = []
    try:
        inside = await _inside(policy, wanted, launchers)
    except EngineError as error:
        if error.code == "refused.secret":
            raise  # nothing that this host lacks: no engine opens under this policy, wherever it runs
        inside = [_line("start a jail", held=False, text="; ".join(error.lines))]
    printer.note("trying a network of one place ...")
    network = scoped_line(await scoped(policy, wanted), needed=bool(policy.network.rules))
    still = [*leftovers.processes_of(os.getpid()), *(path for launcher in launchers for path in leftovers.cgroups_of(launcher))]
    ending = _line("leave something behind", held=not still, text="; ".join(still) or "no process, no cgroup")
    return _answer(policy, protections, [*inside, ending], wasm, network, left)


async def _protections(policy: Policy, wanted: Wanted) -> list[Line]:
    try:
        launcher = await Launcher.start()
    except EngineError as error:
        return [_judged(policy, Found(protection=name, level=0, text="; ".join(error.lines))) for name in PROTECTIONS]
    state = None
    try:
        state = open_state(None if wanted.state_dir is None else Path(wanted.state_dir), data_dir("policies"))
        return [_judged(policy, found) for found in await probe(launcher, state.places)]
    finally:
        await launcher.close()
        if state is not None:
            state.close()


async def _wasm(policy: Policy, wanted: Wanted) -> Line:
    """Whether WebAssembly workers can serve: the policy's image is there, may run and is compiled here, and its launcher starts."""
    launchers = Launchers(None if wanted.image_dir is None else Path(wanted.image_dir))
    try:
        image = await launchers.image(policy)
        if isinstance(image, EngineError):
            raise image
        await launchers.start(image)
        await launchers.close()
    except EngineError as error:
        return Line(name="wasm", verdict="absent", text="; ".join(error.lines), needed=0)
    finally:
        with trio.CancelScope(shield=True):
            await launchers.close()
    text = f"image {image.name} {image.digest[7:19]} may run and is compiled for this machine; its launcher starts"
    return Line(name="wasm", verdict="ok", text=text, needed=0, found=1)


def scoped_line(tried: Scoped, *, needed: bool) -> Line:
    """The row of the scoped network; a jail that lets something through is missing, whoever needs it."""
    verdict = "held" if tried.state == "held" else "missing" if needed or tried.state == "leaks" else "absent"
    remedy = REMEDY if tried.state == "unheld" else None
    return Line(name="scoped network", verdict=verdict, text=tried.text, needed=int(needed), found=int(verdict == "held"), remedy=remedy)


def _judged(policy: Policy, found: Found) -> Line:
    name, level = found.protection, found.level
    needed = policy.protections[name]
    enough = level >= needed
    verdict = ("held" if needed else "extra" if level else "absent") if enough else "missing"
    remedy = None if verdict in ("held", "extra") else _REMEDIES.get(name, _USER_NAMESPACES)
    return Line(name=name, verdict=verdict, text=found.text, needed=needed, found=level, remedy=remedy)


async def _inside(policy: Policy, wanted: Wanted, launchers: list[int]) -> list[Line]:
    """Attack a real jail, then look from outside."""
    memory, scratch = min(_MEMORY_MIB, policy.limits.memory_bytes >> 20), min(_SCRATCH_MIB, policy.limits.scratch_bytes >> 20)
    async with wanted.engine() as engine:
        launchers.append(engine.launcher_pid)
        await engine.load(data_dir("worker_images") / "selfcheck", worker="native")
        with tempfile.TemporaryDirectory(prefix="stockade-doctor-") as folder:
            canary = Path(folder) / "canary"
            canary.write_text("untouched", encoding="ascii")
            os.chmod(folder, 0o777)  # noqa: S103 - so that nothing but the wall keeps the attempts away
            canary.chmod(0o666)
            host = {"pid": os.getpid(), "hostname": os.uname().nodename, "file": str(canary)}
            outside = {**host, "memory_mib": memory, "scratch_mib": scratch}
            tight = {"memory": f"{memory} MiB", "scratch": f"{scratch} MiB"}
            lines = _reported(await engine.call("try_all", {"outside": outside}, limits=tight))
            touched = canary.read_text(encoding="ascii") != "untouched" or os.listdir(folder) != ["canary"]
        text = "a file outside was changed or made" if touched else "the canary is untouched"
        return [*lines, _line("leave a trace outside", held=not touched, text=text), *await _ended(engine)]


def _reported(outcome: Outcome) -> list[Line]:
    if outcome.reason != "ok.done":
        return [Line(name="answer the selfcheck", verdict="missing", text=f"{outcome.reason}: {'; '.join(outcome.lines)}")]
    told = {tried["name"]: tried for tried in outcome.value}
    missing = {"held": False, "how": "it was not reported"}
    return [_line(name, held=found["held"], text=found["how"]) for name in ATTEMPTS for found in [told.get(name, missing)]]


async def _ended(engine: Engine) -> list[Line]:
    """Tools that do not stop must be stopped, each by its limit."""
    lines = []
    for name, tool, timeout_ms, reason in (
        ("run past the deadline", "spin", 200, "limit_exceeded.wall"),
        ("print without end", "print_on", 5000, "limit_exceeded.output"),
    ):
        outcome = await engine.call(tool, {}, timeout_ms=timeout_ms)
        took = (await outcome.concluded())["usage"]["wall_ms"]
        lines.append(_line(name, held=outcome.reason == reason, text=f"{outcome.reason} after {took:.0f} ms"))
    return lines


def _line(name: str, *, held: bool, text: str) -> Line:
    return Line(name=name, verdict="held" if held else "missing", text=text, found=int(held))


def _answer(policy: Policy, protections: Sequence[Line], inside: Sequence[Line], wasm: Line, network: Line, left: Sequence[str]) -> Answer:
    failed = [line for line in (*protections, *inside, network) if line.verdict == "missing"]
    holds = f"this host holds what policy {policy.name} needs" if not failed else f"this host does not hold what policy {policy.name} needs"
    text = "\n\n".join(
        [
            table(("protection", "needed", "found", "verdict", "what was seen"), [_cells(line) for line in protections]),
            table(("from inside a jail", "verdict", "what happened"), [(line.name, line.verdict, line.text) for line in inside]),
            table(("kind of worker", "verdict", "what was seen"), [(wasm.name, wasm.verdict, wasm.text)]),
            table(("network", "verdict", "what was seen"), [(network.name, network.verdict, network.text)]),
            "left by earlier engines: " + ("; ".join(left) or "nothing"),
            *_remedies(protections),
            *([f"for a {network.name}: {network.remedy}"] if network.remedy else []),
            holds,
        ]
    )
    value: dict[str, Any] = {
        "policy": policy.name,
        "holds": not failed,
        "protections": [dataclasses.asdict(line) for line in protections],
        "inside": [dataclasses.asdict(line) for line in inside],
        "wasm": dataclasses.asdict(wasm),
        "network": dataclasses.asdict(network),
        "left": list(left),
    }
    if not failed:
        return Answer(value=value, text=text)
    return Answer(reason="refused.cannot_enforce", lines=tuple(f"{line.name}: {line.text}" for line in failed), value=value, text=text)


def _remedies(protections: Sequence[Line]) -> list[str]:
    """What to do, once for all protections that it helps."""
    needing: dict[str, list[str]] = {}
    for line in protections:
        if line.verdict == "missing" and line.remedy:
            needing.setdefault(line.remedy, []).append(line.name)
    return [f"for {', '.join(names)}: {remedy}" for remedy, names in needing.items()]


def _cells(line: Line) -> tuple[str, ...]:
    return line.name, str(line.needed), str(line.found), line.verdict, line.text
