"""The record of a call as plain data."""

import dataclasses
import datetime
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.authoring.canonical import canonical
from engine.limits import LIMIT_NAMES, Limits
from engine.outcome import Usage, Verdict
from engine.results.receipts import Happened, Setting, read, receipt

NAMES = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["%(id)s", "%", "%%", '"', "\\"])
SETTING = Setting(
    tool="say",
    tenant="t",
    declaration="sha256:d",
    source="sha256:s",
    layers={"numbers": "sha256:l"},
    image="sha256:i",
    policy={"name": "required", "digest": "sha256:p", "loosenings": ["x"]},
    limits=Limits(),
    means={"wall": "supervisor"},
    worker={"walls": True},
)  # fmt: skip  one record
HAPPENED = Happened(
    verdict=Verdict(code="ok.done"),
    usage=Usage(wall_ms=1.5),
    started=True,
    enforced=b'{"seccomp":1}',
    result="sha256:r",
    egress={"connections": 1, "egress_denied": {"address": 2}},
    secrets={"orders_key": {"stdout": 1}},
)  # fmt: skip  one record
EARLY = Setting(tool="say", tenant=None, declaration="sha256:d", source="sha256:s", layers={}, image="sha256:i")
REFUSED = Happened(verdict=Verdict(code="refused.arguments", lines=("a", "b")), usage=Usage(), started=False, enforced=b"{}")


class TestReceipt:
    """The record."""

    def test_it_holds_what_stood_before_and_what_became_of_it(self) -> None:
        """The whole of it, but for its own name and time."""
        made = dict(read(receipt(SETTING, HAPPENED, "durable")))
        assert len(made.pop("id")) == 36
        assert datetime.datetime.fromisoformat(made.pop("time")).utcoffset() == datetime.timedelta(0)
        assert made == {
            "version": 1,
            "kind": "call",
            "journal": "durable",
            "tool": "say",
            "tenant": "t",
            "digests": {
                "declaration": "sha256:d",
                "source": "sha256:s",
                "layers": {"numbers": "sha256:l"},
                "image": "sha256:i",
                "policy": "sha256:p",
                "result": "sha256:r",
            },
            "policy": {"name": "required", "digest": "sha256:p", "loosenings": ["x"]},
            "worker": {"kind": "native", "started": True, "walls": True},
            "enforced": {"seccomp": 1},
            "limits": {name: getattr(Limits(), name) for name in LIMIT_NAMES},
            "means": {"wall": "supervisor"},
            "usage": {
                "wall_ms": 1.5,
                "cpu_ms": None,
                "peak_rss_bytes": None,
                "request_bytes": 0,
                "result_bytes": 0,
                "event_bytes": 0,
                "events": 0,
                "stdout_bytes": 0,
                "stderr_bytes": 0,
            },
            "egress": {"connections": 1, "egress_denied": {"address": 2}},
            "secrets": {"orders_key": {"stdout": 1}},
            "violations": [],
            "verdict": {"status": "ok", "reason": "ok.done", "fault": "nobody", "lines": []},
        }  # fmt: skip  one record

    def test_what_was_refused_early_has_none_of_what_was_not_known(self) -> None:
        """No policy, no limits, no result; whose fault it was and why."""
        made = read(receipt(EARLY, REFUSED, "ephemeral"))
        assert (made["worker"], made["enforced"]) == ({"kind": "native", "started": False}, {})
        assert (made["egress"], made["secrets"]) == ({}, {})
        assert (made["policy"], made["digests"]["policy"], made["digests"]["result"], made["limits"], made["means"]) == (
            None,
            None,
            None,
            {},
            {},
        )
        assert made["verdict"] == {"status": "refused", "reason": "refused.arguments", "fault": "caller", "lines": ["a", "b"]}

    def test_it_cannot_be_changed_and_no_two_have_one_name(self) -> None:
        """A caller that writes into it changes nothing that was written down."""
        line = receipt(SETTING, HAPPENED, "durable")
        made: Any = read(line)
        with pytest.raises(TypeError):
            made["tool"] = "other"
        made["worker"]["kind"] = "other"
        assert read(line)["worker"]["kind"] == "native"
        assert made["id"] != read(receipt(SETTING, HAPPENED, "durable"))["id"]

    @given(NAMES, NAMES, NAMES)
    def test_it_is_canonical_whatever_stands_in_it(self, tenant: str, layer: str, line: str) -> None:
        """Nothing that a caller or a worker wrote is taken for a hole, or for the end of a text."""
        setting = dataclasses.replace(SETTING, tenant=tenant, layers={layer: "%(id)s", "%": "%%"}, policy={"digest": "%s", tenant: line})
        happened = dataclasses.replace(HAPPENED, verdict=Verdict(code="tool_error.exception", lines=(line,)), violations=("%(id)s", line))
        made = receipt(setting, happened, "durable")
        assert canonical(dict(read(made))) == made
        assert (read(made)["tenant"], read(made)["violations"]) == (tenant, ["%(id)s", line])
        assert uuid.UUID(read(made)["id"]).version == 4
