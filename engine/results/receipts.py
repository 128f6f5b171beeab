"""The receipt of a call: what ran, with what, under which limits held by which means, and how it ended.

Its job: the record as plain data, and the journal file it is appended to.
Not its job: deciding any of it (``call.py`` hands it over).
Laws:
1. Every call that named a known tool has a receipt, a refused one too (tests/contract/test_receipts.py).
2. A receipt holds digests of values, never the values (tests/contract/test_receipts.py).
3. A line of the journal is a whole receipt, or half of one that a full disk cut; what follows it is whole (tests/unit/test_receipts.py).
"""

import dataclasses
import datetime
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.authoring.canonical import canonical
from engine.errors import HostError
from engine.limits import LIMIT_NAMES, Limits
from engine.outcome import Usage, Verdict

VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What stood before the call ran; None where it was refused before that was known."""

    tool: str
    tenant: str | None
    declaration: str
    source: str
    layers: Mapping[str, str]
    image: str
    policy: Mapping[str, Any] | None = None
    limits: Limits | None = None
    means: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Happened:
    """What became of it."""

    verdict: Verdict
    usage: Usage
    worker: Mapping[str, Any]
    enforced: Mapping[str, int]
    violations: tuple[str, ...] = ()
    result: str | None = None


def receipt(setting: Setting, happened: Happened, journal: str) -> Mapping[str, Any]:
    """The receipt as plain data, with string keys throughout."""
    verdict = happened.verdict
    limits = {} if setting.limits is None else {name: getattr(setting.limits, name) for name in LIMIT_NAMES}
    return MappingProxyType(
        {
            "version": VERSION,
            "id": str(uuid.uuid4()),
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "journal": journal,
            "tool": setting.tool,
            "tenant": setting.tenant,
            "digests": {
                "declaration": setting.declaration,
                "source": setting.source,
                "layers": dict(setting.layers),
                "image": setting.image,
                "policy": None if setting.policy is None else setting.policy["digest"],
                "result": happened.result,
            },
            "policy": None if setting.policy is None else dict(setting.policy),
            "worker": dict(happened.worker),
            "enforced": dict(happened.enforced),
            "limits": limits,
            "means": dict(setting.means),
            "usage": dataclasses.asdict(happened.usage),
            "violations": list(happened.violations),
            "verdict": {
                "status": str(verdict.status),
                "reason": verdict.code,
                "fault": str(verdict.reason.fault),
                "lines": list(verdict.lines),
            },
        }
    )


class Journal:
    """One file of receipts, one line each; several engines may append to it."""

    def __init__(self, folder: Path, *, ephemeral: bool) -> None:
        self.kind = "ephemeral" if ephemeral else "durable"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(folder / "receipts.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostError("refused.storage", f"the journal cannot be opened: {error.strerror}") from None

    def append(self, made: Mapping[str, Any]) -> None:
        """Write one receipt. Raises HostError ``refused.storage`` when the disk does not take it whole."""
        line = canonical(dict(made)) + b"\n"
        try:
            if self._is_torn():
                line = b"\n" + line
            # one write: lines of several engines cannot mix (write(2), O_APPEND)
            if os.write(self._file, line) != len(line):
                raise HostError("refused.storage", "the journal took only half a receipt: the disk is full")
        except OSError as error:
            raise HostError("refused.storage", f"the receipt could not be written: {error.strerror}") from None

    def _is_torn(self) -> bool:
        """Whether the file ends in half a line: a full disk took no more of it, from whichever engine."""
        end = os.fstat(self._file).st_size
        return end > 0 and os.pread(self._file, 1, end - 1) != b"\n"

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
