"""``stockade demo``: a small project at work in its jail, and a tool of it that tries to get out.

Its job: the answers, what each attempt came to as seen from outside, what held it and by which means, how long each call took.
Not its job: the project (``worker_images/demo``), what is watched outside (``canary.py``).
Laws:
1. An attempt counts as stopped only when the tool says so and nothing outside shows the contrary (tests/e2e/test_cli_demo.py).
2. The exit code is 0 only when each attempt was stopped (tests/e2e/test_cli_demo.py).
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import trio

from engine.authoring.canonical import canonical
from engine.errors import one_line
from engine.events import PartialResult, ToolOutput
from engine.faces.canary import Canary, canary
from engine.faces.printing import Answer, Printer, ascii_json, table
from engine.faces.run import Wanted
from engine.host import Engine
from engine.outcome import Outcome, error_for
from engine.places import data_dir
from engine.policy.model import LIMIT_KEYS

SECRET = "STOCKADE_DEMO_SECRET"  # noqa: S105 - the name of a variable that the command line sets for this
_PAUSE_SECONDS = 0.05
_ORDERS = [
    {"number": "A-1", "region": "EU", "price_cents": 4999, "days_ago": 3},
    {"number": "A-2", "region": "US", "price_cents": 12900, "days_ago": 29},
    {"number": "A-3", "region": "UK", "price_cents": 1500, "days_ago": 40},
]
_CALLS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("lookup_policy", {"region": "EU"}),
    ("quote_refund", {"region": "US", "price_cents": 12900, "days_ago": 29}),
    ("compare_regions", {"price_cents": 10000, "days_ago": 20}),
    ("review_orders", {"orders": _ORDERS}),
)
# attempt -> the reasons that may end it; ok.done where the tool itself reports what stood in its way
ATTEMPTS: Mapping[str, tuple[str, ...]] = {
    "read a file outside": ("ok.done",),
    "write a file outside": ("ok.done",),
    "reach a listener on loopback": ("ok.done",),
    "fork": ("ok.done",),
    "start a program": ("ok.done",),
    "find a secret in the environment": ("ok.done",),
    "signal the engine": ("ok.done",),
    "take all memory": ("ok.done", "limit_exceeded.memory"),
    "fill the disk": ("ok.done",),
    "print without end": ("limit_exceeded.output",),
    "never return": ("limit_exceeded.wall",),
}
_LIMITS: Mapping[str, Mapping[str, Any]] = {"never return": {"wall": "500 ms"}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempted:
    """One attempt as it was judged."""

    attempt: str
    stopped: bool
    what: str
    ms: float


async def demo(printer: Printer, wanted: Wanted, secret: str) -> Answer:
    """The whole show. Raises EngineError when the engine cannot work here."""
    with canary() as outside:
        async with wanted.engine() as engine:
            started = trio.current_time()
            declarations = await engine.load(data_dir("worker_images") / "demo", worker="native")
            load_ms = (trio.current_time() - started) * 1000
            printer.note(f"loaded {len(declarations)} tools in {load_ms:.0f} ms; none of it was imported outside of a jail")
            answers = [await _answered(engine, name, arguments) for name, arguments in _CALLS]
            tried = [await _attempted(engine, outside, attempt, secret) for attempt in ATTEMPTS]
            last = await engine.call("lookup_policy", {"region": "UK"})
            receipt = await last.concluded()
    return _told(load_ms, answers, tried, receipt)


async def _pause() -> None:
    """Let the next child become ready, as between the calls of a caller who is no benchmark."""
    await trio.sleep(_PAUSE_SECONDS)


async def _answered(engine: Engine, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    await _pause()
    partials: list[ToolOutput | Outcome] = []
    async with engine.stream(name, dict(arguments)) as outputs:
        async for output in outputs:
            partials.append(output)
    outcome = partials.pop()
    if not isinstance(outcome, Outcome):
        raise error_for("engine_failed.bug", "a stream that does not end with an outcome")
    streamed = [output.value for output in partials if isinstance(output, PartialResult)]
    shown = streamed if outcome.value is None and streamed else outcome.value
    ms = (await outcome.concluded())["usage"]["wall_ms"]
    return {"tool": name, "reason": outcome.reason, "value": shown, "ms": ms, "lines": list(outcome.lines)}


async def _attempted(engine: Engine, outside: Canary, attempt: str, secret: str) -> Attempted:
    await _pause()
    target = {"file": str(outside.file), "folder": str(outside.folder), "port": outside.port, "engine_pid": os.getpid()}
    outcome = await engine.call("misbehave", {"attempt": attempt, "target": target}, limits=_LIMITS.get(attempt))
    ms = (await outcome.concluded())["usage"]["wall_ms"]
    return _judged(attempt, outcome, outside.harm(), (outside.token, secret), ms)


def _judged(attempt: str, outcome: Outcome, harm: list[str], tokens: tuple[str, ...], ms: float) -> Attempted:
    """Whether it was stopped: by what ended the call, by what stands outside, by what came out of the jail."""
    said = canonical([outcome.value, outcome.stdout, outcome.stderr, list(outcome.lines)]).decode()
    if any(token in said for token in tokens):
        harm = [*harm, "what stands outside came out in the answer"]
    if harm:
        return Attempted(attempt=attempt, stopped=False, what="; ".join(harm), ms=ms)
    if outcome.reason != "ok.done":
        stopped = outcome.reason in ATTEMPTS[attempt]
        return Attempted(attempt=attempt, stopped=stopped, what=f"{outcome.reason}: {'; '.join(outcome.lines)}", ms=ms)
    stopped = "ok.done" in ATTEMPTS[attempt] and outcome.value["got_through"] is False
    return Attempted(attempt=attempt, stopped=stopped, what=one_line(outcome.value["what"]), ms=ms)


def _told(load_ms: float, answers: list[dict[str, Any]], tried: list[Attempted], receipt: Mapping[str, Any]) -> Answer:
    wrong = [answer["tool"] for answer in answers if answer["reason"] != "ok.done"]
    through = [one.attempt for one in tried if not one.stopped]
    limits = {
        name: {"value": receipt["limits"].get(field), "means": receipt["means"].get(name, "supervisor")}
        for name, (field, _) in LIMIT_KEYS.items()
    }
    value: dict[str, Any] = {
        "load_ms": round(load_ms, 3),
        "answers": answers,
        "attempts": [dataclasses.asdict(one) for one in tried],
        "enforced": dict(receipt["enforced"]),
        "limits": limits,
        "stopped": not through,
    }
    stopped = f"{len(tried) - len(through)} of {len(tried)} attempts were stopped"
    text = "\n\n".join(
        [
            table(("tool", "ms", "answer"), [(answer["tool"], f"{answer['ms']:.1f}", ascii_json(answer["value"])) for answer in answers]),
            table(("attempt", "ms", "stopped", "what came of it"), [(one.attempt, f"{one.ms:.1f}", _word(one), one.what) for one in tried]),
            "in force: " + ", ".join(name if level == 1 else f"{name} {level}" for name, level in value["enforced"].items()),
            table(("limit", "value", "held by"), [(name, str(row["value"]), str(row["means"])) for name, row in limits.items()]),
            f"{stopped}; the receipt of the last call is {receipt['id']} ({receipt['journal']} journal)",
        ]
    )
    if not wrong and not through:
        return Answer(value=value, text=text, receipt=dict(receipt))
    lines = [*(f"tool {name} did not answer" for name in wrong), *(f"this got through: {name}" for name in through)]
    return Answer(reason="engine_failed.bug", lines=tuple(lines), value=value, text=text, receipt=dict(receipt))


def _word(one: Attempted) -> str:
    return "yes" if one.stopped else "NO"
