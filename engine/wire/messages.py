"""The closed set of messages, one frozen class each, from payloads and to payloads.

Its job: a message to a payload, a payload to a message.
Not its job: lengths (``framing.py``), values from bytes (``decoding.py``), what is data at all (``data.py``),
which message may come when (``session.py``).
Laws:
1. Whatever the bytes are, ``decode`` gives a message or raises RemoteFault (tests/fuzz/test_session.py).
2. Nothing is built before the payload's structure is known to be sound and small enough (tests/security/test_wire_hostile.py).
3. A map with one key twice has no value: two readers could disagree about it (tests/security/test_wire_hostile.py).
4. Both codecs of the guest write the same bytes and refuse the same values (tests/agreement/test_codecs.py).
5. A fault names types, messages and fields, never what was sent (tests/security/test_wire_order.py).
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, cast

import msgpack

from engine import errors
from engine.wire import decoding
from engine.wire.data import DEPTH, NODES, outside
from engine.wire.framing import RemoteFault

Check: TypeAlias = Callable[[object], bool]
Build: TypeAlias = Callable[[memoryview], list[Any]]


def _any(value: object) -> bool:
    return True


def _text(value: object) -> bool:
    return type(value) is str


def _text_or_none(value: object) -> bool:
    return value is None or type(value) is str


def _flag(value: object) -> bool:
    return type(value) is bool


def _count(value: object) -> bool:
    return type(value) is int and value >= 0


def _number(value: object) -> bool:
    return type(value) is int or type(value) is float


def _number_or_none(value: object) -> bool:
    return value is None or _number(value)


def _object(value: object) -> bool:
    return type(value) is dict


def _list(value: object) -> bool:
    return type(value) is list


def _texts(value: object) -> bool:
    return type(value) is list and all(map(_text, value))


def _text_map(value: object) -> bool:
    return type(value) is dict and all(map(_text, value.values()))


def _count_map(value: object) -> bool:
    return type(value) is dict and all(map(_count, value.values()))


def _level(value: object) -> bool:
    return type(value) is str and value in LOG_LEVELS


def _failure_kind(value: object) -> bool:
    return type(value) is str and value in FAILURE_KINDS


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """An object that was found to be plain data and packed once, so that its size is known and it need not be packed again."""

    data: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, value: dict[str, Any], *, depth: int = DEPTH, nodes: int = NODES) -> "Packed":
        """The packed object. Raises ValueError for what is not plain data; ``checking.data_problem`` says where."""
        problem = outside([value], depth=depth, nodes=nodes)
        if problem is not None:
            raise ValueError(problem)
        return cls(msgpack.packb(value, strict_types=True))


def _arguments(value: object) -> bool:
    return type(value) is dict or type(value) is Packed


LOG_LEVELS = ("debug", "info", "warning", "error")
FAILURE_KINDS = ("exception", "import", "exit", "not_data", "missing", "declaration", "cancelled")


class Message:
    """Base of all: the ``NUMBER`` that says which one a frame holds, and what each field may hold, in the order of the wire."""

    __slots__ = ()
    NUMBER: ClassVar[int]
    FIELDS: ClassVar[Mapping[str, Check]]


def _fields(**checks: Check) -> Mapping[str, Check]:
    return MappingProxyType(checks)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Init(Message):
    """To the worker, first: the bundle to load, where it lies, and the bounds the guest keeps to. ``environment`` may hold secrets."""

    NUMBER = 1
    FIELDS = _fields(
        bundle=_text,
        root=_text,
        entry=_text,
        layers=_texts,
        tool=_text_or_none,
        declaration=_text_or_none,
        environment=_text_map,
        bounds=_count_map,
    )
    bundle: str
    root: str
    entry: str
    layers: list[str]
    tool: str | None
    declaration: str | None
    environment: dict[str, str] = dataclasses.field(repr=False)
    bounds: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedInit:
    """An Init that was encoded once, for all children of one worker."""

    payload: bytes = dataclasses.field(repr=False)

    @classmethod
    def of(cls, init: Init) -> "EncodedInit":
        """Raises EngineBug, as ``encode`` does."""
        return cls(encode(init))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Describe(Message):
    """To the worker: send the declarations of the tools that were loaded."""

    NUMBER = 2
    FIELDS = _fields()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Call(Message):
    """To the worker: run the tool once."""

    NUMBER = 3
    FIELDS = _fields(tool=_text, arguments=_arguments, call=_text)
    tool: str
    arguments: dict[str, Any] | Packed
    call: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostReply(Message):
    """To the worker: the answer to its host call of that number; ``value`` is the result, or why not."""

    NUMBER = 4
    FIELDS = _fields(number=_count, ok=_flag, value=_any)
    number: int
    ok: bool
    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cancel(Message):
    """To the worker: come to an end; what it sends until its answer still counts."""

    NUMBER = 5
    FIELDS = _fields()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ready(Message):
    """From the worker: the bundle is loaded; the digest of the tool it was told to expect, as it found it."""

    NUMBER = 16
    FIELDS = _fields(declaration=_text_or_none)
    declaration: str | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Declarations(Message):
    """From the worker, its answer to Describe: what the tools say of themselves, not yet checked."""

    NUMBER = 17
    FIELDS = _fields(tools=_list)
    tools: list[Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Partial(Message):
    """From the worker: one item of a stream, not yet checked against the tool's partial schema."""

    NUMBER = 18
    FIELDS = _fields(value=_any)
    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Progress(Message):
    """From the worker: how far it says it is."""

    NUMBER = 19
    FIELDS = _fields(done=_number, total=_number_or_none, message=_text)
    done: float | int
    total: float | int | None
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Event(Message):
    """From the worker: something it wants the caller to see."""

    NUMBER = 20
    FIELDS = _fields(value=_any)
    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Log(Message):
    """From the worker: a log record; its text and data are untrusted."""

    NUMBER = 21
    FIELDS = _fields(level=_level, message=_text, data=_object)
    level: str
    message: str
    data: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostCall(Message):
    """From the worker: run something of ours for it; the number comes back in the HostReply."""

    NUMBER = 22
    FIELDS = _fields(number=_count, name=_text, arguments=_object)
    number: int
    name: str
    arguments: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Result(Message):
    """From the worker, its answer to Call: what the tool returned, not yet checked against its output schema."""

    NUMBER = 23
    FIELDS = _fields(value=_any)
    value: Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Failure(Message):
    """From the worker, its answer when there is no result: which kind, the exception's type and its words, both untrusted."""

    NUMBER = 24
    FIELDS = _fields(kind=_failure_kind, type=_text, message=_text)
    kind: str
    type: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """A message that is to come, and its payload: one that is the same to the byte need not be decoded."""

    payload: bytes
    message: Ready

    @classmethod
    def ready(cls, declaration: str | None) -> "Expected":
        """A Ready with that digest."""
        return cls(msgpack.packb([Ready.NUMBER, declaration], strict_types=True), Ready(declaration=declaration))


