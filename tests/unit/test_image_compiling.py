"""Compiled code: keyed by all that it depends on, hashed by the descriptor that is handed out."""

import os
import sys
from pathlib import Path

import pytest

from engine.images import compiling, running
from engine.images.cache import Damaged, Entry
from tests import images
from tests.images import Heard, Tiny, spoil, tiny
from tests.kit import PROJECT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny image that can be built."""
    images.without_installing(monkeypatch)
    return tiny(tmp_path)


def key(project: Tiny, entry: Entry) -> dict[str, str]:
    """What its code depends on here."""
    return compiling.key_of(entry, project.shipped.worker_images)


def test_the_descriptor_is_the_file_that_was_hashed(project: Tiny) -> None:
    """What is read through it is what was made, also when another file has taken the name since."""
    entry = project.build()
    code = compiling.open_code(entry, key(project, entry))
    path = entry.path / "compiled" / code.key / "code"
    path.unlink()
    path.write_bytes(b"another")
    with open(code.descriptor, "rb") as file:
        assert file.read() == images.COMPONENT
    assert (code.size, f"sha256:{code.sha256}") == (8, images.digest(images.COMPONENT))


@pytest.mark.parametrize("name", ["code", "manifest.json"])
def test_changed_code_is_never_handed_out_and_is_made_again(project: Tiny, name: str) -> None:
    """Its file or what is known of it; no descriptor stays open."""
    entry = project.build()
    words = key(project, entry)
    spoil(compiling.folder_of(entry, words) / name)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Damaged, match=name):
        compiling.open_code(entry, words)
    assert len(os.listdir("/proc/self/fd")) == before
    heard = Heard()
    project.build(heard)
    assert heard.steps == ["compiling tiny for this machine"]
    os.close(compiling.open_code(entry, words).descriptor)


@pytest.mark.parametrize("word", ["component", "wasmtime", "settings", "machine", "cpu"])
def test_code_for_another_key_is_not_there(project: Tiny, word: str) -> None:
    """Each word counts; code in the folder of another key is damaged."""
    entry = project.build()
    words = key(project, entry)
    other = {**words, word: "other"}
    with pytest.raises(FileNotFoundError):
        compiling.open_code(entry, other)
    compiling.folder_of(entry, words).rename(compiling.folder_of(entry, other))
    with pytest.raises(Damaged, match=r"manifest\.json is not as it was written"):
        compiling.open_code(entry, other)


@pytest.mark.parametrize("name", ["configuration.py", "compile.py"])
def test_another_setting_has_another_key(project: Tiny, name: str) -> None:
    """The settings are the files that hold them; the control: unchanged files, the same key."""
    entry = project.build()
    before = key(project, entry)
    assert key(project, entry) == before
    project.write(f"worker_images/wasm/{name}", "x = 1\n")
    assert key(project, entry)["settings"] != before["settings"]


def test_the_real_compiler_makes_native_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest component becomes an object file for this machine, by a process that saw no variable of ours."""
    images.without_installing(monkeypatch)
    project = tiny(tmp_path, real_compiler=True)
    entry = project.build()
    with open(compiling.open_code(entry, key(project, entry)).descriptor, "rb") as file:
        assert file.read(4) == b"\x7fELF"


def test_the_compiler_refuses_what_was_exchanged(tmp_path: Path) -> None:
    """Other bytes than those that were hashed, or no component at all; the control is the test above."""
    path, program = tmp_path / "component", PROJECT / "worker_images" / "wasm" / "compile.py"
    for data, sha256, line in (
        (images.COMPONENT, "0" * 64, "the component was changed while it was compiled"),
        (b"text", images.digest(b"text")[7:], "it cannot be compiled: "),
    ):
        path.write_bytes(data)
        wanted = f'{{"limits": {{"CORE": 0}}, "sha256": "{sha256}"}}'
        with pytest.raises(running.Failed) as caught:
            running.run([sys.executable, "-I", program, path, tmp_path / "code", wanted], environment={}, seconds=60)
        assert line in caught.value.lines[-1]
    assert not (tmp_path / "code").exists()
