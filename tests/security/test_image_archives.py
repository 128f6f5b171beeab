"""A file that says it is an image, made by anybody: nothing of it appears unless all of it is right."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.images import archive, compiling
from engine.images.build import sound
from engine.images.manifest import parse
from tests import images
from tests.images import Heard, Tiny, tiny
from tests.staged import refusal

BLOCK = 512


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An exported image."""
    images.without_installing(monkeypatch)
    archive.export(tiny(tmp_path / "there").build(), tmp_path / "sent")
    return (tmp_path / "sent").read_bytes()


@pytest.fixture
def here(tmp_path: Path) -> Tiny:
    """A machine without it."""
    return tiny(tmp_path / "here")


def bring(here: Tiny, data: bytes) -> str:
    """Take it; gives the digest of its bytes."""
    path = here.shipped.policies.parent / "file"
    path.write_bytes(data)
    with here.cache.writing(lambda: None):
        return archive.bring(path, here.cache, here.shipped.worker_images, Heard()).component


def test_a_sound_file_is_taken(here: Tiny, sent: bytes) -> None:
    """The control of all that follows: byte for byte what was exported, and compiled by this machine's compiler."""
    assert bring(here, sent) == images.digest(images.COMPONENT)
    found = sound(here.cache, here.recipe.digest)
    key = compiling.key_of(found, here.shipped.worker_images)
    assert (found.built_here, list(found.path.glob("compiled/*"))) == (False, [compiling.folder_of(found, key)])
    assert bring(here, sent) == images.digest(images.COMPONENT)  # once more: it is there


def test_what_cannot_be_compiled_is_not_kept(here: Tiny, sent: bytes) -> None:
    """It would stand where the image is built; the control: the same file, where it can be."""
    here.write("worker_images/wasm/compile.py", "import sys\nsys.exit('no')\n")
    assert (refusal(bring, here, sent)[0], here.left()) == ("refused.image_build", [])
    here.write("worker_images/wasm/compile.py", images.COMPILE)
    assert bring(here, sent)


def test_text_is_no_component(here: Tiny, sent: bytes) -> None:
    """The compiler would take it: it is refused before that one sees it."""
    manifest, text = archive_manifest(sent), b"(component)"
    for old, new in ((images.digest(images.COMPONENT)[7:], images.digest(text)[7:]), ('"size":8', f'"size":{len(text)}')):
        manifest = manifest.replace(old.encode(), new.encode())
    code, (line,) = refusal(bring, here, packed(manifest, text))
    assert (code, "is no component" in line, here.left()) == ("refused.image_corrupt", True, [])


def packed(manifest: bytes, component: bytes) -> bytes:
    """A file as it would be exported."""
    out = io.BytesIO()
    for name, data in (("manifest.json", manifest), ("component.wasm", component)):
        archive._write(out, name, io.BytesIO(data), len(data))
    return out.getvalue() + b"\0" * 1024


def test_the_file_is_an_ordinary_tar(sent: bytes) -> None:
    """Anybody can look into it: the manifest first."""
    with tarfile.open(fileobj=io.BytesIO(sent)) as file:
        assert file.getnames() == ["manifest.json", "component.wasm"]
        member = file.extractfile("manifest.json")
        assert member is not None
        assert parse(member.read()).name == "tiny"


def remade(sent: bytes, change: Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]], format: int) -> bytes:
    """The same file, each member changed, written by Python's own tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(sent)) as old, tarfile.open(fileobj=out, mode="w", format=format) as new:
        for member in old:
            source = old.extractfile(member)
            for info, data in change(member, source.read() if source else b""):
                info.size = len(data) if info.isreg() else 0
                new.addfile(info, io.BytesIO(data))
    return out.getvalue()


def named(name: str) -> Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]:
    """The component under another name."""
    return lambda member, data: [(member.replace(name=name) if member.name == "component.wasm" else member, data)]


def linked(kind: bytes) -> Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]:
    """The component as a link or a special file."""

    def change(member: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if member.name == "component.wasm":
            member.type, member.linkname = kind, "/etc/passwd"
        return [(member, data)]

    return change


def with_more(name: str) -> Callable[[tarfile.TarInfo, bytes], list[tuple[tarfile.TarInfo, bytes]]]:
    """Another member in front."""
    return lambda member, data: [(tarfile.TarInfo(name), b"x"), (member, data)]


CHANGES = {
    "a path": named("../component.wasm"),
    "an absolute path": named("/tmp/component.wasm"),
    "another name": named("code"),
    "a hard link": linked(tarfile.LNKTYPE),
    "a symbolic link": linked(tarfile.SYMTYPE),
    "a device": linked(tarfile.CHRTYPE),
    "a folder": linked(tarfile.DIRTYPE),
    "compiled code in front": with_more("compiled/code"),
    "a record in front": with_more("record.json"),
    "a long name": named("x" * 300),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_another_kind_of_member_refuses(here: Tiny, sent: bytes, name: str, format: int) -> None:
    """Links, paths, further members, in each dialect; nothing appears."""
    if name == "a long name" and format == tarfile.USTAR_FORMAT:  # this dialect says it in two parts
        name = "a path"
    assert refusal(bring, here, remade(sent, CHANGES[name], format))[0] == "refused.image_corrupt"
    assert here.left() == []


def size_said(sent: bytes, size: bytes) -> bytes:
    """The component's header says another size, with a check sum that fits."""
    at = 2 * BLOCK + (len(archive_manifest(sent)) - 1) // BLOCK * BLOCK
    header = bytearray(sent[at : at + BLOCK])
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return sent[:at] + bytes(header) + sent[at + BLOCK :]


