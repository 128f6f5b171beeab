"""What cannot be enforced is refused by name, a step that fails names itself, and each layer of the wall holds what it claims by itself."""

import contextlib
import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.errors import HostError
from engine.host import Engine
from engine.policy.protections import NEEDED
from tests import kit
from tests.attempts import given, pairs, said, source
from tests.security.test_promise_identity import below

X86 = os.uname().machine == "x86_64"
ROOT = os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not ROOT, reason="unproven here: a uid is borrowed as root only")
MARKED = "import sys\nsys.stderr.write('the tool ran')"
Order = dict[str, Any]


def host_is(engine: Engine, **facts: Any) -> None:
    """From now on the engine takes its host for such a one."""
    preparation = engine._preparation
    preparation._facts = dataclasses.replace(preparation._facts, **facts)
    preparation._plans.clear()
    preparation._made.clear()


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        *(({"landlock": level}, f"landlock: found level {level}, needed 6") for level in (0, 1, 3, 5)),
        ({"peer_pidfd": False}, "peer_pidfd: found level 0, needed 1"),
        ({"machine": "riscv64"}, "seccomp: no filter for the architecture riscv64"),
    ],
)
async def test_a_host_that_lacks_a_protection_is_refused_by_its_name(
    engine: Engine, tmp_path: Path, facts: dict[str, Any], line: str
) -> None:
    """With an older Landlock, without pidfds or a filter, nothing of a source runs: neither a new load, nor a call of one that was
    loaded before.
    """
    place = kit.write(tmp_path / "source", source("return 1", MARKED))
    await engine.load(place)
    assert (await engine.call("attempt", given())).reason == "ok.done"
    host_is(engine, **facts)
    jails = engine._pool.living
    outcome = await engine.call("attempt", given())
    assert (outcome.reason, (await outcome.concluded())["worker"]["started"], outcome.stderr) == ("refused.cannot_enforce", False, "")
    assert [text for text in outcome.lines if text.startswith(line)] == list(outcome.lines)
    assert engine._pool.living == jails
    other = kit.write(
        tmp_path / "other",
        {**source("return 2", MARKED), "tools.py": source("return 2", MARKED)["tools.py"].replace("def attempt", "def other")},
    )
    with pytest.raises(HostError) as caught:
        await engine.load(other)
    assert (caught.value.code, caught.value.lines) == ("refused.cannot_enforce", outcome.lines)


def without(namespace: str) -> pairs.Change:
    """A plan whose launcher leaves out one namespace."""

    def change(order: Order) -> None:
        order["namespaces"] = [name for name in order["namespaces"] if name != namespace]
        order["hostname"] = (
            socket.gethostname()
        )  # were it set on the host after all, nothing would change; an ordinary user then sees the step fail

    return change


def older_landlock(order: Order) -> None:
    """A plan whose launcher has an older Landlock than the policy needs."""
    order["landlock"] = {**order["landlock"], "abi": 5, "scope": 0}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        *((without(name), f"{name}_namespace: in force 0, needed 1") for name in ("network", "ipc", "uts", "cgroup")),
        (older_landlock, "landlock: in force 5, needed 6"),
    ],
)
async def test_a_jail_that_reports_less_is_ended(engine: Engine, tmp_path: Path, change: pairs.Change, line: str) -> None:
    """What the jail says that it put in force is compared with the policy before any source is sent; less is refused, and the jail is
    gone.
    """
    await engine.load(kit.write(tmp_path / "source", source("return 1")))
    recipe = pairs.recipe_of(engine, "attempt", change)
    with pytest.raises(HostError) as caught:
        async with pairs.jail_of(engine, recipe):
            pytest.fail("the jail was taken")
    assert (caught.value.code, caught.value.lines) == ("refused.cannot_enforce", (line,))
    with trio.fail_after(30):
        while below(engine.launcher_pid):  # noqa: ASYNC110 - the launcher buries its own and has nobody to tell
            await trio.sleep(0.001)


