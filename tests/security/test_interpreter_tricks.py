"""The well-known ways around a Python that only watches itself. They may all run: the wall is not in the interpreter, and none gains
anything.
"""

import os
from pathlib import Path

import pytest

from engine.host import Engine
from tests import kit
from tests.attempts import given, said, source

CANARY = "canary-" + os.urandom(8).hex()
# how each one comes to run something; what it runs is the same three effects
TRICKS = {
    "a walk over subclasses to a loader": """
loader = [c for c in ().__class__.__mro__[-1].__subclasses__() if c.__name__ == "BuiltinImporter"][0]
system = loader.load_module("posix")
""",
    "the globals of a function found by name": "system = read.__globals__['os']",
    "a frame above": """
import sys
frame = sys._getframe()
while frame.f_back is not None:
    frame = frame.f_back
system = frame.f_globals.get("os") or sys.modules["posix"]
""",
    "the frame of an exception": """
try:
    1 / 0
except ZeroDivisionError as error:
    system = error.__traceback__.tb_frame.f_globals["os"]
""",
    "the frame of a generator": "system = (frame.gi_frame.f_globals for frame in [(n for n in ())]).__next__()['os']",
    "a format field": """
class Box:
    pass
box = Box()
box.reader = read
found = "{0.reader.__globals__[os].path.__name__}".format(box)
system = read.__globals__["os"] if found else None
""",
    "identifiers that only look alike": "system = ｒｅａｄ.__globals__['os']",
    "code from marshalled bytes": """
import marshal, types
code = marshal.loads(marshal.dumps(compile("import posix\\nsystem = posix", "forged", "exec")))
space = {}
exec(code, space)
system = space["system"]
""",
    "a forged code object": """
import types
def plain():
    return os
system = types.FunctionType(plain.__code__.replace(co_name="forged"), globals())()
""",
    "the import machinery by attribute": "import sys\nsystem = vars(sys.modules['builtins'])['__imp' + 'ort__']('posix')",
    "the C library": "import posix as system\nLIBC.system.restype = ctypes.c_int",
}
EFFECTS = """
shell = lambda: LIBC.system(b"touch " + given["marker"].encode())
def socket():
    import _socket
    return _socket.socket(2, 1).connect(("127.0.0.1", given["port"]))
def leaf():
    descriptor = system.open(given["canary"], 0)
    return system.read(descriptor, 100).decode()
return {"read": tried(leaf), "run": tried(system.posix_spawn if hasattr(system, "posix_spawn") else os.posix_spawn,
    "/bin/true", ["true"], {}),
        "shell": shell() == 0, "socket": tried(socket), "fork": "not tried" if given["bare"] else tried(system.fork)}
"""


@pytest.mark.parametrize("trick", TRICKS)
async def test_a_trick_runs_and_gains_nothing(engine: Engine, tmp_path: Path, trick: str) -> None:
    """It comes to the module it wanted, and then reads no file of the host, runs no command, opens no socket and forks nothing."""
    canary, marker = tmp_path / "canary.txt", tmp_path / "marker"
    canary.write_text(CANARY)
    arguments = {"canary": str(canary), "marker": str(marker), "port": 9}
    attempt = source(TRICKS[trick].strip() + "\n" + EFFECTS)
    outcome = await kit.jailed(engine, tmp_path / "jailed", attempt, "attempt", given(bare=False, **arguments))
    refused = ["refused", "EPERM"]
    assert outcome.value == {
        "read": ["refused", "ENOENT"],
        "run": refused,
        "shell": False,
        "socket": ["refused", "EACCES"],
        "fork": refused,
    }
    assert (CANARY in await said(outcome), marker.exists()) == (False, False)
    bare = kit.bare(tmp_path / "bare", attempt, "attempt", given(bare=True, **arguments))
    assert (bare.value["read"], bare.value["run"][0], bare.value["shell"], marker.exists()) == (["done", CANARY], "done", True, True)
    assert bare.value["socket"] == ["refused", "ECONNREFUSED"]


