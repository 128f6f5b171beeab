"""The WebAssembly engine with one compiled image, loaded once in the launcher: the only place that loads wasmtime to run something.

Its job: load wasmtime's library and the image before there is any jail; the functions of the library that a child calls.
Not its job: a child's life (``runtime.py``), compiling an image (``compile.py``), the settings (``configuration.py``).
Laws:
1. From the folder of packages comes one library and nothing else (tests/unit/test_wasm_host.py).
2. No store, instance or WASI context is made here: what a generator of random numbers was seeded with before a fork would be every
   child's seed (tests/security/test_wasm_child.py).
3. Coarse clocks stand in for wasmtime's own, or there is no image (tests/security/test_wasm_child.py).
4. How values lie in memory is what wasmtime's own package says (tests/unit/test_wasm_host.py).

The package itself is not imported: its thousands of types take 6 MiB, which every fork would have to hand on, and 70 ms.
"""

import ctypes
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_REUSED_BYTES = 4 << 20  # the largest block that is kept; a guest's memory has its own place
_VERSIONS = 64  # of WASI 0.2, to find the one that wasmtime calls its own
_STEP = "load the image"
_OPT_LEVELS = ("none", "speed", "speed_and_size")  # by their numbers (wasmtime/config.h)
MONOTONIC, WALL, RESOLUTION = range(3)  # what a clock is asked for; it answers in nanoseconds
LARGEST = 1 << 32  # bytes of a memory that has 32 bits of address
Calls = Mapping[str, Callable[..., Any]]
Pair = ctypes.c_size_t * 2  # how many bytes or fields, and where they lie: a text, a record


class Value(ctypes.Structure):
    """A value that crosses: what it is, then itself in up to three words (wasmtime/component/val.h)."""

    _fields_ = (("kind", ctypes.c_uint8), ("payload", ctypes.c_uint64 * 3))


class Field(ctypes.Structure):
    """One field of a record: its name, its value."""

    _fields_ = (("name", Pair), ("value", Value))


U32, U64, STRING, RECORD, RESULT = 6, 8, 12, 14, 19  # kinds of values
INSTANCE_BYTES, FUNCTION_BYTES = 16, 32


class Library:
    """wasmtime's functions with addresses for all pointers, so that a child converts and looks up nothing."""

    def __init__(self, path: str) -> None:
        """Raises OSError where it cannot be loaded."""
        self._dll = ctypes.CDLL(path)
        function = self.function
        self.linker_instance = function("wasmtime_component_linker_instance_add_instance", ADDRESS, ctypes.c_char_p, SIZE, ADDRESS)
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
        self.get_function = function("wasmtime_component_instance_get_func", ADDRESS, ADDRESS, ADDRESS, ADDRESS, gives=ctypes.c_bool)
        self.invoke = function("wasmtime_component_func_call", ADDRESS, ADDRESS, ADDRESS, SIZE, ADDRESS, SIZE)
        self.after = function("wasmtime_component_func_post_return", ADDRESS, ADDRESS)
        self.new_value = function("wasmtime_component_val_new", ADDRESS)
        self.clone = function("wasmtime_component_val_clone", ADDRESS, ADDRESS, gives=None)
        self.new_bytes = function("wasm_byte_vec_new", ADDRESS, SIZE, ctypes.c_char_p, gives=None)
        self.free_bytes = function("wasm_byte_vec_delete", ADDRESS, gives=None)
        self.new_error = function("wasmtime_error_new", ctypes.c_char_p)
        self.message = function("wasmtime_error_message", ADDRESS, ADDRESS, gives=None)
        self.exit_status = function("wasmtime_error_exit_status", ADDRESS, ADDRESS, gives=ctypes.c_bool)

    def function(self, name: str, *arguments: Any, gives: Any = ADDRESS) -> Any:
        """One of its functions. Raises AttributeError where it has none of that name."""
        found = self._dll[name]
        found.restype, found.argtypes = gives, arguments
        return found

    def said(self, error: int) -> str:
        """The cause that an error names."""
        text = Pair()
        self.message(error, ctypes.addressof(text))
        return last_line(ctypes.string_at(text[1], text[0]).decode("utf-8", "replace"))


