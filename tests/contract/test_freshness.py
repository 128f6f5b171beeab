"""The freshness levels: what a call may find of an earlier one, by effect, and what is the same at each level."""

from pathlib import Path
from typing import Any

import pytest
import trio

from engine.host import Engine
from engine.policy.model import Freshness
from tests import kit, levels, moments
from tests.attempts import given, source

AT_IMPORT = """
import builtins, json, random, resource, tempfile, threading, time
os.environ["TOKEN"] = TOKEN = str(random.random())
AT_IMPORT = tempfile.gettempdir()
tried(resource.setrlimit, resource.RLIMIT_SIGPENDING, (99, 99))
"""
LEAVE_AND_LOOK = """
found = {
    "what import drew by chance": TOKEN,
    "a variable of the environment, by import": os.environ["TOKEN"],
    "a limit, by import": resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] == 99,
    "a global": globals().get("LEFT"),
    "a module's attribute": getattr(json, "left", None),
    "a builtin": oct(8),
    "a variable of the environment": os.environ.get("LEFT"),
    "a file in scratch": os.path.exists("left"),
    "the working folder": os.getcwd() != os.environ["HOME"],
    "a thread": threading.active_count(),
    "a descriptor": [number for number in range(4, 200) if tried(os.fstat, number)[0] == "done"],
    "the process": os.getpid(),
}
if given["leave"]:
    global LEFT
    LEFT = "left"
    json.left = 1
    builtins.oct = lambda number: "left"
    os.environ["LEFT"] = "left"
    os.mkdir("below")
    os.chdir("below")
    for place in ("left", "../left"):
        open(place, "w").close()
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    os.dup(0)
with tempfile.NamedTemporaryFile() as file:
    inside = file.name.startswith(os.environ["HOME"] + "/")
return {"found": found, "inside": inside, "limit": tried(resource.setrlimit, resource.RLIMIT_NOFILE, (9, 9))}
"""
BY_IMPORT = {"what import drew by chance", "a variable of the environment, by import"}
BY_CALLS = {
    "a global",
    "a module's attribute",
    "a builtin",
    "a variable of the environment",
    "a file in scratch",
    "the working folder",
    "a thread",
    "a descriptor",
}
LEAKS = {
    Freshness.FRESH: set(),
    Freshness.SNAPSHOT: BY_IMPORT,
    Freshness.WARM: BY_IMPORT | BY_CALLS | {"the process"},
}  # each row is the control of those above it
OF_ONE_CALL = {"what import drew by chance", "a variable of the environment, by import", "the process"}  # differ where they are new


async def looked(engine: Engine, *, leave: bool, **options: Any) -> dict[str, Any]:
    """What a call found, after it left everything or nothing."""
    outcome = await engine.call("attempt", given(leave=leave), **options)
    assert (outcome.reason, outcome.value["inside"], outcome.value["limit"]) == ("ok.done", True, ["refused", "ValueError"])
    receipt = await outcome.concluded()
    assert receipt["violations"] == []
    return {**outcome.value["found"], "level": receipt["worker"]["freshness"], "loosenings": receipt["policy"]["loosenings"]}


def leaked(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    """The effects of the first call, which left everything, that the second one found."""
    return {name for name in BY_IMPORT | BY_CALLS | {"the process"} if (first[name] == second[name]) is (name in OF_ONE_CALL)}


@pytest.mark.parametrize("level", Freshness)
async def test_what_a_call_finds_of_an_earlier_one(engine: Engine, tmp_path: Path, level: Freshness) -> None:
    """Nothing when fresh; what import made under snapshot; everything when warm, its own process included. Never another tenant's.

    The level stands on the receipt with its loosening. A limit that import sets can be set at all only in the process that all share.
    """
    await engine.load(kit.write(tmp_path, source(LEAVE_AND_LOOK, AT_IMPORT)), policy=levels.policy(tmp_path / "policy", level))
    with trio.fail_after(60):
        first = await looked(engine, leave=True, tenant="one")
        second = await looked(engine, leave=False, tenant="one")
        other = await looked(engine, leave=False, tenant="two")
        tightened = await looked(engine, leave=False, tenant="one", limits={"memory": "128 MiB"})
    assert leaked(first, second) == LEAKS[level]
    for stranger in (other, tightened):  # process numbers start anew in each jail
        assert leaked(first, stranger) - {"the process"} == set()
        assert leaked(second, stranger) & BY_IMPORT == set()
    named = [levels.LOOSENINGS[level]] if level in levels.LOOSENINGS else []
    assert (second["level"], second["loosenings"]) == (str(level), named)
    assert second["a limit, by import"] is (level is Freshness.SNAPSHOT)


BURN = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"


@pytest.mark.parametrize("level", Freshness)
async def test_usage_is_of_one_call(engine: Engine, tmp_path: Path, level: Freshness) -> None:
    """A call that burns has its CPU time on its own receipt, the next has not; peak memory is told where it is of one call alone."""
    await engine.load(kit.write(tmp_path, moments.RUN), policy=levels.policy(tmp_path / "policy", level))
    usage = []
    with trio.fail_after(120):
        await moments.assert_works(engine)
        for code in (BURN, "value = 1", f"{BURN}raise ValueError", f"{BURN}while True: print('words' * 1000)"):
            outcome = await engine.call("run", {"code": code})
            usage.append((await outcome.concluded())["usage"])
    burnt, idle, raised, cut = [one["cpu_ms"] for one in usage]
    assert idle < 200 <= min(burnt, raised, cut)
    assert [one["peak_rss_bytes"] is None for one in usage] == [level is not Freshness.FRESH] * 4


@pytest.mark.parametrize("level", Freshness)
async def test_bounds_of_one_call_are_not_those_of_the_next(engine: Engine, tmp_path: Path, level: Freshness) -> None:
    """A caller that tightens what the host holds gets the same worker; those after it have their own bounds, wider and tighter."""
    await engine.load(kit.write(tmp_path, moments.RUN), policy=levels.policy(tmp_path / "policy", level))
    found = []
    with trio.fail_after(60):
        for limits in ({"result": 100, "log": 100}, {}, {"result": 100}, {"log": 100}, {"events": 1}, {}):
            code = "print('x' * 500)\ncontext.emit(1)\ncontext.emit(2)\nvalue = 'x' * 500"
            found.append((await engine.call("run", {"code": code}, limits=limits)).reason)
    exceeded = [f"limit_exceeded.{name}" for name in ("result", "output", "events")]
    assert found[1] == found[5] == "ok.done"
    assert found[0] in exceeded[:2]
    assert found[2:5] == exceeded
