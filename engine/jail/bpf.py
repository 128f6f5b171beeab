"""Compiles a filter specification to classic BPF, the machine code that seccomp(2) takes, and simulates it.

Its job: ``compile_filter`` (pure, under a millisecond) and ``simulate`` (what the kernel would answer).
Not its job: which calls are allowed (``syscalls.py``), loading the program (the jailed side).
Laws:
1. The architecture is checked before the number; a foreign one, and every x32 number, kills the process (tests/unit/test_bpf.py).
2. Every number gets exactly what the specification says, nothing falls through (tests/unit/test_syscalls.py, over all numbers).
3. A jump that does not fit or does not go forward is an EngineBug, never a program (tests/unit/test_bpf.py).
4. Until the loader writes the process id in, no id matches the own-process condition (tests/unit/test_bpf.py).
"""

import dataclasses
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from engine.errors import EngineBug
from engine.jail.syscalls import EPERM, LOW32, Alternative, Arch, Compare, Condition, Decision, FilterSpec

ALLOW: Final = 0x7FFF0000  # SECCOMP_RET_* of linux/seccomp.h
KILL_PROCESS: Final = 0x80000000
_ERRNO = 0x00050000
_X32 = 0x40000000  # __X32_SYSCALL_BIT, asm/unistd.h of x86_64
_UNPATCHED = 0xFFFFFFFF  # no process has this id (PID_MAX_LIMIT is 2^22)
_MOST = 4096  # instructions, BPF_MAXINSNS

# opcodes of linux/bpf_common.h: class | size or operation | source
_LOAD, _AND, _JUMP, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16  # offsets in struct seccomp_data; both architectures are little-endian


class _Step(NamedTuple):
    """One instruction: ``yes`` and ``no`` say how many instructions a test skips."""

    code: int
    k: int
    yes: int = 0
    no: int = 0
    own_tgid: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """Machine code; the loader writes its process id as little-endian u32 at each of ``tgid_offsets`` (bytes into ``blob``)."""

    blob: bytes
    tgid_offsets: tuple[int, ...]
    instructions: int


def errno_action(number: int) -> int:
    """The kernel's action word for "fail with this error"."""
    return _ERRNO | number


def compile_filter(spec: FilterSpec) -> Program:
    """The specification as machine code. Raises EngineBug when it cannot be one sound program."""
    steps = [_Step(_LOAD, _ARCH_AT), _Step(_IF_EQUAL, spec.arch.audit, yes=1), _Step(_RETURN, KILL_PROCESS), _Step(_LOAD, _NUMBER_AT)]
    if spec.arch is Arch.X86_64:
        # security: x32 numbers share the architecture word with x86_64 and mean other calls
        steps += [_Step(_IF_AT_LEAST, _X32, no=1), _Step(_RETURN, KILL_PROCESS)]
    steps += _search(_ranges(spec.decisions))
    return _assemble(steps)


def _ranges(decisions: Sequence[Decision]) -> list[tuple[int, list[_Step]]]:
    """First number of each range and the code that decides it, from 0 up; neighbours with equal code are one range."""
    default = [_Step(_RETURN, errno_action(EPERM))]
    ranges = [(0, default)]

    def begin(number: int, code: list[_Step]) -> None:
        if ranges[-1][0] == number:
            ranges.pop()
        if not ranges or ranges[-1][1] != code:
            ranges.append((number, code))

    following = 0
    for decision in decisions:
        if decision.number < following:
            raise _bug("decisions are not in order of number")
        begin(decision.number, _decided(decision))
        following = decision.number + 1
        begin(following, default)
    return ranges


