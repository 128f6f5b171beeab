"""How a call can end: closed lists, so that a caller can act on each and a test can ask for each.

Its job: the table of reasons (code, fault, exit code, advice), the verdict and the rule that the first one settles.
Not its job: deciding which one applies (``call.py``), exceptions (``errors.py``).
Laws:
1. A code is ``status.reason`` and stands in ``REASONS`` or it cannot be written (tests/unit/test_outcome.py).
2. A settled verdict never changes (tests/unit/test_outcome.py).
3. Each reason is documented in README.md and raised by a test (tests/house/test_reasons.py).
"""

import dataclasses
import enum
import functools
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from engine import errors


class Status(enum.StrEnum):
    """What became of a call, in one word."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    REFUSED = "refused"
    LIMIT_EXCEEDED = "limit_exceeded"
    VIOLATION = "violation"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    ENGINE_FAILED = "engine_failed"


class Fault(enum.StrEnum):
    """Who can do something about it."""

    NOBODY = "nobody"
    CALLER = "caller"
    AUTHOR = "author"
    OPERATOR = "operator"
    HOST = "host"
    ENGINE = "engine"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reason:
    """One row of the table: a stable code, its exit code of the command line, whose fault, what to do, the contract's name."""

    code: str
    exit_code: int
    fault: Fault
    advice: str
    alias: str | None = None

    @functools.cached_property
    def status(self) -> Status:
        """The part of the code before the first dot."""
        return Status(self.code.split(".", 1)[0])


def _rows(*rows: tuple[str, int, Fault, str] | tuple[str, int, Fault, str, str]) -> Mapping[str, Reason]:
    made = [Reason(code=r[0], exit_code=r[1], fault=r[2], advice=r[3], alias=r[4] if len(r) == 5 else None) for r in rows]
    return MappingProxyType({reason.code: reason for reason in made})


_N, _C, _A, _O, _H, _E = Fault.NOBODY, Fault.CALLER, Fault.AUTHOR, Fault.OPERATOR, Fault.HOST, Fault.ENGINE

