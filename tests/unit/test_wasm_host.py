"""Loading wasmtime and an image: only that, and a failure names itself. Each runs in a process of its own, as it seals its memory."""

import json
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
import wasmtime

from engine.places import data_dir
from tests import handmade

PACKAGES = Path(str(wasmtime.__file__)).parent.parent
_PROGRAM = """
import json, os, sys
images, packages, image, besides = sys.argv[1:]
sys.path[:0] = [images]
from enter.kernel import Step
from wasm import host
finder = host._OnlyWasmtime(packages)
found = {name: finder.find_spec(name) is not None for name in ("wasmtime", "msgpack", "trio", "pytest", "wasmtime.component")}
before = set(sys.modules), list(sys.path), list(sys.meta_path)
try:
    made = host.Image(packages, image, 1 << 20, {"emit": lambda *_: None, "call": lambda *_: None}, lambda which: 0)
    host.seal_code()
    failed = None
except Step as step:
    failed = [step.name, step.text]
outside = sorted(name for name in set(sys.modules) - before[0] if (getattr(sys.modules[name], "__file__", None) or "").startswith(packages))
writable = [rights for _, _, rights in host._mappings() if "w" in rights and "x" in rights]
clean = (list(sys.path), list(sys.meta_path)) == before[1:]
os.write(1, json.dumps({"found": found, "failed": failed, "tops": sorted({name.split(".")[0] for name in outside}), "clean": clean,
    "writable": writable}).encode())
os._exit(0)
"""


def loaded(image: Path, packages: Path = PACKAGES) -> dict[str, object]:
    """What a process says that loads this."""
    program = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(data_dir("worker_images")), str(packages), str(image), ""]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_wasmtime_comes_from_its_folder_and_nothing_else_does() -> None:
    """Though other packages lie there; and the interpreter looks for modules afterwards as before."""
    assert Path(str(msgpack.__file__)).parent.parent == PACKAGES  # it could have been found
    told = loaded(handmade.compiled())
    found = {"wasmtime": True, "msgpack": False, "trio": False, "pytest": False, "wasmtime.component": False}
    assert (told["found"], told["tops"], told["clean"], told["failed"]) == (found, ["wasmtime"], True, None)


def test_no_memory_stays_writable_and_executable() -> None:
    """Callbacks keep their code where ctypes puts it, and that is sealed."""
    assert loaded(handmade.compiled())["writable"] == []


@pytest.mark.parametrize("content", [b"", b"\x7fELF and nothing more", b"\0asm\x0d\0\1\0"], ids=["empty", "broken", "not compiled"])
def test_what_is_no_image_is_a_step_that_failed(tmp_path: Path, content: bytes) -> None:
    """With wasmtime's line."""
    (tmp_path / "image").write_bytes(content)
    failed = loaded(tmp_path / "image")["failed"]
    assert isinstance(failed, list)
    assert failed[0] == "load the image"
    assert failed[1]


def test_a_folder_without_wasmtime_is_a_step_that_failed(tmp_path: Path) -> None:
    """Named."""
    assert loaded(handmade.compiled(), tmp_path)["failed"] == ["load wasmtime", "No module named 'wasmtime'"]
