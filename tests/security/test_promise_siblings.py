"""A spare is a stranger that already runs: neither it nor a running call of the same jail reaches the other, nor the jail's first process.

The tool's import misbehaves, so the spare attacks while a call runs. The control is the same in children without filter and own domain.
"""

import contextlib
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.host import Engine
from engine.supervision.pump import Closed
from engine.wire import messages
from tests import kit
from tests.attempts import pairs

SOURCE = {
    "attempt.py": (Path(pairs.__file__).parent / "attempt.py").read_text(encoding="utf-8"),
    "tools.py": """
import os
import resource
import signal

from attempt import *
from engine import Context, schema, tool

X86 = os.uname().machine == "x86_64"
KILL, TGKILL, TKILL, QUEUE, LIMITS, AFFINITY, HOLD = (62, 234, 200, 129, 302, 203, 434) if X86 else (129, 131, 130, 138, 261, 122, 434)

def assault(pid, number):
    information = ctypes.create_string_buffer(number.to_bytes(4, "little") + bytes(4) + (-1 & 0xFFFFFFFF).to_bytes(4, "little"), 128)
    limit = ctypes.create_string_buffer((100).to_bytes(8, "little") + (200).to_bytes(8, "little"))
    return {
        "limits": tried(raw, LIMITS, pid, resource.RLIMIT_NOFILE, limit, 0),
        "read limits": tried(raw, LIMITS, pid, resource.RLIMIT_NOFILE, 0, BUFFER),
        "processors": tried(raw, AFFINITY, pid, 8, ctypes.create_string_buffer(b"\\xff" * 8)),
        "hold": tried(raw, HOLD, pid, 0),
        "queue": tried(raw, QUEUE, pid, number, information),
        "thread": tried(raw, TGKILL, pid, pid, number),
        "any thread": tried(raw, TKILL, pid, number),
        "kill": tried(raw, KILL, pid, number),
        "group": tried(raw, KILL, -1, number),
    }

def look(place):
    return {"list": tried(os.listdir, place), "write": tried(write, place + "/planted"), "make": tried(os.mkdir, place + "/made")}

OTHER = os.environ.get("OTHER")  # the slot of the sibling, which the test tells
AT_IMPORT = {}
if os.environ.get("ROLE") == "spare":  # while the child of the other slot is in its call
    AT_IMPORT = {
        "first": assault(1, signal.SIGWINCH),
        "running": assault(os.getpid() - 1, signal.SIGKILL),
        "slot": look(OTHER),
        "held": [n for n in range(4, 1024) if tried(os.fstat, n)[0] == "done"],
    }

@tool(description="Attacks the spare once told of it.", input=schema.object({"given": {"type": "object"}}), output={}, effect="read")
def attempt(given: dict, context: Context):
    if given.get("where"):
        return os.path.dirname(os.getcwd())
    if given.get("spare"):
        folder = given["folder"]
        inside = {"stat": tried(os.stat, folder)[0], "list": tried(os.listdir, folder), "read": tried(read, folder + "/secret"),
                  "write": tried(write, folder + "/secret"), "remove": tried(os.unlink, folder + "/secret"),
                      "make": tried(os.mkdir, folder + "/m")}
        return {"at import": AT_IMPORT, "inside": inside, "limits": list(resource.getrlimit(resource.RLIMIT_NOFILE)), "pid": os.getpid()}
    with open("secret", "w") as file:
        file.write("canary of a sibling")
    told = context.call("attempt", {"pid": os.getpid(), "folder": os.getcwd()})
    made = {"spare": assault(told["pid"], signal.SIGKILL), "first": assault(1, signal.SIGWINCH), "slot": look(OTHER)}
    context.call("attempt", {})  # and stay, while the spare is called
    return {**made, "secret": open("secret").read(), "limits": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "left": sorted(os.listdir("."))}
""",
}
REFUSED = ["refused", "EPERM"]
ASSAULTS = ["limits", "read limits", "processors", "hold", "queue", "thread", "any thread", "kill", "group"]
NOTHING = dict.fromkeys(ASSAULTS, REFUSED)
CLOSED = {"list": ["refused", "EACCES"], "write": ["refused", "EACCES"], "make": ["refused", "EACCES"]}


