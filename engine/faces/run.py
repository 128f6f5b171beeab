"""``stockade run``, ``stockade stream`` and ``stockade describe``.

Its job: arguments from the command line, a file or stdin; one call with its stream shown as it comes; declarations as text or data.
Not its job: anything a call does (``host.py``), printing (``printing.py``).
Laws:
1. Arguments are read to the request limit and never beyond it (tests/e2e/test_cli_arguments.py).
2. What a streaming tool sends is shown when it comes, not at the end (tests/e2e/test_cli_run.py).
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from engine.checking import parse_arguments
from engine.declaration import Declaration
from engine.errors import RequestError, one_line
from engine.events import LogRecord, PartialResult, Progress, ToolEvent, ToolOutput
from engine.faces.printing import Answer, Printer, safe_json
from engine.host import Engine, WorkerKind
from engine.outcome import Outcome, error_for
from engine.places import data_dir
from engine.policy.load import load_policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the options say that all commands share."""

    policy: str = "required"
    worker: WorkerKind = "auto"
    timeout_ms: int | None = None
    tenant: str | None = None
    state_dir: str | None = None
    image_dir: str | None = None

    def engine(self) -> Engine:
        """The engine that these options ask for, not started."""
        return Engine(policy=self.policy, state_dir=self.state_dir, worker=self.worker, image_dir=self.image_dir)


def read_arguments(written: str | None, policy: str) -> dict[str, Any]:
    """The object that ARGUMENTS stands for. Raises RequestError: no object, not readable, too large."""
    if written is None:
        return {}
    limit = load_policy(policy, data_dir("policies")).limits.request_bytes
    if written == "-":
        # stdin is None when the descriptor was closed before we started
        return parse_arguments(_read(None if sys.stdin is None else sys.stdin.buffer, limit, "stdin"), limit)
    if not written.startswith("@"):
        return parse_arguments(written, limit)
    try:
        with open(written[1:], "rb") as file:
            return parse_arguments(_read(file, limit, written), limit)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or str(error)
        raise RequestError("refused.request", f"the arguments file {written[1:]} cannot be read: {why}") from None


def _read(file: IO[bytes] | None, limit: int, name: str) -> bytes:
    if file is None:
        raise RequestError("refused.request", f"the arguments cannot be read from {name}: it is closed")
    try:
        return file.read(limit + 1)  # security: one byte more than allowed tells "too large" without reading a device for ever
    except OSError as error:
        raise RequestError("refused.request", f"the arguments cannot be read from {name}: {error.strerror}") from None


async def run(printer: Printer, source: str, tool: str, arguments: dict[str, Any], wanted: Wanted, *, live: bool = False) -> Answer:
    """Load the source, call the tool, show what it sends meanwhile. Raises EngineError when it does not come to a call.

    ``live``: what it sends is the answer as well, each thing a line of stdout as it comes.
    """
    async with wanted.engine() as engine:
        await engine.load(source)
        async with engine.stream(tool, arguments, timeout_ms=wanted.timeout_ms, tenant=wanted.tenant) as outputs:
            async for output in outputs:
                if isinstance(output, Outcome):
                    receipt = await output.concluded()
                    for kind, times in receipt.get("egress", {}).get("egress_denied", {}).items():
                        printer.event("egress_denied", {"kind": kind, "times": times}, f"{kind} {times}")
                    return Answer.of_outcome(output, receipt)
                _show(printer.item if live else printer.event, output)
    raise error_for("engine_failed.bug", "the call ended without an outcome")


def _show(tell: Callable[[str, Mapping[str, Any], str], None], output: ToolOutput) -> None:
    match output:
        case PartialResult(value=value):
            tell("partial", {"value": value}, _one_line(value))
        case Progress(done=done, total=total, message=message):
            far = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            tell("progress", {"done": done, "total": total, "message": message}, f"{far} {message}")
        case ToolEvent(value=value):
            tell("event", {"value": value}, _one_line(value))
        case LogRecord(level=level, message=message):
            data = dict(output.data)
            tell("log", {"level": level, "message": message, "data": data}, f"{level}: {message} {_one_line(data) if data else ''}")


async def describe(source: str, wanted: Wanted) -> Answer:
    """The source's declarations, read in a jail."""
    async with wanted.engine() as engine:
        declarations = await engine.load(source)
        receipt = engine.loaded(declarations[0].name).loaded.described
    value = [{**made.data, "digest": made.digest} for made in declarations]
    return Answer(value=value, receipt=receipt, text="\n\n".join(_described(made) for made in declarations))


def _described(made: Declaration) -> str:
    words = [made.effect, *(word for word in ("dangerous", "read_only", "cacheable", "open_world", "streams") if getattr(made, word))]
    asks = {
        "layers": made.layers,
        "data": made.data_files,
        "network": made.network,
        "credentials": made.credentials,
        "environment": made.environment,
        "limits": dict(made.limits),
        "nested tools": made.nested_tools,
    }
    lines = [
        f"{made.name} ({', '.join(words)}; up to {made.timeout_ms} ms)",
        f"  {made.description}",
        f"  input    {_one_line(made.input)}",
        f"  output   {_one_line(made.output)}",
        *([] if made.partial is None else [f"  partial  {_one_line(made.partial)}"]),
        *(f"  asks for {name}: {_one_line(value)}" for name, value in asks.items() if value),
        f"  digest   {made.digest}",
    ]
    return "\n".join("  " * line.startswith("  ") + one_line(line) for line in lines)


def _one_line(value: Any) -> str:
    return " ".join(safe_json(dict(value) if hasattr(value, "keys") else value).split())
