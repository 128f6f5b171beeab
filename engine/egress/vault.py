"""Secret values: where they come from, and the only place that holds them.

Its job: values out of variables, files and commands, as the policies say; the variables of one credential family; what must be watched for.
Not its job: what names are granted (``policy/``), looking for values (``results/redact.py``), putting one into a request
(``client.py``, ``exchange.py``).
Laws:
1. A value that cannot be told from ordinary text refuses: missing, short, common, of few digits, of several lines without being PEM;
   and one with a blank at an end, which a tool would strip and nobody find (tests/unit/test_vault.py).
2. No error, repr, pickle or traceback with its locals shows a value, or what stands in a source (tests/unit/test_vault.py).
3. A value that was replaced is watched for as long as the engine lives (tests/unit/test_vault.py).
4. One ID is one source, whatever policies there are (tests/unit/test_vault.py).
5. No variable is handed out whose value is not watched for (tests/unit/test_vault.py).
6. Values are replaced all together or not at all (tests/unit/test_vault.py).
7. A command is over when it has ended, whatever it left running (tests/unit/test_vault_commands.py).
"""

import contextlib
import dataclasses
import io
import os
import re
import shlex
import signal
import stat
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

import trio

from engine.egress.attach import LONGEST
from engine.errors import EngineBug, PolicyError
from engine.outcome import error_for
from engine.policy.model import Policy
from engine.policy.secrets import SecretSource

