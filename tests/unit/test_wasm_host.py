"""Loading wasmtime and an image: only that, and a failure names itself. Each runs in a process of its own, as it seals its memory."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
import wasmtime
from wasmtime import _bindings

from engine.places import data_dir
from tests import handmade
from wasm import configuration, host

PACKAGES = Path(str(wasmtime.__file__)).parent.parent
_PROGRAM = """
import json, os, sys
images, packages, image, besides = sys.argv[1:]
sys.path[:0] = [images]
from enter.kernel import Step
from wasm import configuration, host
before = set(sys.modules), list(sys.path), list(sys.meta_path)
files = lambda: {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if os.path.realpath(packages) in line}
try:
    made = host.Image(packages, image, 1 << 20, {"emit": lambda *_: None, "call": lambda *_: None}, lambda which: 0)
    host.seal_code()
    failed = None
except Step as step:
    failed = [step.name, step.text]
outside = sorted(name for name in set(sys.modules) - before[0] if (getattr(sys.modules[name], "__file__", None) or "").startswith(packages))
mapped = sorted(name.rpartition("/")[2] for name in files())
writable = [rights for _, _, rights in host._mappings() if "w" in rights and "x" in rights]
clean = (list(sys.path), list(sys.meta_path)) == before[1:]
os.write(1, json.dumps({"mapped": mapped, "failed": failed, "modules": outside, "clean": clean, "writable": writable}).encode())
os._exit(0)
"""


def loaded(image: Path, packages: Path = PACKAGES) -> dict[str, object]:
    """What a process says that loads this."""
    program = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(data_dir("worker_images")), str(packages), str(image), ""]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_one_library_comes_from_the_folder_and_no_module_does() -> None:
    """Though packages lie there that it could import; the interpreter looks for modules afterwards as before."""
    assert Path(str(msgpack.__file__)).parent.parent == PACKAGES
    told = loaded(handmade.compiled())
    assert (told["mapped"], told["modules"], told["clean"], told["failed"]) == (["_libwasmtime.so"], [], True, None)


def test_values_lie_in_memory_as_the_package_says() -> None:
    """Sizes, places and kinds; and its classes are not what a launcher has to hold."""
    ffi: Any = _bindings
    value, field = ffi.wasmtime_component_val_t, ffi.wasmtime_component_valrecord_entry_t
    sizes = [
        value,
        field,
        ffi.wasmtime_component_instance_t,
        ffi.wasmtime_component_func_t,
        ffi.wasm_name_t,
        ffi.wasmtime_component_valrecord_t,
    ]
    ours = [ctypes.sizeof(host.Value), ctypes.sizeof(host.Field), host.INSTANCE_BYTES, host.FUNCTION_BYTES, *[ctypes.sizeof(host.Pair)] * 2]
    assert ours == [ctypes.sizeof(one) for one in sizes]
    assert [host.Value.kind.offset, host.Value.payload.offset, host.Field.name.offset, host.Field.value.offset] == [
        value.kind.offset,
        value.of.offset,
        field.name.offset,
        field.val.offset,
    ]
    assert [ffi.wasm_name_t.size.offset, ffi.wasm_name_t.data.offset] == [0, 8]
    result = ffi.wasmtime_component_valresult_t
    assert [result.is_ok.offset, result.val.offset] == [0, 8]
    names = ("U32", "U64", "STRING", "RECORD", "RESULT")
    assert [getattr(host, name) for name in names] == [getattr(wasmtime._ffi, f"WASMTIME_COMPONENT_{name}").value for name in names]


def test_every_setting_of_the_table_is_made() -> None:
    """By its own function, stacks first; what ``configuration.make`` makes is what code is compiled with."""
    made: list[tuple[str, object]] = []

    class Recorder:
        def function(self, name: str, *arguments: object, gives: object = None) -> Any:
            return lambda *given: made.append((name.removeprefix("wasmtime_config_").removesuffix("_set"), given[-1])) if given else 1

    image: Any = host.Image.__new__(host.Image)
    image.library = Recorder()
    assert image._configuration(1 << 20) == 1
    table = {**configuration.RAW, **configuration.SETTINGS, "cranelift_opt_level": 1}
    assert made == [("async_stack_size", 2 << 20), ("max_wasm_stack", 1 << 20), *table.items()]


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
    failed = loaded(handmade.compiled(), tmp_path)["failed"]
    assert isinstance(failed, list)
    assert failed[0] == "load wasmtime"
    assert "_libwasmtime.so: cannot open shared object file" in failed[1]
