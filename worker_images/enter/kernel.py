"""The kernel calls that Python does not offer, by ctypes: the only place for them. And two liberties with the interpreter's own memory.

Its job: one thin function per call, which raises ``Step`` with the step's name and the errno.
Not its job: the order of the calls (``enter.py``), what they are given (the plan, made on the host).
Laws:
1. No call here is tried twice or ignored: a failure is an exception (tests/security/test_promise_enforced.py).
2. Numbers from 424 up are the same on every architecture; the three below are looked up by machine (syscalls(2)).
3. What is taken or marked in the interpreter's memory is so for good, and holds nothing that was there before (tests/unit/test_holes.py,
   tests/unit/test_immortal.py).
"""

import ctypes
import os
import sys
from collections.abc import Iterable

NAMESPACES = {  # clone(2); the order in which they are made
    "user": 0x10000000,
    "pid": 0x20000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
    "network": 0x40000000,
    "mount": 0x00020000,
}
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 32, 4096, 16384, 1 << 18  # mount(2)
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8  # mount_setattr(2), Linux 5.12
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_SECUREBITS = 1, 4, 24, 28  # prctl(2)
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4
_PR_SET_NAME, _PR_GET_NAME = 15, 16
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x40 | 0x80  # NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each locked
_CAPABILITY_V3 = 0x20080522  # capset(2)
_NR_MOUNT_SETATTR, _NR_LANDLOCK_CREATE, _NR_LANDLOCK_ADD, _NR_LANDLOCK_RESTRICT = 442, 444, 445, 446
_X86 = os.uname().machine == "x86_64"
_NR_SECCOMP, _NR_PIVOT_ROOT, _NR_CAPSET = (317, 155, 126) if _X86 else (277, 41, 91)

_POOL_BYTES, _POOL_HEAD = 1 << 14, 64  # CPython's small objects: equal sizes share a pool, aligned to its size, with a head of 48 bytes
_RUN_BYTES, _HOLES_BYTES = 1 << 13, 1 << 19  # what is left free of each size, and the most that is taken

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Step(Exception):
    """A step of entering the jail failed: its name and errno, which the supervisor shows."""

    def __init__(self, name: str, number: int, text: str) -> None:
        super().__init__(name, number, text)
        self.name, self.number, self.text = name, number, text


def _checked(result: int, step: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise Step(step, number, os.strerror(number))
    return result


def _call(step: str, number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | object) -> int:
    made = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *made), step)


def unshare(name: str) -> None:
    """Enter a new namespace of that name (for pid: the next child is its first process)."""
    _checked(_libc.unshare(ctypes.c_int(NAMESPACES[name])), f"unshare {name}")


def prctl(step: str, option: int, *arguments: int) -> int:
    """prctl(2)."""
    made = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(ctypes.c_int(option), *made), step)


def name_process(name: str) -> str:
    """Have this process called so where processes are listed; the name that it had (PR_SET_NAME, at most 15 bytes)."""
    before = ctypes.create_string_buffer(16)
    _libc.prctl(ctypes.c_int(_PR_GET_NAME), before, 0, 0, 0)
    _libc.prctl(ctypes.c_int(_PR_SET_NAME), ctypes.c_char_p(os.fsencode(name)), 0, 0, 0)
    return os.fsdecode(before.value)


def mount(step: str, source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _checked(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), step)


def mount_unnamed(step: str, source: str, kind: str, flags: int, data: str) -> int:
    """mount(2) on a new folder of the working directory; the mount's own descriptor, by which alone this process knows it.

    The folder's name is random, and made and overwritten in place: no copy of it stays in this memory.
    """
    name = ctypes.create_string_buffer(33)
    try:
        _checked(_libc.getrandom(name, ctypes.c_size_t(32), 0), step)
        for place in range(32):
            low = ord(name[place]) & 15  # 4 bits of each byte: 128 in all
            name[place] = b"0123456789abcdef"[low : low + 1]
        _checked(_libc.mkdir(name, 0o700), step)
        _checked(_libc.mount(os.fsencode(source), name, os.fsencode(kind), ctypes.c_ulong(flags), os.fsencode(data)), step)
        return _checked(_libc.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), step)
    finally:
        ctypes.memset(name, 0, 33)


