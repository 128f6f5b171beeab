"""Source and layers as one text."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from enter.kernel import Step
from tests.staged import write
from wasm import sources


def text(root: Path, *layers: Path) -> Any:
    """What a guest reads out of it."""
    return json.loads(sources.text_of(str(root), [str(layer) for layer in layers]))


def test_every_file_is_there_by_its_path(tmp_path: Path) -> None:
    """Any bytes, below any folder; byte code of another interpreter is left out."""
    every = bytes(range(256))
    source = write(tmp_path / "source", {"tool.py": "x = 'é'\n", "deep/er/data.bin": every, "__pycache__/tool.cpython-311.pyc": b"no"})
    layer = write(tmp_path / "layers" / "numbers", {"pure/__init__.py": "", "pure/table.csv": b"1,2\n"})
    found = text(source, layer)
    assert found == {
        "files": {"tool.py": "x = 'é'\n".encode().decode("latin-1"), "deep/er/data.bin": every.decode("latin-1")},
        "layers": {"numbers": {"pure/__init__.py": "", "pure/table.csv": "1,2\n"}},
    }


def test_it_is_spelled_as_a_prepared_image_spells_it(tmp_path: Path) -> None:
    """Which reads it from a file that the builder wrote (``build.py``), and writes it anew: then it has only to compare."""
    source = write(tmp_path / "source", {"b.py": "x = 'é'\n", "a/c.bin": bytes(range(256)), "a.py": ""})
    layers = [write(tmp_path / name, {"z/__init__.py": "", "a.py": ""}) for name in ("numbers", "dates")]
    given = sources.text_of(str(source), [str(layer) for layer in layers])
    prepared = json.loads(json.dumps({**json.loads(given), "entry": "tools"}, sort_keys=True))
    del prepared["entry"]
    assert json.dumps(prepared, ensure_ascii=False, separators=(",", ":")).encode() == given


@pytest.mark.parametrize(
    ("name", "content"), [("fast.cpython-311-x86_64-linux-gnu.so", b"x"), ("fast.pyd", b"x"), ("fast.dat", b"\x7fELF\2")]
)
def test_native_code_in_a_layer_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    """By its suffix or by its first bytes; in the source, where nothing imports it, it is data."""
    layer = write(tmp_path / "numbers", {f"pack/{name}": content, "pack/__init__.py": ""})
    source = write(tmp_path / "source", {name: content})
    with pytest.raises(Step) as caught:
        text(source, layer)
    assert caught.value.text == f"numbers/pack/{name} is native code, which a WebAssembly worker cannot load"
    assert set(text(source)["files"]) == {name}


def test_links_and_odd_files_are_not_followed(tmp_path: Path) -> None:
    """A link to a file outside, to a folder, and a pipe: none of them is there."""
    (tmp_path / "secret").write_text("no")
    source = write(tmp_path / "source", {"tool.py": ""})
    (source / "link.py").symlink_to(tmp_path / "secret")
    (source / "folder").symlink_to(tmp_path)
    os.mkfifo(source / "pipe")
    assert text(source)["files"] == {"tool.py": ""}


def test_more_than_a_guest_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and layers together; exactly as much is taken."""
    monkeypatch.setattr(sources, "MOST", 1 << 20)
    half = b"x" * (1 << 19)
    source, layer = write(tmp_path / "source", {"a": half}), write(tmp_path / "layer", {"b": half})
    assert len(text(source, layer)["layers"]["layer"]["b"]) == 1 << 19
    (layer / "c").write_bytes(b"x")
    with pytest.raises(Step) as caught:
        text(source, layer)
    assert caught.value.text == "source and layers together hold more than 1 MiB, which is what a WebAssembly worker takes"


def test_a_folder_that_is_not_there_is_a_step_that_failed(tmp_path: Path) -> None:
    """With the errno."""
    with pytest.raises(Step) as caught:
        text(tmp_path / "gone")
    assert (caught.value.name, caught.value.number) == ("read the source", 2)
