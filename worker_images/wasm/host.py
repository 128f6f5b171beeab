"""The WebAssembly engine with one compiled image, loaded once in the launcher: the only place that loads wasmtime to run something.

Its job: load wasmtime and the image before there is any jail; the functions of its library that a child calls.
Not its job: a child's life (``runtime.py``), compiling an image (``compile.py``), the settings (``configuration.py``).
Laws:
1. From the folder of packages comes wasmtime and nothing else (tests/unit/test_wasm_host.py).
2. No store, instance or WASI context is made here: what a generator of random numbers was seeded with before a fork would be every
   child's seed (tests/security/test_wasm_child.py).
3. Coarse clocks stand in for wasmtime's own, or there is no image (tests/security/test_wasm_child.py).
"""

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from typing import Any

from enter.kernel import Step
from wasm import configuration

ADDRESS, SIZE, COUNT, STATUS = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int
# data, context, type, arguments, how many, results, how many; what it gives is an error or nothing (wasmtime/component/linker.h)
HostCall = ctypes.CFUNCTYPE(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, SIZE, ADDRESS, SIZE)
Output = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ADDRESS, ADDRESS, SIZE)  # data, bytes, how many; how many it took (wasi.h)
_INTERFACE = "stockade:worker/host"  # python_wasm/world.wit
_CLOCKS = ("wasi:clocks/monotonic-clock", "wasi:clocks/wall-clock")
_READ, _EXECUTE = 1, 4  # mprotect(2)
_VERSIONS = 64  # of WASI 0.2, to find the one that wasmtime calls its own
_STEP = "load the image"
MONOTONIC, WALL, RESOLUTION = range(3)  # what a clock is asked for; it answers in nanoseconds
LARGEST = 1 << 32  # bytes of a memory that has 32 bits of address
Calls = Mapping[str, Callable[..., Any]]


class _OnlyWasmtime:
    """Finds wasmtime in the folder that was given, and nothing else that lies there."""

    def __init__(self, folder: str) -> None:
        self._folder = [folder]

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """As a finder of ``sys.meta_path`` does; the parts of the package are found by the package's own path."""
        return PathFinder.find_spec(name, self._folder) if name == "wasmtime" else None


class Library:
    """wasmtime's functions with addresses for all pointers, so that a child converts and looks up nothing; and the layout of its values."""

    def __init__(self, ffi: Any) -> None:
        value = ffi.wasmtime_component_val_t
        self.value_bytes, self.payload_at = ctypes.sizeof(value), value.of.offset
        self.instance_bytes = ctypes.sizeof(ffi.wasmtime_component_instance_t)
        self.function_bytes = ctypes.sizeof(ffi.wasmtime_component_func_t)
        self.string, self.result = ffi.WASMTIME_COMPONENT_STRING.value, ffi.WASMTIME_COMPONENT_RESULT.value

        def function(name: str, *arguments: Any, gives: Any = ADDRESS) -> Any:
            found = ffi.dll[name]  # each look-up makes one anew, so these types are ours alone
            found.restype, found.argtypes = gives, arguments
            return found

        add = "wasmtime_component_linker_instance_add_func"
        self.define = function(add, ADDRESS, ctypes.c_char_p, SIZE, HostCall, ADDRESS, ADDRESS)
        self.new_store = function("wasmtime_store_new", ADDRESS, ADDRESS, ADDRESS)
        self.context_of = function("wasmtime_store_context", ADDRESS)
        self.limit = function("wasmtime_store_limiter", ADDRESS, *[COUNT] * 5, gives=None)
        self.new_wasi = function("wasi_config_new")
        self.set_stdout = function("wasi_config_set_stdout_custom", ADDRESS, Output, ADDRESS, ADDRESS, gives=None)
        self.set_stderr = function("wasi_config_set_stderr_custom", ADDRESS, Output, ADDRESS, ADDRESS, gives=None)
        self.set_wasi = function("wasmtime_context_set_wasi", ADDRESS, ADDRESS)
        self.instantiate = function("wasmtime_component_linker_instantiate", ADDRESS, ADDRESS, ADDRESS, ADDRESS)
        self.function = function("wasmtime_component_instance_get_func", ADDRESS, ADDRESS, ADDRESS, ADDRESS, gives=ctypes.c_bool)
        self.invoke = function("wasmtime_component_func_call", ADDRESS, ADDRESS, ADDRESS, SIZE, ADDRESS, SIZE)
        self.after = function("wasmtime_component_func_post_return", ADDRESS, ADDRESS)
        self.new_value = function("wasmtime_component_val_new", ADDRESS)
        self.clone = function("wasmtime_component_val_clone", ADDRESS, ADDRESS, gives=None)
        self.new_bytes = function("wasm_byte_vec_new", ADDRESS, SIZE, ctypes.c_char_p, gives=None)
        self.free_bytes = function("wasm_byte_vec_delete", ADDRESS, gives=None)
        self.new_error = function("wasmtime_error_new", ctypes.c_char_p)
        self.message = function("wasmtime_error_message", ADDRESS, ADDRESS, gives=None)
        self.exit_status = function("wasmtime_error_exit_status", ADDRESS, ADDRESS, gives=ctypes.c_bool)


