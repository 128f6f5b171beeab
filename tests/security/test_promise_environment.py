"""Nothing of the engine's environment crosses: not to the launcher, the jail, its first process or the tool, by name, value or memory."""

# ruff: noqa: ASYNC221, ASYNC240 - starting the control and looking at the host's files while a jail runs is the test; nobody else waits on this loop

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.host import Engine
from tests import kit, moments
from tests.attempts import given, said, source
from tests.security.test_environment_names import NAMES, SHAPES
from tests.security.test_promise_identity import below, running

CANARY = "canary-" + os.urandom(12).hex()
LOADERS = """
LD_LIBRARY_PATH LD_AUDIT PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONINSPECT PYTHONBREAKPOINT PYTHONWARNINGS PYTHONMALLOC PYTHONUSERBASE
MALLOC_CHECK_ GLIBC_TUNABLES BASH_ENV ENV LOCPATH NLSPATH TMPDIR HOME USER LOGNAME SSL_CERT_FILE GCONV_PATH RES_OPTIONS HOSTALIASES
""".split()
BASELINE = {"LANG", "LC_ALL", "PATH", "TZ", "HOME", "TMPDIR"}
LAUNCHERS = {"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "PATH": "/nonexistent", "TZ": "UTC"}
ROOT = os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not ROOT, reason="unproven here: only root may read the memory and the start of a process that forbids dumps")


@pytest.fixture
def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engine's own environment full of names that hold secrets or load code, in several spellings, and one that nobody has seen.

    The test's folder is made before: its name has the user's in it, which comes out of one of them.
    """
    names = [*NAMES, *SHAPES, *LOADERS, f"INNOCENT_{os.urandom(6).hex()}"]
    names += [
        spelt for name in NAMES[:40] for spelt in (name.lower(), name.title(), f"MYAPP_{name}", f"{name}_OLD", f"{name}_FILE", f"{name}_2")
    ]
    for name in names:
        monkeypatch.setenv(name, f"https://user:{CANARY}@host/" if name.lower().endswith("proxy") else f"{CANARY}-{name}")
    monkeypatch.setenv("LC_ALL", CANARY)
    return names


LOOK = """
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(LIBC, "environ")
inner, at = [], 0
while environ and environ[at]:
    inner.append(environ[at].decode("latin-1"))
    at += 1
import sys
return {"python": dict(os.environ), "libc": inner, "block": os.environb is not None and sorted(os.fsdecode(name) for name in os.environb),
        "path": list(sys.path), "start": [list(sys.argv), list(getattr(sys, "orig_argv", []))],
            "flags": [sys.flags.isolated, sys.flags.no_site]}
