"""Which system calls a jailed process may make: profiles read from data files, joined into one specification per architecture.

Its job: read ``policies/syscalls/*.toml`` strictly, join profiles, say what was decided.
Not its job: machine code for the kernel (``bpf.py``), loading it (the jailed side).
Laws:
1. Unknown keys, tests, errors, names without a number and entries without a reason refuse (tests/unit/test_syscalls.py).
2. A call is allowed only when all conditions of one entry hold; what no entry names gets EPERM (tests/unit/test_syscalls.py).
3. What the child may do, the jail around it may do: the filters stack (tests/unit/test_syscalls.py).
"""

import dataclasses
import enum
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from engine.errors import PolicyError

JAIL: Final = ("compute", "scratch", "zygote")  # pid 1, loaded once at lock-down; its children inherit it
CHILD: Final = ("compute", "scratch", "child")  # loaded on top by each child before tool code
SCOPED_JAIL: Final = (*JAIL, "network")  # the same two of a worker that may connect to named places
SCOPED_CHILD: Final = (*CHILD, "network")
WASM_JAIL: Final = ("wasm", "wasm_zygote")  # the same two of a WebAssembly worker
WASM_CHILD: Final = ("wasm", "wasm_child")
EPERM: Final = 1
# the same on both architectures (asm-generic/errno.h), and held here because a plan may be made on another system
ANSWERS: Final = MappingProxyType({"EPERM": 1, "EACCES": 13, "ENOTTY": 25, "ENOSYS": 38, "EOPNOTSUPP": 95})
LOW32: Final = 0xFFFFFFFF
_NUMBERS = "numbers"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Arch(enum.StrEnum):
    """An architecture that has a number table."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @property
    def audit(self) -> int:
        """The kernel's name for it in a filter's input (AUDIT_ARCH_*, linux/audit.h)."""
        return 0xC000003E if self is Arch.X86_64 else 0xC00000B7


class Compare(enum.Enum):
    """How much of an argument a condition looks at."""

    LOW = "low"  # the low 32 bits: the kernel's parameter is an int, it drops the rest
    WHOLE = "whole"  # the high 32 bits must be zero too: pointers
    OWN_TGID = "own_tgid"  # the low 32 bits against the process's own id, written in by the loader


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condition:
    """Holds when ``argument & mask`` is one of ``values`` (for OWN_TGID: is the process's own id)."""

    arg: int
    compare: Compare
    mask: int = LOW32
    values: tuple[int, ...] = ()


Alternative = tuple[Condition, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One call of a profile: allowed when all of ``conditions`` hold (None: never), else answered with the error ``refuse``."""

    name: str
    reason: str
    numbers: Mapping[Arch, int]
    conditions: Alternative | None
    refuse: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """A named set of calls with its purpose."""

    name: str
    purpose: str
    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to one number: allowed when any alternative holds (an empty one always does), else the error ``refuse``."""

    number: int
    name: str
    alternatives: tuple[Alternative, ...]
    refuse: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilterSpec:
    """A whole filter for one architecture: decisions in order of number; every other number gets EPERM."""

    arch: Arch
    decisions: tuple[Decision, ...]


def load_profiles(folder: Path) -> Mapping[str, Profile]:
    """The profiles of a folder by file name. Raises PolicyError when a file is missing, malformed or breaks a rule."""
    texts = {}
    try:
        for file in sorted(folder.glob("*.toml")):
            texts[file.stem] = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"cannot read the system call profiles: {type(error).__name__}") from error
    return parse_profiles(texts)


def parse_profiles(texts: Mapping[str, str]) -> Mapping[str, Profile]:
    """The same from texts: ``numbers`` holds the number table, every other name is a profile. Raises PolicyError."""
    tables: dict[str, dict[str, Any]] = {}
    for name, text in texts.items():
        try:
            tables[name] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _wrong(f"syscalls/{name}.toml is not TOML: {error}") from error
    if _NUMBERS not in tables:
        raise _wrong(f"syscalls/{_NUMBERS}.toml is missing")
    numbers = _read_numbers(tables.pop(_NUMBERS))
    return MappingProxyType({name: _read_profile(name, table, numbers) for name, table in tables.items()})


def compose(profiles: Mapping[str, Profile], names: Sequence[str], arch: Arch) -> FilterSpec:
    """The named profiles as one filter: a call is allowed when any of them allows it. Raises PolicyError for an unknown name or a clash."""
    found: dict[int, list[Entry]] = {}
    for name in names:
        if name not in profiles:
            raise _wrong(f"no system call profile {name!r}; there are: {', '.join(sorted(profiles))}")
        for entry in profiles[name].entries:
            if arch in entry.numbers:
                found.setdefault(entry.numbers[arch], []).append(entry)
    return FilterSpec(arch=arch, decisions=tuple(_decide(number, found[number]) for number in sorted(found)))


def describe(spec: FilterSpec) -> tuple[tuple[str, str], ...]:
    """Name and decision of each call in words, for a person."""
    errors = {number: name for name, number in ANSWERS.items()}
    rows = []
    for decision in spec.decisions:
        otherwise = errors[decision.refuse]
        if not decision.alternatives:
            rows.append((decision.name, otherwise))
        elif () in decision.alternatives:
            rows.append((decision.name, "allowed"))
        else:
            ways = " or ".join(" and ".join(_say(condition) for condition in alternative) for alternative in decision.alternatives)
            rows.append((decision.name, f"allowed if {ways}, else {otherwise}"))
    return tuple(rows)


def _say(condition: Condition) -> str:
    left = f"arg{condition.arg}"
    if condition.compare is Compare.OWN_TGID:
        return f"{left} is its own process"
    masked = left if condition.mask == LOW32 else f"{left} & {condition.mask:#x}"
    return f"{masked} in ({', '.join(f'{value:#x}' for value in condition.values)})"


def _decide(number: int, entries: Sequence[Entry]) -> Decision:
    name = entries[0].name
    if any(entry.name != name for entry in entries):
        raise _wrong(f"system calls {name} and {entries[-1].name} have the same number {number}")
    refusals = {entry.refuse for entry in entries} - {EPERM} or {EPERM}
    if len(refusals) > 1:
        raise _wrong(f"the profiles answer {name} with different errors")
    alternatives = tuple(entry.conditions for entry in entries if entry.conditions is not None)
    return Decision(number=number, name=name, alternatives=((),) if () in alternatives else alternatives, refuse=refusals.pop())


def _read_numbers(table: Mapping[str, Any]) -> Mapping[str, Mapping[Arch, int]]:
    numbers = {}
    for name, row in table.items():
        where = f"syscalls/{_NUMBERS}.toml: {name}"
        _only(row, {arch.value for arch in Arch}, where)
        if not _NAME.fullmatch(name) or not row or any(type(number) is not int or not 0 <= number < 0x40000000 for number in row.values()):
            raise _wrong(f"{where}: give a number from 0 to 2^30 - 1 for at least one architecture")
        numbers[name] = MappingProxyType({Arch(arch): number for arch, number in row.items()})
    return numbers


def _read_profile(name: str, table: Mapping[str, Any], numbers: Mapping[str, Mapping[Arch, int]]) -> Profile:
    where = f"syscalls/{name}.toml"
    _only(table, {"purpose", "calls"}, where)
    calls = table.get("calls", {})
    if not isinstance(calls, dict):
        raise _wrong(f"{where}: calls must be a table")
    entries = tuple(_read_entry(call, row, numbers, f"{where}: {call}") for call, rows in calls.items() for row in _alternatives(rows))
    return Profile(name=name, purpose=_text(table, "purpose", where), entries=entries)


def _alternatives(rows: Any) -> Sequence[Any]:
    """The entries of one call: one, or a list of several, of which any may allow it."""
    # security: an empty list would drop the call's own refusal without a word, as a row it is malformed
    return rows if isinstance(rows, list) and rows else (rows,)


def _read_entry(name: str, row: Any, numbers: Mapping[str, Mapping[Arch, int]], where: str) -> Entry:
    _only(row, {"reason", "when", "answer", "refuse"}, where)
    if name not in numbers:
        raise _wrong(f"{where}: no number in syscalls/{_NUMBERS}.toml")
    if "answer" in row and ("when" in row or "refuse" in row):
        raise _wrong(f"{where}: answer refuses the call always; drop it, or when and refuse")
    if "refuse" in row and "when" not in row:
        raise _wrong(f"{where}: refuse says how a failed condition is answered; give when, or use answer")
    answer = row.get("answer", row.get("refuse", "EPERM"))
    if not isinstance(answer, str) or answer not in ANSWERS:
        raise _wrong(f"{where}: the error must be one of {', '.join(ANSWERS)}")
    return Entry(
        name=name,
        reason=_text(row, "reason", where),
        numbers=numbers[name],
        conditions=None if "answer" in row else _read_conditions(row, where),
        refuse=ANSWERS[answer],
    )


def _read_conditions(row: Mapping[str, Any], where: str) -> Alternative:
    if "when" not in row:
        return ()
    when = row["when"]
    # security: `when = []` would read as "no condition" and open the whole call
    if not isinstance(when, list) or not when:
        raise _wrong(f"{where}: when must list at least one condition")
    return tuple(_read_condition(item, where) for item in when)


def _read_condition(item: Any, where: str) -> Condition:
    tests = {"one_of", "has_all", "only", "lacks", "null", "own_tgid"}
    _only(item, {"arg", "ignore"} | tests, where)
    arg, given = item.get("arg"), sorted(item.keys() & tests)
    if type(arg) is not int or not 0 <= arg <= 5 or len(given) != 1:
        raise _wrong(f"{where}: a condition has arg from 0 to 5 and one of {', '.join(sorted(tests))}")
    test, value = given[0], item[given[0]]
    if "ignore" in item and test != "one_of":
        raise _wrong(f"{where}: ignore goes with one_of only")
    match test:
        case "null" | "own_tgid":
            if value is not True:
                raise _wrong(f"{where}: {test} is true or absent")
            if test == "own_tgid":
                return Condition(arg=arg, compare=Compare.OWN_TGID)
            return Condition(arg=arg, compare=Compare.WHOLE, values=(0,))
        case "one_of":
            return _one_of(arg, value, item.get("ignore", 0), where)
    bits = _word(value, where)
    mask, wanted = {"has_all": (bits, bits), "only": (LOW32 & ~bits, 0), "lacks": (bits, 0)}[test]
    return Condition(arg=arg, compare=Compare.LOW, mask=mask, values=(wanted,))


def _one_of(arg: int, values: Any, ignore: Any, where: str) -> Condition:
    if not isinstance(values, list) or not values:
        raise _wrong(f"{where}: one_of must list at least one number")
    mask = LOW32 & ~_word(ignore, where)
    words = tuple(_word(value, where) for value in values)
    if any(word & ~mask for word in words):
        raise _wrong(f"{where}: one_of holds bits that ignore drops, so it could never match")
    return Condition(arg=arg, compare=Compare.LOW, mask=mask, values=words)


def _word(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= LOW32:
        raise _wrong(f"{where}: a number in a condition is from 0 to 2^32 - 1")
    return value


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    text = row.get(key)
    if not isinstance(text, str) or not text.strip():
        raise _wrong(f"{where}: give a {key}")
    return text


def _only(row: Any, allowed: set[str], where: str) -> None:
    if not isinstance(row, dict) or not row.keys() <= allowed:
        raise _wrong(f"{where}: the keys are {', '.join(sorted(allowed))}, and no others")


def _wrong(line: str) -> PolicyError:
    return PolicyError("refused.policy", line)
