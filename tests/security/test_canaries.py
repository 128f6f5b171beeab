"""An engine with hundreds of secrets around it, one of which it grants and one of which it attaches: none is to be found in a worker.

Everything is looked through: the memory and the start of every process, what is sent to workers and comes from them, receipts, the state
folder, temporary files, files of crashes, and all that the command line prints. The granted one is in the worker that it was granted to,
which shows that the search finds what is there; the attached one arrives at the server that it is for.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.host import Engine
from engine.worker.child import NativeChild
from engine.worker.launcher import Launcher
from tests import kit, machine, moments
from tests.attempts import said
from tests.network import scoped
from tests.network.servers import Authority, Server, serving
from tests.security.test_environment_names import NAMES, SHAPES
from tests.security.test_promise_environment import memory

pytestmark = pytest.mark.slow
ROOT = os.geteuid() == 0
MARK = "cnry" + os.urandom(8).hex()  # in every one of them
GRANTED, ATTACHED = f"{MARK}-granted", f"{MARK}-attached"
GRANTED_NAME, ATTACHED_NAME = "OPENAI_API_KEY", "CANARY_ORDERS"
TOOLS = '''
import os
import time
from typing import Any
from engine import Context, http, tool

def wait(context: Context) -> None:
    """Until it is given up."""
    context.emit("here")
    time.sleep(60)

@tool(effect="read")
def plain(context: Context, stay: bool) -> list[str]:
    """Has nothing."""
    if stay:
        wait(context)
    return sorted(os.environ)

@tool(effect="read", credentials=["openai"])
def keyed(context: Context, stay: bool) -> list[Any]:
    """Has a key."""
    held = os.environ["OPENAI_API_KEY"]
    if stay:
        wait(context)
    return [len(held), [name for name in os.environ if "KEY" in name]]

@tool(effect="read", network=["{api}:80"])
def reaching(context: Context, stay: bool) -> int:
    """Asks a server that wants a key."""
    status = http.get("http://{api}/").status
    if stay:
        wait(context)
    return status

@tool(effect="read", credentials=["openai"])
def telling(how: str, context: Context) -> str:
    """Tells its key in many ways."""
    held = os.environ["OPENAI_API_KEY"]
    print("out", held)
    context.log.info("log " + held)
    context.progress(1, None, held)
    if how == "raise":
        raise ValueError(held)
    if how == "crash":
        os.abort()
    return held

@tool(effect="read", network=["{api}:80"])
def echoed(path: str) -> str:
    """What the server says it was sent."""
    return http.get("http://{api}" + path).text

@tool(effect="read")
def large() -> list[str]:
    """What is checked in a process of its own."""
    return ["x" * 100] * 20_000
'''


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engine's own environment: every name of the list, in several spellings, and some that nobody has seen."""
    names = [*NAMES, *SHAPES, *(f"Q{os.urandom(6).hex()}" for _ in range(5))]
    for name in NAMES:
        names += [name.lower(), name.title(), f"MYAPP_{name}", f"{name}_OLD", f"{name}_FILE", f"{name}_2", name.replace("_", ".")]
    for name in names:
        # an address in place of a name, where a library of this process would make something of it
        monkeypatch.setenv(name, f"http://user:{MARK}@localhost:9/" if name.lower().endswith("proxy") else f"{MARK}-of-{name}")
    monkeypatch.setenv(GRANTED_NAME, GRANTED)
    monkeypatch.setenv(ATTACHED_NAME, ATTACHED)
    assert len({*names}) > 1000
    return names


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Whose certificate the engine's side trusts."""
    return Authority()


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Server]:
    """The one that wants the attached secret."""
    with serving(authority.serving(scoped.API)) as made:
        yield made


@pytest.fixture
def policy(tmp_path: Path, authority: Authority, server: Server) -> Path:
    """One that grants the one and attaches the other."""
    server.forget()
    attach = 'attach = [{ secret = "orders", header = "Authorization", form = "Bearer {}" }]'
    rule = scoped.Rule(f"{scoped.API}:80", transport="upgrade", more=f"upstream_port = {server.port}\n{attach}")
    tables: dict[str, Any] = {"secrets": {"orders": f"env:{ATTACHED_NAME}"}, "grants": {"credentials": ["openai"]}}
    return scoped.policy(tmp_path / "policy", rule, trust=authority.write(tmp_path), **tables)


