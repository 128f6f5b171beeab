"""Wheels for layers: hostile archives, names and records refuse beside a benign twin, and fetching runs no package code."""

import os
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.images import fetch, running
from engine.staging import layers
from engine.staging.layers import NativeCode
from engine.staging.wheels import LayerBounds
from tests.staged import digest_of, record_of, refusal, wheel


def pinned(store: Path, path: Path, *, native: NativeCode = NativeCode.REFUSED, **more: Any) -> layers.Layer:
    """A layer of that wheel, pinned to what it is."""
    return layers.add("demo", [path], {path.name: frozenset({digest_of(path)})}, store, native=native, **more)


def info(name: str, mode: int = 0o100644, packed: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    made.compress_type = packed
    return made


def with_member(folder: Path, member: zipfile.ZipInfo, data: bytes = b"x") -> Path:
    """A wheel with one more member, listed in RECORD."""
    path = folder / "demo-1.0-py3-none-any.whl"
    files = {"demo.py": b"", member.filename: data}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("demo.py", b"")
        archive.writestr(member, data)
        archive.writestr("demo-1.0.dist-info/RECORD", record_of(files, "demo-1.0.dist-info/RECORD"))
    return path


@pytest.mark.parametrize(
    ("member", "line"),
    [
        (info("../evil.py"), "member '../evil.py' has an odd name"),
        (info("/evil.py"), "member '/evil.py' has an odd name"),
        (info("a/../../evil.py"), "member 'a/../../evil.py' has an odd name"),
        (info("a\\..\\evil.py"), "member 'a\\\\..\\\\evil.py' has an odd name"),
        (info("C:evil.py"), "member 'C:evil.py' has an odd name"),
        (info("a//evil.py"), "member 'a//evil.py' has an odd name"),
        (info("a\u202eyp.py"), "member 'a\\u202eyp.py' has an odd name"),
        (info("evil.py", stat.S_IFLNK | 0o777), "evil.py is a link or a special file"),
        (info("evil.py", stat.S_IFIFO | 0o644), "evil.py is a link or a special file"),
        (info("evil.py", stat.S_IFCHR | 0o644), "evil.py is a link or a special file"),
        (info("evil.py", packed=zipfile.ZIP_LZMA), "evil.py is encrypted or packed in a way that wheels are not"),
        (info("evil.py", packed=zipfile.ZIP_BZIP2), "evil.py is encrypted or packed in a way that wheels are not"),
        (info("demo.py"), "two members have one name, or names alike"),
        (info("DEMO.py"), "two members have one name, or names alike"),
        (info("\uff44emo.py"), "two members have one name, or names alike"),
        (info("demo-2.0.data/purelib/x.py"), "demo-2.0.data/ is not its own data folder"),
        (info("demo-1.0.data/purelib/demo.py"), "demo.py is in it twice"),
    ],
)
def test_a_hostile_member_refuses(tmp_path: Path, member: zipfile.ZipInfo, line: str) -> None:
    """Paths that leave, links, special files, strange packing and doubled names refuse; a plain member is taken."""
    assert refusal(pinned, tmp_path / "store", with_member(tmp_path, member)) == ("refused.layer", (f"demo-1.0-py3-none-any.whl: {line}",))
    assert not (tmp_path / "store").exists()
    assert pinned(tmp_path / "store", with_member(tmp_path, info("fine.py"))).modules == {"demo", "fine"}


def lying(path: Path, name: bytes, size: int) -> Path:
    """The wheel with another unpacked size in the directory and in the member's own header."""
    data = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        place = data.find(mark)
        while place >= 0:
            head = place + (46 if mark == b"PK\x01\x02" else 30)
            if data[head : head + len(name)] == name:
                data[place + at : place + at + 4] = struct.pack("<L", size)
            place = data.find(mark, place + 4)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("size", [10, 1 << 31])
def test_a_bomb_refuses_by_its_real_and_by_its_declared_size(tmp_path: Path, size: int) -> None:
    """A member that unpacks to more than it says, and one that says too much, refuse; the honest one is taken."""
    bounds = LayerBounds(member_bytes=20 << 20)
    path = with_member(tmp_path, info("zeros.txt"), bytes(10 << 20))
    assert pinned(tmp_path / "store", path, bounds=bounds).modules == {"demo"}
    assert refusal(pinned, tmp_path / "other", lying(path, b"zeros.txt", size), bounds=bounds)[0] == "refused.layer"


def test_an_archive_that_two_readers_read_differently_refuses(tmp_path: Path) -> None:
    """A comment, bytes behind the end, a 64-bit end record or no zip at all refuse; the plain archive is taken."""
    path = with_member(tmp_path, info("fine.py"))
    plain = path.read_bytes()
    assert pinned(tmp_path / "store", path).modules == {"demo", "fine"}
    end = plain[-22:]
    for data in (
        plain[:-2] + b"\x05\0hello",
        plain + plain[-22:-2] + b"\1\0x",
        plain[:-22] + b"PK\x06\x07" + bytes(16) + end,
        b"no zip",
        b"",
    ):
        path.write_bytes(data)
        assert refusal(pinned, tmp_path / "other", path)[0] == "refused.layer"


RECORD = "demo-1.0.dist-info/RECORD"


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (record_of({"demo.py": b"other", "demo-1.0.dist-info/METADATA": b""}, RECORD), "demo.py is not what RECORD says"),
        (record_of({}, RECORD), "demo-1.0.dist-info/METADATA is not in RECORD"),
        (record_of({"gone.py": b""}, RECORD), "RECORD and the archive differ at gone.py"),
        (b"demo.py,,\n", "RECORD has no SHA-256 or stronger for demo.py"),
        (b"demo.py,md5=abc,0\n", "RECORD has no SHA-256 or stronger for demo.py"),
        (b"demo.py\n", "RECORD and the archive differ at demo.py"),
        (b"\xff", "its RECORD is not a table"),
    ],
)
def test_what_record_does_not_say_refuses(tmp_path: Path, record: bytes, line: str) -> None:
    """Another hash, an unlisted, absent, unhashed or weakly hashed member refuses; a RECORD that fits is taken."""
    bad = wheel(tmp_path, {"demo.py": b"x"}, record=record)
    assert refusal(pinned, tmp_path / "store", bad) == ("refused.layer", (f"demo-1.0-py3-none-any.whl: {line}",))
    assert pinned(tmp_path / "store", wheel(tmp_path, {"demo.py": b"x"})).modules == {"demo"}


