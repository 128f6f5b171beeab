"""The system call profiles as shipped: read strictly, and decided right for every number, by an oracle without code of the compiler."""

import errno
import random
import re
import struct
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.errors import PolicyError
from engine.jail import bpf
from engine.jail.syscalls import (
    CHILD,
    JAIL,
    SCOPED_CHILD,
    SCOPED_JAIL,
    WASM_CHILD,
    WASM_JAIL,
    Arch,
    compose,
    describe,
    load_profiles,
    parse_profiles,
)
from engine.places import data_dir

FOLDER = Path(data_dir("policies")) / "syscalls"
TABLES: dict[str, dict[str, Any]] = {file.stem: tomllib.loads(file.read_text("utf-8")) for file in FOLDER.glob("*.toml")}
NUMBERS = TABLES["numbers"]
PROFILES = load_profiles(FOLDER)
STACKS = (JAIL, CHILD, SCOPED_JAIL, SCOPED_CHILD, WASM_JAIL, WASM_CHILD)
FILTERS = [pytest.param(names, arch, id=f"{'-'.join(names[2:] or names[-1:])}-{arch}") for names in STACKS for arch in Arch]
LARGE = [601, 1000, 4095, 65535, 0x3FFFFFFF, 0x40000000, *range(0x40000000, 0x40000000 + 601), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
LOW, WHOLE = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
OWN = 4242
ERRNO = 0x00050000


def blob_of(names: Sequence[str], arch: Arch, tgid: int = OWN) -> bytes:
    program = bpf.compile_filter(compose(PROFILES, names, arch))
    blob = bytearray(program.blob)
    for offset in program.tgid_offsets:
        struct.pack_into("<I", blob, offset, tgid)
    return bytes(blob)


def rows_of(names: Sequence[str], call: str) -> list[dict[str, Any]]:
    """What the data files say of a call: a row for each alternative."""
    found = [TABLES[profile]["calls"][call] for profile in names if call in TABLES[profile]["calls"]]
    return [row for rows in found for row in (rows if isinstance(rows, list) else [rows])]


def holds(condition: dict[str, Any], args: Sequence[int]) -> bool:
    """The oracle's reading of one condition, from the words of the data file."""
    argument: int = args[condition["arg"]]
    if "null" in condition:
        return argument == 0
    argument %= 1 << 32
    if "own_tgid" in condition:
        return argument == OWN
    if "one_of" in condition:
        ignored: int = condition.get("ignore", 0)
        return any((argument ^ value) | ignored == ignored for value in condition["one_of"])
    bits = {bit for bit in range(32) if argument >> bit & 1}
    named = {bit for bit in range(32) if (condition.get("has_all") or condition.get("only") or condition.get("lacks") or 0) >> bit & 1}
    if "has_all" in condition:
        return named <= bits
    return bits <= named if "only" in condition else not bits & named


def oracle(names: Sequence[str], arch: str, number: int, args: Sequence[int]) -> int:
    """What the data files say, computed without the engine."""
    if arch == "x86_64" and number >= 0x40000000:
        return 0x80000000
    call = next((name for name, row in NUMBERS.items() if row.get(arch) == number), None)
    rows = [] if call is None else rows_of(names, call)
    for row in rows:
        if "answer" not in row and all(holds(condition, args) for condition in row.get("when", [])):
            return 0x7FFF0000
    words = {str(row.get("answer", row.get("refuse"))) for row in rows} - {"None"}
    number_of_error: int = getattr(errno, words.pop() if words else "EPERM")
    return ERRNO | number_of_error


def edges(names: Sequence[str], call: str) -> Iterator[tuple[int, ...]]:
    """Argument lists around every value a call's conditions name: the value, its neighbours, each bit turned, high halves set."""
    for row in rows_of(names, call):
        conditions = row.get("when", [])
        good = [0] * 6
        for condition in conditions:
            wanted = (*condition.get("one_of", ()), 0, 1, OWN, 0x11, 0x3D0F00)
            good[condition["arg"]] = next(value for value in wanted if holds(condition, [value] * 6))
        for condition in conditions:
            value = next((condition[key] for key in ("has_all", "only", "lacks") if key in condition), 0)
            for named in {*condition.get("one_of", []), value, OWN, 0x11, 0x01200011, 0x3D0F00, 0x7D0F00}:
                near = {named, named + 1, named - 1, ~named, *(named ^ (1 << bit) for bit in range(64)), named | condition.get("ignore", 0)}
                for candidate in sorted(near | {point | 1 << 32 for point in near} | {point | 0xFFFFFFFF00000000 for point in near}):
                    changed = [*good]
                    changed[condition["arg"]] = candidate & WHOLE
                    yield tuple(changed)


@pytest.mark.parametrize(("names", "arch"), FILTERS)
def test_every_number_is_decided_as_the_data_say(names: Sequence[str], arch: Arch) -> None:
    """All numbers from 0 to 600, all x32 twins and large ones, each with several argument lists."""
    blob = blob_of(names, arch)
    dice = random.Random(1)  # the same every time
    for number in [*range(601), *LARGE]:
        some = tuple(dice.getrandbits(64) for _ in range(6))
        for args in ((0,) * 6, (1,) * 6, (WHOLE,) * 6, (OWN,) * 6, some):
            assert bpf.simulate(blob, arch.audit, number, args) == oracle(names, arch, number, args), (number, args)


@pytest.mark.parametrize(("names", "arch"), FILTERS)
def test_every_argument_rule_is_decided_as_the_data_say(names: Sequence[str], arch: Arch) -> None:
    """Around each value that a rule names: neighbours, single bits, high halves."""
    blob = blob_of(names, arch)
    seen = 0
    for call in sorted({call for profile in names for call in TABLES[profile]["calls"]}):
        if arch not in NUMBERS[call] or not any("when" in row for row in rows_of(names, call)):
            continue
        outcomes = set()
        for args in edges(names, call):
            found = bpf.simulate(blob, arch.audit, NUMBERS[call][arch], args)
            assert found == oracle(names, arch, NUMBERS[call][arch], args), (call, [hex(a) for a in args])
            outcomes.add(found == bpf.ALLOW)
            seen += 1
        assert outcomes == ({True} if call == "tgkill" and names in (JAIL, SCOPED_JAIL, WASM_JAIL) else {True, False}), call
    assert seen > 5000


@pytest.mark.parametrize(
    ("outer", "inner"), [(JAIL, CHILD), (SCOPED_JAIL, SCOPED_CHILD), (WASM_JAIL, WASM_CHILD)], ids=["native", "scoped", "wasm"]
)
@pytest.mark.parametrize("arch", list(Arch))
def test_what_the_child_may_do_the_jail_may_do(outer: Sequence[str], inner: Sequence[str], arch: Arch) -> None:
    """Both filters answer in a child, so one that the jail's refuses would be lost: nothing is."""
    jail, child = blob_of(outer, arch), blob_of(inner, arch)
    for call in {call for profile in inner for call in TABLES[profile]["calls"]}:
        for args in [(0,) * 6, *edges(inner, call)] if arch in NUMBERS[call] else []:
            if bpf.simulate(child, arch.audit, NUMBERS[call][arch], args) == bpf.ALLOW:
                assert bpf.simulate(jail, arch.audit, NUMBERS[call][arch], args) == bpf.ALLOW, (call, args)


@pytest.mark.parametrize("arch", list(Arch))
def test_only_pid_1_forks_filters_and_raises_limits(arch: Arch) -> None:
    """Each of the zygote's doors is shut in the child, and a fork with any other flag is shut in both."""
    jail, child = blob_of(JAIL, arch), blob_of(CHILD, arch)

    def both(call: str, *args: int) -> tuple[bool, bool]:
        number = NUMBERS[call][arch]
        return bpf.simulate(jail, arch.audit, number, args) == bpf.ALLOW, bpf.simulate(child, arch.audit, number, args) == bpf.ALLOW

    limit = 0x7000_0000_0000
    assert {
        "fork": both("clone", 0x01200011),
        "thread": both("clone", 0x3D0F00),
        "vfork": both("clone", 0x4111),
        "shared memory": both("clone", 0x111),
        "sibling": both("clone", 0x8011),
        "traced": both("clone", 0x2011),
        "own limit": both("prlimit64", 0, 7, limit),
        "pid 1's limit": both("prlimit64", 1, 7, limit),
        "read own limit": both("prlimit64", 0, 7, 0, limit),
        "filter": both("seccomp", 1, 0, limit),
        "listener": both("seccomp", 1, 8, limit),
        "strict": both("seccomp", 0, 0, 0),
        "landlock": both("landlock_restrict_self", 5, 0),
        "wait": both("wait4", -1 & WHOLE, 0, 0, 0),
        "wait by descriptor": both("pidfd_open", 7, 0),
        "pass descriptors": both("sendmsg", 3, limit, 0),
        "urgent bytes": both("sendmsg", 3, limit, 1),
        "signal own": both("tgkill", OWN, OWN, 6),
        "signal pid 1": both("tgkill", 1, 1, 9),
    } == {
        "fork": (True, False),
        "thread": (True, True),
        "vfork": (False, False),
        "shared memory": (False, False),
        "sibling": (False, False),
        "traced": (False, False),
        "own limit": (True, False),
        "pid 1's limit": (False, False),
        "read own limit": (True, True),
        "filter": (True, False),
        "listener": (False, False),
        "strict": (False, False),
        "landlock": (True, False),
        "wait": (True, False),
        "wait by descriptor": (True, False),
        "pass descriptors": (True, False),
        "urgent bytes": (False, False),
        "signal own": (True, True),
        "signal pid 1": (True, False),  # in the jail's own filter; a child has both
    }


@pytest.mark.parametrize(("names", "arch"), FILTERS)
@pytest.mark.parametrize("flag", [1 << bit for bit in (7, 17, 25, 26, 27, 28, 29, 30)])
def test_no_thread_or_child_with_a_namespace(names: Sequence[str], arch: Arch, flag: int) -> None:
    """CLONE_NEW* on top of a thread's or a fork's flags is refused, also with bits in the half that the kernel drops."""
    blob, number = blob_of(names, arch), NUMBERS["clone"][arch]
    found = {
        bpf.simulate(blob, arch.audit, number, (flags | flag | high,)) for flags in (0x3D0F00, 0x01200011, 0x11, 0) for high in (0, 1 << 32)
    }
    assert found == {ERRNO | errno.EPERM}


def headers(path: str, aarch64: bool) -> dict[str, int]:
    """Numbers from a kernel header of this machine, aliases of the 32/64-bit twins resolved; skips where it is absent."""
    file = Path(path)
    if not file.exists():
        pytest.skip(f"unproven here: {path} is not installed")
    text = file.read_text("utf-8")
    plain = {name: int(number) for name, number in re.findall(r"#define (__NR(?:3264)?_\w+)\s+(\d+)", text)}
    found = {name.removeprefix("__NR_"): number for name, number in plain.items() if name.startswith("__NR_")}
    if aarch64:
        found |= {name: plain[twin] for name, twin in re.findall(r"#define __NR_(\w+) (__NR3264_\w+)", text) if twin in plain}
    return found


@pytest.mark.parametrize(
    ("arch", "path"), [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")]
)
def test_numbers_are_the_kernels(arch: str, path: str) -> None:
    """Each number equals the kernel header's, and a call without one has none there; calls newer than the header are left out."""
    known = headers(path, arch == "aarch64")
    newest = max(number for name, number in known.items() if name != "syscalls")
    ours = {name: row.get(arch) for name, row in NUMBERS.items() if row.get(arch, 0) <= newest}
    assert ours == {name: known.get(name) for name in ours}
    assert len(ours) > 120


def test_every_number_is_used_and_unique() -> None:
    """The table holds no number for a call that no profile names, and no number twice."""
    used = {call for name, table in TABLES.items() if name != "numbers" for call in table["calls"]}
    assert set(NUMBERS) == used
    for arch in Arch:
        column = [row[arch] for row in NUMBERS.values() if arch in row]
        assert len(column) == len(set(column))


def test_every_entry_has_a_reason() -> None:
    """Each call of each profile says why it is there, in words, and so does each alternative of a call that has several."""
    reasons = [(f"{profile.name}.{entry.name}", entry.reason) for profile in PROFILES.values() for entry in profile.entries]
    assert [name for name, reason in reasons if len(reason) < 5] == []
    assert len(reasons) == sum(len(rows_of([name], call)) for name in PROFILES for call in TABLES[name]["calls"])


DANGEROUS = (
    "io_uring_setup io_uring_enter io_uring_register userfaultfd keyctl add_key request_key bpf ptrace process_vm_readv "
    "process_vm_writev process_madvise pidfd_getfd pidfd_send_signal perf_event_open mount umount2 pivot_root chroot "
    "unshare setns open_by_handle_at name_to_handle_at kexec_load init_module finit_module delete_module personality execve "
    "execveat memfd_create memfd_secret kill tkill rt_sigqueueinfo rt_tgsigqueueinfo prctl setrlimit shmget shmat msgget semget "
    "mq_open vmsplice splice tee sendfile copy_file_range quotactl fanotify_init inotify_init1 swapon reboot clock_settime "
    "settimeofday bind listen accept accept4 sendmmsg recvmmsg symlinkat linkat mknodat fchownat setxattr "
    "getxattr flock setuid setgid setresuid setgroups capset sched_setaffinity setpriority mlockall mincore remap_file_pages "
    "fsopen move_mount open_tree mount_setattr landlock_create_ruleset landlock_add_rule kcmp syslog acct timer_create "
    "lookup_dcookie migrate_pages move_pages mbind set_mempolicy ioprio_set io_setup nfsservctl setsid setpgid sethostname vhangup "
).split()


@pytest.mark.parametrize("call", DANGEROUS)
def test_dangerous_calls_are_in_no_profile(call: str) -> None:
    """Named one by one, so that adding one to a profile meets a failing test first."""
    assert [name for name, profile in PROFILES.items() if any(entry.name == call for entry in profile.entries)] == []


def test_describe_says_what_was_decided() -> None:
    """A person reads the same decisions that the kernel gets."""
    rows = dict(describe(compose(PROFILES, CHILD, Arch.AARCH64)))
    chosen = ("read", "clone3", "socket", "tgkill", "ioctl")
    assert {name: rows.get(name) for name in (*chosen, "open")} == {
        "read": "allowed",
        "clone3": "ENOSYS",
        "socket": "EACCES",
        "tgkill": "allowed if arg0 is its own process, else EPERM",
        "ioctl": "allowed if arg1 in (0x541b, 0x5450, 0x5451, 0x5421), else ENOTTY",
        "open": None,
    }


NUMBER_TABLE = "read = { x86_64 = 0, aarch64 = 63 }\nsame = { x86_64 = 0 }\nioctl = { x86_64 = 16 }\n"


def refused(text: str, numbers: str = NUMBER_TABLE) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        compose(parse_profiles({"numbers": numbers, "p": text}), ["p"], Arch.X86_64)
    assert caught.value.code == "refused.policy"
    return caught.value.lines


def test_a_small_profile_is_read() -> None:
    """The control of the refusals below."""
    profiles = parse_profiles({"numbers": NUMBER_TABLE, "p": 'purpose = "x"\n[calls]\nread = { reason = "r" }\n'})
    assert describe(compose(profiles, ["p"], Arch.AARCH64)) == (("read", "allowed"),)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("{ }", "give a reason"),
        ('{ reason = "  " }', "give a reason"),
        ('{ reason = "r", allow = true }', "the keys are answer, reason, refuse, when, and no others"),
        ('{ reason = "r", when = [] }', "when must list at least one condition"),
        ('{ reason = "r", when = {} }', "when must list at least one condition"),
        ('{ reason = "r", answer = "EWHAT" }', "the error must be one of EPERM, EACCES, ENOTTY, ENOSYS, EOPNOTSUPP"),
        (
            '{ reason = "r", answer = "EPERM", when = [{ arg = 0, null = true }] }',
            "answer refuses the call always; drop it, or when and refuse",
        ),
        ('{ reason = "r", refuse = "EACCES" }', "refuse says how a failed condition is answered; give when, or use answer"),
        ('{ reason = "r", when = [{ arg = 6, null = true }] }', "a condition has arg from 0 to 5 and one of"),
        ('{ reason = "r", when = [{ arg = true, null = true }] }', "a condition has arg from 0 to 5 and one of"),
        ('{ reason = "r", when = [{ arg = 1 }] }', "a condition has arg from 0 to 5 and one of"),
        ('{ reason = "r", when = [{ arg = 1, null = true, only = 1 }] }', "a condition has arg from 0 to 5 and one of"),
        ('{ reason = "r", when = [{ arg = 1, null = false }] }', "null is true or absent"),
        ('{ reason = "r", when = [{ arg = 1, own_tgid = 1 }] }', "own_tgid is true or absent"),
        ('{ reason = "r", when = [{ arg = 1, one_of = [] }] }', "one_of must list at least one number"),
        ('{ reason = "r", when = [{ arg = 1, one_of = [0x100000000] }] }', "a number in a condition is from 0 to 2^32 - 1"),
        ('{ reason = "r", when = [{ arg = 1, one_of = [-1] }] }', "a number in a condition is from 0 to 2^32 - 1"),
        ('{ reason = "r", when = [{ arg = 1, lacks = true }] }', "a number in a condition is from 0 to 2^32 - 1"),
        ('{ reason = "r", when = [{ arg = 1, only = 1, ignore = 2 }] }', "ignore goes with one_of only"),
        (
            '{ reason = "r", when = [{ arg = 1, one_of = [3], ignore = 2 }] }',
            "one_of holds bits that ignore drops, so it could never match",
        ),
        ("[]", "the keys are answer, reason, refuse, when, and no others"),
        ('[{ reason = "r" }, { }]', "give a reason"),
        ('{ reason = "r", when = [{ arg = 1, equals = 3 }] }', "the keys are arg, has_all, ignore, lacks, null, one_of, only, own_tgid"),
        ('"yes"', "the keys are answer, reason, refuse, when, and no others"),
    ],
)
def test_a_malformed_entry_refuses(row: str, line: str) -> None:
    """Each mistake in a row is named, and none is read as a wider permission."""
    assert refused(f'purpose = "x"\n[calls]\nread = {row}\n')[0].startswith(f"syscalls/p.toml: read: {line}")