@contextlib.asynccontextmanager
async def holding(tmp_path: Path, policy: Path) -> AsyncIterator[Engine]:
    """An engine with the tools."""
    names = scoped.Said(**{scoped.API: [scoped.LOOPBACK]})
    async with kit.clean_engine(tmp_path / "state", policy=policy, resolver=names) as engine:
        await engine.load(kit.write(tmp_path / "source", TOOLS.replace("{api}", scoped.API)))
        yield engine


@contextlib.asynccontextmanager
async def staying(engine: Engine, *tools: str) -> AsyncIterator[None]:
    """Calls of these tools that have done what they do, and wait."""
    with trio.fail_after(60):
        async with contextlib.AsyncExitStack() as stack:
            for tool in tools:
                items = await stack.enter_async_context(engine.stream(tool, {"stay": True}))
                await anext(items)
            yield
    await engine.concluded()


def below() -> list[psutil.Process]:
    """Every process that this one has started, and those that these have."""
    return [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]


def marks(pid: int, wanted: str) -> int | None:
    """How often that text is in a process: its memory, what it was started with; None where the kernel does not let this user look."""
    try:
        started = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
        return started.count(wanted.encode()) + memory(pid, wanted.encode())
    except PermissionError:
        assert not ROOT
        return None
    except (ProcessLookupError, FileNotFoundError):  # it ended meanwhile
        return 0


def files_with_marks(*folders: Path) -> list[Path]:
    """Files below these folders with one of them in name or content."""
    files = [Path(top, name) for folder in folders for top, _, names in os.walk(folder) for name in names]
    assert files
    return [file for file in files if MARK in str(file) or (file.is_file() and MARK.encode() in file.read_bytes())]


async def test_no_process_holds_what_it_was_not_granted(canaries: list[str], tmp_path: Path, policy: Path, server: Server) -> None:
    """Launchers, jails, children, those that wait and the one that checks: none holds any; of the tool with a key its own child alone
    holds that key, and no other. The engine holds them all.
    """
    async with holding(tmp_path, policy) as engine:
        assert (await engine.call("large", {})).reason == "ok.done"
        async with staying(engine, "plain", "reaching"):
            found = {one.pid: marks(one.pid, MARK) for one in below()}
            assert set(found.values()) <= ({0} if ROOT else {0, None}), found
            assert len(found) >= 6
        assert [asked.headers["authorization"] for asked in server.requests] == [f"Bearer {ATTACHED}"]
        async with staying(engine, "plain", "reaching", "keyed"):
            tree = moments.Tree(engine)
            others = [one.pid for one in (*tree.launchers, *tree.monitors, *tree.firsts)]
            assert {marks(pid, MARK) for pid in others} <= ({0} if ROOT else {0, None})
            inside = {one.pid: (marks(one.pid, MARK), marks(one.pid, GRANTED)) for one in tree.children}
            assert all(every == granted for every, granted in inside.values()), inside
            if ROOT:
                assert sorted({bool(every) for every, _ in inside.values()}) == [False, True]
    assert {name: os.environ[name] for name in canaries if MARK not in os.environ[name]} == {}
    assert memory(os.getpid(), ATTACHED.encode()) > 0