def archive_manifest(sent: bytes) -> bytes:
    """The manifest in an exported file."""
    return sent[BLOCK : BLOCK + int(sent[124:135], 8)]


@pytest.mark.parametrize("size", [b"77777777777\0", b"00000000000\0", b"00000000007\0", b"\x80" + b"\0" * 10 + b"\x08", b"-0000000008\0"])
def test_a_size_that_is_not_so_refuses(here: Tiny, sent: bytes, size: bytes) -> None:
    """Eight gigabytes, nothing, one less, the binary form, a negative one; the control: the size that is so."""
    assert bring(tiny(here.shipped.policies.parent.parent / "control"), size_said(sent, b"00000000010\0"))
    assert refusal(bring, here, size_said(sent, size))[0] == "refused.image_corrupt"
    assert here.left() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent[:-1],
        lambda sent: sent + b"\0",
        lambda sent: sent + b"x",
        lambda sent: sent[: len(sent) // 2],
        lambda sent: b"",
        lambda sent: b"\0" * 4096,
        lambda sent: b"\x1f\x8b" + sent,
        lambda sent: sent.replace(images.COMPONENT, b"\0asm\x0d\0\1\1"),
        lambda sent: sent.replace(b'"name":"tiny"', b'"name":"tony"').replace(b'"kind":"image"', b'"kind":"other"'),
        lambda sent: sent[: -3 * BLOCK] + b"x" + sent[-3 * BLOCK + 1 :],
    ],
    ids=["cut", "longer", "more", "half", "empty", "zeros", "packed", "other bytes", "another kind", "filled"],
)
def test_a_file_that_is_not_whole_refuses(here: Tiny, sent: bytes, change: Callable[[bytes], bytes]) -> None:
    """And nothing of it appears."""
    assert change(sent) != sent
    assert refusal(bring, here, change(sent))[0] == "refused.image_corrupt"
    assert here.left() == []


def test_bytes_from_elsewhere_never_take_the_place_of_what_was_built(here: Tiny, sent: bytes) -> None:
    """Another component of the same recipe: what is here stays."""
    here.builder("done()\n")
    built = here.build()
    other = images.COMPONENT + b"\0\2\1a"  # a custom section
    forged = built.manifest.bytes()
    for old, new in ((built.component[7:], images.digest(other)[7:]), ('"size":8', f'"size":{len(other)}')):
        forged = forged.replace(old.encode(), new.encode())
    code, (line,) = refusal(bring, here, packed(forged, other))
    assert (code, built.component in line) == ("refused.request", True)
    assert sound(here.cache, here.recipe.digest) == built


def test_what_is_no_file_refuses(here: Tiny, tmp_path: Path) -> None:
    """A folder, a pipe that would never end, nothing."""
    os.mkfifo(tmp_path / "fifo")
    for name in (".", "fifo", "none"):
        with here.cache.writing(lambda: None):
            assert refusal(archive.bring, tmp_path / name, here.cache, here.shipped.worker_images, Heard())[0] == "refused.request"


def test_an_export_replaces_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it follow a link; and a damaged image is not exported, nor half of it left."""
    images.without_installing(monkeypatch)
    entry = tiny(tmp_path / "there").build()
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "link").symlink_to("gone")
    assert [refusal(archive.export, entry, tmp_path / name)[0] for name in ("kept", "link")] == ["refused.storage"] * 2
    images.spoil(entry.path / "component.wasm")
    assert refusal(archive.export, entry, tmp_path / "new")[0] == "refused.image_corrupt"
    assert (sorted(path.name for path in tmp_path.iterdir()), (tmp_path / "kept").read_text()) == (["kept", "link", "there"], "kept")