SHORTEST = 8  # characters; the spellings of a shorter value stand in ordinary data by chance
_DIGITS = 12  # a shorter number is a time, an amount or somebody's telephone
_MOST_BYTES = 64 << 10  # a key file is less than a tenth of it
_COMMAND_SECONDS = 10  # a password store that asks its user something has nobody to ask
_LATE_SECONDS = 1  # for what an ended command left in the pipe; it is read at once unless somebody else holds the pipe open
_OPEN_MODE = 0o027  # writable by the group, or anything at all by others
_PATH = "/usr/bin:/bin"
# what people put where a secret should be; compared without case and without up to four signs or digits at the end
_COMMON = frozenset(
    """
    password passwort passw0rd p@ssw0rd password123 changeme change_me change-me changeit changethis example examples examplekey example-key
    secret secretkey secret-key topsecret top-secret supersecret mysecret placeholder undefined redacted default testing testtest test-test
    testkey test-key dummydummy dummykey qwertyui qwertyuiop asdfasdf asdfghjkl letmein administrator abcdefgh abcdefghij iloveyou
    your-key your_key yourkey your-key-here your_key_here your-api-key your_api_key yourapikey your-api-key-here your_api_key_here
    your-token your_token your-token-here insert-key-here todo-todo localhost
    """.split()
)
_TAIL = re.compile(r"[\W\d_]{1,4}\Z")


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value that shows itself to nobody who prints the variables of a frame."""

    text: str = dataclasses.field(repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret value is not copied")


class Variables(Mapping[str, str]):
    """Variables to hand out; shown without their values."""

    def __init__(self, values: Mapping[str, _Value]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        return self._values[name].text

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Variables({sorted(self._values)})"


class Vault:
    """The values of all policies of one engine. ``environment`` is the engine's own, read when the vault is made and by ``reload``."""

    __slots__ = ("_environment", "_families", "_granted", "_lock", "_read_environment", "_secrets", "_sources")

    def __init__(self, environment: Mapping[str, str]) -> None:
        # a function, because a mapping would be shown with its values
        self._read_environment: Callable[[], dict[str, _Value]] = lambda: {name: _Value(value) for name, value in environment.items()}
        self._environment = self._read_environment()
        self._sources: dict[str, SecretSource] = {}
        self._secrets: dict[str, list[_Value]] = {}  # the newest first
        self._families: dict[str, list[_Value]] = {}
        self._granted: set[tuple[str, tuple[str, ...]]] = set()  # families, with the variables that some policy says they have
        self._lock = trio.Lock()  # sources are read one after the other; who reads again must not miss what somebody adds meanwhile

    def __repr__(self) -> str:
        return f"Vault(secrets={sorted(self._secrets)}, families={sorted(self._families)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("what holds secret values is not copied")

    @trio.lowlevel.enable_ki_protection  # an interrupt comes while it waits, never between two values
    async def hold(self, policy: Policy) -> None:
        """Load this policy's secrets, and watch for the values of the families that it grants.

        Raises PolicyError ``refused.secret`` naming the ID; then nothing of this policy was taken.
        """
        async with self._lock:
            wanted = dict(policy.secrets)
            self._agree(wanted)
            granted = {(family, policy.families.get(family, ())) for family in policy.grants.credentials}
            families = self._values_of(granted, self._environment)
            fresh = await self._read({name: source for name, source in wanted.items() if name not in self._secrets}, self._environment)
            attached = {one.secret for rule in policy.network.rules for one in rule.attach}
            long = [name for name in sorted(attached & fresh.keys()) if len(fresh[name].text) > LONGEST]
            if long:
                lines = [f"{name}: a value that is attached has at most {LONGEST} characters" for name in long]
                raise PolicyError("refused.secret", *lines)
            self._sources |= wanted
            self._granted |= granted
            self._take(fresh, families)

    @trio.lowlevel.enable_ki_protection  # an interrupt comes while it waits, never between two values
    async def reload(self) -> None:
        """Read variables, files and commands again; replaced values stay watched for. Raises PolicyError, and then all is as it was.

        A family that has no value any more is no error of it: ``variables`` refuses then.
        """
        async with self._lock:
            environment = self._read_environment()
            families = self._values_of(self._granted, environment)
            fresh = await self._read(self._sources, environment)
            self._environment = environment
            self._take(fresh, families)

    def secret(self, name: str) -> str:
        """The newest value of that ID. Raises PolicyError ``refused.secret`` when no policy has it."""
        if name not in self._secrets:
            raise PolicyError("refused.secret", "no policy has a secret of that name")
        return self._secrets[name][0].text

    def variables(self, families: Mapping[str, tuple[str, ...]], capabilities: tuple[str, ...]) -> Mapping[str, str]:
        """The variables of the one capability that was granted, none without one.

        Raises PolicyError ``refused.credential_*`` when there is more than one, or none or two different values for it.
        """
        found = _credential(families, capabilities, self._environment)
        # security: a value that nobody looks for would leave in an answer unseen
        if any(value not in self._families.get(capabilities[0], ()) for value in found.values()):
            raise EngineBug("engine_failed.bug", "a credential was granted that the vault was not told to hold")
        return Variables(found)

    def held(self) -> Mapping[str, str]:
        """All values to watch for. A replaced one stands under its ID with ``~`` and a number, which a watch leaves out again."""
        found: dict[str, str] = {}
        for name, values in (*self._secrets.items(), *self._families.items()):
            for value in values:
                found[_numbered(name, found)] = value.text
        return MappingProxyType(found)

    def _agree(self, wanted: Mapping[str, SecretSource]) -> None:
        for name, source in wanted.items():
            # security: else a call under one policy would be given the value of another
            if self._sources.get(name, source) != source:
                raise PolicyError("refused.secret", f"{name}: another policy takes it from elsewhere; give one of them another name")

    async def _read(self, sources: Mapping[str, SecretSource], environment: Mapping[str, _Value]) -> dict[str, _Value]:
        found: dict[str, _Value] = {}
        lines: list[str] = []
        for name, source in sources.items():
            value = await _value(source, environment)
            problem = value if isinstance(value, str) else _weakness(value)
            if isinstance(value, _Value) and problem is None:
                found[name] = value
            lines += [f"{name}: {problem}"] if problem is not None else []
        if lines:
            raise PolicyError("refused.secret", *lines)
        return found

    @staticmethod
    def _values_of(granted: Collection[tuple[str, tuple[str, ...]]], environment: Mapping[str, _Value]) -> list[tuple[str, _Value]]:
        """What there is for these families. Raises PolicyError ``refused.secret``."""
        held = [(family, environment[name]) for family, names in sorted(granted) for name in names if name in environment]
        # what is no printable line is never handed out, so it is not held
        found = [(family, value) for family, value in held if value.text.strip() and value.text.isprintable()]
        lines = [f"{family}: {problem}" for family, value in found if (problem := _weakness(value)) is not None]
        if lines:
            raise PolicyError("refused.secret", *lines)
        return found

    def _take(self, secrets: Mapping[str, _Value], families: Sequence[tuple[str, _Value]]) -> None:
        for name, value in secrets.items():
            _put_first(self._secrets, name, value)
        for name, value in reversed(families):
            _put_first(self._families, name, value)


async def _value(source: SecretSource, environment: Mapping[str, _Value]) -> "_Value | str":
    """The value, or in words why there is none."""
    if source.kind == "env":
        return environment.get(source.where, "the variable that it is taken from is not set")
    if source.kind == "file":
        return _of_file(source.where)
    home = environment.get("HOME", _Value("/")).text
    return await _of_command(shlex.split(source.where), {"PATH": _PATH, "HOME": home})


def _put_first(held: dict[str, list[_Value]], name: str, value: _Value) -> None:
    held[name] = [value, *(old for old in held.get(name, ()) if old != value)]


def of_this_process() -> Vault:
    """A vault over the environment of the engine's own process."""
    return Vault(os.environ)


def value_problem(text: str) -> str | None:
    """Why this is no secret value that could be found again without finding what is none, or None. The text is not repeated."""
    lines = text.split("\n")
    if not text.strip():
        return "the value is empty"
    if not all(line.removesuffix("\r").isprintable() for line in lines) or (len(lines) > 1 and not text.startswith("-----BEGIN ")):
        return "the value is one printable line, or a key in PEM"
    # security: whoever uses it strips it, and what is looked for is the value with its blanks
    if text != text.strip():
        return "the value begins or ends with a blank"
    if len(text) < SHORTEST:
        return f"the value has fewer than {SHORTEST} characters"
    if len(set(text)) == 1:
        return "the value is one character over and over"
    if text.isdecimal() and len(text) < _DIGITS:
        return f"the value is a number of fewer than {_DIGITS} digits"
    folded = text.casefold()
    if folded in _COMMON or _TAIL.sub("", folded) in _COMMON:
        return "the value is one that stands in examples and that anybody would guess"
    return None