def put(name: str, value: Any) -> pairs.Change:
    """A plan with another value; dots lead inwards."""

    def change(order: Order) -> None:
        *way, last = name.split(".")
        inner = order
        for step in way:
            inner = inner[step]
        inner[last] = value(inner[last]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (put("mountpoint", "/proc/nonexistent"), "mount the root"),
        (put("binds", lambda binds: [*binds, ["/proc/nonexistent", "/x", "folder"]]), "bind /x"),
        (put("devices", ["null", "nonexistent"]), "bind /dev/nonexistent"),
        (put("landlock.paths", lambda paths: [*paths, ["/proc/nonexistent", 4]]), "Landlock rule for /proc/nonexistent"),
        (put("landlock.files", 1 << 62), "create the Landlock ruleset"),
        (put("filters.jail", "ff" * 8), "load the seccomp filter"),
        (put("preload", ["no_such_module"]), "import no_such_module beforehand"),
        (put("slots.bytes", -5), "mount a scratch slot"),
        pytest.param(put("uids", ["/proc/nonexistent", 65_600, 4]), "claim a uid", marks=AS_ROOT),
        pytest.param(put("uids", lambda uids: [uids[0], uids[1], 0]), "claim a uid", marks=AS_ROOT),
    ],
)
async def test_a_step_that_fails_names_itself(engine: Engine, tmp_path: Path, change: pairs.Change, step: str) -> None:
    """Whatever fails on the way into the jail ends it with the step's name; no later step is reached and nothing stays."""
    await engine.load(kit.write(tmp_path / "source", source("return 1")))
    recipe = pairs.recipe_of(engine, "attempt", change)
    with pytest.raises(HostError) as caught:
        async with pairs.jail_of(engine, recipe):
            pytest.fail("the jail was taken")
    assert caught.value.code == "refused.start_failed"
    assert f"step '{step}' failed" in caught.value.lines[0]
    with trio.fail_after(30):
        while below(engine.launcher_pid):  # noqa: ASYNC110 - the launcher buries its own and has nobody to tell
            await trio.sleep(0.001)
    # and the engine goes on
    assert (await engine.call("attempt", given())).reason == "ok.done"


async def test_a_child_that_cannot_be_locked_reads_no_tool(engine: Engine, tmp_path: Path) -> None:
    """A filter that the kernel does not take ends the child with that step's name, before the guest has read one byte."""
    await engine.load(kit.write(tmp_path / "source", source("return 1", MARKED)))
    recipe = pairs.recipe_of(engine, "attempt", put("filters.child", "ff" * 8), put("filters.tgid", []))
    async with pairs.jail_of(engine, recipe) as jail:
        one = pairs.Sibling(jail, recipe)
        await one.spare.prepare()
        assert one.spare.verdict is not None
        assert one.spare.verdict[0] == "refused.start_failed"
        assert "load the seccomp filter" in one.spare.verdict[1]
        assert "the tool ran" not in one.spare.verdict[1]


async def test_a_receipt_says_what_was_in_force(engine: Engine, tmp_path: Path) -> None:
    """Every protection that the policy needs stands on the receipt with at least the needed level, and nothing is claimed of a refused
    call.
    """
    outcome = await kit.jailed(engine, tmp_path / "source", source("return 1"), "attempt", given())
    enforced = (await outcome.concluded())["enforced"]
    assert {name: enforced.get(name, 0) for name, level in NEEDED.items() if enforced.get(name, 0) < level} == {}
    refused = await engine.call("attempt", {"wrong": 1})
    assert (refused.reason, (await refused.concluded())["enforced"]) == ("refused.arguments", {})


