"""The filters of a WebAssembly worker in the real kernel: what the native ones refuse these refuse as well, and much more.

Each refusal has its control: the same call in the same process without the filter.
"""

import pytest

from engine.jail.syscalls import WASM_CHILD, WASM_JAIL
from tests.security.test_syscall_filter import DENIED, Call, errors

STACK = (WASM_JAIL, WASM_CHILD)  # as they are stacked in a child
EPERM = 1
# number on x86_64 and arguments with which the call does something where nothing stops it
LEFT_OUT: dict[str, Call] = {
    "executable mapping": (9, 0, 4096, 7, 0x22, -1, 0),
    "executable and readable mapping": (9, 0, 4096, 5, 0x22, -1, 0),
    "executable protection": (10, 0, 0, 4),
    "executable protection by key": (329, 0, 0, 4, -1),
    "open": (257, -100, "buffer", 0),
    "stat": (262, -100, "buffer", "buffer", 0),
    "change folder": (80, "buffer"),
    "socket pair": (53, 1, 1, 0, "buffer"),
    "pipe": (293, "buffer", 0),
    "duplicate": (32, 0),
    "send": (44, 0, "buffer", 0, 0, 0, 0),
    "timer": (38, 0, 0, 0),
    "name of the host": (63, "buffer"),
}


@pytest.mark.parametrize("name", sorted(DENIED))
def test_what_a_native_worker_may_not_a_guests_may_not(name: str) -> None:
    """The same list of dangerous calls; the controls are the native filters' own."""
    assert errors(STACK, [DENIED[name]]) != [0]


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_a_guest_does_not_need_is_refused(name: str) -> None:
    """By the child's filter alone, too; without it the call is answered by the kernel."""
    assert errors(STACK, [LEFT_OUT[name]]) == [EPERM]
    assert errors([WASM_CHILD], [LEFT_OUT[name]]) == [EPERM]
    assert errors([], [LEFT_OUT[name]]) != [EPERM]


def test_what_a_guest_needs_is_there() -> None:
    """The control of the above: memory that is not executable, the timer's descriptors, who and when."""
    needed: list[Call] = [
        (9, 0, 4096, 3, 0x22, -1, 0),
        (10, 0, 0, 3),
        (290, 0, 0),
        (291, 0),
        (39,),
        (228, 1, "buffer"),
        (318, "buffer", 8, 0),
    ]
    assert errors(STACK, needed) == [0] * len(needed)