def _weakness(value: _Value) -> str | None:
    return value_problem(value.text)


def _credential(families: Mapping[str, tuple[str, ...]], capabilities: tuple[str, ...], real: Mapping[str, _Value]) -> dict[str, _Value]:
    if not capabilities:
        return {}
    if len(capabilities) > 1:
        raise error_for("refused.credential_ambiguous", "more than one credential capability for one worker")
    if capabilities[0] not in families:
        raise error_for("refused.credential_not_listed", "the credential capability is not one that the engine knows")
    found = {name: real[name] for name in families[capabilities[0]] if name in real and real[name].text.strip()}
    if not found:
        raise error_for("refused.credential_missing", "the engine was given no value for the granted credential capability")
    # security: with two different keys the tool's library would pick one, and the operator could not say which account it used
    if len(set(found.values())) > 1:
        raise error_for("refused.credential_ambiguous", "the granted credential capability has two different values")
    # a value that is no text (bytes outside UTF-8, line breaks) could be neither sent nor found again in what leaves
    if not all(value.text.isprintable() for value in found.values()):
        raise error_for("refused.credential_missing", "the value of the granted credential capability is not one printable line")
    return found


def _of_file(path: str) -> "_Value | str":
    try:
        # security: O_NONBLOCK and the type check, because a FIFO or a device in place of the file would hang the engine
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                return "what it is taken from is not a regular file"
            # security: what every user of the machine can read is no secret, and what others can write is not ours
            if state.st_mode & _OPEN_MODE:
                return f"its file is open to others (mode {stat.S_IMODE(state.st_mode):04o}); want 0400, 0600 or 0640"
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        return f"its file cannot be read: {error.strerror or type(error).__name__}"
    return _decoded(data)


@trio.lowlevel.enable_ki_protection  # an interrupt comes while it waits, never between two steps
async def _of_command(argv: list[str], environment: Mapping[str, str]) -> "_Value | str":
    """What the operator's program prints. Its complaints are not shown: they may hold what it was asked for."""
    with contextlib.ExitStack() as opened:
        try:
            process = await trio.lowlevel.open_process(
                argv,
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that what it started ends with it
            )
        except OSError as error:
            return f"its command cannot be started: {error.strerror or type(error).__name__}"
        heard = io.BytesIO()  # and no bytes by themselves: it is shown without what is in it
        with trio.move_on_after(_COMMAND_SECONDS) as patience:
            try:
                pidfd = os.pidfd_open(process.pid)
                opened.callback(os.close, pidfd)
                await _hear(process, pidfd, heard)
            finally:
                _kill(process)
                with trio.CancelScope(shield=True):
                    await process.wait()
                    if process.stdout is not None:
                        await process.stdout.aclose()
    if patience.cancelled_caught:
        return f"its command did not end within {_COMMAND_SECONDS} seconds"
    if process.returncode != 0 and heard.tell() <= _MOST_BYTES:
        return f"its command failed with exit status {process.returncode}"
    return _decoded(heard.getvalue())


async def _hear(process: trio.Process, pidfd: int, heard: io.BytesIO) -> None:
    """All that it prints until it has ended, or is too much. What others hold of its output is waited for no longer than that."""
    assert process.stdout is not None  # noqa: S101 - said to the type checker; it was asked for
    reading, over = trio.CancelScope(), trio.Event()
    caught: BaseException | None = None

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def ended() -> None:
        await trio.lowlevel.wait_readable(pidfd)
        _kill(process)  # what it left running holds the pipe; until it is waited for its number is nobody else's
        reading.deadline = trio.current_time() + _LATE_SECONDS
        over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ended)
        try:
            with reading:
                while heard.tell() <= _MOST_BYTES and heard.write(await process.stdout.receive_some(_MOST_BYTES)):
                    continue
            if heard.tell() <= _MOST_BYTES:
                await over.wait()
        except BaseException as error:
            caught = error  # raised below, where no nursery wraps it in a group
        nursery.cancel_scope.cancel()
    if caught is not None:
        raise caught


def _kill(process: trio.Process) -> None:
    """The program and what it started; before it is waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _decoded(data: bytes) -> "_Value | str":
    if len(data) > _MOST_BYTES:
        return f"what it is taken from has more than {_MOST_BYTES} bytes"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "the value is not UTF-8 text"
    return _Value(text.removesuffix("\n").removesuffix("\r"))


def _numbered(name: str, taken: Mapping[str, str]) -> str:
    number, made = 0, name
    while made in taken:
        number += 1
        made = f"{name}~{number}"
    return made
