"""The engine's folders, and the names of what it ships.

Its job: the state folder (the user's, the one given, or a private temporary one) with its parts; the image's digest.
Not its job: what is kept in the parts (``staging``, ``results``).
Laws:
1. A state folder is ours alone: owned by this user, closed to others, no link (tests/unit/test_state.py).
2. Several engines may use one folder at once (tests/e2e/test_two_engines.py).
3. What a killed engine left is removed by the next one that finds nobody using it (tests/unit/test_state.py).
"""

import dataclasses
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import platformdirs

from engine.errors import HostError
from engine.jail.facts import HostFacts
from engine.jail.plan import Places
from engine.places import data_dir
from engine.staging import sealed

_PREFIX = "stockade-"
_NEW_SECONDS = 60.0  # between making a temporary folder and locking it lie microseconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stores:
    """Where sources and layers are kept, and the engine's own policies."""

    stage: Path
    layers: Path
    policies: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Folders of one engine. An ephemeral one is removed by ``close``."""

    folder: Path
    ephemeral: bool
    stores: Stores
    places: Places
    lock: int = dataclasses.field(compare=False)  # shared, on the folder: who finds it free knows that no engine uses it (flock(2))

    def close(self) -> None:
        """Remove what was only for this engine."""
        try:
            if self.ephemeral:
                _remove(self.folder)
        finally:
            os.close(self.lock)


def open_state(wanted: Path | None, policies: Path) -> State:
    """The state folder with its parts. Raises HostError ``refused.storage`` when the one asked for cannot be used."""
    if wanted is not None:
        problem = _claim(wanted)
        if problem is not None:
            raise HostError("refused.storage", f"the state folder cannot be used: {problem}")
        return _state(wanted.resolve(), policies, ephemeral=False)
    usual, home = Path(platformdirs.user_state_path("stockade")), Path(os.path.expanduser("~"))
    # a user without a home has a relative folder, or one in a home that is not there: root could make it, but it is not ours to make
    homeless = not usual.is_absolute() or (usual.is_relative_to(home) and not home.is_dir())
    if not homeless and _claim(usual) is None:
        return _state(usual.resolve(), policies, ephemeral=False)
    _sweep_temporary(Path(tempfile.gettempdir()))
    try:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise HostError("refused.storage", f"no temporary state folder: {error.strerror}: give state_dir, or set TMPDIR") from None
    return _state(made, policies, ephemeral=True)


def image_digest(facts: HostFacts) -> str:
    """Names the native image: the guest's and the launcher's program, the carried authoring files, the interpreter's version."""
    engine, images = Path(__file__).resolve().parent, data_dir("worker_images")
    files = [file for part in ("enter", "guest", "rehearsal") for file in (images / part).glob("*.py")]
    files += [*(engine / "authoring").glob("*.py"), engine / "__init__.py", engine / "errors.py"]
    total = hashlib.sha256(f"native {facts.python} {facts.machine}".encode())
    for file in sorted(files):
        total.update(f"\n{file.parent.name}/{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return f"sha256:{total.hexdigest()}"


def _state(folder: Path, policies: Path, *, ephemeral: bool) -> State:
    mountpoint, empty, scratch = folder / "root", folder / "empty", folder / "scratch"
    for part, mode in ((scratch, 0o700), (mountpoint, 0o700), (empty, 0o555), (folder / "journal", 0o700)):
        _part(part, mode)
    lock = _locked(folder, scratch)
    engine = Path(__file__).resolve().parent
    places = Places(engine=engine, mountpoint=mountpoint, empty=empty, syscalls=policies / "syscalls", scratch=scratch)
    stores = Stores(stage=folder / "stage", layers=folder / "layers", policies=policies)
    return State(folder=folder, ephemeral=ephemeral, stores=stores, places=places, lock=lock)


def _locked(folder: Path, scratch: Path) -> int:
    """The lock of an engine on its folder. One that finds it free first removes what killed engines left in scratch."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in scratch.iterdir():
            _remove(left)
        for store in ("stage", "layers"):
            sealed.sweep(folder / store)
    except OSError:
        pass  # another engine uses it, or what was left cannot be removed: neither keeps this one from working
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _sweep_temporary(parent: Path) -> None:
    """Remove the temporary state folders of engines that were killed: ours, and locked by nobody."""
    for left in parent.glob(f"{_PREFIX}*"):
        try:
            if left.lstat().st_uid != os.geteuid() or time.time() - left.lstat().st_mtime < _NEW_SECONDS:
                continue  # somebody else's, or one that is just being made and not locked yet
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
        except OSError:
            continue
        finally:
            os.close(lock)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, onerror=_open_and_retry)


def _claim(folder: Path) -> str | None:
    """Make the folder ours, or say why it is not."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        # security: in a shared folder somebody else may have made it first, and would then own what we run
        if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.geteuid():
            return "it is a link, no folder, or belongs to another user"
        # security: what others could write, they may have filled already
        if found.st_mode & 0o022:
            return "others may write to it: look through it and chmod 700, or choose another"
        if found.st_mode & 0o055:
            folder.chmod(0o700)
        return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"
    except OSError as error:
        return error.strerror or type(error).__name__


def _part(folder: Path, mode: int) -> None:
    """One folder in the state folder. Raises HostError when a link or a file lies there, or somebody else's."""
    try:
        folder.mkdir(mode=mode, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise HostError("refused.storage", f"the state folder cannot be used: {folder.name}: {error.strerror}") from None
    # security: the journal or a mount would go wherever a link leads
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise HostError("refused.storage", f"the state folder cannot be used: {folder.name} is no folder of this user: remove it")


def _open_and_retry(remove: object, path: str, _: object) -> None:
    """Published files are read-only, and so are their folders: open those, then remove once more."""
    parent = os.path.dirname(path)
    os.chmod(parent, 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)