def test_a_wheel_without_its_pin_refuses(tmp_path: Path) -> None:
    """No pin, or the pin of other bytes, refuses; its own is taken."""
    path = wheel(tmp_path, {"demo.py": b""})
    line = "demo-1.0-py3-none-any.whl: its SHA-256 is none of those pinned for it"
    for pins in ({}, {path.name: frozenset({"0" * 64})}, {"other.whl": frozenset({digest_of(path)})}):
        assert refusal(layers.add, "demo", [path], pins, tmp_path / "store", native=NativeCode.GRANTED) == ("refused.layer", (line,))
    assert pinned(tmp_path / "store", path).name == "demo"


@pytest.mark.parametrize(
    ("name", "data"),
    [("demo.so", b""), ("libx.so.1", b""), ("demo/a.cpython-311-x86_64-linux-gnu.so", b""), ("a.dll", b""), ("x.bin", b"\x7fELF")],
)
def test_native_code_needs_the_operators_grant(tmp_path: Path, name: str, data: bytes) -> None:
    """Native code, by name or by content, refuses without the grant and is marked with it."""
    path = with_member(tmp_path, info(name), data)
    line = f"{name} is native code: the operator must grant native code for this layer"
    assert refusal(pinned, tmp_path / "store", path) == ("refused.layer", (line,))
    assert pinned(tmp_path / "store", path, native=NativeCode.GRANTED).native is True


@pytest.mark.parametrize("name", ["sitecustomize.py", "usercustomize.py", "engine/__init__.py", "guest.py", "enter/x.py"])
def test_a_layer_takes_no_name_of_the_guest(tmp_path: Path, name: str) -> None:
    """A wheel that would stand in for the guest or for a start-up hook refuses; below a package the same name is fine."""
    assert refusal(pinned, tmp_path / "store", with_member(tmp_path, info(name)))[0] == "refused.layer"
    assert pinned(tmp_path / "store", with_member(tmp_path, info(f"sub/{name}"))).modules == {"demo", "sub"}


def test_a_wheel_that_is_no_file_refuses(tmp_path: Path) -> None:
    """A link or a FIFO in a wheel's place refuses without blocking."""
    path, real = tmp_path / "demo-1.0-py3-none-any.whl", tmp_path / "real"
    wheel(tmp_path, {"demo.py": b""}).rename(real)
    makers: list[Callable[[], None]] = [lambda: path.symlink_to(real), lambda: os.mkfifo(path)]
    for make in makers:
        make()
        pins = {path.name: frozenset({digest_of(real)})}
        assert refusal(layers.add, "demo", [path], pins, tmp_path / "s", native=NativeCode.REFUSED)[0] == "refused.layer"
        path.unlink()


def test_pip_gets_checked_lines_and_may_build_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip is told wheels only, hashes only, no dependencies; it reads the lines that were checked and sees no secret of ours."""
    given: dict[str, Any] = {}

    def run(command: list[str], **more: Any) -> str:
        given.update(command=command, text=Path(command[-1]).read_text(), environment=dict(more["environment"]))
        return ""

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setenv("STOCKADE_SECRET", "canary")
    (tmp_path / "requirements.txt").write_text(f"demo==1.0 --hash=sha256:{'a' * 64}  # note\n")
    assert fetch.download_wheels(tmp_path / "requirements.txt", tmp_path / "into").wheels == ()
    assert {"--require-hashes", "--no-deps", "-I"} < set(given["command"])
    assert given["command"][given["command"].index("--only-binary") + 1] == ":all:"
    assert (given["text"], given["environment"]) == (f"demo==1.0 --hash=sha256:{'a' * 64}\n", {})
