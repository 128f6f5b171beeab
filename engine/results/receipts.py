"""The receipt of a call: what ran, with what, under which limits held by which means, and how it ended.

Its job: the record, as the line that stands in the journal and as plain data.
Not its job: deciding any of it (``concluding.py`` hands it over), the file that it is kept in (``journal.py``).
Laws:
1. Every call that named a known tool has a receipt, a refused one too (tests/contract/test_receipts.py).
2. A receipt holds digests of values, never the values (tests/contract/test_receipts.py).
3. A line is canonical JSON, whatever stands in it (tests/unit/test_receipts.py).

Cost: most of a receipt is the same for all calls of a tool under one policy. It is spelled once, as a form with holes for the rest.
"""

import dataclasses
import datetime
import functools
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from engine.limits import LIMIT_NAMES, Limits
from engine.outcome import Usage, Verdict
from engine.spelling import spelled

VERSION = 1
_DIFFERING = ("egress", "enforced", "id", "journal", "secrets", "time", "usage", "verdict", "violations")


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
    worker: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # how it is made, but for whether it was started

    @functools.cached_property
    def form(self) -> bytes:
        """Its receipts, with a hole for each thing that differs between them."""
        limits = {} if self.limits is None else {name: getattr(self.limits, name) for name in LIMIT_NAMES}
        digests: dict[str, Any] = {
            "declaration": self.declaration,
            "source": self.source,
            "layers": dict(self.layers),
            "image": self.image,
            "policy": None if self.policy is None else self.policy["digest"],
        }
        members: dict[str, Any] = {
            "version": VERSION,
            "kind": self.kind,
            "tool": self.tool,
            "tenant": self.tenant,
            "policy": None if self.policy is None else dict(self.policy),
            "limits": limits,
            "means": dict(self.means),
        }
        worker = _form({"kind": "native", **self.worker}, {"started": b"%(started)s"})
        own = {"digests": _form(digests, {"result": b"%(result)s"}), "worker": worker}
        return _form(members, own | {name: b"%%(%s)s" % name.encode() for name in _DIFFERING})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Happened:
    """What became of it."""

    verdict: Verdict
    usage: Usage
    started: bool  # a worker
    enforced: bytes  # names and levels, spelled: a jail's are the same at each of its calls
    violations: tuple[str, ...] = ()
    result: str | None = None
    egress: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what its connections took, and what was denied to them
    secrets: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # how often which one was found where, by its id


def receipt(setting: Setting, happened: Happened, journal: str) -> bytes:
    """The receipt as one line, without its end."""
    verdict = happened.verdict
    reason = verdict.reason
    told = {"status": str(reason.status), "reason": verdict.code, "fault": str(reason.fault), "lines": verdict.lines}
    return setting.form % {
        b"egress": spelled(happened.egress) if happened.egress else b"{}",
        b"enforced": happened.enforced,
        b"id": _quoted(_new_id()),
        b"journal": _quoted(journal),
        b"result": spelled(happened.result),
        b"secrets": spelled(happened.secrets) if happened.secrets else b"{}",
        b"started": b"true" if happened.started else b"false",
        b"time": _quoted(datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")),
        b"usage": spelled(vars(happened.usage)),
        b"verdict": spelled(told),
        b"violations": spelled(happened.violations),
    }


def read(line: bytes) -> Mapping[str, Any]:
    """What a line of ours says, as plain data with string keys throughout; each time anew."""
    return MappingProxyType(json.loads(line))


def _form(members: Mapping[str, Any], holes: dict[str, bytes]) -> bytes:
    """The canonical bytes of an object for bytes formatting; the holes are members that stay open, or forms themselves."""
    # security: a name that holds a per cent sign would else be a hole, filled with what belongs elsewhere
    spelt = {name: spelled(value).replace(b"%", b"%%") for name, value in members.items()} | holes
    return b"{%s}" % b",".join(b"%s:%s" % (spelled(name), spelt[name]) for name in sorted(spelt))


def _quoted(text: str) -> bytes:
    """A text of ours, which holds nothing that JSON escapes."""
    return b'"%s"' % text.encode()


def _new_id() -> str:
    """A random UUID (RFC 9562, version 4), straight from the kernel's bytes."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{'89ab'[int(text[16], 16) & 3]}{text[17:20]}-{text[20:]}"
