"""Images as single files, to bring them where nothing can be fetched: a tar with the manifest first, then the component.

Its job: writing such a file, and reading one that anybody may have made.
Not its job: whether an image that was brought may run (``pins.py``); native code in the file: there is none, and none would be read.
Laws:
1. A file that is not byte for byte as we write one refuses: no links, no paths, no other members (tests/security/test_image_archives.py).
2. An image appears when its digest was checked and it could be compiled here, and not before (tests/security/test_image_archives.py).
3. What is read is bounded before it is read (tests/security/test_image_archives.py).
"""

import contextlib
import hashlib
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import IO, NoReturn

from engine.images import cache, compiling
from engine.images.build import MAGIC, sound
from engine.images.cache import COMPONENT, MANIFEST, Cache, Checked, Damaged, Entry
from engine.images.manifest import COMPONENT_BYTES, MANIFEST_BYTES, Manifest, Unsound, parse
from engine.images.telling import Told
from engine.outcome import error_for

_BLOCK = 512  # tar(5)
_END = b"\0" * (2 * _BLOCK)
_CHUNK = 1 << 20
_SIZE = slice(124, 136)  # where a member's header has its size, octal


def export(entry: Entry, to: Path) -> int:
    """Write the image to a file that is not there yet; gives its size. Raises refused.storage, refused.image_corrupt.

    The caller hands over none that was made for one source: none would be brought in.
    """
    manifest = entry.manifest.bytes()
    try:
        descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise error_for("refused.storage", f"{to} cannot be written: {error.strerror}") from None
    try:
        with open(descriptor, "wb") as file, contextlib.closing(Checked(entry.path / COMPONENT)) as component:
            component.check(entry.manifest.component)
            _write(file, MANIFEST, io.BytesIO(manifest), len(manifest))
            with open(component.descriptor, "rb", closefd=False) as source:
                _write(file, COMPONENT, source, component.size)
            file.write(_END)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
    except BaseException as error:
        to.unlink(missing_ok=True)
        if isinstance(error, Damaged):
            raise error_for("refused.image_corrupt", str(error)) from None
        if isinstance(error, OSError):
            raise error_for("refused.storage", f"{to} cannot be written: {error.strerror}") from None
        raise


def bring(file: Path, into: Cache, worker_images: Path, told: Told) -> Entry:
    """The image out of the file, in the cache, compiled for this machine. The caller is the cache's writer.

    Raises refused.image_corrupt for what is no such file, refused.request where another image of that recipe is there,
    refused.image_build for what cannot be compiled.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise error_for("refused.request", f"{file} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error_for("refused.request", f"{file} is not a regular file")
    with open(descriptor, "rb") as source:
        told.step(f"reading {file.name}")
        manifest = _manifest(source)
        # security: only what was made here stands for a source that was checked here; the bytes of such an image can say anything
        if manifest.published is not None:
            raise error_for("refused.request", f"{file} holds the image of one source: it is made where it runs, `stockade image publish`")
        there = _there(into, manifest)
        if there is not None:
            compiling.compile_here(there, worker_images, told)
            return there
        with cache.making(into.images) as work:
            made = work / "made"
            made.mkdir(mode=0o700)
            _component(source, manifest, made / COMPONENT, told)
            cache.write_record(made, manifest, built_here=False)
            # security: before it is in its place, where junk would stand in the way of what is built here
            compiling.compile_here(Entry(path=made, manifest=manifest, built_here=False, since=0), worker_images, told)
            cache.put(made, into.place(manifest.recipe))
    return cache.entry(into, manifest.recipe)


def _there(into: Cache, manifest: Manifest) -> Entry | None:
    """The same image, where it is here already and sound."""
    try:
        there = sound(into, manifest.recipe)
    except (FileNotFoundError, Damaged):
        return None
    if there.manifest.bytes() == manifest.bytes():
        return there
    # security: bytes from elsewhere never take the place of what was built here
    text = f"another image of the recipe {manifest.recipe} is here, {there.component}: `stockade image prune --all` removes it"
    raise error_for("refused.request", text)


def _write(file: IO[bytes], name: str, source: IO[bytes], size: int) -> None:
    file.write(_header(name, size))
    left = size
    while left and (data := source.read(min(left, _CHUNK))):
        file.write(data)
        left -= len(data)
    file.write(b"\0" * (-size % _BLOCK))


def _header(name: str, size: int) -> bytes:
    """The one header that a member of that name and size has here: nobody's, of no date."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member.tobuf(tarfile.USTAR_FORMAT)


def _begin(source: IO[bytes], name: str, most: int) -> int:
    """The size of the member that begins here, which must be this one."""
    header = source.read(_BLOCK)
    try:
        size = int(header[_SIZE].rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        _refuse(f"{name} is not where it should be")
    # security: a header that is exactly ours names no other place, is no link and carries nothing for a lenient reader
    if not 0 < size <= most or header != _header(name, size):
        _refuse(f"{name} is not where it should be, or larger than {most} bytes")
    return size


def _manifest(source: IO[bytes]) -> Manifest:
    size = _begin(source, MANIFEST, MANIFEST_BYTES)
    written = source.read(size)
    if len(written) != size or source.read(-size % _BLOCK).strip(b"\0"):
        _refuse(f"{MANIFEST} is cut short")
    try:
        return parse(written)
    except Unsound as unsound:
        _refuse(f"{MANIFEST}: {unsound}")


def _component(source: IO[bytes], manifest: Manifest, to: Path, told: Told) -> None:
    size = _begin(source, COMPONENT, COMPONENT_BYTES)
    if size != manifest.component.size:
        _refuse(f"{COMPONENT} has {size} bytes, and the manifest says {manifest.component.size}")
    total, left = hashlib.sha256(), size
    with open(to, "x+b") as file:
        while left and (data := source.read(min(left, _CHUNK))):
            total.update(data)
            file.write(data)
            left -= len(data)
            told.tick()
        file.seek(0)
        magic = file.read(len(MAGIC))
    rest = source.read(-size % _BLOCK + len(_END) + 1)
    if left or len(rest) != -size % _BLOCK + len(_END) or rest.strip(b"\0"):
        _refuse("it is cut short, or goes on after its end")
    if total.hexdigest() != manifest.component.sha256:
        _refuse(f"{COMPONENT} is not what the manifest says")
    if magic != MAGIC:  # the compiler takes text as well, which no builder makes
        _refuse(f"{COMPONENT} is no component")


def _refuse(why: str) -> NoReturn:
    raise error_for("refused.image_corrupt", f"the file is no exported image: {why}")
