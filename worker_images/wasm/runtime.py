"""What every jail of the second launcher inherits: an image made ready, and a guest's whole life in a locked child.

Its job: the same as ``enter/runtime.py`` does for native tools: stage once for all children, then serve one call in each.
Not its job: loading wasmtime (``host.py``), locking (``enter/zygote.py``), what a frame holds (the guest and the host side judge it).
Laws:
1. A guest has no environment, no folder and no input; its outputs go to the child's two descriptors (tests/security/test_wasm_child.py).
2. A trap ends the child with a line and the status ``TRAPPED``; the guest's own exit keeps its status (tests/security/test_wasm_child.py).
3. A child makes no mapping that can be executed and opens no file (tests/security/test_wasm_child.py).
4. The launcher makes no instance: it is measured in a child that is thrown away (tests/security/test_wasm_child.py).
"""

import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from enter.kernel import Step
from guest import wire
from wasm import configuration, host, sources
from wasm.relay import Channel, write

TRAPPED, UNFIT = 134, 71  # statuses of a child: its guest trapped (as shells show an abort), or would not take its source
TRAP_SIGNALS = (4, 8, 11)  # SIGILL, SIGFPE, SIGSEGV: wasmtime makes traps of them, so nobody may reset their handlers
RESERVED_BYTES = 6 << 30  # of address space: 4 GiB for a guest's memory and what guards it, most of it never mapped
HOST_BYTES = 64 << 20  # of memory beside the guest's: copies of what crosses, the stacks of the timer's threads
# CPython needs one memory, two tables of 5700 entries together, and less than 20 instances
_TABLE_ENTRIES, _INSTANCES, _TABLES, _MEMORIES = 100_000, 64, 4, 1
_HOST_STACK = 4 << 20  # of the main thread's stack: for what calls the guest, and what it calls
_FIRST_KEPT = 4  # behind a child's channel (``enter/zygote.py``)
_FRAME = 3  # ``emit``'s third kind; 1 and 2 are the descriptors' own numbers (python_wasm/world.wit)
_HOME = "/tmp"  # a name that leads nowhere: a guest has no folder
_EMPTY = b'{"files":{},"layers":{}}'
_LAST_WORDS = wire.pack(wire.FAILURE, ["exception", "MemoryError", ""])  # made while there is memory for it
_VALUE, _PAYLOAD = ctypes.sizeof(host.Value), host.Value.payload.offset
_LARGE = 32 << 10  # bytes of a text that is worth it
_READ_ONLY = 0x100  # PyBUF_READ (cpython/Include/cpython/memoryobject.h)
_CLOSED = b"the channel is closed"


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype, _view.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