@pytest.mark.parametrize(
    ("text", "numbers", "line"),
    [
        ("[calls]\n", NUMBER_TABLE, "syscalls/p.toml: give a purpose"),
        ('purpose = "x"\ndefault = "allow"\n', NUMBER_TABLE, "syscalls/p.toml: the keys are calls, purpose, and no others"),
        ('purpose = "x"\ncalls = []\n', NUMBER_TABLE, "syscalls/p.toml: calls must be a table"),
        ('purpose = "x"\n[calls]\nrread = { reason = "r" }\n', NUMBER_TABLE, "syscalls/p.toml: rread: no number in syscalls/numbers.toml"),
        (
            'purpose = "x"\n[calls]\nread = { reason = "r" }\nsame = { reason = "r" }\n',
            NUMBER_TABLE,
            "system calls read and same have the same number 0",
        ),
        ('purpose = "x"\n', "read = { }\n", "syscalls/numbers.toml: read: give a number from 0 to 2^30 - 1 for at least one architecture"),
        ('purpose = "x"\n', "read = { x86_64 = 0x40000000 }\n", "syscalls/numbers.toml: read: give a number from 0"),
        ('purpose = "x"\n', "read = { x86_64 = true }\n", "syscalls/numbers.toml: read: give a number from 0"),
        ('purpose = "x"\n', "read = { riscv64 = 63 }\n", "syscalls/numbers.toml: read: the keys are aarch64, x86_64, and no others"),
        ("purpose = ", NUMBER_TABLE, "syscalls/p.toml is not TOML"),
    ],
)
def test_a_malformed_file_refuses(text: str, numbers: str, line: str) -> None:
    """Mistakes of the whole file, of the number table, and between them."""
    assert refused(text, numbers)[0].startswith(line)