BREAKERS = {
    "no output": "import sys\nsys.stdout = sys.stderr = None\nreturn 1",
    "output that raises": (
        "import sys\nclass Broken:\n    def __getattr__(self, name):\n        raise SystemError\n"
        "sys.stdout = sys.stderr = Broken()\nreturn 1"
    ),
    "no modules": "import sys\nsys.modules.clear()\nreturn 1",
    "no system module": "import sys\ndel sys.modules['os']\ndel os.write\nreturn 1",
    "no descriptors": "os.closerange(0, 1000)\nreturn 1",
    "no print and no type check": "import builtins\ndel builtins.print\nbuiltins.isinstance = lambda *_: True\nreturn 1",
    "another kind of error": "import builtins\nbuiltins.BaseException = builtins.Exception = int\nraise ValueError('mine')",
    "a trace of everything": "import sys\nsys.settrace(lambda *a: 1 / 0)\nsys.setprofile(lambda *a: None)\nreturn 1",
    "hooks on everything": (
        "import sys, threading\nsys.excepthook = threading.excepthook = sys.unraisablehook = lambda *_: os._exit(0)\n"
        "sys.addaudithook(lambda *_: None)\nreturn 1"
    ),
    "an audit hook that refuses": "import sys\ndef hook(*_):\n    raise RuntimeError('no')\nsys.addaudithook(hook)\nreturn 1",
    "a null pointer": "ctypes.string_at(0)",
    "garbage for byte code": (
        "import types\nexec((lambda: 0).__code__.replace(co_code=bytes(range(256)) * 4, co_consts=(), co_stacksize=1))"
    ),
    "garbage for marshal": "import marshal\nreturn len(str(marshal.loads(b'\\xe3' + bytes(range(200)))))",
    "an abort": "os.abort()",
    "an endless depth": "import sys\nsys.setrecursionlimit(10**8)\ndef deep(n):\n    return [deep(n)]\ndeep(0)",
    "one's own signal": "import signal\nsignal.raise_signal(signal.SIGKILL)",
    "the guest's own link": (
        "import sys, gc\ngc.unfreeze()\nfor thing in gc.get_objects():\n    if type(thing).__name__ == 'Link':\n"
        "        thing.send = None\n        type(thing).send = lambda *_: None\nreturn 1"
    ),
}


@pytest.mark.parametrize("breaker", BREAKERS)
async def test_a_tool_that_breaks_its_interpreter_breaks_its_own_call(engine: Engine, tmp_path: Path, breaker: str) -> None:
    """Whatever it does to the process it runs in, that call ends with one reason of the table, and the next one is as if nothing had
    been.
    """
    body = "if not given['break']:\n    return [1, str(len([])), os.getpid() > 1]\n" + BREAKERS[breaker]
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", given(**{"break": True}), timeout_ms=8000)
    assert outcome.status in ("ok", "tool_error", "crashed", "violation", "limit_exceeded")
    if outcome.status == "ok":
        assert outcome.value == 1
    again = await engine.call("attempt", given(**{"break": False}))
    assert (again.reason, again.value, again.lines) == ("ok.done", [1, "0", True], ())


MIMICS = {
    "class": "class LimitExceeded(BaseException):\n    pass\nraise LimitExceeded('limit_exceeded.memory: out of memory')",
    "memory": "raise MemoryError('limit_exceeded.memory')",
    "time": "raise TimeoutError('limit_exceeded.wall')",
    "keyboard": "raise KeyboardInterrupt",
    "generator": "raise GeneratorExit",
    "stop": "raise StopIteration('ok.done')",
    "group": "raise BaseExceptionGroup('ok.done', [ValueError(str(n)) for n in range(1000)])",
    "engine": "from engine import errors\nraise errors.EngineBug('engine_failed.bug: mine')",
    "text": "class Loud(Exception):\n    def __str__(self):\n        raise SystemExit(0)\nraise Loud",
    "name": "raise type('ok.done\\n\\x1b[2J' * 100, (Exception,), {})('x')",
}


@pytest.mark.parametrize("mimic", MIMICS)
async def test_an_exception_cannot_pass_for_the_engines_word(engine: Engine, tmp_path: Path, mimic: str) -> None:
    """Names and texts of the engine's own reasons in a tool's exception stay the tool's words: the reason is that the tool raised."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(MIMICS[mimic]), "attempt", given())
    assert (outcome.reason, outcome.value) == ("tool_error.exception", None)
    assert [line for line in outcome.lines if not line.isprintable() or len(line) > 5000] == []


PRIVATE = """
import gc, sys
gc.unfreeze()
import types
seen, texts, todo = set(), set(), [*gc.get_objects(), *sys.modules.values()]
frame = sys._getframe()
while frame is not None:
    todo.append(frame.f_locals)
    frame = frame.f_back
while todo:
    value = todo.pop()
    if isinstance(value, str | bytes):
        texts.add(value if isinstance(value, str) else value.decode("latin-1"))
    elif id(value) not in seen:
        seen.add(id(value))
        todo += gc.get_referents(value)
wanted = given["reversed"][::-1]
return {"found": sorted(text[:80] for text in texts if wanted in text), "texts": len(texts),
    "tenant": sorted(t for t in texts if t == "tenant-" + wanted)}
"""


async def test_nothing_of_another_call_or_of_the_caller_is_in_reach(engine: Engine, tmp_path: Path) -> None:
    """By frames and by all objects, a tool finds neither an earlier call's arguments nor the tenant, which only the host knows."""
    wanted = "w" + os.urandom(8).hex()
    await engine.load(kit.write(tmp_path / "source", source(PRIVATE)))
    first = await engine.call("attempt", given(reversed="x", secret=wanted), tenant=f"tenant-{wanted}")
    second = await engine.call("attempt", given(reversed=wanted[::-1]), tenant=f"tenant-{wanted}")
    third = await engine.call("attempt", given(reversed=wanted[::-1], own=wanted), tenant=f"tenant-{wanted}")
    assert first.value["texts"] > 1000
    assert (second.value["found"], second.value["tenant"]) == ([], [])
    assert (third.value["found"], third.value["tenant"]) == ([wanted], [])  # the control: its own argument is found
