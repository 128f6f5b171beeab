"""Receipts and the journal: the record of a call as plain data, and one whole line for each."""

import datetime
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.authoring.canonical import canonical
from engine.errors import HostError
from engine.limits import LIMIT_NAMES, Limits
from engine.outcome import Usage, Verdict
from engine.results.receipts import Happened, Journal, Setting, receipt

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
)  # fmt: skip  one record
HAPPENED = Happened(
    verdict=Verdict(code="ok.done"),
    usage=Usage(wall_ms=1.5),
    worker={"kind": "native", "started": True},
    enforced={"seccomp": 1},
    result="sha256:r",
)  # fmt: skip  one record
EARLY = Setting(tool="say", tenant=None, declaration="sha256:d", source="sha256:s", layers={}, image="sha256:i")
REFUSED = Happened(
    verdict=Verdict(code="refused.arguments", lines=("a", "b")), usage=Usage(), worker={"kind": "native", "started": False}, enforced={}
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal in a folder that is not there yet."""
    made = Journal(tmp_path / "journal", ephemeral=False)
    yield made
    made.close()


def lines(folder: Path) -> list[str]:
    """The journal's lines."""
    return (folder / "journal" / "receipts.jsonl").read_text().splitlines()


class TestReceipt:
    """The record."""

    def test_it_holds_what_stood_before_and_what_became_of_it(self) -> None:
        """The whole of it, but for its own name and time."""
        made = dict(receipt(SETTING, HAPPENED, "durable"))
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
            "worker": {"kind": "native", "started": True},
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
            "violations": [],
            "verdict": {"status": "ok", "reason": "ok.done", "fault": "nobody", "lines": []},
        }  # fmt: skip  one record

    def test_what_was_refused_early_has_none_of_what_was_not_known(self) -> None:
        """No policy, no limits, no result; whose fault it was and why."""
        made = receipt(EARLY, REFUSED, "ephemeral")
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
        made: Any = receipt(SETTING, HAPPENED, "durable")
        with pytest.raises(TypeError):
            made["tool"] = "other"
        assert made["id"] != receipt(SETTING, HAPPENED, "durable")["id"]


class TestJournal:
    """The file."""

    def test_each_receipt_is_one_line_of_canonical_json(self, tmp_path: Path, journal: Journal) -> None:
        """And says what the receipt says."""
        made = [receipt(SETTING, HAPPENED, journal.kind), receipt(EARLY, REFUSED, journal.kind)]
        for one in made:
            journal.append(one, ran=True)
        assert lines(tmp_path) == [canonical(dict(one)).decode() for one in made]
        assert [json.loads(line) for line in lines(tmp_path)] == [dict(one) for one in made]

    def test_it_is_this_users_alone_and_goes_on_where_it_was(self, tmp_path: Path, journal: Journal) -> None:
        """A second journal on the same folder appends."""
        journal.append(receipt(SETTING, HAPPENED, "durable"), ran=True)
        again = Journal(tmp_path / "journal", ephemeral=True)
        again.append(receipt(SETTING, HAPPENED, again.kind), ran=True)
        again.close()
        assert [json.loads(line)["journal"] for line in lines(tmp_path)] == ["durable", "ephemeral"]
        assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "journal" / "receipts.jsonl").stat().st_mode & 0o777 == 0o600

    def test_a_link_in_its_place_refuses(self, tmp_path: Path) -> None:
        """Nothing is appended to what it leads to."""
        (tmp_path / "journal").mkdir()
        (tmp_path / "victim").write_text("mine\n")
        (tmp_path / "journal" / "receipts.jsonl").symlink_to(tmp_path / "victim")
        with pytest.raises(HostError) as caught:
            Journal(tmp_path / "journal", ephemeral=False)
        assert (caught.value.code, caught.value.lines) == (
            "refused.storage",
            ("the journal cannot be opened: Too many levels of symbolic links",),
        )
        assert (tmp_path / "victim").read_text() == "mine\n"

    def test_a_disk_that_takes_nothing_is_told(self, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        """The receipt of a call that ran is owed, no call may start while it is, and with room it is written first; a refusal's is not."""

        def full(descriptor: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            assert journal.append(receipt(SETTING, HAPPENED, "durable"), ran=True) == "No space left on device"
            assert journal.append(receipt(EARLY, REFUSED, "durable"), ran=False) == "No space left on device"
            with pytest.raises(HostError) as caught:
                journal.require()
        assert (caught.value.code, caught.value.lines) == (
            "refused.storage",
            ("1 receipts of earlier calls are not in the journal: No space left on device",),
        )
        journal.require()
        assert [json.loads(line)["verdict"]["reason"] for line in lines(tmp_path)] == ["ok.done"]

    def test_what_is_owed_at_the_end_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Closing tries once more, and does not keep quiet."""
        made = Journal(tmp_path / "owing", ephemeral=False)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: 0)
            assert made.append(receipt(SETTING, HAPPENED, "durable"), ran=True) == "the disk took only half of it"
            with pytest.raises(HostError) as caught:
                made.close()
        assert caught.value.code == "refused.storage"

    def test_a_closed_one_writes_nowhere(self, tmp_path: Path) -> None:
        """A call that is refused after the engine's end finds its descriptor's number taken by another file."""
        made = Journal(tmp_path / "closed", ephemeral=False)
        made.close()
        taken = os.open(tmp_path / "another", os.O_RDWR | os.O_CREAT)
        try:
            assert made.append(receipt(EARLY, REFUSED, "durable"), ran=False) == "the journal is closed"
            assert (tmp_path / "another").read_bytes() == b""
        finally:
            os.close(taken)

    def test_half_a_line_does_not_spoil_the_next_one(self, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not this engine's, and not that of another engine on the same file."""
        write = os.write
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
            assert journal.append(receipt(SETTING, HAPPENED, "durable"), ran=False) == "the disk took only half of it"
        other = Journal(tmp_path / "journal", ephemeral=False)
        other.append(receipt(EARLY, REFUSED, "durable"), ran=False)
        other.close()
        journal.append(receipt(SETTING, HAPPENED, "durable"), ran=True)
        half, *whole = lines(tmp_path)
        with pytest.raises(json.JSONDecodeError):
            json.loads(half)
        assert [json.loads(line)["verdict"]["reason"] for line in whole] == ["refused.arguments", "ok.done"]
