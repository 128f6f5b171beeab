"""Reads one wheel into memory and checks every byte of it; nothing is installed by anybody else.

Its job: the pin, the archive's own form, each member against RECORD, what belongs on a module path and what is dropped.
Not its job: fetching wheels (``images/fetch.py``), writing a layer (``layers.py``).
Laws:
1. Only bytes that a pin and RECORD both name come through (tests/unit/test_layers.py).
2. No member leaves the layer, none is a link, none is larger than it says (tests/security/test_layer_wheels.py).
3. What starts by itself (``.pth``, scripts, byte code) never comes through, and is named (tests/unit/test_layers.py).
"""

import base64
import csv
import dataclasses
import hashlib
import io
import os
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from engine.outcome import error_for
from engine.staging.sources import odd

_NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a")
_EXECUTABLE = b"\x7fELF"
_UNSIGNED = ("RECORD", "RECORD.jws", "RECORD.p7s")  # RECORD cannot hold its own hash
_HASHES = ("sha256", "sha384", "sha512")
_DIRECTORY_BYTES = 8 << 20  # a zip's directory, about 100 bytes a member
_END = 22  # bytes of the end record without a comment, APPNOTE 4.3.16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerBounds:
    """How much a layer may be; it is held in memory once while it is checked."""

    wheels: int = 200
    wheel_bytes: int = 256 << 20
    members: int = 20_000
    member_bytes: int = 128 << 20
    total_bytes: int = 512 << 20
    depth: int = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wheel:
    """One checked wheel: what goes below ``site``, what was dropped, which files are native code."""

    file: str
    sha256: str
    python: str
    files: Mapping[str, bytes] = dataclasses.field(repr=False)
    dropped: tuple[str, ...]
    native: tuple[str, ...]


def read_wheel(path: Path, allowed: frozenset[str], bounds: LayerBounds) -> Wheel:
    """The wheel, checked. Raises refused.layer with the member and the reason."""
    python, stem = _named(path.name)
    content = _content(path, bounds)
    sha256 = hashlib.sha256(content).hexdigest()
    # security: without the pin whoever holds the index or the network chooses what tools run
    if sha256 not in allowed:
        _refuse(path.name, "its SHA-256 is none of those pinned for it")
    try:
        members = _members(path.name, content, bounds)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error, OSError):
        _refuse(path.name, "it is not a sound zip archive")
    _check_record(path.name, members)
    files: dict[str, bytes] = {}
    dropped: list[str] = []
    for name, data in members.items():
        place = _place(path.name, name, stem)
        if place is None:
            dropped.append(name)
        elif place in files:
            _refuse(path.name, f"{place} is in it twice")
        else:
            files[place] = data
    native = tuple(sorted(place for place, data in files.items() if is_native(place) or data.startswith(_EXECUTABLE)))
    return Wheel(file=path.name, sha256=sha256, python=python, files=files, dropped=tuple(sorted(dropped)), native=native)


def is_native(path: str) -> bool:
    """Whether a file's name says that it is native code."""
    name = path.rpartition("/")[2].lower()
    return name.endswith(_NATIVE) or ".so." in name


def _refuse(wheel: str, why: str) -> NoReturn:
    raise error_for("refused.layer", f"{wheel}: {why}")


def _named(file: str) -> tuple[str, str]:
    """The python tag of the wheel for this machine, and the ``name-version`` its folders begin with."""
    try:
        tags = parse_wheel_filename(file)[3]
    except InvalidWheelFilename:
        _refuse(file, "its name is not that of a wheel")
    fitting = sorted({python for tag in tags if (python := _python(tag)) is not None}, key=lambda python: (python != "py3", python))
    if not fitting:
        _refuse(file, "it is built for another Python or another machine")
    return fitting[0], "-".join(file.split("-")[:2])


def _python(tag: Tag) -> str | None:
    """``py3``, ``cp311`` for just that version, ``cp38+`` for that and later ones; None when it cannot run here."""
    plain = tag.platform == "any"
    if not plain and not (
        tag.platform.startswith(("linux_", "manylinux", "musllinux")) and tag.platform.endswith("_" + os.uname().machine)
    ):
        return None
    if tag.interpreter.startswith("py3") and tag.abi == "none":
        return "py3"
    if not tag.interpreter.startswith("cp3"):
        return None
    return f"{tag.interpreter}+" if tag.abi == "abi3" else tag.interpreter


