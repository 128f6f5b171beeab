"""The files of a batch: whole lines, one batch at a time, nobody else's file."""

import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from engine.batch.files import LineFile
from engine.errors import EngineError


def refused(path: Path, *, go_on: bool) -> tuple[str, str]:
    """Why the file is not opened."""
    with pytest.raises(EngineError) as caught:
        LineFile.opened(path, go_on=go_on)
    return caught.value.code, caught.value.lines[0]


def filled(path: Path, data: bytes) -> LineFile:
    """A file with that in it, gone on with."""
    path.write_bytes(data)
    return LineFile.opened(path, go_on=True)


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    """Line by line, in ASCII, closed to other users."""
    file = LineFile.opened(tmp_path / "r", go_on=False)
    records: list[dict[str, object]] = [{"id": "é\x7f\u2028\n", "line": 1}, {"id": None, "line": 2}]
    for record in records:
        file.append(record)
    data = (tmp_path / "r").read_bytes()
    assert (list(file.records()), data.count(b"\n"), (tmp_path / "r").stat().st_mode & 0o777) == (records, 2, 0o600)
    assert all(byte == 10 or 32 <= byte <= 126 for byte in data)
    file.append_durably({"id": "c"})
    assert len(list(file.records())) == 3


def test_a_file_that_is_there_is_not_begun_again(tmp_path: Path) -> None:
    """Its control is going on with it."""
    filled(tmp_path / "r", b"").close()
    line = f"{tmp_path}/r is there already: --resume goes on with it, else name another"
    assert refused(tmp_path / "r", go_on=False) == ("refused.request", line)


def test_a_file_is_one_batchs_at_a_time(tmp_path: Path) -> None:
    """The second is refused until the first lets go."""
    first = LineFile.opened(tmp_path / "r", go_on=True)
    assert refused(tmp_path / "r", go_on=True) == ("refused.request", f"another batch is writing to {tmp_path}/r")
    first.close()
    LineFile.opened(tmp_path / "r", go_on=True).close()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A device, a pipe, a folder, a folder that is not there, a name that cannot be one."""
    os.mkfifo(tmp_path / "pipe")
    assert refused(Path("/dev/null"), go_on=True) == (
        "refused.request",
        "/dev/null is no file: outcomes go into one that can be gone on with",
    )
    assert refused(tmp_path / "pipe", go_on=True)[0] == "refused.request"
    for path in (tmp_path, tmp_path / "none" / "r", tmp_path / "a\0b"):
        assert refused(path, go_on=True)[0] == "refused.request"
    assert refused(tmp_path / "none" / "r", go_on=True)[1] == f"{tmp_path}/none/r cannot be written: No such file or directory"


def test_a_disk_without_room_is_the_hosts_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its advice is to make some."""

    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    assert refused(tmp_path / "r", go_on=True) == ("refused.storage", f"{tmp_path}/r cannot be written: No space left on device")


def test_what_a_link_leads_to_is_not_touched(tmp_path: Path) -> None:
    """Neither a link nor a second name of a file; the control is that file by its own name."""
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b'{"id":"a"}\n{"id":')
    (tmp_path / "link").symlink_to(theirs)
    assert refused(tmp_path / "link", go_on=True) == ("refused.request", f"{tmp_path}/link cannot be written: it is a link")
    os.link(theirs, tmp_path / "second")
    for name in ("theirs", "second"):
        assert refused(tmp_path / name, go_on=True)[1] == f"{tmp_path}/{name} has another name as well: name a file of its own"
    assert theirs.read_bytes() == b'{"id":"a"}\n{"id":'
    (tmp_path / "second").unlink()
    LineFile.opened(theirs, go_on=True).close()


def test_only_the_file_that_was_opened_is_removed(tmp_path: Path) -> None:
    """Not one that took its name meanwhile; one that is gone is no fault."""
    file = filled(tmp_path / "r", b"")
    (tmp_path / "r").rename(tmp_path / "moved")
    (tmp_path / "r").write_bytes(b"theirs")
    file.remove()
    assert (tmp_path / "r").read_bytes() == b"theirs"
    (tmp_path / "r").unlink()
    file.remove()
    (tmp_path / "moved").rename(tmp_path / "r")
    file.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("torn", [b'{"id":"b","line"', b'{"i', b'{"id":"' + b"x" * 200_000])
def test_half_a_line_at_the_end_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    """It is not read, it is cut, and what follows is whole; a file without one is left as it is."""
    whole = b'{"id":"a"}\n'
    file = filled(tmp_path / "r", whole + torn)
    assert (list(file.records()), file.cut(), (tmp_path / "r").read_bytes()) == ([{"id": "a"}], True, whole)
    file.append({"id": "c"})
    assert (file.cut(), list(file.records())) == (False, [{"id": "a"}, {"id": "c"}])


@pytest.mark.parametrize("data", [b"a letter to a friend", b'{"id":"a"}\nand more', b"{", b'{"id"'])
def test_the_end_of_somebody_elses_file_is_not_cut(tmp_path: Path, data: bytes) -> None:
    """It does not begin as our lines do."""
    file = filled(tmp_path / "r", data)
    with pytest.raises(EngineError, match="was not written by a batch"):
        file.cut()
    assert (tmp_path / "r").read_bytes() == data


@pytest.mark.parametrize("line", [b"text\n", b"[1]\n", b"\n", b"\xff\n", b"[" * 100_000 + b"\n"])
def test_a_line_that_no_batch_wrote_is_named(tmp_path: Path, line: bytes) -> None:
    """With its number."""
    file = filled(tmp_path / "r", b'{"id":"a"}\n' + line)
    with pytest.raises(EngineError) as caught:
        list(file.records())
    assert (caught.value.code, caught.value.lines) == (
        "refused.request",
        (f"{tmp_path}/r line 2 was not written by a batch: name another file",),
    )


def test_a_disk_that_takes_half_a_line_keeps_none_of_it(tmp_path: Path) -> None:
    """A limit on the file's size stands for the full disk: the line before it is left, and the next fits when there is room."""
    file = LineFile.opened(tmp_path / "r", go_on=False)
    file.append({"id": "a"})
    kept = (tmp_path / "r").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for room in (5, 0):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) + room, before[1]))
            with pytest.raises(EngineError) as caught:
                file.append({"id": "b"})
            assert (caught.value.code, (tmp_path / "r").read_bytes()) == ("refused.storage", kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    file.append({"id": "b"})
    assert list(file.records()) == [{"id": "a"}, {"id": "b"}]