async def meeting(engine: Engine, folder: Path, *changes: pairs.Change) -> dict[str, Any]:
    """A call that runs, a spare that attacks while it is imported, then each against the other; what both say, and who is alive."""
    await engine.load(kit.write(folder, SOURCE))
    recipe = pairs.recipe_of(engine, "attempt", *changes)
    found: dict[str, Any] = {}
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            first, second = await pairs.slots_of(jail, recipe)
            call = pairs.Sibling(jail, pairs.told(recipe, ROLE="call", OTHER=second))
            spare = pairs.Sibling(jail, pairs.told(recipe, ROLE="spare", OTHER=first))
            await call.ready()
            asked = await call.call("attempt")
            assert isinstance(asked, messages.HostCall)
            assert asked.arguments["folder"].startswith(first + "/")  # what the spare is told is where the call is
            await spare.ready()
            waits = None
            with contextlib.suppress(Closed):
                waits = await call.reply(asked, {"pid": asked.arguments["pid"] + 1})
            found["call died"] = waits is None
            found["spare died"] = spare.child.gone()
            if not found["spare died"]:
                answer = await spare.call("attempt", spare=True, folder=asked.arguments["folder"])
                found["spare"] = answer.value if isinstance(answer, messages.Result) else answer
            if waits is not None:
                found["call"] = getattr(await call.reply(waits, {}), "value", None)
            found["first died"] = jail.dead()
            for one in (call, spare):
                await one.end()
    return found


async def test_a_call_and_a_spare_are_strangers(engine: Engine, tmp_path: Path) -> None:
    """No signal, limit, processor, hold, descriptor or file goes from the spare to the call, from the call to the spare, or to the
    first process, though each is told where the other's slot lies.
    """
    found = await meeting(engine, tmp_path / "source")
    call, spare = found["call"], found["spare"]
    assert (found["call died"], found["spare died"], found["first died"]) == (False, False, False)
    assert spare["at import"] == {"first": NOTHING, "running": NOTHING, "slot": CLOSED, "held": []}
    assert call == {
        "spare": NOTHING,
        "first": NOTHING,
        "slot": CLOSED,
        "secret": "canary of a sibling",
        "limits": [256, 256],
        "left": ["secret"],
    }
    assert spare["limits"] == [256, 256]
    # even with the name of the call's folder, which a sibling cannot know, nothing in it can be had
    denied = ["refused", "EACCES"]
    assert {way: how for way, how in spare["inside"].items() if way != "stat"} == dict.fromkeys(
        ("list", "read", "write", "remove", "make"), denied
    )


async def test_without_filter_and_own_domain_they_reach_each_other(engine: Engine, tmp_path: Path) -> None:
    """The control: the spare ends the running call while it is imported, lists and fills its scratch, and lowers the first process's
    limits.
    """
    found = await meeting(engine, tmp_path / "source", pairs.without_filters, pairs.without_own_domains)
    at_import = found["spare"]["at import"]
    assert found["call died"]
    assert {way for way, how in at_import["running"].items() if how[0] == "done"} >= {
        "limits",
        "read limits",
        "processors",
        "hold",
        "queue",
    }
    assert {way for way, how in at_import["first"].items() if how[0] == "done"} >= {"limits", "read limits", "hold", "thread", "kill"}
    assert {way: how[0] for way, how in at_import["slot"].items()} == dict.fromkeys(("list", "write", "make"), "done")


