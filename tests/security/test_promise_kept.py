"""State that is kept between calls stays with the tool whose it is: an author who means harm gains the next call of the same key, no more.

Under ``snapshot`` the author's import runs in the jail's first process, and under ``warm`` all calls run in one. Neither is a way out
of the jail, into another's answer, or past the jail's end.
"""

import fcntl
import hashlib
import os
import secrets
from pathlib import Path

import pytest
import trio

from engine.host import Engine
from engine.policy.model import Freshness
from tests import kit, levels, moments
from tests.attempts import given, source

# true in a call and false while a source is described: that policy grants fewer descriptors
CALLED = "import resource, struct, sys, time\nCALLED = resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64\n"
TAKES_OVER = """
real, forks = os.fork, 0
def fork():
    global forks
    forks += 1
    if forks > 1:
        ACT
    return real()
if CALLED:
    os.fork = fork
"""
# what is done in the first process when it is to fork a call's child; the first fork only tries whether it can
TAKEN_OVER = {
    "be the child itself": "return 0",
    "claim to have forked": "return os.getpid()",
    "raise": "raise SystemExit",
    "end": "os._exit(0)",
    "leave a process that stays": """if real() == 0:
            time.sleep(1000)""",
    "leave a process that talks to the supervisor": """if real() == 0:
            while True:
                tried(os.write, 3, struct.pack("<cQiQQQ", b"X", forks, 0, 1, 1, 1))
                tried(os.write, 3, b"X")
                time.sleep(0.01)""",
    "leave a process that answers in the child's place": """if real() == 0:
            pack = sys.modules["guest.wire"].pack
            frames = b"\\x01" + pack(16, ["sha256:" + "0" * 64]) + pack(23, ["forged"])
            while True:
                for number in range(4, 40):
                    tried(os.write, number, frames)
                time.sleep(0.01)""",
}


@pytest.mark.parametrize("what", TAKEN_OVER)
async def test_an_import_that_takes_over_the_first_process(engine: Engine, tmp_path: Path, what: str) -> None:
    """Each call of it ends with a verdict and says nothing but its own; another tenant's are answered right; its jail's end ends it all."""
    policy = levels.policy(tmp_path / "policy", Freshness.SNAPSHOT, {"limits": {"threads": 8}})
    before = CALLED + TAKES_OVER.replace("ACT", TAKEN_OVER[what])
    await engine.load(kit.write(tmp_path / "bad", source("return 'its own'", before)), policy=policy)
    await engine.load(kit.write(tmp_path / "good", moments.RUN), policy=policy)
    seen = []
    with trio.fail_after(120):
        for number in range(3):
            outcome = await engine.call("attempt", given(), tenant="bad", timeout_ms=1500)
            assert (outcome.status != "engine_failed", outcome.value) in ((True, None), (True, "its own"), (True, "forged"))
            tree = moments.Tree(engine)
            seen += [*tree.monitors, *tree.firsts, *tree.children, *moments.below(tree.children)]
            good = await engine.call("run", {"code": f"value = {number}"}, tenant="good")
            assert (good.reason, good.value) == ("ok.done", number)
            await good.concluded()
        await engine.unload("")
        await moments.wait_gone(seen)
    assert moments.living(moments.Tree(engine).all()) == [moments.Tree(engine).launcher]


REACHES = """
import signal
def connect():
    import _socket
    return _socket.socket(2, 1).connect_ex(("127.0.0.1", 9)) >= 0
REACHED = {
    "read": tried(read, CANARY),
    "write": tried(write, MARKER),
    "run": tried(os.posix_spawn, "/bin/true", ["true"], {}),
    "socket": tried(connect),
    "signal": tried(os.kill, SUPERVISOR, 0),
    "look": tried(os.listdir, "/proc"),
}
"""