# fmt: off - one reason a row reads better than one word a row
REASONS = _rows(
    ("ok.done", 0, _N, "nothing to do"),
    # the tool answered, but not with a result
    ("tool_error.exception", 1, _A, "read stderr for the trimmed trace", "cave_sandbox_uncaught"),
    ("tool_error.import", 1, _A, "the tool's source failed while it was imported: mend what the line or the end of the trace says"),
    ("tool_error.exit", 1, _A, "return a value instead of calling sys.exit"),
    (
        "tool_error.tool_missing",
        1,
        _A,
        "the tool must exist under its name after its source was imported",
        "cave_sandbox_agent_export_missing",
    ),
    (
        "tool_error.result_not_data",
        1,
        _A,
        "return None, bool, int below 2^63, finite float, str, list and dict with str keys only",
        "cave_sandbox_result_not_serializable",
    ),
    ("tool_error.result_schema", 1, _A, "return what the tool's output schema says", "cave_sandbox_invalid_output"),
    ("tool_error.partial_schema", 1, _A, "yield what the tool's partial schema says"),
    # stopped before the tool ran
    ("refused.request", 2, _C, "send one JSON object of arguments within the request limit", "cave_sandbox_request_invalid"),
    ("refused.request_size", 2, _C, "send fewer bytes of arguments", "cave_sandbox_input_limit"),
    ("refused.arguments", 2, _C, "send what the tool's input schema says"),
    ("refused.unknown_tool", 2, _C, "name one of the tools that were loaded", "cave_sandbox_unknown_tool"),
    ("refused.limits", 2, _C, "a caller may only tighten a limit"),
    ("refused.busy", 3, _C, "try again later, or let the operator allow more workers"),
    ("refused.repeat", 3, _C, "look whether it was done; `--resume --allow-repeat` calls it again"),
    ("refused.source_missing", 2, _C, "name a readable tool file or package folder"),
    ("refused.source_syntax", 3, _A, "mend the file at the line named"),
    ("refused.source_limits", 3, _A, "split or shrink the source: too many, too large or too deep files"),
    ("refused.source_open_graph", 3, _A, "import by literal names, or list modules in includes=[...]"),
    ("refused.source_import", 3, _A, "put the module beside the tool, or ask for a layer that holds it"),
    ("refused.source_path", 3, _A, "keep links, special files and odd names out of the source"),
    ("refused.source_native", 3, _A, "native code and byte code come only from layers"),
    ("refused.source_shadows", 3, _A, "rename the module: its name belongs to the guest or to the standard library"),
    ("refused.source_literals", 3, _A, "write includes, data and layers as literals, in the call and alike after import"),
    ("refused.source_changed", 3, _C, "stage again when nothing writes to the source"),
    ("refused.no_tools", 3, _A, "decorate a function with @tool(...)"),
    ("refused.declaration", 3, _A, "mend the declaration at the path named"),
    ("refused.policy", 3, _O, "mend the policy file: unknown keys and values are errors"),
    ("refused.not_granted", 3, _O, "the operator must grant what the tool asks for"),
    ("refused.layer", 3, _O, "add the layer, or verify it: `stockade layer add` and `verify`"),
    ("refused.image_missing", 3, _O, "make it ready on this machine: `stockade image build`, or `image import`"),
    ("refused.image_unpinned", 3, _O, "build the image that is pinned, or name this one's digest in the policy's [images]"),
    ("refused.image_corrupt", 5, _H, "`stockade image verify` names the file; `stockade image build` makes the image again"),
    ("refused.image_build", 5, _H, "mend what the line names, or `stockade image export` where it builds and `import` here"),
    ("refused.side_effect", 3, _O, "a fixture run blocks tools whose effect is write or external", "cave_sandbox_side_effect_denied"),
    ("refused.approval", 3, _O, "a dangerous tool needs an approval handler"),
    ("refused.readonly", 3, _O, "only read-only tools run under the permission mode readonly"),
    ("refused.host_mode", 3, _O, "the mode host is refused below a required ancestor"),
    (
        "refused.network_unbounded",
        3,
        _O,
        "name hosts: a network without bounds is not granted to anybody",
        "cave_sandbox_network_egress_unbounded",
    ),
    (
        "refused.network_scoped",
        5,
        _H,
        "give the host what the line names (`stockade doctor` tries it), or ask for places that can be held",
        "cave_sandbox_scoped_egress_unavailable",
    ),
    (
        "refused.credential_not_listed",
        3,
        _O,
        "ask for a capability that the operator's policy lists",
        "cave_sandbox_credential_env_not_allowlisted",
    ),
    ("refused.credential_ambiguous", 3, _O, "ask for one capability per worker", "cave_sandbox_credential_capability_ambiguous"),
    ("refused.credential_missing", 3, _O, "give the engine a value for the granted capability", "cave_sandbox_credential_missing"),
    ("refused.secret", 3, _O, "give the vault a value: present, of at least 8 characters, and nothing that anybody would guess"),
    ("refused.secret_in", 2, _C, "send arguments without the secret; what a tool needs of one is granted in the policy"),
    ("refused.secret_out", 3, _A, "answer without the secret; the receipt names which one it was"),
    (
        "refused.secret_source",
        3,
        _A,
        "take the secret out of the file at the line named, or let the operator list that file in grants.secret_files",
    ),
    ("refused.worker_kind", 5, _H, "choose a worker kind that this build and this host have"),
    (
        "refused.cannot_enforce",
        5,
        _H,
        "give the host the protection named, or change the policy knowingly",
        "cave_sandbox_os_isolation_unavailable",
    ),
    ("refused.start_failed", 5, _H, "the step named failed on this host: `stockade doctor` tries each"),
    ("refused.storage", 5, _H, "make room, or give the engine another state folder"),
    # ended by a bound
    ("limit_exceeded.wall", 4, _A, "do less, or raise wall in the policy", "cave_sandbox_timeout"),
    ("limit_exceeded.start", 4, _A, "import less: the tool was not ready within the start limit"),
    ("limit_exceeded.cpu", 4, _A, "do less, or raise cpu in the policy"),
    ("limit_exceeded.memory", 4, _A, "hold less, or raise memory in the policy"),
    ("limit_exceeded.output", 4, _A, "print less", "cave_sandbox_output_limit"),
    ("limit_exceeded.events", 4, _A, "emit fewer or smaller events and partials"),
    ("limit_exceeded.egress", 4, _A, "connect less often, and only where the tool was granted to"),
    ("limit_exceeded.result", 4, _A, "return fewer bytes"),
    # the worker broke the rules or its own neck
    ("violation.protocol", 6, _A, "the worker sent bytes that no guest sends: treat the tool as hostile"),
    (
        "violation.declaration",
        6,
        _A,
        "the worker's tool is not the one that was loaded: load the source again",
        "cave_sandbox_tool_definition_mismatch",
    ),
    ("crashed.exit", 6, _A, "the tool's process ended itself without an answer"),
    ("crashed.signal", 6, _A, "the tool's process died of the signal named"),
    ("crashed.silent", 6, _A, "the tool's process closed its channel without an answer"),
    ("crashed.worker", 6, _H, "the worker around the tool died: call again"),
    ("cancelled.caller", 130, _C, "nothing to do: the caller gave up"),
    ("cancelled.shutdown", 130, _C, "the engine was closed while the call ran"),
    ("engine_failed.bug", 70, _E, "please report it with the receipt"),
    ("engine_failed.not_clean", 70, _E, "something of the call outlived it: please report it with the receipt"),
)
# fmt: on