def _search(ranges: Sequence[tuple[int, list[_Step]]]) -> list[_Step]:
    """Binary search over ranges; the number stays in the accumulator until a range's code runs."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    pivot = ranges[middle][0]
    if len(below) <= 0xFF:
        return [_Step(_IF_AT_LEAST, pivot, yes=len(below)), *below, *above]
    # conditional jumps have 8 bits; the unconditional one has 32
    return [_Step(_IF_AT_LEAST, pivot, no=1), _Step(_JUMP, len(below)), *below, *above]


def _decided(decision: Decision) -> list[_Step]:
    """Each alternative either returns ALLOW or skips to the next; after the last one the refusal is returned."""
    if () in decision.alternatives:
        return [_Step(_RETURN, ALLOW)]
    steps: list[_Step] = []
    for alternative in decision.alternatives:
        steps += _alternative(alternative)
    return [*steps, _Step(_RETURN, errno_action(decision.refuse))]


def _alternative(conditions: Alternative) -> list[_Step]:
    steps = [_Step(_RETURN, ALLOW)]
    for condition in reversed(conditions):
        steps = _tested(condition, skip=len(steps)) + steps
    return steps


def _tested(condition: Condition, skip: int) -> list[_Step]:
    """Goes on behind itself when the condition holds, else over ``skip`` more instructions."""
    at = _ARGS_AT + 8 * condition.arg
    steps = [_Step(_LOAD, at)]
    if condition.compare is Compare.OWN_TGID:
        return [*steps, _Step(_IF_EQUAL, _UNPATCHED, no=skip, own_tgid=True)]
    if not condition.values:
        raise _bug("a condition without values")
    if condition.mask != LOW32:
        steps.append(_Step(_AND, condition.mask))
    last = len(condition.values) - 1
    for index, value in enumerate(condition.values):
        steps.append(_Step(_IF_EQUAL, value, yes=last - index, no=skip if index == last else 0))
    if condition.compare is Compare.WHOLE:
        # security: a pointer whose low half is zero is not NULL
        steps = [_Step(_LOAD, at + 4), _Step(_IF_EQUAL, 0, no=len(steps) + skip), *steps]
    return steps


def _assemble(steps: Sequence[_Step]) -> Program:
    if len(steps) > _MOST:
        raise _bug(f"a filter of {len(steps)} instructions; the kernel takes {_MOST}")
    for index, step in enumerate(steps):
        reach = step.k if step.code == _JUMP else max(step.yes, step.no)
        # security: a jump to a wrong place can skip the refusal and let the call through
        if max(step.yes, step.no) > 0xFF or (step.code != _RETURN and index + 1 + reach >= len(steps)):
            raise _bug("a jump in the filter does not fit")
    if steps[-1].code != _RETURN:
        raise _bug("the filter does not end in a return")
    blob = b"".join(struct.pack("<HBBI", step.code, step.yes, step.no, step.k) for step in steps)
    offsets = tuple(8 * index + 4 for index, step in enumerate(steps) if step.own_tgid)
    return Program(blob=blob, tgid_offsets=offsets, instructions=len(steps))


def simulate(blob: bytes, arch_audit: int, nr: int, args: Sequence[int]) -> int:
    """The action word that the kernel would reach for a call of up to six 64-bit arguments. Raises EngineBug for code that is not ours."""
    words = [int(argument) & 0xFFFFFFFFFFFFFFFF for argument in (*args, *[0] * (6 - len(args)))]
    data = struct.pack("<IIQ6Q", nr & LOW32, arch_audit, 0, *words)
    at, accumulator = 0, 0
    while 0 <= at * 8 < len(blob):
        code, yes, no, k = struct.unpack_from("<HBBI", blob, at * 8)
        at += 1
        if code == _RETURN:
            return int(k)
        if code == _LOAD:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif code == _AND:
            accumulator &= k
        elif code == _JUMP:
            at += k
        elif code in (_IF_EQUAL, _IF_AT_LEAST):
            at += yes if (accumulator == k if code == _IF_EQUAL else accumulator >= k) else no
        else:
            raise _bug(f"opcode {code:#x} in a filter")
    raise _bug("the filter runs past its end")


def _bug(line: str) -> EngineBug:
    return EngineBug("engine_failed.bug", line)
