"""What the filters of a WebAssembly worker leave out; that they decide every number as their data say is in test_syscalls.py."""

import pytest

from engine.jail import bpf
from engine.jail.syscalls import CHILD, WASM_CHILD, WASM_JAIL, Arch
from tests.unit.test_syscalls import LOW, NUMBERS, blob_of


@pytest.mark.parametrize("arch", list(Arch))
def test_no_memory_of_a_wasm_worker_becomes_executable(arch: Arch) -> None:
    """PROT_EXEC, and any other bit beside reading and writing, is refused wherever protections are given; without it, it is allowed."""
    for names in (WASM_JAIL, WASM_CHILD):
        blob = blob_of(names, arch)
        for call in ("mmap", "mprotect"):
            allowed = {
                bits
                for bits in (*range(16), *(1 << bit for bit in range(64)))
                if bpf.simulate(blob, arch.audit, NUMBERS[call][arch], (0, 0, bits)) == bpf.ALLOW
            }
            # the upper half is dropped by the kernel, as by the filter
            assert {bits & LOW for bits in allowed} == {0, 1, 2, 3}
    native = blob_of(CHILD, arch)
    assert bpf.simulate(native, arch.audit, NUMBERS["mmap"][arch], (0, 0, 7)) == bpf.ALLOW


@pytest.mark.parametrize("arch", list(Arch))
def test_a_guest_has_none_of_the_calls_that_name_something(arch: Arch) -> None:
    """No file, folder, socket, program, process or limit: each is allowed in a native child, and refused in one that holds a guest."""
    native, wasm = blob_of(CHILD, arch), blob_of(WASM_CHILD, arch)
    calls = (
        "openat newfstatat statx readlinkat getdents64 getcwd chdir mkdirat unlinkat renameat socketpair sendto recvfrom dup3 pipe2".split()
    )
    good = {"socketpair": (1, 1)}

    def answers(blob: bytes) -> set[bool]:
        return {bpf.simulate(blob, arch.audit, NUMBERS[call][arch], good.get(call, (0,) * 6)) == bpf.ALLOW for call in calls}

    assert (answers(native), answers(wasm)) == ({True}, {False})