def _content(path: Path, bounds: LayerBounds) -> bytes:
    """The whole file, read once: what is hashed is what is unpacked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                _refuse(path.name, "it is not a regular file")
            content = file.read(bounds.wheel_bytes + 1)
    except OSError as error:
        _refuse(path.name, f"it cannot be read: {error.strerror}")
    if len(content) > bounds.wheel_bytes:
        _refuse(path.name, f"it is larger than {bounds.wheel_bytes} bytes")
    return content


def _members(wheel: str, content: bytes, bounds: LayerBounds) -> dict[str, bytes]:
    end = content[-_END:]
    # security: a comment or a second, 64-bit end record lets two readers see two archives; a huge directory fills memory
    if len(end) < _END or end[:4] != b"PK\x05\x06" or end[-2:] != b"\0\0" or content[-_END - 20 : -_END - 16] == b"PK\x06\x07":
        _refuse(wheel, "it is not a plain zip archive without comment")
    if struct.unpack("<L", end[12:16])[0] > _DIRECTORY_BYTES:
        _refuse(wheel, "its directory is too large")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        rows = archive.infolist()
        if len(rows) > bounds.members:
            _refuse(wheel, f"it has more than {bounds.members} members")
        for row in rows:
            _check_member(wheel, row, bounds)
        if sum(row.file_size for row in rows) > bounds.total_bytes:
            _refuse(wheel, f"it unpacks to more than {bounds.total_bytes} bytes")
        _check_names(wheel, [row.filename.rstrip("/") for row in rows])
        return {row.filename: _unpacked(wheel, archive, row) for row in rows if not row.is_dir()}


def _check_member(wheel: str, row: zipfile.ZipInfo, bounds: LayerBounds) -> None:
    parts = row.filename.removesuffix("/").split("/")
    if row.orig_filename != row.filename or len(parts) > bounds.depth or any(odd(part) for part in parts):
        _refuse(wheel, f"member {row.orig_filename!r} has an odd name")
    if stat.S_IFMT(row.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        _refuse(wheel, f"{row.filename} is a link or a special file")
    if row.flag_bits & 0x1 or row.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        _refuse(wheel, f"{row.filename} is encrypted or packed in a way that wheels are not")
    if row.file_size > bounds.member_bytes:
        _refuse(wheel, f"{row.filename} unpacks to more than {bounds.member_bytes} bytes")


def _check_names(wheel: str, names: Sequence[str]) -> None:
    folded = [unicodedata.normalize("NFKC", name).casefold() for name in names]
    if len(set(folded)) != len(folded):
        _refuse(wheel, "two members have one name, or names alike")


def _unpacked(wheel: str, archive: zipfile.ZipFile, row: zipfile.ZipInfo) -> bytes:
    with archive.open(row) as member:
        data = member.read(row.file_size + 1)  # one more, so that the end and with it the check sum is reached
    if len(data) != row.file_size:
        _refuse(wheel, f"{row.filename} is not as long as it says")
    return data


def _check_record(wheel: str, members: Mapping[str, bytes]) -> None:
    records = [name for name in members if name.endswith(".dist-info/RECORD") and name.count("/") == 1]
    if len(records) != 1:
        _refuse(wheel, "it must hold one .dist-info/RECORD")
    folder = records[0].removesuffix("RECORD")
    unsigned = {folder + name for name in _UNSIGNED}
    try:
        rows = list(csv.reader(io.StringIO(members[records[0]].decode("utf-8"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        _refuse(wheel, "its RECORD is not a table")
    listed: set[str] = set()
    for row in rows:
        if len(row) != 3 or row[0] in listed or row[0] not in members:
            _refuse(wheel, f"RECORD and the archive differ at {row[0] if row else 'an empty row'}")
        listed.add(row[0])
        if row[0] not in unsigned:
            _check_row(wheel, row, members[row[0]])
    missing = set(members) - listed - unsigned
    if missing:
        _refuse(wheel, f"{min(missing)} is not in RECORD")


def _check_row(wheel: str, row: list[str], data: bytes) -> None:
    kind, _, value = row[1].partition("=")
    if kind not in _HASHES:
        _refuse(wheel, f"RECORD has no SHA-256 or stronger for {row[0]}")
    found = base64.urlsafe_b64encode(hashlib.new(kind, data).digest()).rstrip(b"=").decode()
    if found != value.rstrip("=") or row[2] != str(len(data)):
        _refuse(wheel, f"{row[0]} is not what RECORD says")


def _place(wheel: str, name: str, stem: str) -> str | None:
    """Where a member goes below ``site``; None for what a layer does not carry."""
    parts = name.split("/")
    if parts[0].endswith(".data") and len(parts) > 1:
        if parts[0] != f"{stem}.data":
            _refuse(wheel, f"{parts[0]}/ is not its own data folder")
        if parts[1] not in ("purelib", "platlib") or len(parts) < 3:
            return None  # scripts, headers and data have no place on a module path
        parts = parts[2:]
    # security: .pth lines and byte code run, or replace what was read, without being imported by name
    if parts[-1].lower().endswith((".pth", "._pth", ".pyc", ".pyo", ".egg-link")) or "__pycache__" in parts:
        return None
    return "/".join(parts)
