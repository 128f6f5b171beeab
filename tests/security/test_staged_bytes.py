"""The bytes that run are the bytes that were staged: changes while staging, in the stage, and of the stage itself refuse."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError
from engine.staging.bundle import open_bundle, publish
from engine.staging.sources import GraphBounds, Tree
from tests.staged import close, digest_of, parsed, refusal, staged, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def in_place_of(path: Path, make: Callable[[Path], None]) -> None:
    """Something else under the name of a file."""
    path.unlink()
    make(path)


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda root: (root / "a.py").write_text("x = 2"), True),
        (lambda root: (root / "tool.py").write_text("import a  # more"), True),
        (lambda root: (root / "a.py").unlink(), True),
        (lambda root: os.replace(write(root, {"n": "x = 1"}) / "n", root / "a.py"), True),
        (lambda root: in_place_of(root / "a.py", lambda path: path.symlink_to("tool.py")), True),
        (lambda root: (root / "other.py").write_text("x = 2"), False),
    ],
    ids=["content", "entry", "gone", "replaced by equal bytes", "link", "a stranger"],
)
def test_a_file_that_changes_while_it_is_staged_refuses(root: Path, change: Callable[[Path], object], refused: bool) -> None:
    """A change of a file that was read already, while the next one is parsed, refuses; a change of another file does not."""
    write(root, {"tool.py": "import a", "a.py": "import b", "b.py": ""})

    async def parse(source: bytes, name: str) -> Any:
        if name == "b.py":
            change(root)
        return await parsed(source, name)

    if refused:
        assert refusal(close, root / "tool.py", parser=parse)[0] == "refused.source_changed"
    else:
        assert len(close(root / "tool.py", parser=parse).files) == 3


def test_a_file_that_grows_while_it_is_read_refuses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes written between opening and the last read refuse; read again in peace they are taken."""
    write(root, {"a.py": "x = 1"})
    real = os.fstat

    def growing(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        with (root / "a.py").open("a") as file:
            file.write("#")
        return found

    with Tree(root, GraphBounds()) as tree:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", growing)
            assert refusal(tree.read, "a.py", 100) == ("refused.source_changed", ("a.py changed while it was staged",))
        assert tree.read("a.py", 100).startswith(b"x = 1#")


def test_a_writer_loop_never_splits_digest_and_bytes(root: Path, tmp_path: Path) -> None:
    """Against a writer that swaps a module all the time, each try refuses or publishes bytes that are one version and match the digest."""
    versions = [b"version = 1 # " + b"a" * 5000, b"version = 2 # " + b"b" * 9000]
    write(root, {"tool.py": "import a", "a.py": versions[0]})
    stop, swaps = threading.Event(), 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            (root / "new").write_bytes(versions[swaps % 2])
            os.replace(root / "new", root / "a.py")
            swaps += 1

    writer = threading.Thread(target=swap)
    writer.start()
    published = refusals = 0
    try:
        while published + refusals < 200 or swaps < 200:
            try:
                made = publish(close(root / "tool.py"), tmp_path / "stage")
            except EngineError as error:
                refusals += error.code == "refused.source_changed"
                continue
            published += 1
            assert (made.source / "a.py").read_bytes() in versions
            assert digest_of(made.source / "a.py") == made.files["a.py"]
    finally:
        stop.set()
        writer.join()
    assert published + refusals >= 200


def test_another_content_is_another_bundle(root: Path, tmp_path: Path) -> None:
    """After an edit the source has another digest and the older bundle is as it was."""
    first = publish(staged(root, {"tool.py": "x = 1"}), tmp_path / "stage")
    second = publish(staged(root, {"tool.py": "x = 2"}), tmp_path / "stage")
    assert first.digest != second.digest
    assert ((first.source / "tool.py").read_text(), (second.source / "tool.py").read_text()) == ("x = 1", "x = 2")
    assert open_bundle(first.digest, tmp_path / "stage") == first


TAMPER: dict[str, Callable[[Path], object]] = {
    "content": lambda source: (source / "a.py").write_text("evil"),
    "added": lambda source: (source / "json.py").touch(0o444),
    "missing": lambda source: (source / "a.py").unlink(),
    "link": lambda source: in_place_of(source / "a.py", lambda path: path.symlink_to("tool.py")),
    "fifo": lambda source: in_place_of(source / "a.py", lambda path: os.mkfifo(path)),
    "folder": lambda source: (source / "more").mkdir(0o755),
    "writable": lambda source: (source / "a.py").chmod(0o644),
    "manifest": lambda source: (source.parent / "manifest.json").write_text("{}"),
}


@pytest.mark.parametrize("how", TAMPER)
def test_a_bundle_that_was_changed_is_not_used(root: Path, tmp_path: Path, how: str) -> None:
    """Opening, and publishing over it, refuse a bundle with any change; untouched it opens."""
    graph = staged(root, {"tool.py": "import a", "a.py": "x = 1"})
    made = publish(graph, tmp_path / "stage")
    assert open_bundle(made.digest, tmp_path / "stage") == made
    for path in (made.path, made.source, made.source / "a.py", made.path / "manifest.json"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    TAMPER[how](made.source)
    for path in (made.path, made.source, made.source / "a.py", made.path / "manifest.json"):
        if path.exists() and not path.is_symlink() and how != "writable":
            path.chmod(0o555 if path.is_dir() else 0o444)
    assert refusal(open_bundle, made.digest, tmp_path / "stage")[0] == "refused.storage"
    assert refusal(publish, graph, tmp_path / "stage")[0] == "refused.storage"


def shared(stage: Path) -> None:
    stage.mkdir()
    stage.chmod(0o777)


def linked(stage: Path) -> None:
    (stage.parent / "theirs").mkdir(0o700)
    stage.symlink_to("theirs")


def foreign(stage: Path) -> None:
    stage.mkdir(0o700)
    os.chown(stage, 65534 if os.geteuid() == 0 else 0, -1)


@pytest.mark.parametrize("make", [shared, linked, foreign])
@pytest.mark.parametrize("below", ["", "sha256"])
def test_a_store_that_others_reach_refuses(root: Path, tmp_path: Path, make: Callable[[Path], None], below: str) -> None:
    """A store that is shared, a link or somebody else's refuses and stays empty; one of our own is used."""
    graph = staged(root, {"tool.py": ""})
    stage = tmp_path / "stage"
    if below:
        stage.mkdir(0o700)
    try:
        make(stage / below)
    except PermissionError:
        pytest.skip("unproven: giving a folder away needs root")
    assert refusal(publish, graph, stage)[0] == "refused.storage"
    assert list((stage / below).iterdir()) == []
    assert publish(graph, tmp_path / "own").entry == "tool"
