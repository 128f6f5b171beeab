"""Each way a call can end has a reason of its own, and after each of them the same engine goes on."""

from pathlib import Path

import pytest
import trio

from engine.errors import EngineError
from engine.host import Engine
from engine.outcome import Outcome
from tests import kit, moments

GONE_ON = "the process closed its channel without an answer and went on"
LONG = "the worker sent a frame longer than its bound"
INSIDE = "the worker closed its channel inside a frame"
NOBODY_CANCELLED = "the worker sent a Failure of kind cancelled, and nobody cancelled"
HANG = "import time\nwhile True: time.sleep(1000)\n"
TRAP = ("crashed.exit", "the process ended with exit code 134 and no answer")
NO_THREADS = ("tool_error.exception", "RuntimeError: can't start new thread")
NO_CHANNEL = ("tool_error.exception", "OSError: [Errno 8] Bad file descriptor")
# texts that end otherwise in a WebAssembly worker: it traps where a process would get a signal, tells no exit code but 0 and 1, has no
# threads, no ctypes, and no descriptor for its channel
ON_WASM = {
    "os._exit(137)": ("crashed.exit", "the process ended with exit code 1 and no answer"),
    "import ctypes\nctypes.string_at(0)": ("tool_error.exception", "ModuleNotFoundError: No module named '_ctypes'"),
    "os.abort()": TRAP,
    "import signal\nsignal.raise_signal(9)": TRAP,
    "import signal\nsignal.raise_signal(15)": TRAP,
    f"os.close(3)\n{HANG}": NO_CHANNEL,
    f"os.close(3)\n{moments.FOREVER}": NO_CHANNEL,
    "os.close(3)\nos._exit(0)": NO_CHANNEL,
    "os.close(3)": NO_CHANNEL,
    "os.close(3)\nwhile True: pass": ("tool_error.import", NO_CHANNEL[1]),
    "import signal\nsignal.raise_signal(signal.SIGSTOP)": TRAP,
    "import threading\nthreading.Lock().acquire()\nthreading.Event().wait()": TRAP,  # nobody could ever set it
    "import select\nselect.select([], [], [])": TRAP,
    "os.read(3, 100)": NO_CHANNEL,
    "import threading, time\nfor _ in range(8): threading.Thread(target=time.sleep, args=(1000,)).start()": NO_THREADS,
    "import threading\ndef burn():\n    while True: pass\nthreading.Thread(target=burn).start()": NO_THREADS,
    "import _thread\n_thread.start_new_thread(sys.exit, ('in a thread',))": NO_THREADS,
    # the bytes that follow complete the frame, which is then like any that a tool may send
    "os.closerange(0, 64)": ("ok.done", None),
    f"forge(frame(23, 'answer')[:-1])\nos.close(3)\n{HANG}": ("ok.done", None),
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n" + HANG: (
        "tool_error.exception",
        "AttributeError: module 'signal' has no attribute 'pthread_sigmask'",
    ),
}


def expected(worker_kind: str, code: str, reason: str, line: str | None) -> tuple[str, str | None]:
    """How a text ends in that kind of worker: reason, and its line if there is one."""
    return ON_WASM.get(code, (reason, line)) if worker_kind == "wasm" else (reason, line)


def told(outcome: Outcome) -> tuple[str, str | None]:
    """The same of an outcome, which holds no value unless all went well."""
    assert outcome.value is None or outcome.reason == "ok.done"
    (line,) = outcome.lines or (None,)
    return outcome.reason, line


async def ended(engine: Engine, folder: Path, code: str, *, timeout_ms: int = 20_000) -> Outcome:
    """How a text ended, after the same engine answered another call."""
    with trio.fail_after(30):
        outcome = await moments.run(engine, folder, code, timeout_ms=timeout_ms)
    await moments.assert_works(engine)
    return outcome


@pytest.mark.parametrize(
    ("code", "reason", "line"),
    [
        ("raise ValueError('no such region')", "tool_error.exception", "ValueError: no such region"),
        ("raise KeyboardInterrupt", "tool_error.exception", "KeyboardInterrupt:"),
        ("raise GeneratorExit", "tool_error.exception", "GeneratorExit:"),
        ("raise BaseExceptionGroup('many', [SystemExit(1)])", "tool_error.exception", "BaseExceptionGroup: many (1 sub-exception)"),
        ("raise MemoryError('by hand')", "tool_error.exception", "MemoryError: by hand"),
        ("sys.exit('enough')", "tool_error.exit", "SystemExit: enough"),
        ("raise SystemExit", "tool_error.exit", "SystemExit:"),
        ("os._exit(0)", "crashed.exit", "the process ended with exit code 0 and no answer"),
        ("os._exit(137)", "crashed.exit", "the process ended with exit code 137 and no answer"),
        ("import ctypes\nctypes.string_at(0)", "crashed.signal", "the process died of signal 11"),
        ("os.abort()", "crashed.signal", "the process died of signal 6"),
        ("import signal\nsignal.raise_signal(9)", "crashed.signal", "the process died of signal 9"),
        ("import signal\nsignal.raise_signal(15)", "crashed.signal", "the process died of signal 15"),
    ],
)
async def test_a_tool_that_ends_itself(engine: Engine, tmp_path: Path, worker_kind: str, code: str, reason: str, line: str) -> None:
    """An exception, an exit and a signal are told apart, and an exit code that looks like a signal stays an exit code."""
    outcome = await ended(engine, tmp_path, code)
    assert told(outcome) == expected(worker_kind, code, reason, line)


