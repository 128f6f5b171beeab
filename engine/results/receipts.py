"""The receipt of a call: what ran, with what, under which limits held by which means, and how it ended.

Its job: the record as plain data, and the journal file it is appended to.
Not its job: deciding any of it (``call.py`` hands it over).
Laws:
1. Every call that named a known tool has a receipt, a refused one too (tests/contract/test_receipts.py).
2. A receipt holds digests of values, never the values (tests/contract/test_receipts.py).
3. A full disk loses neither an answer nor a receipt: what is owed is written before the next call starts (tests/e2e/test_storage.py).
4. A line of the journal is a whole receipt, or half of one that a full disk cut; what follows it is whole (tests/unit/test_receipts.py).
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

    kind: str = "call"  # or describe: then there is no tool and no declaration yet
    tool: str | None
    tenant: str | None
    declaration: str | None
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
            "kind": setting.kind,
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
            self._owed: list[bytes] = []  # lines of calls that ran and did not fit; no new call starts while there are any
        except OSError as error:
            raise HostError("refused.storage", f"the journal cannot be opened: {error.strerror}") from None

    def require(self) -> None:
        """That nothing is owed, so that a call may start. Raises HostError ``refused.storage`` while the disk takes no more."""
        while self._owed:
            if problem := self._write(self._owed[0]):
                raise HostError("refused.storage", f"{len(self._owed)} receipts of earlier calls are not in the journal: {problem}")
            self._owed.pop(0)

    def append(self, made: Mapping[str, Any], *, ran: bool) -> str | None:
        """Write one receipt; None, or why the disk did not take it. That of a call that ``ran`` is then owed."""
        line = canonical(dict(made)) + b"\n"
        problem = self._write(line)
        if problem and ran:
            self._owed.append(line)
        return problem

    def _write(self, line: bytes) -> str | None:
        if self._file < 0:
            return "the journal is closed"
        try:
            if self._is_torn():
                line = b"\n" + line
            # one write: lines of several engines cannot mix (write(2), O_APPEND)
            return None if os.write(self._file, line) == len(line) else "the disk took only half of it"
        except OSError as error:
            return error.strerror or type(error).__name__

    def _is_torn(self) -> bool:
        """Whether the file ends in half a line: a full disk took no more of it, from whichever engine."""
        end = os.fstat(self._file).st_size
        return end > 0 and os.pread(self._file, 1, end - 1) != b"\n"

    def close(self) -> None:
        """Let go of the file. Raises HostError ``refused.storage`` when receipts are owed that still do not fit."""
        try:
            self.require()
        finally:
            os.close(self._file)
            self._file = -1  # the number may be another file's by now, and a late receipt would go there
