"""How wasmtime is set: one table, for the process that compiles an image and for the one that runs it.

Its job: the settings with their reasons, the configuration made of them.
Not its job: compiling (``compile.py``), running (``host.py``), what compiled code is named by (``engine/images/compiling.py``).
Laws:
1. Code that was compiled with another table does not load (tests/unit/test_wasm_configuration.py).
2. What the guest does not need is switched off: less of the engine is there to be attacked (tests/unit/test_wasm_configuration.py).
"""

from typing import Any

# CPython's own limit, which makes an exception of deep recursion, must come before the stack's end, which makes a trap of it: C code that
# recurses (json, repr) needs up to 64 bytes here for each byte of the stack that the interpreter counts, and that one has 1 MiB
STACK_BYTES = 64 << 20

SETTINGS: dict[str, bool | int | str] = {
    # what a component is made of; what WebAssembly 1.0 and 2.0 have besides is on by default, and CPython needs it
    "wasm_component_model": True,
    # in this order, because some need others: proposals that the image makes no use of
    "wasm_threads": False,
    "shared_memory": False,
    "wasm_relaxed_simd": False,
    "wasm_simd": False,
    "wasm_memory64": False,
    "wasm_multi_memory": False,
    "wasm_gc": False,
    "wasm_function_references": False,
    "wasm_exceptions": False,
    "wasm_tail_call": False,
    "wasm_stack_switching": False,
    "wasm_custom_page_sizes": False,
    "wasm_wide_arithmetic": False,
    "wasm_component_model_map": False,
    "wasm_component_model_implements": False,
    # every call has a process of its own, which a SIGKILL ends at the deadline: loops without checks run 15 to 26 % faster
    "epoch_interruption": False,
    "consume_fuel": False,
    # each child maps the image's memory and copies only the pages that it writes: a start takes a millisecond instead of thirty
    "memory_init_cow": True,
    # bounds are held by unmapped pages behind a memory that never moves, and a stray access is a signal that becomes a trap
    "signals_based_traps": True,
    "memory_may_move": False,
    # nobody unwinds through compiled code: traps are told by one line
    "native_unwind_info": False,
    "debug_info": False,
    "cranelift_opt_level": "speed",
}
# the same where the Python package has no property for it (wasmtime/_bindings.py)
RAW: dict[str, bool] = {
    "wasm_component_model_async": False,
    "wasm_component_model_more_async_builtins": False,
    "wasm_component_model_async_stackful": False,
    "concurrency_support": False,
}


def make(stack_bytes: int = STACK_BYTES) -> Any:
    """A ``wasmtime.Config`` with all of this set; wasmtime must be importable. The stack is no part of what is compiled."""
    import wasmtime
    from wasmtime import _ffi

    config = wasmtime.Config()
    # a formality: wasmtime wants stacks of its own to be larger, though nothing here runs on one
    _ffi.wasmtime_config_async_stack_size_set(config.ptr(), stack_bytes + (1 << 20))
    config.max_wasm_stack = stack_bytes
    for name, wanted in RAW.items():
        getattr(_ffi, f"wasmtime_config_{name}_set")(config.ptr(), wanted)
    for name, value in SETTINGS.items():
        setattr(config, name, value)
    return config
