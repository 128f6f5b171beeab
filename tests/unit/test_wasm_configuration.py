"""The one table of wasmtime's settings: what it switches off, and that code of another one does not load."""

from typing import Any

import pytest
import wasmtime
from wasmtime.component import Component

from tests import handmade
from wasm import configuration

NEEDS = {
    "threads": "(module (memory 1 2 shared))",
    "simd": "(module (func (drop (v128.const i64x2 0 0))))",
    "memory64": "(module (memory i64 1))",
    "two memories": "(module (memory 1) (memory 1))",
    "gc": "(module (type (struct)))",
    "exceptions": "(module (tag))",
    "tail calls": "(module (func $f (return_call $f)))",
}


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_what_no_image_needs_is_switched_off(name: str) -> None:
    """A module that uses it does not load; with wasmtime's own settings it does."""
    default: Any = wasmtime.Config()
    if name == "gc":
        default.wasm_gc = default.wasm_function_references = True
    wasmtime.Module(wasmtime.Engine(default), NEEDS[name])
    with pytest.raises(wasmtime.WasmtimeError):
        wasmtime.Module(wasmtime.Engine(configuration.make()), NEEDS[name])


def test_code_is_loaded_by_the_same_table_alone() -> None:
    """Whatever the stack, which is no part of the code; with wasmtime's own settings it is refused."""
    code = str(handmade.compiled())
    for stack in (1 << 20, 8 << 20):
        Component.deserialize_file(wasmtime.Engine(configuration.make(stack)), code)
    with pytest.raises(wasmtime.WasmtimeError):
        Component.deserialize_file(wasmtime.Engine(), code)