async def test_an_import_in_the_first_process_stands_behind_the_wall(engine: Engine, tmp_path: Path) -> None:
    """It reads no file of the host, writes none, runs nothing, opens no socket, reaches no process; the same lines do, without the wall."""
    canary = tmp_path / "canary"
    canary.write_text("a canary")
    before = f"CANARY, MARKER, SUPERVISOR = {str(canary)!r}, {str(tmp_path / 'marker')!r}, {os.getpid()}\n{REACHES}"
    place = kit.write(tmp_path / "jailed", source("return [os.getpid(), REACHED]", f"FIRST = os.getpid()\n{before}"))
    await engine.load(place, policy=levels.policy(tmp_path / "policy", Freshness.SNAPSHOT))
    found = (await engine.call("attempt", given())).value
    assert found[1] == {
        "read": ["refused", "ENOENT"],
        "write": ["refused", "ENOENT"],
        "run": ["refused", "EPERM"],
        "socket": ["refused", "EACCES"],
        "signal": ["refused", found[1]["signal"][1]],
        "look": ["refused", "ENOENT"],
    }
    assert found[1]["signal"][1] in ("EPERM", "ESRCH")
    assert not (tmp_path / "marker").exists()
    bare = kit.bare(tmp_path / "bare", source("return REACHED", before), "attempt", given()).value
    assert {how[0] for how in bare.values()} == {"done"}


HOLDS = """
import fcntl, stat
KINDS, CHANGED = set(), []
for number in range(3, 256):
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        continue
    KINDS.add({stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFSOCK: "socket"}.get(stat.S_IFMT(mode), "other"))
    unlocked = tried(fcntl.flock, number, fcntl.LOCK_UN)
    if stat.S_ISREG(mode):
        CHANGED.append([tried(os.pwrite, number, b"left by a jail", 0)[0], unlocked[0]])
FOUND = [os.getuid(), sorted(KINDS), CHANGED]
"""


async def test_an_import_in_the_first_process_holds_no_file_of_the_host(engine: Engine, tmp_path: Path) -> None:
    """It leaves no word for the next jail of its uid, nor gives that uid away while it lives; bare, a lock that it holds is written and
    freed.
    """
    await engine.load(
        kit.write(tmp_path / "jailed", source("return FOUND", HOLDS)), policy=levels.policy(tmp_path / "policy", Freshness.SNAPSHOT)
    )
    outcome = await engine.call("attempt", given())
    uid, kinds, changed = outcome.value
    assert (kinds, changed) == (["folder", "other", "socket"], [])
    if os.geteuid() == 0:
        await outcome.concluded()
        await levels.waiting(engine)
        assert (size_of(f"/run/stockade/uids/{uid}"), is_locked(f"/run/stockade/uids/{uid}")) == (0, True)
    lock = tmp_path / "lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert (size_of(lock), is_locked(lock)) == (0, True)
        bare = kit.bare(tmp_path / "bare", source("return FOUND", HOLDS), "attempt", given(), pass_fds=[descriptor])
        assert bare.value[2] == [["done", "done"]]
        assert (size_of(lock), is_locked(lock)) == (len("left by a jail"), False)
    finally:
        os.close(descriptor)


def size_of(place: Path | str) -> int:
    """The size of a file."""
    return os.stat(place).st_size


def is_locked(place: Path | str) -> bool:
    """Whether somebody holds the lock of a file."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


FORKS = """
made = 0
if CALLED:
    os.set_blocking(1, True)
    try:
        while made < 500:
            if os.fork() == 0:
                time.sleep(1000)
            made += 1
    except OSError:
        pass
    print(made)
    print(*(resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in ("FSIZE", "NOFILE", "NPROC")))
"""


async def test_an_import_in_the_first_process_is_bounded(engine: Engine, tmp_path: Path) -> None:
    """It can fork, as nothing else in a jail can: no more than a call and its spare could have threads; and they are its jail's end."""
    policy = levels.policy(tmp_path / "policy", Freshness.SNAPSHOT, {"limits": {"threads": 8, "descriptors": 100, "scratch": "1 MiB"}})
    await engine.load(kit.write(tmp_path, source("return 1", CALLED + FORKS)), policy=policy)
    with trio.fail_after(60):
        outcome = await engine.call("attempt", given())
        assert (outcome.reason, outcome.lines[0].split(":")[0]) == ("tool_error.import", "BlockingIOError")  # nor can it be forked any more
        made, limits = outcome.stdout.splitlines()
        tasks = 2 * (8 + 4)
        assert 0 < int(made) <= tasks
        size, descriptors, processes = [int(number.strip("(),").split(",")[0]) for number in limits.split(" ")[::2]]
        assert (size, descriptors) == (1 << 20, 164)
        assert processes <= tasks
        assert moments.living(moments.Tree(engine).all()) == [moments.Tree(engine).launcher]