"""


async def test_a_tool_finds_a_fixed_list_of_names(poisoned: list[str], tmp_path: Path) -> None:
    """By Python, by the C library's list and by the bytes, the tool finds the baseline and its own folders, whatever the engine was
    started with.
    """
    async with kit.clean_engine(tmp_path / "state") as engine:
        outcome = await kit.jailed(engine, tmp_path / "jailed", source(LOOK), "attempt", given())
    value = outcome.value
    folder = value["python"]["HOME"]
    assert value["python"] == {
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PATH": "/nonexistent",
        "TZ": "UTC",
        "HOME": folder,
        "TMPDIR": folder,
    }
    assert {text.split("=")[0] for text in value["libc"]} == BASELINE
    assert (value["block"], value["start"], value["flags"]) == (sorted(BASELINE), [[""], []], [1, 1])
    assert CANARY not in await said(outcome)
    bare = kit.bare(tmp_path / "bare", source(LOOK), "attempt", given(), env={name: CANARY for name in poisoned if name not in LOADERS})
    assert len(set(bare.value["python"]) & set(poisoned)) > 400
    assert sum(CANARY in text for text in bare.value["libc"]) > 400


async def test_the_launcher_is_started_with_four_names(poisoned: list[str], tmp_path: Path) -> None:
    """At the boundary itself, the bytes that the kernel gave the new program: four names, and no canary on its command line."""
    async with kit.clean_engine(tmp_path / "state") as engine:
        await kit.jailed(engine, tmp_path / "jailed", source("return 1"), "attempt", given())
        launcher = moments.Tree(engine).launcher.pid
        started = Path(f"/proc/{launcher}/environ").read_bytes()
        line = Path(f"/proc/{launcher}/cmdline").read_bytes()
    assert dict(entry.decode().split("=", 1) for entry in started.split(b"\0") if entry) == LAUNCHERS
    assert CANARY.encode() not in line
    # the control: the same file of a plain child shows what it was given
    code = "import sys; sys.stdout.write(open('/proc/self/environ').read())"
    plain = dict.fromkeys(NAMES, CANARY)
    shown = subprocess.run([sys.executable, "-ISc", code], env=plain, capture_output=True, check=True, text=True).stdout
    assert shown.count(CANARY) == len(plain)


@AS_ROOT
async def test_no_process_of_a_jail_was_started_with_more(poisoned: list[str], tmp_path: Path) -> None:
    """Monitor, first process and tool share the launcher's start: the four names and nothing else, and one command line."""
    async with kit.clean_engine(tmp_path / "state") as engine:
        async with running(engine, tmp_path / "source") as pids:
            for pid in pids:
                entries = [entry for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if entry]
                assert dict(entry.decode().split("=", 1) for entry in entries) == LAUNCHERS
                assert CANARY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def memory(pid: int, wanted: bytes) -> int:
    """How often the bytes stand in the memory of a process; one that has ended meanwhile has none."""
    try:
        return _count(pid, wanted)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _count(pid: int, wanted: bytes) -> int:
    count = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if "r" not in line.split()[1] or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            try:
                file.seek(first)
                kept = b""
                for _ in range(0, last - first, 1 << 20):
                    data = kept + file.read(min(1 << 20, last - file.tell()))
                    count += data.count(wanted)
                    kept = data[-len(wanted) + 1 :]
            except OSError:
                continue  # a page that nobody may read, such as a guard
    return count


@AS_ROOT
async def test_no_memory_of_a_jail_holds_what_the_engine_holds(poisoned: list[str], tmp_path: Path) -> None:
    """A search through all pages of launcher, monitor, first process and tool finds no canary; the same search finds it in the engine."""
    async with kit.clean_engine(tmp_path / "state") as engine:
        async with running(engine, tmp_path / "source") as pids:
            searched = (*engine.launcher_pids, *pids)
            assert {pid: memory(pid, CANARY.encode()) for pid in searched} == dict.fromkeys(searched, 0)
            assert len(pids) == 3
    assert memory(os.getpid(), CANARY.encode()) > 0