# the same few attempts against each layer by itself
LAYERS = """
import socket, sys
if given.get("where"):
    return os.path.dirname(os.getcwd())
X86 = os.uname().machine == "x86_64"
def number(one, other):
    return one if X86 else other
def reach(family, address):
    with socket.socket(family) as end:
        end.settimeout(2)
        end.connect(address)
        return "reached"
def memory():
    # the first process has the same pages at the same places, as it is what this one was forked from
    piece = ctypes.create_string_buffer(ctypes.addressof(BUFFER).to_bytes(8, "little") + (8).to_bytes(8, "little"), 16)
    return raw(number(310, 270), 1, piece, 1, piece, 1, 0)
def space():
    raw(number(272, 97), 0x10000000 | 0x00020000)
    raw(number(165, 40), b"none", b"/tmp", b"tmpfs", 0, 0)
    return "mounted"
return {
    "read the host": tried(read, given["path"]), "write the host": tried(write, given["path"]), "list the root": tried(os.listdir, "/"),
    "write the source": tried(write, "/bundle/tools.py"), "write the root": tried(write, "/new"),
        "write the guest": tried(write, "/guest/new.py"),
    "other slot": tried(write, given["other"] + "/planted"), "mount": tried(raw, number(165, 40), b"none", b"/tmp", b"tmpfs", 0, 0),
    "signal": tried(raw, number(62, 129), 1, 28), "trace": tried(raw, number(101, 117), 16, 1, 0, 0), "memory": tried(memory),
    "port": tried(reach, socket.AF_INET, ("127.0.0.1", given["port"])), "abstract": tried(reach, socket.AF_UNIX, "\\0" + given["name"]),
    "root again": tried(os.setuid, 0), "device": tried(os.mknod, "device", 0o20666, os.makedev(1, 1)), "fork": tried(raw, number(57, 599)),
    "chroot": tried(os.chroot, "/bundle"), "name": tried(raw, number(170, 161), b"x", 1),
    "space": tried(space),
}
"""


async def layers(engine: Engine, folder: Path, *changes: pairs.Change) -> dict[str, list[Any]]:
    """What the attempts come to with some layers switched off; the listeners of the host must see nothing."""
    canary = folder / "canary.txt"
    canary.parent.mkdir(parents=True)
    canary.write_text("canary of a layer")
    canary.chmod(0o666)
    name = f"stockade-{os.urandom(6).hex()}"
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        arguments = {"path": str(canary), "port": port.getsockname()[1], "name": name}
        # a fork that is let through has two processes answer on one channel, so it is tried only where the filter stands
        body = (
            LAYERS
            if not any(change is pairs.without_filters for change in changes)
            else LAYERS.replace(', "fork": tried(raw, number(57, 599))', "")
        )
        value: dict[str, list[Any]] = await pairs.one_call(engine, folder / "source", source(body), *changes, **arguments)
        for listener in (port, abstract):
            listener.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                listener.accept()
                pytest.fail("a listener of the host was reached")
    assert canary.read_text() == "canary of a layer"
    assert "canary of a layer" not in str(value)
    return value


def refused(value: dict[str, list[Any]], *names: str) -> dict[str, Any]:
    """What came of these attempts."""
    return {name: value[name][1] if value[name][0] == "refused" else value[name] for name in names}


async def test_all_layers_together(engine: Engine, tmp_path: Path) -> None:
    """With the whole wall every attempt is refused."""
    value = await layers(engine, tmp_path / "all")
    assert {name: how for name, how in value.items() if how[0] != "refused"} == {}


async def test_root_and_domain_hold_without_the_filter(engine: Engine, tmp_path: Path) -> None:
    """Any system call may be made, and still no file, signal, memory, address, mount or right is had: root, domain, namespaces and uid
    hold them.
    """
    value = await layers(engine, tmp_path / "no-filter", pairs.without_filters)
    files = {"read the host": "ENOENT", "write the host": "ENOENT", "list the root": "EACCES", "other slot": "EACCES"}
    assert refused(value, *files) == files
    assert set(refused(value, "write the source", "write the root", "write the guest").values()) <= {"EROFS", "EACCES"}
    assert refused(value, "mount", "signal", "trace", "root again", "chroot", "name") == dict.fromkeys(
        ("mount", "signal", "trace", "root again", "chroot", "name"), "EPERM"
    ) | ({} if ROOT else {"root again": "EINVAL"})
    assert set(refused(value, "port", "abstract").values()) <= {"ENETUNREACH", "ECONNREFUSED", "EACCES", "EPERM"}
    assert (value["memory"][0], value["device"][0], value["space"]) == ("refused", "refused", ["refused", "EPERM"])


