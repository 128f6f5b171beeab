"""The compiler from filter specifications to machine code, and the simulator, on small hand-made specifications."""

import errno
import struct
from pathlib import Path

import pytest

from engine.errors import EngineBug
from engine.jail import bpf
from engine.jail.syscalls import CHILD, Arch, Compare, Condition, Decision, FilterSpec, compose, load_profiles
from engine.places import data_dir

EPERM, ENOTTY = bpf.errno_action(errno.EPERM), bpf.errno_action(errno.ENOTTY)
X86, ARM, I386 = Arch.X86_64.audit, Arch.AARCH64.audit, 0x40000003
HIGH = 1 << 32


def spec(*decisions: Decision, arch: Arch = Arch.X86_64) -> FilterSpec:
    return FilterSpec(arch=arch, decisions=decisions)


def call(number: int, *alternatives: tuple[Condition, ...], refuse: int = errno.EPERM) -> Decision:
    return Decision(number=number, name=f"call_{number}", alternatives=alternatives, refuse=refuse)


def answer(filter_spec: FilterSpec, number: int, *args: int, audit: int | None = None) -> int:
    program = bpf.compile_filter(filter_spec)
    return bpf.simulate(program.blob, filter_spec.arch.audit if audit is None else audit, number, args)


def low(arg: int, *values: int, mask: int = 0xFFFFFFFF) -> Condition:
    return Condition(arg=arg, compare=Compare.LOW, mask=mask, values=values)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5, 6, 7, 300, 0x3FFFFFFF])
def test_allowed_numbers_and_their_neighbours(number: int) -> None:
    """Exactly the numbers listed are allowed; the ones beside them are refused."""
    filter_spec = spec(call(1, ()), call(2, ()), call(5, ()))
    assert answer(filter_spec, number) == (bpf.ALLOW if number in {1, 2, 5} else EPERM)


def test_an_empty_specification_refuses_everything() -> None:
    """No decision at all still is a whole filter that refuses."""
    assert {answer(spec(), number) for number in (0, 1, 59, 435)} == {EPERM}


@pytest.mark.parametrize(("arch", "audit"), [(Arch.X86_64, I386), (Arch.X86_64, ARM), (Arch.AARCH64, X86), (Arch.AARCH64, 0x40000028)])
def test_a_foreign_architecture_kills_whatever_the_number(arch: Arch, audit: int) -> None:
    """32-bit and foreign entries die, also with a number that is allowed in the own architecture."""
    assert {answer(spec(call(0, ()), arch=arch), number, audit=audit) for number in (0, 1, 0x40000000)} == {bpf.KILL_PROCESS}


@pytest.mark.parametrize("number", [0x40000000, 0x40000001, 0x40000207, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, -1])
def test_x32_numbers_kill_on_x86_64(number: int) -> None:
    """Numbers with the x32 bit, and all above, die even when the number below the bit is allowed."""
    assert answer(spec(call(0, ()), call(1, ())), number) == bpf.KILL_PROCESS


@pytest.mark.parametrize("number", [0x40000000, 0x40000001, 0xFFFFFFFF])
def test_aarch64_has_no_x32_and_refuses_large_numbers(number: int) -> None:
    """Large numbers on aarch64 mean nothing and get the default."""
    assert answer(spec(call(0, ()), call(1, ()), arch=Arch.AARCH64), number) == EPERM


@pytest.mark.parametrize(
    ("value", "wanted"), [(3, bpf.ALLOW), (4, bpf.ALLOW), (5, ENOTTY), (0, ENOTTY), (3 + HIGH, bpf.ALLOW), (5 + HIGH, ENOTTY)]
)
def test_low_half_is_compared_where_the_kernel_drops_the_rest(value: int, wanted: int) -> None:
    """High bits change nothing: neither do they smuggle a refused value in nor an allowed one out."""
    assert answer(spec(call(16, (low(1, 3, 4),), refuse=errno.ENOTTY)), 16, 0, value) == wanted


@pytest.mark.parametrize(("value", "wanted"), [(0, bpf.ALLOW), (1, EPERM), (HIGH, EPERM), (1 << 63, EPERM), (HIGH + 1, EPERM)])
def test_a_pointer_is_null_only_when_both_halves_are(value: int, wanted: int) -> None:
    """An address whose low half is zero is not taken for NULL."""
    null = Condition(arg=4, compare=Compare.WHOLE, values=(0,))
    assert answer(spec(call(44, (null,))), 44, 9, 9, 9, 9, value) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"), [(1, bpf.ALLOW), (0x80801, bpf.ALLOW), (0x801, bpf.ALLOW), (2, EPERM), (0x80802, EPERM), (0x1001, EPERM)]
)
def test_masked_bits_are_ignored_and_no_others(value: int, wanted: int) -> None:
    """SOCK_STREAM with or without CLOEXEC and NONBLOCK; a datagram or an unknown flag is refused."""
    assert answer(spec(call(53, (low(1, 1, mask=0xFFF7F7FF),))), 53, 1, value) == wanted


@pytest.mark.parametrize(
    ("args", "wanted"), [((1, 1), bpf.ALLOW), ((2, 2), bpf.ALLOW), ((1, 2), EPERM), ((2, 1), EPERM), ((3, 3), EPERM), ((0, 0), EPERM)]
)
def test_conditions_of_an_alternative_all_hold_or_the_next_is_tried(args: tuple[int, int], wanted: int) -> None:
    """Conditions are joined by and, alternatives by or; halves of two alternatives do not add up."""
    filter_spec = spec(call(7, (low(0, 1), low(1, 1)), (low(0, 2), low(1, 2))))
    assert answer(filter_spec, 7, *args) == wanted