class Image:
    """wasmtime, the compiled image, and the two ways to link it, with the host's calls and with coarse clocks besides."""

    def __init__(self, packages: str, path: str, stack_bytes: int, calls: Calls, clock: Callable[[int], int]) -> None:
        """Raises Step when the image cannot be loaded: another wasmtime, configuration or processor compiled it, or it is none."""
        finder: Any = _OnlyWasmtime(packages)
        sys.meta_path.append(finder)
        try:
            import wasmtime
            from wasmtime import component
        except ImportError as error:
            raise Step("load wasmtime", 0, str(error)[:300]) from None
        finally:
            sys.meta_path.remove(finder)
        self._wasmtime, self._component = wasmtime, component
        self.library = Library(wasmtime._ffi)
        self._held: list[Any] = []  # whose memory is used by its address alone
        try:
            engine = self._keep(wasmtime.Engine(configuration.make(stack_bytes)))
            loaded = self._keep(component.Component.deserialize_file(engine, path))
            self.plain = address(self._linker(engine, calls, None))
            self.coarse = address(self._linker(engine, calls, clock))
            exports = [loaded.get_export_index(name) for name in ("load", "call")]
        except wasmtime.WasmtimeError as error:
            raise Step(_STEP, 0, last_line(str(error))) from None
        if None in exports:
            raise Step(_STEP, 0, "it exports no load or no call")
        self.engine, self.component = address(engine), address(loaded)
        self.load, self.call = (address(self._keep(export)) for export in exports)

    def _keep(self, one: Any) -> Any:
        self._held.append(one)
        return one

    def _linker(self, engine: Any, calls: Calls, clock: Callable[[int], int] | None) -> Any:
        linker = self._keep(self._component.Linker(engine))
        linker.add_wasip2()
        self._define(linker, _INTERFACE, calls)
        if clock is not None:
            linker.allow_shadowing = True
            clocks = self._keep(_Clocks(self._wasmtime._ffi, self.library, clock))
            for name, functions in clocks.functions.items():  # what else their interfaces hold stays wasmtime's
                self._define(linker, f"{name}@{self._version(engine, name)}", functions)
        return linker

    def _define(self, linker: Any, interface: str, calls: Calls) -> None:
        with linker.root() as root, root.add_instance(interface) as instance:
            for name, call in calls.items():
                encoded = name.encode()
                if self.library.define(address(instance), encoded, len(encoded), self._keep(HostCall(call)), None, None):
                    raise Step(_STEP, 0, f"the host's {name} cannot be defined")

    def _version(self, engine: Any, name: str) -> str:
        """The version under which wasmtime defines an interface: the one whose function cannot be defined a second time."""
        linker = self._component.Linker(engine)
        linker.add_wasip2()
        for number in range(_VERSIONS):
            try:
                with linker.root() as root, root.add_instance(f"{name}@0.2.{number}") as instance:
                    instance.add_func("now", lambda _: 0)
            except self._wasmtime.WasmtimeError:
                return f"0.2.{number}"
        # security: under another name it would not stand in for anything, and the clock would be as fine as ever
        raise Step(_STEP, 0, f"wasmtime has no {name}")


