"""Bundles: one folder a content, whole or not there, checked when opened."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.staging import sealed
from engine.staging.bundle import Bundle, open_bundle, publish
from engine.staging.graph import Graph
from tests.staged import digest_of, refusal, staged

FILES = {"tool.py": "import p.m, yaml\nimport os.path", "p/__init__.py": "", "p/m.py": "x = 1"}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return staged(tmp_path / "root", FILES)


def test_a_bundle_holds_the_graph(tmp_path: Path, graph: Graph) -> None:
    """What was closed is what lies in the bundle: bytes, entry, standard modules, externals."""
    made = publish(graph, tmp_path / "stage")
    digits = made.digest.removeprefix("sha256:")
    assert made == Bundle(
        digest="sha256:" + digest_of(made.path / "manifest.json"),
        path=tmp_path / "stage" / "sha256" / digits[:2] / digits,
        entry="tool",
        standard=frozenset({"os.path"}),
        externals={"yaml": "tool.py:1"},
        layers=(),
        includes=(),
        data=(),
        tools=(),
        files={path: digest_of(made.source / path) for path in sorted(FILES)},
    )
    assert {path: (made.source / path).read_text() for path in FILES} == FILES


def test_what_is_published_can_be_opened(tmp_path: Path, graph: Graph) -> None:
    """Opening by digest gives the bundle that was published."""
    made = publish(graph, tmp_path / "stage")
    assert open_bundle(made.digest, tmp_path / "stage") == made


def test_equal_sources_have_one_bundle(tmp_path: Path, graph: Graph) -> None:
    """The same files in another folder have the same digest and the same place; other bytes have another."""
    first = publish(graph, tmp_path / "stage")
    assert publish(staged(tmp_path / "elsewhere", FILES), tmp_path / "stage") == first
    assert publish(staged(tmp_path / "other", {**FILES, "p/m.py": "x = 2"}), tmp_path / "stage").digest != first.digest


def test_a_bundle_is_read_only_with_fixed_modes(tmp_path: Path) -> None:
    """No bit of the author's file is carried: files are 0444, folders 0555, below parents of 0700."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "tool.py").write_text("")
    (root / "tool.py").chmod(0o6777)
    made = publish(staged(root, {}), tmp_path / "stage")
    sealed_modes = {oct(path.stat().st_mode & 0o7777) for path in (made.path, made.source, *made.path.rglob("*")) if path.is_dir()}
    assert sealed_modes == {"0o555"}
    assert {oct(path.stat().st_mode & 0o7777) for path in made.path.rglob("*") if path.is_file()} == {"0o444"}
    assert {oct(path.stat().st_mode & 0o7777) for path in (tmp_path / "stage", made.path.parent, made.path.parent.parent)} == {"0o700"}


def test_a_missing_bundle_is_told(tmp_path: Path) -> None:
    """A digest that was never published, and a text that is no digest, refuse."""
    assert refusal(open_bundle, "sha256:" + "0" * 64, tmp_path)[0] == "refused.storage"
    assert refusal(open_bundle, "sha256:../../x", tmp_path) == (
        "refused.storage",
        ("a digest is sha256: and 64 hexadecimal digits: stage the source again",),
    )  # fmt: skip - one value


PUBLISH = """
import sys
from pathlib import Path
from engine.staging.bundle import publish
from tests.staged import close
graph = close(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(publish(graph, Path(sys.argv[2])).digest)
"""


def test_many_processes_publish_at_once(tmp_path: Path, graph: Graph) -> None:
    """Eight processes stage one source at one moment: all get the same bundle, and no half folder stays."""
    command = [sys.executable, "-c", PUBLISH, str(tmp_path / "root" / "tool.py"), str(tmp_path / "stage")]
    environment = {"PYTHONPATH": os.pathsep.join(["", "worker_images"])}
    project = Path(__file__).resolve().parents[2]
    running = [
        subprocess.Popen(command, cwd=project, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    said = {process.communicate("\n")[0] for process in running}
    made = publish(graph, tmp_path / "stage")
    assert said == {made.digest + "\n"}
    assert list(made.path.parent.iterdir()) == [made.path]


def test_a_full_disk_leaves_nothing(tmp_path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a write fails in the middle, the bundle is not there, no half one is, and the next try makes it."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, lines = refusal(publish, graph, tmp_path / "stage")
    assert (code, lines[0].rpartition(": ")[2]) == ("refused.storage", "No space left on device")
    assert [path for path in (tmp_path / "stage").rglob("*") if path.is_file()] == []
    assert publish(graph, tmp_path / "stage").entry == "tool"


def test_what_a_killed_writer_left_is_swept(tmp_path: Path, graph: Graph) -> None:
    """A stale half folder goes; a young one, and a finished bundle, stay."""
    made = publish(graph, tmp_path / "stage")
    stale, young = made.path.parent / ".tmp-1-old", made.path.parent / ".tmp-1-new"
    for folder in (stale, young):
        (folder / "source").mkdir(parents=True)
    os.utime(stale, (time.time() - 3600,) * 2)
    assert sealed.sweep(tmp_path / "stage") == 1
    assert sorted(made.path.parent.iterdir()) == sorted([made.path, young])