class Runtime:
    """Stands where ``enter.runtime.Runtime`` does: an image and the two host calls, ready to be forked.

    ``kept`` are descriptors that every process below keeps, because a guest's memory is mapped from there; ``trap_signals`` are those whose
    handlers stay as they are.
    """

    def __init__(self, packages: str, wasmtime: str, image: str) -> None:
        sys.path.append(packages)
        import msgpack._cmsgpack as compiled

        sys.path.remove(packages)
        self.codec = wire.Codec(compiled)
        self._channel = Channel()
        before = _open()
        self._image = host.Image(wasmtime, image, _stack_bytes(), {"emit": self._emit, "call": self._answer}, self._clock)
        self.kept = tuple(sorted(_open() - before))
        if self.kept != tuple(range(_FIRST_KEPT, _FIRST_KEPT + len(self.kept))):
            raise Step("load the image", 0, f"its descriptors are {self.kept}, which is not where children keep any")
        self.trap_signals = TRAP_SIGNALS
        self._native = self._image.library
        self._output = host.Output(self._written)
        self._linker = self._image.plain
        self._clock_ns, self._began, self._memory, self._base, self._held = 0, 0, 0, 0, 0
        self._texts: list[Any] = []
        # all that a child hands over by address lies here, so that it writes one page of it
        self._room = ctypes.create_string_buffer(4 * _VALUE + host.INSTANCE_BYTES + host.FUNCTION_BYTES)
        start = ctypes.addressof(self._room)
        self._source, self._request, self._result, self._inner = (start + number * _VALUE for number in range(4))
        self._instance = start + 4 * _VALUE
        self._function = self._instance + host.INSTANCE_BYTES
        self._set(self._source, _EMPTY)
        self._set(self._request, json.dumps({"home": _HOME}).encode())
        host.keep_freed()
        host.seal_code()
        self.stdlib, self.own_folders = os.path.dirname(os.path.abspath(os.__file__)), ()

    def rehearse(self) -> None:
        """See in a child of no further use that the image starts, and how much memory it has then. Raises Step."""
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(theirs, 2)
                os.write(theirs, b"%d" % self._measured())
            finally:
                os._exit(0)
        os.close(theirs)
        with open(ours, "rb") as told:
            said = told.read(1000).decode("utf-8", "replace")
        os.waitpid(pid, 0)
        if not said.isdecimal():
            raise Step("try the image", 0, host.last_line(said))
        self._base = int(said)

    def _measured(self) -> int:
        before = _data_bytes()
        self._memory = host.LARGEST
        self._start()  # and no more: an image that was prepared with a source takes no other
        return _data_bytes() - before

    def host_places(self) -> list[object]:
        """Nothing: a guest cannot look into this process's memory."""
        return []

    def settle(self, path: list[str], *, walls: bool) -> None:
        """Import nothing from here on; the host's /proc can still be seen, and is not later."""
        sys.path[:] = path
        sys.path_importer_cache.clear()
        self._held = _data_bytes()

    def stage(self, root: str, layers: list[str], code: dict[str, bytes]) -> None:
        """Read source and layers, once for all children. Raises Step. ``code`` is the host interpreter's, which the guest is not."""
        self._set(self._source, sources.text_of(root, layers))

    def bound(self, plan: dict[str, Any], address: int) -> None:
        """Complete the limits by what this process and a fresh guest have already, and take from the plan what children need of it."""
        limits = plan["limits"]
        self._memory = self._base + limits["memory_bytes"]
        limits["address_bytes"] = address + RESERVED_BYTES + limits["memory_bytes"]
        limits["data_bytes"] = self._held + len(self._texts[-1]) + self._memory + HOST_BYTES
        plan["kept"] = len(self.kept)
        self._clock_ns = plan["clock_ns"]
        self._linker = self._image.coarse if self._clock_ns else self._image.plain

    def learn(self, channel: int, home: str, check: Callable[[], str | None]) -> bool:
        """Refuse: an instance cannot be forked with its process."""
        raise Step("import the tool beforehand", 0, "a WebAssembly worker has the freshness fresh alone")

    def serve(self, channel: int, home: str) -> None:
        """Be a guest for one call in this, by now locked, process. ``home`` is the process's own folder; its guest has none."""
        self._channel.open(channel)
        try:
            self._start()
            self._invoke(self._image.load, self._source)
            self._invoke(self._image.call, self._request, last=True)
        except Exception as error:  # ours: a guest's own come as errors of the engine
            _end(UNFIT, f"what runs the guest failed: {type(error).__name__}".encode())

    def _start(self) -> None:
        library, image = self._native, self._image
        self._began = time.monotonic_ns()
        store = library.new_store(image.engine, None, None)
        library.limit(store, self._memory, _TABLE_ENTRIES, _INSTANCES, _TABLES, _MEMORIES)
        self._context = library.context_of(store)
        wasi = library.new_wasi()
        library.set_stdout(wasi, self._output, 1, None)
        library.set_stderr(wasi, self._output, 2, None)
        self._checked(library.set_wasi(self._context, wasi))
        self._checked(library.instantiate(self._linker, self._context, image.component, self._instance))

    def _invoke(self, export: int, argument: int, *, last: bool = False) -> None:
        library = self._native
        library.get_function(self._instance, self._context, export, self._function)
        self._checked(library.invoke(self._function, self._context, argument, 1, self._result, 1))
        if said := self._text(self._result):
            _end(UNFIT, b"the guest gave up: " + said[:1000])
        if not last:
            self._checked(library.after(self._function, self._context))

    def _checked(self, error: int | None) -> None:
        """Go on, or end as the guest ended: by its own exit, or by a trap."""
        if not error:
            return
        status = ctypes.c_int()
        if self._native.exit_status(error, ctypes.addressof(status)):
            os._exit(status.value & 0xFF)
        self._native.message(error, self._inner + _PAYLOAD)
        message = ctypes.string_at(*reversed(host.Pair.from_address(self._inner + _PAYLOAD)))
        _end(TRAPPED, host.last_line(message.decode("utf-8", "replace")).encode())

    def _emit(self, data: int, context: int, kind: int, arguments: int, count: int, results: int, wanted: int) -> int | None:
        """What the guest gives out: bytes for one of its outputs, or a frame."""
        try:
            number = ctypes.c_uint8.from_address(arguments + _PAYLOAD).value
            given = self._bytes(arguments + _VALUE)
            if number == _FRAME:
                self._channel.send(given)
            elif number in (1, 2):
                write(number, given)
            else:
                return self._refused(b"there is no such kind of output")
        except BaseException as error:
            return self._broken(error)
        return None

    def _answer(self, data: int, context: int, kind: int, arguments: int, count: int, results: int, wanted: int) -> int | None:
        """What the guest asks for: the next frame, or the next one if there is any."""
        try:
            asked = self._text(arguments)
            if asked not in (b"next", b"poll"):
                return self._refused(b"there is no such request")
            payload = self._channel.receive(wait=asked == b"next")
            text = _CLOSED if payload is None else payload if payload.isascii() else payload.decode("latin-1").encode()
            library, at = self._native, _PAYLOAD
            ctypes.c_uint8.from_address(self._inner).value = host.STRING
            library.new_bytes(self._inner + at, len(text), text)
            ctypes.c_uint8.from_address(results).value = host.RESULT
            ctypes.c_bool.from_address(results + at).value = payload is not None
            ctypes.c_void_p.from_address(results + at + 8).value = library.new_value(self._inner)
        except BaseException as error:
            return self._broken(error)
        return None

    def _written(self, descriptor: int, data: int, size: int) -> int:
        """What the guest writes past its own streams."""
        try:
            write(descriptor, ctypes.string_at(data, size))
        except BaseException as error:
            self._broken(error)
            return -5  # EIO
        return size

    def _refused(self, why: bytes) -> int | None:
        made: int | None = self._native.new_error(why)
        return made

    def _broken(self, error: BaseException) -> int | None:
        """A host call that failed: nobody reads any more, or there is no memory for a copy, or the guest sent what is no text of bytes."""
        if isinstance(error, MemoryError):
            self._channel.send(_LAST_WORDS)
            os._exit(0)
        if isinstance(error, OSError):
            os._exit(0)
        return self._refused(type(error).__name__.encode())

    def _clock(self, which: int) -> int:
        grain = self._clock_ns
        if which == host.RESOLUTION:
            return grain
        now = time.monotonic_ns() - self._began if which == host.MONOTONIC else time.time_ns()
        return now - now % grain

    def _set(self, value: int, text: bytes) -> None:
        """Have a value be this text, which stays where it is: wasmtime only reads it."""
        self._texts.append(text)
        ctypes.c_uint8.from_address(value).value = host.STRING
        pair = host.Pair.from_address(value + _PAYLOAD)
        pair[0], pair[1] = len(text), ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0

    def _text(self, value: int) -> bytes:
        """The bytes of a value that is a text."""
        size, place = host.Pair.from_address(value + _PAYLOAD)
        return ctypes.string_at(place, size)

    def _bytes(self, value: int) -> bytes | memoryview:
        """What a text of one character a byte stands for; a large one is read where it lies, because each copy of it is paid in pages."""
        size, place = host.Pair.from_address(value + _PAYLOAD)
        text = _view(place, size, _READ_ONLY) if size > _LARGE else ctypes.string_at(place, size)
        characters = str(text, "utf-8")
        return text if characters.isascii() else characters.encode("latin-1")


def _end(status: int, line: bytes) -> None:
    try:
        write(2, line + b"\n")
    finally:
        os._exit(status)


def _stack_bytes() -> int:
    """Have the main thread's stack grow far enough for a guest's, as far as this host allows; how much of it a guest may use."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = configuration.STACK_BYTES + _HOST_STACK
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most < 2 * _HOST_STACK:
        raise Step("make room for the guest's stack", 0, f"this host allows {most >> 10} KiB of stack, and a guest needs 8 MiB")
    # the kernel looks at the limit when the stack grows, and has left room for 128 MiB at least (mmap_base, arch/x86/mm/mmap.c)
    resource.setrlimit(resource.RLIMIT_STACK, (most, hard))
    return most - _HOST_STACK


def _open() -> set[int]:
    """The descriptors of this process."""
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


def _data_bytes() -> int:
    """Private memory of this process that can be written, which is what RLIMIT_DATA counts (proc(5), statm's sixth: with its stack)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