def test_a_call_that_is_only_answered() -> None:
    """No alternative means refused with its own error, not with the default."""
    assert answer(spec(call(435, refuse=errno.ENOSYS)), 435) == bpf.errno_action(errno.ENOSYS)


def test_the_own_process_id_is_written_in_by_the_loader() -> None:
    """Unpatched, no id that a process can have matches; patched, the own id alone does."""
    own = Condition(arg=0, compare=Compare.OWN_TGID)
    program = bpf.compile_filter(spec(call(3, ()), call(234, (own,))))
    assert [bpf.simulate(program.blob, X86, 234, (pid,)) for pid in (0, 1, 7)] == [EPERM, EPERM, EPERM]
    blob = bytearray(program.blob)
    for offset in program.tgid_offsets:
        assert struct.unpack_from("<I", blob, offset) == (0xFFFFFFFF,)
        struct.pack_into("<I", blob, offset, 7)
    assert len(program.tgid_offsets) == 1
    wanted = {7: bpf.ALLOW, 7 + HIGH: bpf.ALLOW, 6: EPERM, 8: EPERM, 0: EPERM, 0xFFFFFFFF: EPERM}
    assert {pid: bpf.simulate(bytes(blob), X86, 234, (pid,)) for pid in wanted} == wanted


def test_far_jumps_reach_what_near_ones_cannot() -> None:
    """A filter longer than 255 instructions on one side of the search still decides every number right."""
    wide = tuple(call(2 * n, (low(0, *range(1, 9)), low(1, *range(n, n + 9)))) for n in range(120))
    program = bpf.compile_filter(spec(*wide))
    assert program.instructions > 2000
    assert [bpf.simulate(program.blob, X86, n, (1, n // 2)) for n in range(240)] == [bpf.ALLOW if n % 2 == 0 else EPERM for n in range(240)]
    assert {bpf.simulate(program.blob, X86, n, (1, n // 2 + 9)) for n in range(240)} == {EPERM}


def test_a_condition_too_long_for_a_jump_is_a_bug() -> None:
    """A jump over more than 255 instructions is refused at compile time, one that just fits is not."""
    assert answer(spec(call(1, (low(0, 9), low(1, *range(253))))), 1, 9, 252) == bpf.ALLOW
    with pytest.raises(EngineBug) as caught:
        bpf.compile_filter(spec(call(1, (low(0, 9), low(1, *range(256))))))
    assert caught.value.lines == ("a jump in the filter does not fit",)


def test_a_program_longer_than_the_kernel_takes_is_a_bug() -> None:
    """More than 4096 instructions are refused here and not by the kernel at start."""
    with pytest.raises(EngineBug) as caught:
        bpf.compile_filter(spec(*(call(2 * n, (low(0, *range(1, 40)),)) for n in range(120))))
    assert caught.value.lines[0].endswith("the kernel takes 4096")


@pytest.mark.parametrize("numbers", [(5, 5), (5, 4)])
def test_numbers_out_of_order_are_a_bug(numbers: tuple[int, int]) -> None:
    """Two decisions for one number, or unsorted ones, would make the search answer for the wrong call."""
    with pytest.raises(EngineBug) as caught:
        bpf.compile_filter(spec(*(call(number, ()) for number in numbers)))
    assert caught.value.lines == ("decisions are not in order of number",)


def test_a_condition_without_values_is_a_bug() -> None:
    """A condition that could never be decided does not become one that always holds."""
    with pytest.raises(EngineBug) as caught:
        bpf.compile_filter(spec(call(1, (low(0),))))
    assert caught.value.lines == ("a condition without values",)


@pytest.mark.parametrize("code", [0x28, 0x87, 0x00])
def test_the_simulator_knows_only_our_instructions(code: int) -> None:
    """An opcode that the compiler never writes is an error, not a guess."""
    with pytest.raises(EngineBug):
        bpf.simulate(struct.pack("<HBBI", code, 0, 0, 0), X86, 0, ())


def test_the_simulator_does_not_run_past_the_end() -> None:
    """A program without a return is an error."""
    with pytest.raises(EngineBug) as caught:
        bpf.simulate(struct.pack("<HBBI", 0x20, 0, 0, 0), X86, 0, ())
    assert caught.value.lines == ("the filter runs past its end",)


def test_the_simulator_reads_the_kernels_layout() -> None:
    """Number, architecture and both halves of each argument are where struct seccomp_data has them."""
    values = []
    for offset in (0, 4, *range(16, 64, 4)):
        probe = struct.pack("<HBBI", 0x20, 0, 0, offset)
        hits = [struct.pack("<HBBI", 0x15, 0, 1, word) + struct.pack("<HBBI", 0x06, 0, 0, word) for word in range(100, 114)]
        args = [102 + 2 * n + ((103 + 2 * n) << 32) for n in range(6)]
        values.append(bpf.simulate(probe + b"".join(hits), 101, 100, args))
    assert values == list(range(100, 114))


def test_compiling_is_pure() -> None:
    """The same specification gives the same bytes."""
    filter_spec = compose(load_profiles(Path(data_dir("policies")) / "syscalls"), CHILD, Arch.X86_64)
    assert bpf.compile_filter(filter_spec) == bpf.compile_filter(filter_spec)
