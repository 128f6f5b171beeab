"""Dependencies of tools as read-only folders, made out of pinned wheels by our own hands.

Its job: add, list, find, verify and remove layers in one store: ``sha256/aa/<digest>/{site/..., manifest.json}``.
Not its job: fetching wheels (``images/fetch.py``), checking one (``wheels.py``), granting a layer to a tool (``policy``).
Laws:
1. A layer is named by the digest of its content; a name points to the newest one of that name (tests/unit/test_layers.py).
2. Native code gets in only where the operator granted it (tests/security/test_layer_wheels.py).
3. ``verify`` hashes every file again (tests/unit/test_layers.py).
"""

import contextlib
import dataclasses
import enum
import fcntl
import json
import os
import re
import secrets
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from engine.outcome import error_for
from engine.staging import sealed
from engine.staging.wheels import LayerBounds, Wheel, is_native, read_wheel

_FORMAT = 1
SITE = "site"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_EXACT = re.compile(r"cp3[0-9]+")
DEFAULT_BOUNDS = LayerBounds()
# security: the first three would stand in for the guest, the next two run before the tool's jail is shut
RESERVED = frozenset({"engine", "guest", "enter", "sitecustomize", "usercustomize", "__main__"})


class NativeCode(enum.Enum):
    """Whether a layer may hold native code. It runs in the jail with all that the jail allows, unread by anybody."""

    REFUSED = "refused"
    GRANTED = "granted"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """One installed layer. ``python`` is ``py3``, ``cp311`` for just that version, or ``cp38+`` for that and later ones."""

    name: str
    digest: str
    path: Path
    modules: frozenset[str]
    native: bool
    python: str
    wheels: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def site(self) -> Path:
        """The folder that goes onto the guest's module path."""
        return self.path / SITE


def add(
    name: str,
    wheels: Sequence[Path],
    pins: Mapping[str, frozenset[str]],
    store: Path,
    *,
    native: NativeCode,
    reserved: frozenset[str] = RESERVED,
    bounds: LayerBounds = DEFAULT_BOUNDS,
) -> Layer:
    """Make a layer out of wheels and let the name point to it. ``pins`` allows SHA-256 digests by file name. Raises refused.layer."""
    _check_name(name)
    if not 0 < len(wheels) <= bounds.wheels:
        raise error_for("refused.layer", f"a layer takes 1 to {bounds.wheels} wheels, not {len(wheels)}")
    read: list[Wheel] = []
    for path in sorted(wheels):
        read.append(read_wheel(path, pins.get(path.name, frozenset()), bounds))
        # security: each wheel within its bound may still sum up to all of memory
        if sum(len(data) for wheel in read for data in wheel.files.values()) > bounds.total_bytes:
            raise error_for("refused.layer", f"the wheels unpack to more than {bounds.total_bytes} bytes")
    files = _merged(read)
    code = sorted(path for wheel in read for path in wheel.native)
    if code and native is not NativeCode.GRANTED:
        raise error_for("refused.layer", f"{code[0]} is native code: the operator must grant native code for this layer")
    modules = modules_of(files)
    if taken := sorted(modules & (reserved | RESERVED)):
        raise error_for("refused.layer", f"{taken[0]} is a name of the guest's: a layer may not hold it")
    manifest = {
        "kind": "layer",
        "format": _FORMAT,
        "modules": sorted(modules),
        "native": bool(code),
        "python": _python([wheel.python for wheel in read]),
        "wheels": {wheel.file: wheel.sha256 for wheel in read},
        "dropped": sorted(f"{wheel.file}: {dropped}" for wheel in read for dropped in wheel.dropped),
    }
    with _locked(store):
        try:
            found = sealed.publish(store, SITE, files, manifest)
        except sealed.Damaged as damage:
            raise error_for("refused.layer", f"{damage}: remove that folder and add the layer again") from None
        _point(store, name, [found.digest, *(old for old in _digests(store, name) if old != found.digest)])
    return _layer(name, found)


def list_layers(store: Path) -> tuple[Layer, ...]:
    """The newest layer of each name, by name."""
    folder = store / "names"
    names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    return tuple(find(name, store) for name in names)


def find(name: str, store: Path) -> Layer:
    """The newest layer of that name; its manifest is checked, its files are not. Raises refused.layer."""
    _check_name(name)
    digests = _digests(store, name)
    if not digests:
        raise error_for("refused.layer", f"there is no layer {name}: add it with `stockade layer add`")
    try:
        return _layer(name, sealed.manifest_of(store, digests[0]))
    except (sealed.Damaged, ValueError) as damage:
        raise error_for("refused.layer", f"layer {name}: {damage}: add it again") from None