async def test_root_and_filter_hold_without_the_domain(engine: Engine, tmp_path: Path) -> None:
    """Without Landlock the private root still has no file of the host and takes none; what only the domain holds is the sibling's slot."""
    value = await layers(engine, tmp_path / "no-domain", pairs.without_landlock)
    assert refused(value, "read the host", "write the host") == {"read the host": "ENOENT", "write the host": "ENOENT"}
    assert set(refused(value, "write the source", "write the root", "write the guest").values()) <= {"EROFS", "EACCES"}
    names = ["bundle", "dev", "guest", "lib", "lib64", "python", "tmp", "usr"]
    assert (
        sorted(set(value["list the root"][1]) - set(names))
        == [name for name in sorted(value["list the root"][1]) if name not in names]
        == []
    )
    kept = ("mount", "signal", "trace", "memory", "root again", "device", "fork", "chroot", "name", "space")
    assert refused(value, *kept) == dict.fromkeys(kept, "EPERM")
    assert refused(value, "port", "abstract") == {"port": "EACCES", "abstract": "EACCES"}
    assert value["other slot"] == ["done", "written"]


async def test_the_root_holds_by_itself(engine: Engine, tmp_path: Path) -> None:
    """With neither filter nor domain: private read-only root, namespaces and an empty set of capabilities keep the host out of reach."""
    value = await layers(engine, tmp_path / "root-only", pairs.without_filters, pairs.without_landlock)
    assert refused(value, "read the host", "write the host") == {"read the host": "ENOENT", "write the host": "ENOENT"}
    assert set(refused(value, "write the source", "write the root", "write the guest").values()) <= {"EROFS", "EACCES"}
    assert refused(value, "mount", "trace", "chroot", "name") == dict.fromkeys(("mount", "trace", "chroot", "name"), "EPERM")
    assert set(refused(value, "port", "abstract").values()) <= {"ENETUNREACH", "ECONNREFUSED"}
    assert (value["root again"][0], value["device"][0], value["memory"][0]) == ("refused", "refused", "refused")


def test_the_attempts_get_through_without_any_wall(tmp_path: Path) -> None:
    """The control: a plain process reads and writes the host's file, lists its root, and reaches both listeners."""
    canary = tmp_path / "canary.txt"
    canary.write_text("canary of a layer")
    name = f"stockade-{os.urandom(6).hex()}"
    keep = ["read the host", "write the host", "list the root", "port", "abstract"]
    body = (
        LAYERS.split("return {\n")[0]
        + "return {"
        + ", ".join(
            [
                '"read the host": tried(read, given["path"])',
                '"write the host": tried(write, given["path"])',
                '"list the root": tried(os.listdir, "/")',
                '"port": tried(reach, socket.AF_INET, ("127.0.0.1", given["port"]))',
                '"abstract": tried(reach, socket.AF_UNIX, "\\0" + given["name"])',
            ]
        )
        + "}"
    )
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        made = kit.bare(tmp_path / "bare", source(body), "attempt", given(path=str(canary), port=port.getsockname()[1], name=name))
    assert {key: made.value[key][0] for key in keep} == dict.fromkeys(keep, "done")


async def test_a_refused_call_says_no_more_than_its_name(engine: Engine, tmp_path: Path) -> None:
    """Nobody is told that something was enforced which was not: a refusal's receipt has no protection, limit or way in force."""
    await engine.load(kit.write(tmp_path / "source", source("return 1")))
    host_is(engine, landlock=3)
    outcome = await engine.call("attempt", given())
    assert (await outcome.concluded())["enforced"] == {}
    assert "landlock: found level 3" in await said(outcome)