class _Clocks:
    """The functions that stand in for wasmtime's clocks; a time of day is a record, of which there is a pattern to copy."""

    def __init__(self, ffi: Any, library: Library, clock: Callable[[int], int]) -> None:
        self._library, self._clock, self._ffi = library, clock, ffi
        self._names = [ffi.bytes_to_capi(name) for name in (b"seconds", b"nanoseconds")]
        self._fields = (ffi.wasmtime_component_valrecord_entry_t * 2)()
        for field, name, kind in zip(self._fields, self._names, (ffi.WASMTIME_COMPONENT_U64, ffi.WASMTIME_COMPONENT_U32), strict=True):
            field.name, field.val.kind = name, kind
        self._pattern = ffi.wasmtime_component_val_t()
        self._pattern.kind = ffi.WASMTIME_COMPONENT_RECORD
        self._pattern.of.record.size = 2
        self._pattern.of.record.data = ctypes.cast(self._fields, type(self._pattern.of.record.data))
        self.functions: dict[str, Calls] = {
            _CLOCKS[0]: {"now": self._told(MONOTONIC, self._number), "resolution": self._told(RESOLUTION, self._number)},
            _CLOCKS[1]: {"now": self._told(WALL, self._record), "resolution": self._told(RESOLUTION, self._record)},
        }

    def _told(self, which: int, write: Callable[[int, int], None]) -> Callable[..., int | None]:
        def call(data: int, context: int, kind: int, arguments: int, count: int, results: int, wanted: int) -> None:
            write(results, self._clock(which))

        return call

    def _number(self, value: int, now: int) -> None:
        ctypes.c_uint8.from_address(value).value = self._ffi.WASMTIME_COMPONENT_U64.value
        ctypes.c_uint64.from_address(value + self._library.payload_at).value = now

    def _record(self, value: int, now: int) -> None:
        seconds, nanoseconds = self._fields
        seconds.val.of.u64, nanoseconds.val.of.u32 = divmod(now, 1_000_000_000)
        self._library.clone(ctypes.addressof(self._pattern), value)


def seal_code() -> None:
    """Take the right to write from memory that can be executed: Python's ctypes keeps the code of its callbacks in such a page.

    No callback may be made or freed afterwards: the process must end by ``os._exit``. Raises Step when some memory stays writable and
    executable.
    """
    gc.collect()  # what is garbage already is freed now
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ADDRESS, SIZE, STATUS)
    for start, end, rights in _mappings():
        # security: whoever broke out of the engine would need no right to make code: he could write it here
        if "w" in rights and "x" in rights and libc.mprotect(start, end - start, _READ | _EXECUTE) < 0:
            raise Step("seal the code", ctypes.get_errno(), "memory stays writable and executable")


def _mappings() -> list[tuple[int, int, str]]:
    with open("/proc/self/maps") as file:
        fields = [line.split(maxsplit=2) for line in file]
    return [(int(start, 16), int(end, 16), rights) for place, rights, _ in fields for start, _, end in (place.partition("-"),)]


def address(owner: Any) -> int:
    """Where the thing lies that one of wasmtime's Python objects holds."""
    found = ctypes.cast(owner.ptr(), ADDRESS).value
    assert found is not None  # noqa: S101 - a type fact: none of them holds a null pointer
    return found


def last_line(message: str) -> str:
    """The cause, which stands below the frames that led there."""
    return (message.strip().splitlines() or ["no message"])[-1].strip()[:300]