_FIXARRAY = 0x90  # msgpack's head of an array of up to 15
ToWorker: TypeAlias = Init | Describe | Call | HostReply | Cancel
FromWorker: TypeAlias = Ready | Declarations | Partial | Progress | Event | Log | HostCall | Result | Failure
_Maker: TypeAlias = Callable[..., FromWorker]
TO_WORKER: Mapping[int, type[ToWorker]] = MappingProxyType({kind.NUMBER: kind for kind in (Init, Describe, Call, HostReply, Cancel)})
FROM_WORKER: Mapping[int, type[FromWorker]] = MappingProxyType(
    {kind.NUMBER: kind for kind in (Ready, Declarations, Partial, Progress, Event, Log, HostCall, Result, Failure)}
)


def encode(message: ToWorker, *, depth: int = DEPTH, nodes: int = NODES) -> bytes:
    """The payload of a message of ours. Raises EngineBug when a field holds what must have been refused before it came here."""
    fields = [getattr(message, name) for name in message.FIELDS]
    unpacked = [field for field in fields if type(field) is not Packed]
    problem = _misfit(type(message), fields) or outside(unpacked, depth=depth, nodes=nodes)
    if problem is None:
        try:
            if len(unpacked) < len(fields):
                packed = [field.data if type(field) is Packed else msgpack.packb(field, strict_types=True) for field in fields]
                return b"".join((bytes((_FIXARRAY + 1 + len(fields), message.NUMBER)), *packed))
            return msgpack.packb([message.NUMBER, *fields], strict_types=True)
        except ValueError as error:  # a lone surrogate, or a list that another thread changed meanwhile
            problem = f"{type(message).__name__} that does not encode ({type(error).__name__})"
    raise errors.EngineBug("engine_failed.bug", f"the engine tried to send {problem}")