async def test_the_domain_alone_holds_signals_and_files(engine: Engine, tmp_path: Path) -> None:
    """With filters that allow everything, the child's own Landlock domain still keeps signals and scratch apart; limits are the
    filter's.
    """
    found = await meeting(engine, tmp_path / "source", pairs.without_filters)
    at_import = found["spare"]["at import"]
    assert (found["call died"], found["first died"]) == (False, False)
    signals = ("queue", "thread", "any thread", "kill")
    assert {target: {way: at_import[target][way] for way in signals} for target in ("first", "running")} == {
        target: dict.fromkeys(signals, REFUSED) for target in ("first", "running")
    }
    assert at_import["slot"] == CLOSED
    assert at_import["running"]["limits"] == ["done", 0]


async def test_the_filter_alone_holds_signals_and_limits(engine: Engine, tmp_path: Path) -> None:
    """With one domain for all, the child's filter still refuses every signal, limit and hold; scratch is then the domain's."""
    found = await meeting(engine, tmp_path / "source", pairs.without_own_domains)
    at_import = found["spare"]["at import"]
    assert (found["call died"], at_import["first"], at_import["running"]) == (False, NOTHING, NOTHING)
    assert {way: how[0] for way, how in at_import["slot"].items()} == dict.fromkeys(("list", "write", "make"), "done")


MEMORY = """
import gc, re, zlib
if given.get("where"):
    return os.path.dirname(os.getcwd())
def pieces():
    read_end, write_end = os.pipe()
    LIBC.write.argtypes, LIBC.write.restype = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_ssize_t
    LIBC.sbrk.restype = ctypes.c_void_p
    top, library = LIBC.sbrk(ctypes.c_long(0)), ctypes.cast(LIBC.write, ctypes.c_void_p).value
    stack = ctypes.c_void_p.in_dll(LIBC, "__libc_stack_end").value
    spans = [(top - (64 << 20), top), (library - (512 << 20), library + (64 << 20)), (stack - (8 << 20), stack + (1 << 20))]
    gc.unfreeze()
    spans += [(start, start + (1 << 20)) for start in sorted({id(thing) & ~0xFFFFF for thing in gc.get_objects()})]
    for start, end in spans:
        place, last = start & ~0xFFF, b""
        while place < end:
            count = LIBC.write(write_end, place, 1 << 16)  # the kernel stops at the first page that is not there
            if count > 0:
                last = last[-31:] + os.read(read_end, count)
                yield last
            place, last = (place + count, last) if count > 0 else (place + 0x1000, b"")
marks = set()
for piece in pieces():
    # marks, as the names themselves would be written into what is read next
    marks |= {zlib.crc32(found) for found in re.findall(rb"(?=([0-9a-f]{32}))", piece)}
return {"folder": os.path.basename(os.getcwd()), "marks": sorted(marks)}
"""


async def test_a_childs_memory_names_nothing_of_its_sibling(engine: Engine, tmp_path: Path) -> None:
    """Slots and folders have random names, and the first process's memory, of which each child has a copy, holds none of them: a scan of
    what can be read finds the child's own slot and folder, and not the other's.
    """
    from tests.attempts import source

    await engine.load(kit.write(tmp_path / "source", source(MEMORY)))
    recipe = pairs.recipe_of(engine, "attempt")
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            slots = await pairs.slots_of(jail, recipe)
            siblings = [pairs.Sibling(jail, recipe), pairs.Sibling(jail, recipe)]
            for one in siblings:
                await one.ready()
            scans = [(await one.call("attempt")).value for one in siblings]
            for one in siblings:
                await one.end()
    names = [(slot.removeprefix("/tmp/"), scan["folder"]) for slot, scan in zip(slots, scans, strict=True)]
    assert [[len(name) for name in pair] for pair in names] == [[32, 32], [32, 32]]
    found = [[[zlib.crc32(name.encode()) in scan["marks"] for name in pair] for pair in names] for scan in scans]
    # the control: the scan finds what is there
    assert found == [[[True, True], [False, False]], [[False, False], [True, True]]]