class Image:
    """wasmtime, the compiled image, and the two ways to link it, with the host's calls and with coarse clocks besides."""

    def __init__(self, packages: str, path: str, stack_bytes: int, calls: Calls, clock: Callable[[int], int]) -> None:
        """Raises Step when the image cannot be loaded: another wasmtime, configuration or processor compiled it, or it is none."""
        try:
            self.library = Library(f"{packages}/wasmtime/linux-{os.uname().machine}/_libwasmtime.so")
        except (OSError, AttributeError) as error:
            raise Step("load wasmtime", 0, str(error)[:300]) from None
        self._held: list[Any] = []  # whose memory is used by its address alone
        function = self.library.function
        self.engine = function("wasm_engine_new_with_config", ADDRESS)(self._configuration(stack_bytes))
        loaded = ctypes.c_void_p()
        deserialize = function("wasmtime_component_deserialize_file", ADDRESS, ctypes.c_char_p, ADDRESS)
        self._checked(deserialize(self.engine, path.encode(), ctypes.addressof(loaded)))
        self.component = loaded.value
        self.plain = self._linker(calls, None)
        self.coarse = self._linker(calls, clock)
        export = function("wasmtime_component_get_export_index", ADDRESS, ADDRESS, ctypes.c_char_p, SIZE)
        self.load, self.call = (export(self.component, None, name, len(name)) for name in (b"load", b"call"))
        if not (self.load and self.call):
            raise Step(_STEP, 0, "it exports no load or no call")

    def _configuration(self, stack_bytes: int) -> int:
        """The same settings as ``configuration.make`` makes, by the same table."""
        function = self.library.function
        config: int = function("wasm_config_new")()
        sizes = {"async_stack_size": stack_bytes + (1 << 20), "max_wasm_stack": stack_bytes}  # in this order
        for name, value in [*sizes.items(), *configuration.RAW.items(), *configuration.SETTINGS.items()]:
            kind: Any = SIZE if name in sizes else ctypes.c_uint8 if isinstance(value, str) else ctypes.c_bool
            number = _OPT_LEVELS.index(value) if isinstance(value, str) else value
            function(f"wasmtime_config_{name}_set", ADDRESS, kind, gives=None)(config, number)
        return config

    def _checked(self, error: int | None) -> None:
        if error:
            raise Step(_STEP, 0, self.library.said(error))

    def _linker(self, calls: Calls, clock: Callable[[int], int] | None) -> int:
        function = self.library.function
        linker = self._new_linker()
        self._define(linker, _INTERFACE, calls)
        if clock is not None:
            function("wasmtime_component_linker_allow_shadowing", ADDRESS, ctypes.c_bool, gives=None)(linker, True)
            clocks = _Clocks(self.library, clock)
            self._held.append(clocks)
            for name, functions in clocks.functions.items():  # what else their interfaces hold stays wasmtime's
                self._define(linker, f"{name}@{self._version(name)}", functions)
        return linker

    def _new_linker(self) -> int:
        function = self.library.function
        linker: int = function("wasmtime_component_linker_new", ADDRESS)(self.engine)
        self._checked(function("wasmtime_component_linker_add_wasip2", ADDRESS)(linker))
        return linker

    def _define(self, linker: int, interface: str, calls: Calls) -> None:
        with self._instance(linker, interface) as instance:
            for name, call in calls.items():
                encoded, made = name.encode(), HostCall(call)
                self._held.append(made)
                self._checked(self.library.define(instance, encoded, len(encoded), made, None, None))

    @contextmanager
    def _instance(self, linker: int, interface: str) -> Iterator[int]:
        """An interface of a linker, which is of no other use meanwhile."""
        function = self.library.function
        delete = function("wasmtime_component_linker_instance_delete", ADDRESS, gives=None)
        root = function("wasmtime_component_linker_root", ADDRESS)(linker)
        made, encoded = ctypes.c_void_p(), interface.encode()
        try:
            self._checked(self.library.linker_instance(root, encoded, len(encoded), ctypes.addressof(made)))
            try:
                yield made.value or 0
            finally:
                delete(made)
        finally:
            delete(root)

    def _version(self, name: str) -> str:
        """The version under which wasmtime defines an interface: the one whose function cannot be defined a second time."""
        linker = self._new_linker()
        try:
            for number in range(_VERSIONS):
                try:
                    self._define(linker, f"{name}@0.2.{number}", {"now": _never})
                except Step:
                    return f"0.2.{number}"
        finally:
            self.library.function("wasmtime_component_linker_delete", ADDRESS, gives=None)(linker)
        # security: under another name it would not stand in for anything, and the clock would be as fine as ever
        raise Step(_STEP, 0, f"wasmtime has no {name}")


def _never(*_: Any) -> None:
    """A host call that nobody makes."""


class _Clocks:
    """The functions that stand in for wasmtime's clocks; a time of day is a record, of which there is a pattern to copy."""

    def __init__(self, library: Library, clock: Callable[[int], int]) -> None:
        self._library, self._clock = library, clock
        self._names = [ctypes.create_string_buffer(name, len(name)) for name in (b"seconds", b"nanoseconds")]
        self._fields = (Field * 2)()
        for field, name, kind in zip(self._fields, self._names, (U64, U32), strict=True):
            field.name[:] = len(name), ctypes.addressof(name)
            field.value.kind = kind
        self._pattern = Value(RECORD, (2, ctypes.addressof(self._fields)))
        self.functions: dict[str, Calls] = {
            _CLOCKS[0]: {"now": self._told(MONOTONIC, self._number), "resolution": self._told(RESOLUTION, self._number)},
            _CLOCKS[1]: {"now": self._told(WALL, self._record), "resolution": self._told(RESOLUTION, self._record)},
        }

    def _told(self, which: int, write: Callable[[int, int], None]) -> Callable[..., int | None]:
        def call(data: int, context: int, kind: int, arguments: int, count: int, results: int, wanted: int) -> None:
            write(results, self._clock(which))

        return call

    def _number(self, place: int, now: int) -> None:
        value = Value.from_address(place)
        value.kind, value.payload[0] = U64, now

    def _record(self, place: int, now: int) -> None:
        seconds, nanoseconds = self._fields
        seconds.value.payload[0], nanoseconds.value.payload[0] = divmod(now, 1_000_000_000)
        self._library.clone(ctypes.addressof(self._pattern), place)


def keep_freed() -> None:
    """Have children use again what they freed up to some MiB, and not give it back: each page of a copy of what crosses is paid once."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, amount in ((_MMAP_THRESHOLD, _REUSED_BYTES), (_TRIM_THRESHOLD, 4 * _REUSED_BYTES)):
            libc.mallopt(option, amount)


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


def last_line(message: str) -> str:
    """The cause, which stands below the frames that led there."""
    return (message.strip().splitlines() or ["no message"])[-1].strip()[:300]