def check_python(layer: Layer, python: str) -> None:
    """Raises refused.layer when the layer is built for another version than this one, such as ``3.12.1``."""
    here = int(python.split(".")[1])
    exact, least = layer.python == f"cp3{here}", layer.python.endswith("+") and int(layer.python[3:-1]) <= here
    if layer.python != "py3" and not exact and not least:
        remedy = "add it with this Python, under a name of its own"
        raise error_for("refused.layer", f"layer {layer.name} is built for {layer.python}, the worker has Python {python}: {remedy}")


def verify(layer: Layer, store: Path) -> None:
    """Hash every file again. Raises refused.layer when one is missing, added, changed or writable."""
    try:
        sealed.opened(store, layer.digest, SITE)
    except (sealed.Damaged, ValueError) as damage:
        raise error_for("refused.layer", f"layer {layer.name}: {damage}: remove it and add it again") from None


def remove(name: str, store: Path) -> None:
    """Forget the name, and remove its content where no other name has it. Raises refused.layer when there is none."""
    _check_name(name)
    with _locked(store):
        digests = _digests(store, name)
        if not digests:
            raise error_for("refused.layer", f"there is no layer {name}")
        (store / "names" / name).unlink()
        kept = {digest for path in (store / "names").iterdir() if _NAME.fullmatch(path.name) for digest in _digests(store, path.name)}
        for digest in set(digests) - kept:
            sealed.discard(sealed.folder_of(store, digest))


def modules_of(files: Mapping[str, bytes]) -> frozenset[str]:
    """The top-level names that can be imported from these files."""
    tops: set[str] = set()
    for path in files:
        first, _, rest = path.partition("/")
        if path.endswith(".py") or is_native(path):
            top = first if rest else first.partition(".")[0]
            if top.isidentifier():
                tops.add(top)
    return frozenset(tops)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise error_for("refused.layer", f"{name!r} is no layer name: a-z first, then a-z, 0-9 and -, 64 at most")


def _merged(wheels: Sequence[Wheel]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    spelled: dict[str, str] = {}
    for wheel in wheels:
        for path, data in wheel.files.items():
            parts = path.split("/")
            for count in range(1, len(parts) + 1):
                part = "/".join(parts[:count])
                folded = unicodedata.normalize("NFKC", part).casefold()
                if spelled.setdefault(folded, part) != part:
                    raise error_for(
                        "refused.layer", f"{wheel.file}: {part} and {spelled[folded]} differ only in case or look-alike letters"
                    )
            if files.setdefault(path, data) != data:
                raise error_for("refused.layer", f"{wheel.file}: another wheel has a different {path}")
    folders = {path.rsplit("/", count)[0] for path in files for count in range(1, path.count("/") + 1)}
    if clash := sorted(folders & set(files)):
        raise error_for("refused.layer", f"{clash[0]} is a file in one place and a folder in another")
    return files


def _python(tags: Sequence[str]) -> str:
    exact = sorted({tag for tag in tags if _EXACT.fullmatch(tag)})
    least = max((int(tag[3:-1]) for tag in tags if tag.endswith("+")), default=None)
    if len(exact) > 1 or (exact and least is not None and int(exact[0][3:]) < least):
        raise error_for("refused.layer", f"the wheels are built for different Pythons: {', '.join(sorted(set(tags)))}")
    return exact[0] if exact else "py3" if least is None else f"cp3{least}+"


def _layer(name: str, found: sealed.Sealed) -> Layer:
    written = found.manifest
    if written.get("kind") != "layer" or written.get("format") != _FORMAT:
        raise sealed.Damaged(f"{found.digest} is no layer of this version")
    return Layer(
        name=name,
        digest=found.digest,
        path=found.path,
        modules=frozenset(written["modules"]),
        native=written["native"],
        python=written["python"],
        wheels=tuple(sorted(written["wheels"])),
        dropped=tuple(written["dropped"]),
    )


@contextlib.contextmanager
def _locked(store: Path) -> Iterator[None]:
    """One writer of names at a time."""
    sealed.own_folder(store)
    sealed.own_folder(store / "names")
    descriptor = os.open(store / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _digests(store: Path, name: str) -> list[str]:
    """What the name pointed to, newest first."""
    try:
        digests = json.loads((store / "names" / name).read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        raise error_for("refused.layer", f"the record of layer {name} cannot be read: remove it and add the layer again") from None
    if not isinstance(digests, list) or not all(isinstance(digest, str) for digest in digests):
        raise error_for("refused.layer", f"the record of layer {name} is damaged: remove it and add the layer again")
    return digests


def _point(store: Path, name: str, digests: list[str]) -> None:
    temporary = store / "names" / f".tmp-{secrets.token_hex(8)}"
    with open(temporary, "x") as file:
        file.write(json.dumps(digests))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, store / "names" / name)