async def test_nothing_that_is_sent_holds_one(canaries: list[str], tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every frame to a worker and from it, every order to a launcher: the granted one goes to its worker, once per child, and comes back
    from none that does not tell it.
    """
    sent, ordered, came = bytearray(), bytearray(), bytearray()
    write, read, order = NativeChild.write, NativeChild.read, Launcher._send

    async def write_and_note(self: NativeChild, data: bytes) -> None:
        sent.extend(data)
        await write(self, data)

    def read_and_note(self: NativeChild) -> bytes | None:
        data = read(self)
        came.extend(data or b"")
        return data

    async def order_and_note(self: Launcher, data: bytes, descriptor: int) -> None:
        ordered.extend(data)
        await order(self, data, descriptor)

    monkeypatch.setattr(NativeChild, "write", write_and_note)
    monkeypatch.setattr(NativeChild, "read", read_and_note)
    monkeypatch.setattr(Launcher, "_send", order_and_note)
    async with holding(tmp_path, policy) as engine:
        for tool in ("plain", "reaching"):
            assert (await engine.call(tool, {"stay": False})).reason == "ok.done"
        await engine.concluded()
        assert (sent.count(MARK.encode()), len(sent) > 0) == (0, True)
        outcome = await engine.call("keyed", {"stay": False})
        assert (outcome.reason, outcome.value) == ("ok.done", [len(GRANTED), [GRANTED_NAME]])
        await engine.concluded()
    assert sent.count(MARK.encode()) == sent.count(GRANTED.encode()) > 0
    assert (ordered.count(MARK.encode()), came.count(MARK.encode())) == (0, 0)
    assert ordered
    assert came


@pytest.mark.parametrize("how", ["return", "raise", "crash"])
async def test_nothing_that_is_kept_or_told_holds_one(canaries: list[str], tmp_path: Path, policy: Path, how: str) -> None:
    """Of a tool that tells its key by every way out, and of one whose server says what it was sent: outcome, output, events, receipt, and
    each file that the engine has.
    """
    async with holding(tmp_path, policy) as engine:
        shown: list[str] = []
        for tool, arguments in (("telling", {"how": how}), ("echoed", {"path": "/headers"})):
            async with engine.stream(tool, arguments) as items:
                events, outcome = await moments.taken(items)
            shown += [repr(events), repr(outcome), await said(outcome)]
        assert [text for text in shown if MARK in text] == []
        assert "[redacted:" in "".join(shown)
        assert files_with_marks(tmp_path / "state") == []


_ALL = ("--json", "--debug")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("run", "SOURCE", "plain", '{"stay": false}', *_ALL),
    ("run", "SOURCE", "keyed", '{"stay": false}', "--debug"),
    ("run", "SOURCE", "telling", '{"how": "raise"}'),
    ("run", "SOURCE", "telling", '{"how": "raise"}', *_ALL),
    ("run", "SOURCE", "telling", '{"how": "crash"}', *_ALL),
    ("run", "SOURCE", "absent", "{}", *_ALL),
    ("stream", "SOURCE", "telling", '{"how": "return"}'),
    ("stream", "SOURCE", "telling", '{"how": "return"}', *_ALL),
    ("explain", "SOURCE", "keyed", '{"stay": false}', *_ALL),
    ("describe", "SOURCE", *_ALL),
)


def command_line(folder: Path, words: Sequence[str]) -> str:
    """All that a command prints, in a folder of its own, where a crash may leave its file."""
    command = [sys.executable, "-m", "engine", *words]
    places = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(kit.PROJECT)}
    done = subprocess.run(
        ["sh", "-c", 'ulimit -c unlimited 2>/dev/null; exec "$@"', "sh", *command],
        cwd=folder / "here",
        env={**os.environ, **places},
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")


def test_the_command_line_tells_none(canaries: list[str], tmp_path: Path, policy: Path, worker_kind: str) -> None:
    """With ``--json`` and ``--debug`` as without: whatever a command prints, leaves in its folder, in the temporary one, in its state."""
    for name in ("here", "tmp"):
        (tmp_path / name).mkdir()
    source = str(kit.write(tmp_path / "source", TOOLS.replace("{api}", scoped.API)))
    options = ["--policy", str(policy), "--worker", worker_kind, "--image-dir", str(machine.IMAGE_DIR)]
    shown = {words: command_line(tmp_path, [*(source if word == "SOURCE" else word for word in words), *options]) for words in COMMANDS}
    assert {words: told for words, told in shown.items() if MARK in told} == {}
    assert all(shown.values())
    assert files_with_marks(tmp_path) == []
    assert MARK not in "".join(os.listdir(tempfile.gettempdir()))


def test_the_search_finds_what_is_there(canaries: list[str], tmp_path: Path) -> None:
    """The control: a plain process of this user has all of them in its memory and prints them, and a file of it is found."""
    code = f"import os, sys\nopen('left', 'w').write(os.environ['{GRANTED_NAME}'])\nprint(dict(os.environ), flush=True)\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-ISc", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as plain:
        assert plain.stdout is not None
        assert plain.stdout.readline().count(MARK) > 1000
        assert (marks(plain.pid, MARK) or 0) > 1000
        plain.communicate("")
    assert files_with_marks(tmp_path) == [tmp_path / "left"]