_RAISED: Mapping[Fault, type[errors.EngineError]] = MappingProxyType(
    {
        Fault.CALLER: errors.RequestError,
        Fault.AUTHOR: errors.ToolError,
        Fault.OPERATOR: errors.PolicyError,
        Fault.HOST: errors.HostError,
        Fault.ENGINE: errors.EngineBug,
    }
)


def error_for(code: str, *lines: str) -> errors.EngineError:
    """The exception for a reason, of the class whose fault it is. Raises KeyError for a code outside the table."""
    reason = REASONS[code]
    kind = errors.DeclarationError if code == "refused.declaration" else _RAISED[reason.fault]
    return kind(*lines) if kind is errors.DeclarationError else kind(code, *lines)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """How one call ended: a reason's code and sanitised lines, one problem each."""

    code: str
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        REASONS[self.code]  # an unlisted code is our bug, found where it is written
        object.__setattr__(self, "lines", tuple(errors.one_line(line) for line in self.lines))

    @property
    def reason(self) -> Reason:
        """The row of the table."""
        return REASONS[self.code]

    @property
    def status(self) -> Status:
        """The row's status."""
        return REASONS[self.code].status


class Settlement:
    """Holds the verdict of one call; the first ``settle`` wins and later ones change nothing."""

    def __init__(self, clean: Callable[[str], str] = str) -> None:
        """``clean`` gives a line as it may be seen."""
        self.verdict: Verdict | None = None
        self._clean = clean

    def settle(self, code: str, *lines: str) -> bool:
        """Set the verdict unless it is set; says whether this one was taken."""
        if self.verdict is not None:
            return False
        self.verdict = Verdict(code=code, lines=tuple(self._clean(line) for line in lines))
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """What one call used. Times in ms, sizes in bytes; None where nothing could be measured (no process ran)."""

    wall_ms: float = 0.0
    cpu_ms: float | None = None
    peak_rss_bytes: int | None = None
    request_bytes: int = 0
    result_bytes: int = 0
    event_bytes: int = 0
    events: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0


async def _no_receipt() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the caller of a tool gets, a plain value. ``stdout`` and ``stderr`` are the tool's own words: untrusted text."""

    status: Status
    reason: str
    value: Any = None
    lines: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""
    conclusion: Callable[[], Awaitable[Mapping[str, Any]]] = dataclasses.field(default=_no_receipt, repr=False, compare=False)

    async def concluded(self) -> Mapping[str, Any]:
        """The receipt, once the worker was seen to be gone and the journal was written; empty for a call that named no tool.

        An ok answer is handed over when its worker was killed, before its burial was seen. ``journal`` is ``owed`` on a receipt that
        the disk did not take. Raises HostError when something of the call would not end.
        """
        return await self.conclusion()

    def raise_for_status(self) -> "Outcome":
        """This outcome when it is ok; else raises the EngineError whose class says whose fault it was."""
        if self.status is Status.OK:
            return self
        raise error_for(self.reason, *self.lines)