LATE = """
import threading, time
def later():
    while not os.path.exists('/granted/bell/rung'):
        time.sleep(0.001)
    forge(FRAME)
threading.Thread(target=later).start()
value = 'first'
"""


@pytest.mark.parametrize(
    "early", ["frame(23, 'in advance')", "frame(24, 'exception', 'E', 'm')", "b'\\0'"], ids=["result", "failure", "byte"]
)
async def test_an_answer_in_advance_is_none(engine: Engine, tmp_path: Path, early: str) -> None:
    """A thread that a warm call leaves writes an answer before there is a call: that one ends as a violation, and its jail with it."""
    bell = tmp_path / "bell"
    bell.mkdir()
    policy = levels.policy(tmp_path / "policy", Freshness.WARM, {"grants.folders": {"bell": bell}})
    await engine.load(kit.write(tmp_path, moments.RUN), policy=policy)
    with trio.fail_after(60):
        first = await engine.call("run", {"code": LATE.replace("FRAME", early)})
        await first.concluded()
        jail, child = await levels.waiting(engine)
        (bell / "rung").touch()
        await child.wait()
        second = await engine.call("echo", {"word": "own"})
        assert (first.value, second.reason, second.value) == ("first", "violation.protocol", None)
        await second.concluded()
        assert jail.dead()
        await moments.assert_works(engine)


@pytest.mark.parametrize("late", ["frame(23, 'second')", "frame(24, 'exception', 'E', 'm')", "b'\\0'"], ids=["result", "failure", "byte"])
async def test_what_follows_an_answer_ends_the_jail(engine: Engine, tmp_path: Path, late: str) -> None:
    """In one piece with the answer: the call has its answer, its receipt the violation, and the next call none of either."""
    await engine.load(kit.write(tmp_path, moments.RUN), policy=levels.policy(tmp_path / "policy", Freshness.WARM))
    with trio.fail_after(60):
        await moments.assert_works(engine)
        await (await engine.call("echo", {"word": "x"})).concluded()
        jail, _ = await levels.waiting(engine)
        first = await engine.call("run", {"code": f"forge(frame(23, 'first') + {late})\nimport time\ntime.sleep(1000)"})
        receipt = await first.concluded()
        assert (first.reason, first.value, receipt["violations"]) == ("ok.done", "first", ["the worker sent something after its answer"])
        assert jail.dead()
        await moments.assert_works(engine)


ASKS = """
import hashlib, os, random
from engine import tool

DRAWN = random.random()
NAMED = hashlib.sha256(os.environ.get("OPENAI_API_KEY", "").encode()).hexdigest()


@tool(effect="read", credentials=["openai"])
def ask() -> list[str]:
    "The digest of the key, as it was at the import and as it is, and what was drawn at the import."
    return [NAMED, hashlib.sha256(os.environ["OPENAI_API_KEY"].encode()).hexdigest(), str(DRAWN)]
"""


@pytest.mark.parametrize("level", list(Freshness))
async def test_a_rotated_secret_finds_no_old_state(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Freshness
) -> None:
    """What was imported, or is kept, with one value of a credential serves no call with another; the control keeps value and state."""
    place = levels.policy(tmp_path / "policy", level)
    place.write_text(place.read_text() + '[grants]\ncredentials = { value = ["openai"], reason = "a test" }\n')
    old, new = secrets.token_hex(16), secrets.token_hex(16)
    monkeypatch.setenv("OPENAI_API_KEY", old)
    await engine.reload_secrets()
    await engine.load(kit.write(tmp_path, ASKS), policy=place)
    found = []
    with trio.fail_after(60):
        for value in (old, old, new):
            if value == new:
                monkeypatch.setenv("OPENAI_API_KEY", new)
                await engine.reload_secrets()
            found.append((await engine.call("ask", {})).value)
    named = [hashlib.sha256(value.encode()).hexdigest() for value in (old, old, new)]
    # a snapshot's first process imports without the key
    nothing = hashlib.sha256(b"").hexdigest()
    imported = [nothing] * 3 if level is Freshness.SNAPSHOT else named
    assert [one[:2] for one in found] == [list(pair) for pair in zip(imported, named, strict=True)]
    first, second, third = [drawn for _, _, drawn in found]
    assert (first == second, third in (first, second)) == (level is not Freshness.FRESH, False)