@pytest.mark.parametrize(
    ("code", "reason", "line"),
    [
        (f"os.close(3)\n{HANG}", "crashed.silent", GONE_ON),
        (f"os.close(3)\n{moments.FOREVER}", "crashed.silent", GONE_ON),
        ("os.close(3)\nos._exit(0)", "crashed.exit", "the process ended with exit code 0 and no answer"),
        ("os.close(3)", "crashed.exit", "the process ended with exit code 70 and no answer"),
        ("os.closerange(0, 64)", "crashed.exit", "the process ended with exit code 70 and no answer"),
        ("forge(frame(23, 'answer')[:-1])\nos._exit(0)", "violation.protocol", INSIDE),
        ("forge(b'\\0\\0')\nos._exit(0)", "violation.protocol", INSIDE),
        (f"forge(frame(23, 'answer')[:-1])\nos.close(3)\n{HANG}", "crashed.silent", GONE_ON),
    ],
)
async def test_a_tool_that_closes_its_channel(engine: Engine, tmp_path: Path, worker_kind: str, code: str, reason: str, line: str) -> None:
    """How the process ended says more than where it stopped writing; one that lives on without a channel is ended."""
    outcome = await ended(engine, tmp_path, code)
    assert told(outcome) == expected(worker_kind, code, reason, line)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("forge(b'garbage, and more of it')", LONG),
        ("forge(b'\\xff\\xff\\xff\\xff\\x91\\xc0')", LONG),
        ("forge(b'\\0\\0\\0\\0')", "the worker sent a frame too short for any message"),
        ("forge(frame(3, 'run', {}, ''))", "the worker sent Call, which only the host sends"),
        ("forge(frame(5))", "the worker sent Cancel, which only the host sends"),
        ("forge(frame(4, 1, True, None))", "the worker sent HostReply, which only the host sends"),
        ("forge(frame(16, None))", "the worker sent Ready while running"),
        ("forge(frame(17, []))", "the worker sent Declarations while running"),
        ("forge(frame(99))", "the worker sent a frame that is no message"),
        ("forge(frame(24, 'cancelled', 'X', 'y'))", NOBODY_CANCELLED),
        ("forge(frame(24, 'declaration', 'X', 'y'))", "the worker sent a Failure of kind declaration in a call"),
        ("forge(frame(24, 'import', 'X', 'y'))", "the worker sent a Failure of kind import in a call"),
    ],
)
async def test_a_tool_that_writes_what_no_guest_writes(engine: Engine, tmp_path: Path, code: str, line: str) -> None:
    """Noise, lengths that lie, and messages that may not come now end the call at once, though the tool goes on."""
    outcome = await ended(engine, tmp_path, f"{code}\n{HANG}")
    assert (outcome.reason, outcome.lines, outcome.value) == ("violation.protocol", (line,), None)


@pytest.mark.parametrize(
    ("code", "reason", "value"),
    [
        (f"forge(frame(23, 'first') + frame(23, 'second'))\n{HANG}", "ok.done", "first"),
        (f"forge(frame(23, 'first') + frame(24, 'exception', 'X', 'y'))\n{HANG}", "ok.done", "first"),
        (f"forge(frame(24, 'exception', 'X', 'y') + frame(23, 'second'))\n{HANG}", "tool_error.exception", None),
        (f"forge(frame(23, 'first') + b'\\0')\n{HANG}", "ok.done", "first"),
        (f"forge(frame(23, 'first') + frame(20, 'late'))\n{HANG}", "ok.done", "first"),
    ],
)
async def test_the_first_answer_is_the_only_one(engine: Engine, tmp_path: Path, code: str, reason: str, value: object) -> None:
    """What follows an answer changes nothing of it, stands on the receipt, and costs the worker its life."""
    await engine.load(kit.write(tmp_path, moments.RUN))
    await moments.assert_works(engine)
    before = moments.Tree(engine).firsts
    outcome = await engine.call("run", {"code": code})
    assert (outcome.reason, outcome.value) == (reason, value)
    assert (await outcome.concluded())["violations"] == ["the worker sent something after its answer"]
    await moments.wait_gone(before)
    await moments.assert_works(engine)


