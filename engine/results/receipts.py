"""The receipt of a call: what ran, with what, under which limits held by which means, and how it ended.

Its job: the record as plain data.
Not its job: deciding any of it (``concluding.py`` hands it over), the file that it is kept in (``journal.py``).
Laws:
1. Every call that named a known tool has a receipt, a refused one too (tests/contract/test_receipts.py).
2. A receipt holds digests of values, never the values (tests/contract/test_receipts.py).
"""

import dataclasses
import datetime
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
            "usage": dict(vars(happened.usage)),
            "violations": list(happened.violations),
            "verdict": {
                "status": str(verdict.status),
                "reason": verdict.code,
                "fault": str(verdict.reason.fault),
                "lines": list(verdict.lines),
            },
        }
    )
