"""The journal: one whole line for each receipt, in groups, whatever the disk does."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from engine.authoring.canonical import canonical
from engine.errors import HostError
from engine.results.journal import Journal
from engine.results.receipts import read, receipt
from tests.unit.test_receipts import EARLY, HAPPENED, REFUSED, SETTING

RAN = receipt(SETTING, HAPPENED, "durable")
NOT_STARTED = receipt(EARLY, REFUSED, "durable")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal in a folder that is not there yet."""
    made = Journal(tmp_path / "journal", ephemeral=False)
    yield made
    made.close()


def lines(folder: Path) -> list[str]:
    """The journal's lines."""
    return (folder / "journal" / "receipts.jsonl").read_text().splitlines()


def full(descriptor: int, data: bytes) -> int:
    """What write(2) does on a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


class TestLines:
    """What is in the file."""

    def test_each_receipt_is_one_line_of_canonical_json(self, tmp_path: Path, journal: Journal) -> None:
        """A group is one write; each line says what its receipt says."""
        made = [receipt(SETTING, HAPPENED, journal.kind), receipt(EARLY, REFUSED, journal.kind)]
        told = [journal.append(one, ran=True) for one in made]
        assert (lines(tmp_path), [line.written for line in told]) == ([], [False, False])
        assert journal.flush()
        assert [line.written for line in told] == [True, True]
        assert lines(tmp_path) == [one.decode() for one in made] == [canonical(dict(read(one))).decode() for one in made]

    async def test_a_group_is_written_soon_without_being_asked(self, tmp_path: Path, journal: Journal, autojump_clock: MockClock) -> None:
        """Within a twentieth of a second, group after group."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.keep)
            for count in (1, 2):
                journal.append(RAN, ran=True)
                journal.append(RAN, ran=True)
                await trio.sleep(0.05)
                assert len(lines(tmp_path)) == 2 * count
            nursery.cancel_scope.cancel()

    def test_it_is_this_users_alone_and_goes_on_where_it_was(self, tmp_path: Path, journal: Journal) -> None:
        """A second journal on the same folder appends; closing writes the rest."""
        journal.append(RAN, ran=True)
        journal.flush()
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
        why = ("the journal cannot be opened: Too many levels of symbolic links",)
        assert (caught.value.code, caught.value.lines) == ("refused.storage", why)
        assert (tmp_path / "victim").read_text() == "mine\n"


class TestFullDisk:
    """What the disk does not take."""

    def test_a_disk_that_takes_nothing_is_told(self, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        """The receipt of a call that ran is owed, no call may start while it is, and with room it is written first; a refusal's is not."""
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            journal.append(RAN, ran=True)
            journal.append(NOT_STARTED, ran=False)
            assert not journal.flush()
            with pytest.raises(HostError) as caught:
                journal.require()
        why = ("1 receipts of earlier calls are not in the journal: No space left on device",)
        assert (caught.value.code, caught.value.lines) == ("refused.storage", why)
        journal.require()
        assert [json.loads(line)["verdict"]["reason"] for line in lines(tmp_path)] == ["ok.done"]

    def test_what_was_refused_alone_keeps_no_call_back(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing ran, so nothing is owed."""
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            line = journal.append(NOT_STARTED, ran=False)
            journal.flush()
            journal.require()
        assert not line.written

    @pytest.mark.parametrize("taken", [0, 1, 0.5, 1.5])
    def test_of_a_group_that_fits_in_part_no_line_is_lost_or_doubled(
        self, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, taken: float
    ) -> None:
        """What is whole in the file is not written again; what was cut is, on a line of its own."""
        made = [receipt(SETTING, HAPPENED, "durable") for _ in range(3)]
        told = [journal.append(one, ran=True) for one in made]
        write, bound = os.write, int(taken * len(told[0].data))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:bound]))
            assert not journal.flush()
        assert [line.written for line in told] == [bound >= len(told[0].data), False, False]
        journal.require()
        whole = [line for line in lines(tmp_path) if line.endswith("}")]
        assert [json.loads(line)["id"] for line in whole] == [read(one)["id"] for one in made]

    def test_what_is_owed_at_the_end_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Closing tries once more, and does not keep quiet."""
        made = Journal(tmp_path / "owing", ephemeral=False)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: 0)
            made.append(RAN, ran=True)
            with pytest.raises(HostError) as caught:
                made.close()
        assert caught.value.code == "refused.storage"

    def test_a_closed_one_writes_nowhere(self, tmp_path: Path) -> None:
        """A call that is refused after the engine's end finds its descriptor's number taken by another file."""
        made = Journal(tmp_path / "closed", ephemeral=False)
        made.close()
        taken = os.open(tmp_path / "another", os.O_RDWR | os.O_CREAT)
        try:
            line = made.append(NOT_STARTED, ran=False)
            made.flush()
            assert (line.written, (tmp_path / "another").read_bytes()) == (False, b"")
        finally:
            os.close(taken)

    def test_half_a_line_does_not_spoil_the_next_one(self, tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not this engine's, and not that of another engine on the same file."""
        write = os.write
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
            journal.append(RAN, ran=False)
            journal.flush()
        other = Journal(tmp_path / "journal", ephemeral=False)
        other.append(NOT_STARTED, ran=False)
        other.close()
        journal.append(RAN, ran=True)
        journal.flush()
        cut, *whole = lines(tmp_path)
        with pytest.raises(json.JSONDecodeError):
            json.loads(cut)
        assert [json.loads(line)["verdict"]["reason"] for line in whole] == ["refused.arguments", "ok.done"]