def test_profiles_that_answer_differently_clash() -> None:
    """Two profiles that disagree on the error of one call refuse instead of one winning silently."""
    one, two = (f'purpose = "x"\n[calls]\nioctl = {{ reason = "r", answer = "{error}" }}\n' for error in ("ENOTTY", "ENOSYS"))
    profiles = parse_profiles({"numbers": NUMBER_TABLE, "one": one, "two": two})
    assert describe(compose(profiles, ["one"], Arch.X86_64)) == (("ioctl", "ENOTTY"),)
    with pytest.raises(PolicyError) as caught:
        compose(profiles, ["one", "two"], Arch.X86_64)
    assert caught.value.lines == ("the profiles answer ioctl with different errors",)


def test_an_unknown_profile_refuses_and_lists_what_there_is() -> None:
    """A misspelt profile is an error, not an empty filter."""
    with pytest.raises(PolicyError) as caught:
        compose(PROFILES, ["compute", "networking"], Arch.X86_64)
    assert caught.value.lines == (
        "no system call profile 'networking'; there are: child, compute, network, publish, scratch, wasm, wasm_child, wasm_zygote, zygote",
    )


def test_a_folder_without_numbers_refuses(tmp_path: Path) -> None:
    """An empty or missing folder is an incomplete installation, not a filter without calls."""
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PolicyError) as caught:
            load_profiles(folder)
        assert caught.value.lines == ("syscalls/numbers.toml is missing",)


def test_a_file_that_is_not_text_refuses(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named as unreadable."""
    (tmp_path / "numbers.toml").write_bytes(b"\xff")
    with pytest.raises(PolicyError) as caught:
        load_profiles(tmp_path)
    assert caught.value.lines == ("cannot read the system call profiles: UnicodeDecodeError",)
