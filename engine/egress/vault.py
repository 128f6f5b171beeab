"""Secret values: where they come from, and the only place that holds them.

Its job: values out of variables, files and commands, as the policies say; the variables of one credential family; what must be watched for.
Not its job: what names are granted (``policy/``), looking for values (``results/redact.py``), putting one into a request
(``client.py``, ``exchange.py``).
Laws:
1. A value that cannot be told from ordinary text refuses: missing, short, common, of few digits, of several lines without being PEM
   (tests/unit/test_vault.py).
2. No error, repr, pickle or traceback with its locals shows a value, or what stands in a source (tests/unit/test_vault.py).
3. A value that was replaced is watched for as long as the engine lives (tests/unit/test_vault.py).
4. One ID is one source, whatever policies there are (tests/unit/test_vault.py).
5. No variable is handed out whose value is not watched for (tests/unit/test_vault.py).
"""

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import stat
import subprocess
from collections.abc import Mapping
from types import MappingProxyType
from typing import NoReturn

import trio

from engine.errors import EngineBug, PolicyError
from engine.outcome import error_for
from engine.policy.model import Policy
from engine.policy.secrets import SecretSource

SHORTEST = 8  # characters; the spellings of a shorter value stand in ordinary data by chance
_DIGITS = 12  # a shorter number is a time, an amount or somebody's telephone
_MOST_BYTES = 64 << 10  # a key file is less than a tenth of it
_COMMAND_SECONDS = 10  # a password store that asks its user something has nobody to ask
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


class Vault:
    """The values of all policies of one engine. ``environment`` is the engine's own, read once."""

    __slots__ = ("_environment", "_families", "_secrets", "_sources")

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {name: _Value(value) for name, value in environment.items()}
        self._sources: dict[str, SecretSource] = {}
        self._secrets: dict[str, list[_Value]] = {}  # the newest first
        self._families: dict[str, list[_Value]] = {}

    def __repr__(self) -> str:
        return f"Vault(secrets={sorted(self._secrets)}, families={sorted(self._families)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("what holds secret values is not copied")

    async def hold(self, policy: Policy) -> None:
        """Load this policy's secrets, and watch for the values of the families that it grants.

        Raises PolicyError ``refused.secret`` naming the ID; then nothing of this policy was taken.
        """
        wanted = dict(policy.secrets)
        self._agree(wanted)
        fresh = await self._read({name: source for name, source in wanted.items() if name not in self._secrets})
        self._agree(wanted)  # another policy may have been held meanwhile
        families = {family: self._values_of(policy.families.get(family, ())) for family in policy.grants.credentials}
        weak = [(family, _weakness(value)) for family, values in families.items() for value in values]
        lines = [f"{family}: {problem}" for family, problem in weak if problem is not None]
        if lines:
            raise PolicyError("refused.secret", *lines)
        self._sources |= wanted
        self._take(self._secrets, fresh)
        for family, values in families.items():
            for value in reversed(values):
                self._take(self._families, {family: value})

    async def reload(self) -> None:
        """Read every source again; replaced values stay watched for. Raises PolicyError, and then all values are as they were."""
        self._take(self._secrets, await self._read(self._sources))

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
        return MappingProxyType({name: value.text for name, value in found.items()})

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

    async def _read(self, sources: Mapping[str, SecretSource]) -> dict[str, _Value]:
        found: dict[str, _Value] = {}
        lines: list[str] = []
        for name, source in sources.items():
            value = await self._value(source)
            problem = value if isinstance(value, str) else _weakness(value)
            if isinstance(value, _Value) and problem is None:
                found[name] = value
            lines += [f"{name}: {problem}"] if problem is not None else []
        if lines:
            raise PolicyError("refused.secret", *lines)
        return found

    async def _value(self, source: SecretSource) -> "_Value | str":
        """The value, or in words why there is none."""
        if source.kind == "env":
            return self._environment.get(source.where, "the variable that it is taken from is not set")
        if source.kind == "file":
            return _of_file(source.where)
        home = self._environment.get("HOME", _Value("/")).text
        return await _of_command(shlex.split(source.where), {"PATH": _PATH, "HOME": home})

    def _values_of(self, names: tuple[str, ...]) -> list[_Value]:
        """What the environment has for these names; what is no printable line is never handed out, so it is not held."""
        values = [self._environment[name] for name in names if name in self._environment]
        return [value for value in values if value.text.strip() and value.text.isprintable()]

    @staticmethod
    def _take(held: dict[str, list[_Value]], fresh: Mapping[str, _Value]) -> None:
        for name, value in fresh.items():
            held[name] = [value, *(old for old in held.get(name, ()) if old != value)]


def of_this_process() -> Vault:
    """A vault over the environment that the engine was started with."""
    return Vault(dict(os.environ))


def value_problem(text: str) -> str | None:
    """Why this is no secret value that could be found again without finding what is none, or None. The text is not repeated."""
    lines = text.split("\n")
    if not text.strip():
        return "the value is empty"
    if not all(line.removesuffix("\r").isprintable() for line in lines) or (len(lines) > 1 and not text.startswith("-----BEGIN ")):
        return "the value is one printable line, or a key in PEM"
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


async def _of_command(argv: list[str], environment: Mapping[str, str]) -> "_Value | str":
    """What the operator's program prints. Its complaints are not shown: they may hold what it was asked for."""

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def program(task_status: trio.TaskStatus[trio.Process]) -> None:
        await trio.run_process(
            argv,
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            start_new_session=True,  # so that what it started ends with it
            deliver_cancel=_kill,
            task_status=task_status,
        )

    data = bytearray()
    status: int | None = None
    with trio.move_on_after(_COMMAND_SECONDS) as patience:
        async with trio.open_nursery() as nursery:
            try:
                process: trio.Process = await nursery.start(program)
            except OSError as error:
                return f"its command cannot be started: {error.strerror or type(error).__name__}"
            assert process.stdout is not None  # noqa: S101 - said to the type checker; it was asked for
            async for chunk in process.stdout:
                data += chunk
                if len(data) > _MOST_BYTES:
                    nursery.cancel_scope.cancel()
                    break
        status = process.returncode
    if patience.cancelled_caught:
        return f"its command did not end within {_COMMAND_SECONDS} seconds"
    if status != 0 and len(data) <= _MOST_BYTES:
        return f"its command failed with exit status {status}"
    return _decoded(bytes(data))


async def _kill(process: trio.Process) -> None:
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