@AS_ROOT
async def test_a_variable_that_was_deleted_is_not_found_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that the engine's process had at its start and deleted, which stays in its memory, is in none of a jail's processes."""
    secret = "deleted-" + os.urandom(12).hex()
    monkeypatch.setenv("A_TOKEN", secret)
    kept = ctypes.create_string_buffer(secret.encode())
    monkeypatch.delenv("A_TOKEN")
    async with kit.clean_engine(tmp_path / "state") as engine:
        await kit.jailed(engine, tmp_path / "jailed", source("return 1"), "attempt", given())
        pids = [*engine.launcher_pids, *(process.pid for process in below(moments.Tree(engine).launcher.pid))]
        assert [memory(pid, secret.encode()) for pid in pids] == [0] * len(pids)
    assert memory(os.getpid(), kept.value) > 0


async def test_nothing_that_loads_code_has_an_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries, start files, module paths and folders that the engine's environment names are not loaded by launcher or tool."""
    evil = tmp_path / "evil"
    evil.mkdir(mode=0o777)
    marker = evil / "ran"
    text = f"open({str(marker)!r}, 'a').write('x')\n"
    for name in ("sitecustomize", "usercustomize", "_signal", "json", "msgpack", "enter", "guest", "startup"):
        (evil / f"{name}.py").write_text(text)
    (evil / "x.pth").write_text(f"import os; {text}")
    for name in ("PYTHONPATH", "PYTHONUSERBASE", "PYTHONHOME", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, str(evil))
    monkeypatch.setenv("PYTHONSTARTUP", str(evil / "startup.py"))
    monkeypatch.setenv("LD_PRELOAD", str(evil / "no-such-library.so"))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.chdir(evil)
    async with kit.clean_engine(tmp_path / "state") as engine:
        outcome = await kit.jailed(engine, tmp_path / "jailed", source("import json\nreturn json.__file__"), "attempt", given())
    assert (outcome.reason, outcome.value, outcome.stderr) == ("ok.done", outcome.value, "")
    assert outcome.value.startswith("/python/lib/")
    assert not marker.exists()
    # the control: a plain interpreter in that folder, with those variables, runs them
    monkeypatch.delenv("PYTHONHOME")
    done = subprocess.run([sys.executable, "-c", "import json"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert marker.exists()
    assert b"no-such-library.so" in done.stderr


async def test_a_denied_name_is_refused_before_any_worker(engine: Engine, tmp_path: Path) -> None:
    """A tool that asks for a name which no policy may grant, in any spelling, is refused with no worker of its call, and the name is
    not echoed.
    """
    spelt = ["AWS_SECRET_ACCESS_KEY", "aws_secret_access_key", "MYAPP_DATABASE_URL", "LD_PRELOAD", "GITHUB_TOKEN", "SSH_AUTH_SOCK"]
    for number, name in enumerate(spelt):
        asking = source("return dict(os.environ)")["tools.py"].replace('effect="read")', f'effect="read", environment=[{name!r}])')
        place = kit.write(tmp_path / f"s{number}", {**source(""), "tools.py": asking.replace("def attempt(", f"def attempt_{number}(")})
        await engine.load(place)
        jails = engine._pool.living
        outcome = await engine.call(f"attempt_{number}", given())
        assert (outcome.reason, outcome.value, engine._pool.living) == ("refused.not_granted", None, jails)
        assert (await outcome.concluded())["worker"]["started"] is False
        assert name not in (await said(outcome)).replace(f'"environment": ["{name}"]', "")


async def test_a_malformed_name_never_becomes_a_declaration(engine: Engine, tmp_path: Path) -> None:
    """Padded, NUL-carrying, equals-carrying and look-alike names are refused when the source is loaded."""
    for number, name in enumerate(["OPENAI_API_KEY ", "OPENAI\0API", "A=B", "\uff21\uff30\uff29_KEY", "", "1A", "A-B", "A.B"]):
        asking = source("return 1")["tools.py"].replace('effect="read")', f'effect="read", environment=[{name!r}])')
        place = kit.write(tmp_path / f"s{number}", {**source(""), "tools.py": asking})
        with pytest.raises(EngineError) as caught:
            await engine.load(place)
        assert caught.value.code == "refused.declaration"


async def test_a_credential_that_is_not_granted_starts_nothing(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capability whose value the engine holds, asked for but not granted by the policy, ends before a worker, and its value is
    nowhere.
    """
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    asking = source("return dict(os.environ)")["tools.py"].replace('effect="read")', 'effect="read", credentials=["anthropic"])')
    await engine.load(kit.write(tmp_path / "source", {**source(""), "tools.py": asking}))
    jails = engine._pool.living
    outcome = await engine.call("attempt", given())
    assert (outcome.reason, engine._pool.living) == ("refused.credential_not_listed", jails)
    assert (await outcome.concluded())["worker"]["started"] is False
    assert CANARY not in await said(outcome)


async def test_no_state_of_the_engine_holds_a_value(poisoned: list[str], tmp_path: Path) -> None:
    """After a call no file below the state folder, staged tree, manifest and journal included, holds the canary."""
    async with kit.clean_engine(tmp_path / "state") as engine:
        await kit.jailed(engine, tmp_path / "jailed", source("return 1"), "attempt", given())
        files = [Path(top, name) for top, _, names in os.walk(tmp_path / "state") for name in names]
        assert [file for file in files if CANARY.encode() in file.read_bytes()] == []
    assert files