@pytest.mark.parametrize(
    "code",
    [
        moments.FOREVER,
        "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass",
        "sum(range(10**15))",
        "pow(3, 10**9)",
        "'a' * (1 << 26) * 0 or ('b' in 'a' * (1 << 26) and 0) or [('ab' * (1 << 12)).find('aab') for _ in range(10**9)]",
        "import signal\nsignal.raise_signal(signal.SIGSTOP)",
        "import signal\nfor n in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(n, signal.SIG_IGN)\n" + moments.FOREVER,
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n" + HANG,
        "import threading\nthreading.Lock().acquire()\nthreading.Event().wait()",
        "import select\nselect.select([], [], [])",
        "os.read(3, 100)",
        "import time\nfor byte in frame(23, 'answer' * 100):\n    forge(bytes([byte]))\n    time.sleep(0.05)",
        "forge(frame(23, 'answer')[:-1])\n" + HANG,
        "class Late:\n    def __del__(self):\n        while True: pass\ndel globals()['context']\nLate()",
    ],
)
async def test_nothing_keeps_a_tool_beyond_its_deadline(engine: Engine, tmp_path: Path, worker_kind: str, code: str) -> None:
    """Loops in Python and C, waits, deafness to signals, and a frame that comes byte by byte all end at the wall limit."""
    outcome = await ended(engine, tmp_path, code, timeout_ms=500)
    assert told(outcome) == expected(worker_kind, code, "limit_exceeded.wall", "no answer within 500 ms")


@pytest.mark.parametrize(
    "code",
    [
        "import threading, time\nfor _ in range(8): threading.Thread(target=time.sleep, args=(1000,)).start()",
        "import threading\ndef burn():\n    while True: pass\nthreading.Thread(target=burn).start()",
        "import atexit\natexit.register(lambda: forge(b'late'))",
        "import _thread\n_thread.start_new_thread(sys.exit, ('in a thread',))",
    ],
)
async def test_what_a_tool_leaves_running_does_not_delay_its_answer(engine: Engine, tmp_path: Path, worker_kind: str, code: str) -> None:
    """The answer counts when it is there; threads and exit hooks end with the process."""
    outcome = await ended(engine, tmp_path, f"{code}\nvalue = 'done'")
    assert told(outcome) == expected(worker_kind, code, "ok.done", None)
    assert outcome.value == ("done" if outcome.reason == "ok.done" else None)


AT_IMPORT = moments.CALLED + moments.RUN + "\nif CALLED:\n    ACT\n"


@pytest.mark.parametrize(
    ("act", "reason", "line"),
    [
        ("raise ValueError('not today')", "tool_error.import", "ValueError: not today"),
        ("sys.exit('not today')", "tool_error.exit", "SystemExit: not today"),
        ("os._exit(0)", "crashed.exit", "the process ended with exit code 0 and no answer"),
        ("os.abort()", "crashed.signal", "the process died of signal 6"),
        ("forge(frame(23, 'early'))", "violation.protocol", "the worker sent Result while starting"),
        ("forge(frame(20, 'early'))", "violation.protocol", "the worker sent Event while starting"),
        ("forge(frame(24, 'cancelled', 'X', 'y'))", "violation.protocol", NOBODY_CANCELLED),
        ("forge(frame(16, 'sha256:' + '0' * 64))", "violation.declaration", "the worker's declarations are not those that were loaded"),
        ("while True: print('words ' * 1000)", "limit_exceeded.output", "more than 262144 bytes on stdout"),
        ("while True: pass", "limit_exceeded.start", "not ready within 700 ms"),
        ("os.close(3)\nwhile True: pass", "crashed.silent", GONE_ON),
    ],
)
async def test_an_import_that_goes_wrong_ends_the_call(
    engine: Engine, tmp_path: Path, worker_kind: str, act: str, reason: str, line: str
) -> None:
    """A source that behaves while it is described, and not in the child of a call: what it printed belongs to that call."""
    policy = moments.policy(tmp_path, {"limits": {"start": "700 ms"}})
    source = AT_IMPORT.replace("ACT", f"os.write(1, b'imported')\n{act}".replace("\n", "\n    "))
    await engine.load(kit.write(tmp_path, source), policy=policy)
    with trio.fail_after(30):
        outcome = await engine.call("echo", {"word": "never"})
    assert told(outcome) == expected(worker_kind, act, reason, line)
    assert outcome.stdout[:8] == "imported"
    await engine.load(kit.write(tmp_path, AT_IMPORT.replace("ACT", "pass")), policy=policy)
    await moments.assert_works(engine)


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("raise ValueError('not today')", "tool_error.import"),
        ("os._exit(0)", "crashed.exit"),
        ("os.abort()", "crashed.signal"),
        ("forge(frame(17, []))", "violation.protocol"),
        ("while True: print('words ' * 1000)", "limit_exceeded.output"),
        pytest.param("while True: pass", "limit_exceeded.start", marks=pytest.mark.slow),
    ],
)
async def test_an_import_that_goes_wrong_refuses_the_load(engine: Engine, tmp_path: Path, worker_kind: str, act: str, code: str) -> None:
    """While it is described, nothing of such a source can be called yet; another one can be loaded."""
    with trio.fail_after(30), pytest.raises(EngineError) as caught:
        await engine.load(kit.write(tmp_path, f"{moments.RUN}\n{act}\n"))
    assert caught.value.code == expected(worker_kind, act, code, None)[0]
    await engine.load(kit.write(tmp_path, moments.RUN))
    await moments.assert_works(engine)