def mount_attributes(step: str, target: str, attributes: int, *, recursive: bool) -> None:
    """Add mount attributes, to all mounts below as well when ``recursive`` (mount_setattr(2), Linux 5.12)."""
    record = attributes.to_bytes(8, "little") + bytes(24)
    at_fdcwd, at_recursive = -100, 0x8000
    _call(
        step,
        _NR_MOUNT_SETATTR,
        at_fdcwd,
        ctypes.c_char_p(os.fsencode(target)),
        at_recursive if recursive else 0,
        ctypes.c_char_p(record),
        32,
    )


def pivot_here() -> None:
    """Make the working directory the root and let go of the old one (pivot_root(2), the ``.`` ``.`` form)."""
    _call("pivot_root", _NR_PIVOT_ROOT, ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    mnt_detach = 2
    _checked(_libc.umount2(b".", mnt_detach), "detach the old root")
    os.chdir("/")


def set_hostname(name: str) -> None:
    """sethostname(2) in the jail's own UTS namespace."""
    _checked(_libc.sethostname(os.fsencode(name), len(name)), "set the host name")


def drop_bounding_set() -> None:
    """Empty the capability bounding set; needs CAP_SETPCAP, so it comes before the uid is given up."""
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            if capability == 0:
                raise Step("drop the bounding set", ctypes.get_errno(), "not permitted")
            return  # past the last capability that this kernel knows


def drop_capabilities() -> None:
    """Give up all capabilities for good: ambient cleared, secure bits locked, all sets empty (capabilities(7))."""
    prctl("clear ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    # not permitted once the uid is given up; empty sets below and no_new_privs then do the same
    _libc.prctl(ctypes.c_int(PR_SET_SECUREBITS), ctypes.c_ulong(_SECUREBITS), 0, 0, 0)
    header = _CAPABILITY_V3.to_bytes(4, "little") + bytes(4)
    _call("empty the capability sets", _NR_CAPSET, ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def landlock_abi() -> int:
    """The Landlock ABI of this kernel, 0 without Landlock (landlock_create_ruleset(2))."""
    version_flag = 1
    found = _libc.syscall(ctypes.c_long(_NR_LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(version_flag))
    return max(int(found), 0)


def landlock_ruleset(handled: tuple[int, int, int], rules: Iterable[tuple[str, int, int]] = (), ports: Iterable[int] = ()) -> int:
    """A descriptor of a ruleset that handles (file system, network, scope), with the rights of each place, by name and open.

    TCP may be connected to the ports, wherever they are (Landlock ABI 4).
    """
    # the attribute's size grew with the ABI: older kernels refuse trailing bytes that are not zero, and take zeros
    record = b"".join(mask.to_bytes(8, "little") for mask in handled)
    size = 24 if handled[2] else 16 if handled[1] else 8
    ruleset = _call("create the Landlock ruleset", _NR_LANDLOCK_CREATE, ctypes.c_char_p(record), size, 0)
    path_beneath = 1
    for name, descriptor, rights in rules:
        rule = rights.to_bytes(8, "little") + descriptor.to_bytes(4, "little")
        _call(f"Landlock rule for {name}", _NR_LANDLOCK_ADD, ruleset, path_beneath, ctypes.c_char_p(rule), 0)
    net_port, connect_tcp = 2, 1 << 1
    for port in ports:
        rule = connect_tcp.to_bytes(8, "little") + port.to_bytes(8, "little")
        _call(f"Landlock rule for the port {port}", _NR_LANDLOCK_ADD, ruleset, net_port, ctypes.c_char_p(rule), 0)
    return ruleset


def opened(path: str) -> int:
    """A descriptor for a Landlock rule. Raises Step."""
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise Step(f"Landlock rule for {path}", error.errno or 0, error.strerror or "") from None


def landlock_enter(ruleset: int) -> None:
    """Enter the ruleset's domain, for good."""
    _call(_LANDLOCK_STEP, _NR_LANDLOCK_RESTRICT, ruleset, 0)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_SECCOMP_STEP, _LANDLOCK_STEP = "load the seccomp filter", "enter the Landlock domain"


def seccomp(blob: bytes) -> None:
    """Load a filter for this thread and what it starts; stacked filters only narrow (seccomp(2))."""
    set_mode_filter = 1
    program = _Program(len(blob) // 8, blob)
    _call(_SECCOMP_STEP, _NR_SECCOMP, set_mode_filter, 0, ctypes.byref(program))


class ChildLock:
    """The two calls that lock a child, made ready once by its zygote: what a child makes of its own, the kernel must copy a page for."""

    def __init__(self, program: bytes, own_pid: list[int]) -> None:
        self._blob = ctypes.create_string_buffer(program, len(program))
        self._own_pid = [ctypes.addressof(self._blob) + offset for offset in own_pid]
        pointed = _Program(len(program) // 8, ctypes.cast(self._blob, ctypes.c_char_p))
        set_mode_filter = 1
        self._seccomp = (ctypes.c_long(_NR_SECCOMP), ctypes.c_long(set_mode_filter), ctypes.c_long(0), ctypes.byref(pointed))
        self._landlock = (ctypes.c_long(_NR_LANDLOCK_RESTRICT), ruleset := ctypes.c_long(-1), ctypes.c_long(0))
        self._ruleset = ruleset

    def enter_landlock(self, ruleset: int) -> None:
        """Enter the ruleset's domain, for good. Raises Step."""
        self._ruleset.value = ruleset
        if _libc.syscall(*self._landlock) < 0:
            _checked(-1, _LANDLOCK_STEP)

    def load_filter(self) -> None:
        """Load the filter with this process's own number at the places that ask for it. Raises Step."""
        own = os.getpid().to_bytes(4, "little")
        for place in self._own_pid:
            ctypes.memmove(place, own, 4)
        if _libc.syscall(*self._seccomp) < 0:
            _checked(-1, _SECCOMP_STEP)


def fill_holes() -> None:
    """Take what is free between the interpreter's objects, for good, so that what children make lies together, on few pages of its own.

    It knows how CPython and glibc give out memory. Where they do otherwise, it takes at most 512 KiB for each of 30 sizes.
    """
    malloc, free = ctypes.pythonapi.PyObject_Malloc, ctypes.pythonapi.PyObject_Free
    malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    for size in (*range(512, 32, -16), 16):  # 32 is what the whole numbers made here take
        first = last = -1
        for _ in range(_HOLES_BYTES // size):
            at = malloc(size) or 0
            ctypes.memset(at, 0, size if at else 0)  # security: nothing writes over it any more, and a child could read what lay there
            if first >= 0 and at == last + size:
                last = at
                if last - first >= _RUN_BYTES:
                    break
            else:
                first = last = at if at % _POOL_BYTES <= _POOL_HEAD else -1
        if first >= 0:
            for at in range(last, first - size, -size):  # backwards, so that the first is given out first
                free(at)
    _fill_heap()


class _Heap(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def _fill_heap() -> None:
    """The same for what is too large for the interpreter's own allocator: the free blocks below the heap's end (mallinfo(3))."""
    if not hasattr(_libc, "mallinfo2"):
        return
    malloc, free, sbrk = _libc.malloc, _libc.free, _libc.sbrk
    malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    sbrk.restype, sbrk.argtypes, _libc.mallinfo2.restype = ctypes.c_void_p, [ctypes.c_ssize_t], _Heap
    heap = _libc.mallinfo2()
    end = (sbrk(0) or 0) - heap.keepcost
    left = heap.fordblks
    for size in (*range(65536, 4096, -4096), *range(4096, 1024, -64), *range(1024, 23, -16)):
        while left > 0 and (at := malloc(size - 8) or 0):
            if at >= end:
                free(at)
                break
            ctypes.memset(at, 0, size - 8)  # security: as above
            left -= size


def make_immortal(objects: Iterable[object]) -> None:
    """Mark objects that will never be freed as None is marked: their reference counts are not written any more (PEP 683).

    Only where ``can_be_immortal`` says so. For a process whose children would else copy each page that holds an object they look at.
    """
    at, mark = ctypes.c_uint32.from_address, ctypes.c_uint32.from_address(id(None)).value
    for one in objects:
        at(id(one)).value = mark


def can_be_immortal() -> bool:
    """Whether this interpreter has immortal objects, with the mark in the first 32 bits (CPython 3.12 and 3.13, with the GIL)."""
    usual = sys.implementation.name == "cpython" and sys.byteorder == "little" and not sys.abiflags
    immortal: int = ctypes.c_uint32.from_address(id(None)).value
    return usual and (3, 12) <= sys.version_info < (3, 14) and immortal == 0xFFFF_FFFF