RESIDUE = """
if given.get("where"):
    return os.path.dirname(os.getcwd())
if other := given.get("other"):
    return {"mode": tried(os.chmod, other, 0o750), "times": tried(os.utime, other, (4711, 4712)), "list": tried(os.listdir, other),
        "write": tried(write, other + "/planted")}
found = os.stat("..")
return [oct(found.st_mode & 0o7777), int(found.st_atime), int(found.st_mtime) == 4712]
"""


async def test_the_name_is_what_keeps_mode_and_times_of_a_slot(engine: Engine, tmp_path: Path) -> None:
    """The residue, and why names are random: Landlock leaves mode and times to the owner, so a child that is told where its sibling's slot
    lies sets both, for that sibling to read, and nothing more. The next child in that slot reads neither.
    """
    from tests.attempts import source

    await engine.load(kit.write(tmp_path / "source", source(RESIDUE)))
    recipe = pairs.recipe_of(engine, "attempt")
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            _, second = await pairs.slots_of(jail, recipe)
            one, two = pairs.Sibling(jail, recipe), pairs.Sibling(jail, recipe)
            await one.ready()
            await two.ready()
            made = (await one.call("attempt", other=second)).value
            seen = (await two.call("attempt")).value
            await two.end()
            after = pairs.Sibling(jail, recipe)
            await after.ready()
            left = (await after.call("attempt")).value
            for sibling in (one, after):
                await sibling.end()
    denied = ["refused", "EACCES"]
    assert made == {"mode": ["done", "None"], "times": ["done", "None"], "list": denied, "write": denied}
    assert (seen, left) == (["0o750", 4711, True], ["0o700", 0, False])


async def test_two_children_have_slots_of_their_own(engine: Engine, tmp_path: Path) -> None:
    """Each slot is a mount with a bound of its own: one that is full leaves the other's room as it was."""
    from tests.attempts import source

    body = """
    free = os.statvfs(".").f_bfree
    how = tried(lambda: open("big", "wb").write(bytes(given["bytes"]))) if given["bytes"] else None
    return {"free": free, "how": how, "device": os.stat(".").st_dev}
    """
    await engine.load(kit.write(tmp_path / "source", source(body)))
    recipe = pairs.recipe_of(engine, "attempt")
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            call, spare = pairs.Sibling(jail, recipe), pairs.Sibling(jail, recipe)
            await call.ready()
            filled = await call.call("attempt", bytes=(64 << 20) - 8192)
            await spare.ready()
            looked = await spare.call("attempt", bytes=0)
            for one in (call, spare):
                await one.end()
    assert filled.value["how"][0] == "done"
    assert looked.value["free"] == filled.value["free"]
    assert looked.value["device"] != filled.value["device"]


@pytest.mark.skipif(os.geteuid() != 0, reason="unproven here: looking at the processes of another uid takes root")
async def test_the_first_process_holds_no_channel_of_a_child(engine: Engine, tmp_path: Path) -> None:
    """After both children were forked the first process keeps its control socket, its null device, the slots with their rulesets and a hold
    of each child, and nothing of theirs.
    """
    from tests.attempts import source
    from tests.security.test_promise_identity import below

    await engine.load(kit.write(tmp_path / "source", source("return 1")))
    recipe = pairs.recipe_of(engine, "attempt")
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            one, two = pairs.Sibling(jail, recipe), pairs.Sibling(jail, recipe)
            await one.ready()
            await two.ready()
            _, first, _ = below(engine.launcher_pid)
            held = [os.readlink(f"/proc/{first.pid}/fd/{number}") for number in os.listdir(f"/proc/{first.pid}/fd")]
            for sibling in (one, two):
                await sibling.end()
    kinds = [next((kind for kind in ("socket", "pidfd", "landlock-ruleset", "/tmp/") if kind in name), name) for name in held]
    # the lock is the claim on the jail's uid, which is made where there is a range of them
    others = [kind for kind in kinds if kind != "/dev/null" and not kind.startswith("/run/stockade/uids/")]
    assert sorted(others) == ["/tmp/", "/tmp/", "landlock-ruleset", "landlock-ruleset", "pidfd", "pidfd", "socket"]