def decode(payload: memoryview, kind: type[FromWorker], *, depth: int = DEPTH, nodes: int = NODES) -> FromWorker:
    """The message of that kind in the payload. Raises RemoteFault for anything else."""
    require_sound(payload, nodes=nodes)
    return decode_sound(payload, kind, depth=depth, nodes=nodes)


def require_sound(payload: memoryview, *, nodes: int = NODES) -> None:
    """The first half of ``decode``, which builds nothing. Raises RemoteFault."""
    _, problem = _tried(decoding.require_sound, payload, nodes)
    if problem is not None:
        raise _sent(problem)


def decode_sound(
    payload: memoryview, kind: type[FromWorker], *, depth: int = DEPTH, nodes: int = NODES, build: Build = decoding.built
) -> FromWorker:
    """The second half of ``decode``. Raises RemoteFault."""
    values, problem = _tried(build, payload)
    if problem is None and values[0] == kind.NUMBER:
        problem = outside(values[1:], depth=depth, nodes=nodes)
    if problem is not None:
        raise _sent(problem)
    return message_of(values, kind)


def message_of(values: list[Any], kind: type[FromWorker]) -> FromWorker:
    """The message that has these values, its number first, when each field holds what it may. Raises RemoteFault."""
    fields = values[1:]
    problem = "a frame that is no message" if values[0] != kind.NUMBER else _misfit(kind, fields)
    if problem is not None:
        raise _sent(problem)
    return cast(_Maker, kind)(**dict(zip(kind.FIELDS, fields, strict=True)))


def _tried(step: Callable[..., Any], *arguments: object) -> tuple[Any, str | None]:
    """What a step of decoding gives, and what it refused: raised later, so that no exception carries foreign values as its context."""
    try:
        return step(*arguments), None
    except decoding.Refused as refused:
        return None, str(refused)


def _sent(problem: str) -> RemoteFault:
    return RemoteFault("violation.protocol", f"the worker sent {problem}")


def _misfit(kind: type[Message], fields: list[Any]) -> str | None:
    """What is wrong with the fields of a message, naming field and type."""
    if len(fields) != len(kind.FIELDS):
        return f"{kind.__name__} with a wrong number of fields"
    for (name, fits), value in zip(kind.FIELDS.items(), fields, strict=True):
        if not fits(value):
            return f"{kind.__name__} whose {name} may not be this {type(value).__name__}"
    return None


def fields_of(payload: bytes, *, nodes: int = NODES) -> list[Any]:
    """The fields of a payload that is no message of a call: the launcher's and its parser's answers. Raises RemoteFault."""
    view = memoryview(payload)
    _, problem = _tried(decoding.require_sound, view, nodes)
    values, problem = ([], problem) if problem is not None else _tried(decoding.built, view)
    problem = problem or outside(values[1:], depth=DEPTH, nodes=nodes)
    if problem is not None:
        raise RemoteFault("violation.protocol", f"the launcher sent {problem}")
    return values[1:]


def order(number: int, what: str, details: Mapping[str, Any]) -> bytes:
    """An order for the launcher, as one frame."""
    payload = msgpack.packb([0, number, what, dict(details)], strict_types=True)
    return len(payload).to_bytes(4, "big") + payload
