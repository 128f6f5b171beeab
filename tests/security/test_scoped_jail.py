"""A jail with a scope: its tool reaches the listeners of its places, by their names, and nothing else of any network.

Nothing is relayed here: what a tool sends waits at the listener that it reached, and the test takes it there.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.errors import HostError
from engine.host import Engine
from engine.jail import network
from engine.supervision.spare import Recipe
from engine.wire import messages
from engine.worker.native import Jail
from tests import kit, moments
from tests.attempts import given, pairs, scopes, source
from tests.security.test_inherited_memory import WALK

API, OTHER_PORT, LITERAL, LOCAL = "api.example.com:443", "api.example.com:8080", "203.0.113.7:8443", "127.0.0.9:9000"
ROOT = os.geteuid() == 0
TO_ROOT_ALONE = pytest.mark.skipif(not ROOT, reason="unproven here: the kernel shows this of a process that forbids dumps to root alone")
REACH = """
import socket
def reach(host, port, word=b"x"):
    with socket.create_connection((host, port), timeout=20) as end:
        end.sendall(word)
        return list(end.getpeername())
made = {}
for host, port in given["places"]:
    made[f"{host}:{port}"] = tried(reach, host, port, f"to {host}:{port}".encode())
return made
"""


async def said(engine: Engine, folder: Path, recipe: Callable[[], Recipe], files: dict[str, str], **values: Any) -> tuple[Any, Jail]:
    """The value of the tool ``attempt`` in a jail of that recipe, which has ended."""
    await engine.load(kit.write(folder, files))
    with trio.fail_after(60):
        made = recipe()
        async with pairs.jail_of(engine, made) as jail:
            listen(jail)
            return await answer(jail, made, **values), jail


async def answer(jail: Jail, recipe: Recipe, **values: Any) -> Any:
    """The value of one call in a child of that jail, which is gone."""
    one = pairs.Sibling(jail, recipe)
    await one.ready()
    message = await one.call("attempt", **values)
    await one.end()
    assert isinstance(message, messages.Result), message
    return message.value


def listen(jail: Jail) -> None:
    """Open its doors, as for a call."""
    for end in jail.listeners:
        end.listen(64)


def arrived(listener: socket.socket) -> list[bytes]:
    """What each connection brought that waits there; the one who sent it is gone."""
    brought: list[bytes] = []
    while True:
        try:
            end, _ = listener.accept()
        except BlockingIOError:
            return brought
        with end:
            end.setblocking(True)
            brought.append(end.recv(1000))


def places(*texts: str) -> list[list[Any]]:
    """Host and port of each, as arguments."""
    return [[text.rpartition(":")[0], int(text.rpartition(":")[2])] for text in texts]


@pytest.mark.parametrize("bound", [True, False], ids=["made ahead", "made for its order"])
async def test_each_place_leads_to_its_own_listener(engine: Engine, tmp_path: Path, *, bound: bool) -> None:
    """By its name, or by its address where it is one; in a jail that waited for its order, and in one that was made for it."""
    await engine.load(kit.write(tmp_path, source(REACH)))

    def other(order: pairs.Order) -> None:
        order["links"] = [*order["links"], ["python", "/other"]]

    wanted = scopes.scope(API, OTHER_PORT, LITERAL, LOCAL)
    recipe = scopes.recipe_of(engine, "attempt", wanted, *([] if bound else [other]))
    waiting, _ = await moments.made_ahead(engine.launcher_pid)
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            assert (jail.monitor() == waiting.pid) is bound
            listen(jail)
            value = await answer(jail, recipe, places=places(API, OTHER_PORT, LITERAL, LOCAL))
            assert value == {
                API: ["done", ["127.1.0.1", 443]],
                OTHER_PORT: ["done", ["127.1.0.1", 8080]],
                LITERAL: ["done", ["203.0.113.7", 8443]],
                LOCAL: ["done", ["127.0.0.9", 9000]],
            }
            brought = {str(one.place): arrived(end) for one, end in zip(recipe.plan.listeners, jail.listeners, strict=True)}
            assert brought == {text: [f"to {text}".encode()] for text in (API, OTHER_PORT, LITERAL, LOCAL)}


async def test_nothing_else_is_reached(engine: Engine, tmp_path: Path) -> None:
    """Neither a name that was not asked for, nor another port, the cloud's metadata, a public address, or what listens on the host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        elsewhere = ("169.254.169.254", "93.184.215.14", "10.1.2.3", "192.168.0.1", "8.8.8.8")
        asked = [
            *places("other.example.com:443", "api.example.com:444", "api.example.com:8443", "www.api.example.com:443"),
            *([address, number] for address in elsewhere for number in (443, 80)),
            *(["127.0.0.1", number] for number in (port, 443, 22)),
            *(["localhost", number] for number in (port, 443)),
        ]
        wanted = scopes.scope(API, LITERAL, f"b.example.com:{port}")
        value, _ = await said(engine, tmp_path / "a", lambda: scopes.recipe_of(engine, "attempt", wanted), source(REACH), places=asked)
        unknown, closed, barred, nowhere = (["refused", name] for name in ("gaierror", "ECONNREFUSED", "EACCES", "ENETUNREACH"))
        assert value == {
            "other.example.com:443": unknown,
            "www.api.example.com:443": unknown,
            "api.example.com:444": barred,  # by Landlock: no place has that port
            "api.example.com:8443": closed,  # another place's port
            **{f"{address}:443": nowhere for address in elsewhere},
            **{f"{address}:80": barred for address in elsewhere},
            f"127.0.0.1:{port}": closed,
            "127.0.0.1:443": closed,
            "127.0.0.1:22": barred,
            f"localhost:{port}": closed,
            "localhost:443": closed,
        }
        with pytest.raises(BlockingIOError):
            server.accept()
        control = kit.bare(tmp_path / "bare", source(REACH), "attempt", given(places=[["127.0.0.1", port]])).value
        assert control == {f"127.0.0.1:{port}": ["done", ["127.0.0.1", port]]}
        server.accept()[0].close()


async def test_without_a_scope_there_is_none_of_it(engine: Engine, tmp_path: Path) -> None:
    """The control: the same source in a worker that asked for nothing has no socket and no name."""
    asked = places(API, LITERAL)
    value, jail = await said(engine, tmp_path, lambda: pairs.recipe_of(engine, "attempt"), source(REACH), places=asked)
    assert (value, jail.listeners) == ({API: ["refused", "gaierror"], LITERAL: ["refused", "EACCES"]}, ())


async def test_jails_of_one_scope_share_no_listener(engine: Engine, tmp_path: Path) -> None:
    """What one of two sends arrives at its own listener alone."""
    await engine.load(kit.write(tmp_path, source(REACH)))
    recipe = scopes.recipe_of(engine, "attempt", scopes.scope(API))
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as one, pairs.jail_of(engine, recipe) as other:
            for jail in (one, other):
                listen(jail)
            for jail, none in ((one, other), (other, one)):
                await answer(jail, recipe, places=places(API))
                assert ([arrived(end) for end in jail.listeners], [arrived(end) for end in none.listeners]) == (
                    [[b"to api.example.com:443"]],
                    [[]],
                )


FILL = """
import socket
held, sent = [], []
for _ in range(4):
    end = socket.create_connection(("api.example.com", 443), timeout=20)
    end.setblocking(False)
    held.append(end)
    sent.append(0)
    try:
        while sent[-1] < 1 << 24:
            sent[-1] += end.send(bytes(1 << 16))
    except BlockingIOError:
        pass
return max(sent)
"""


async def test_a_connection_that_nobody_reads_holds_little(engine: Engine, tmp_path: Path) -> None:
    """Less than half a MiB of the kernel's memory, which counts for no limit of the tool's; the control takes several."""

    def unset(order: pairs.Order) -> None:
        order["network"] = {**order["network"], "settings": []}

    taken = []
    for changes in ((), (unset,)):

        def recipe(changes: tuple[pairs.Change, ...] = changes) -> Recipe:
            return scopes.recipe_of(engine, "attempt", scopes.scope(API), *changes)

        value, _ = await said(engine, tmp_path, recipe, source(FILL))
        taken.append(value)
    assert 0 < taken[0] < 1 << 19
    assert taken[1] > 1 << 20


async def test_a_jail_that_shares_the_hosts_network_is_not_made(engine: Engine, tmp_path: Path) -> None:
    """What it would be given, it would be given the host."""
    await engine.load(kit.write(tmp_path, source("return 1")))

    def shared(order: pairs.Order) -> None:
        order["namespaces"] = [name for name in order["namespaces"] if name != "network"]

    with pytest.raises(HostError) as caught:
        async with pairs.jail_of(engine, scopes.recipe_of(engine, "attempt", scopes.scope(API), shared)):
            pytest.fail("the jail was made")
    assert caught.value.lines == ("step 'bring the loopback device up' failed: the network is the host's (errno 0)",)


HELD = """
held = []
for number in range(1024):
    try:
        os.fstat(number)
        held.append(number)
    except OSError:
        pass
return held
"""


async def test_a_tool_holds_no_listener(engine: Engine, tmp_path: Path) -> None:
    """Its input, its outputs and its channel are all its descriptors; the first process has as many as one without a scope."""
    await engine.load(kit.write(tmp_path, source(HELD)))
    counts = []
    with trio.fail_after(60):
        for recipe in (scopes.recipe_of(engine, "attempt", scopes.scope(API, LITERAL)), pairs.recipe_of(engine, "attempt")):
            async with pairs.jail_of(engine, recipe) as jail:
                assert await answer(jail, recipe) == [0, 1, 2, 3]
                if ROOT:
                    (first,) = psutil.Process(jail.monitor()).children()
                    counts.append([len(os.listdir(f"/proc/{pid}/fd")) for pid in (jail.monitor(), first.pid)])
                assert [os.get_inheritable(end.fileno()) for end in jail.listeners] == [False] * len(recipe.plan.listeners)
    assert counts[:1] == counts[1:]


FILES = """
made = {"folder": sorted(os.listdir("/etc")), "ssl": sorted(os.listdir("/etc/ssl")) if os.path.exists("/etc/ssl") else []}
for name in ("hosts", "nsswitch.conf", "resolv.conf", "ssl/cert.pem"):
    made[name] = tried(read, "/etc/" + name)
    made["write " + name] = tried(write, "/etc/" + name)
    made["times of " + name] = tried(os.utime, "/etc/" + name, (0, 0))
    made["mode of " + name] = tried(os.chmod, "/etc/" + name, 0o600)
made["another"] = tried(write, "/etc/another")
return made
"""


async def test_it_is_shown_its_own_names_and_the_certificates_to_trust(engine: Engine, tmp_path: Path) -> None:
    """All of /etc is written for it: its hosts, in words that name nobody else's; and nothing of it can be changed."""
    trust = tmp_path / "ca.pem"
    trust.write_text("certificates\n")
    trust.chmod(0o666)  # open to all, so that only the mount can refuse
    names = ("hosts", "nsswitch.conf", "resolv.conf", "ssl/cert.pem")
    wanted = scopes.scope(API, LITERAL, "b.example.com:80", trust=trust)
    value, _ = await said(engine, tmp_path / "source", lambda: scopes.recipe_of(engine, "attempt", wanted), source(FILES))
    barred, fixed = ["refused", "EACCES"], ["refused", "EROFS"]
    assert value == {
        "folder": ["hosts", "nsswitch.conf", "resolv.conf", "ssl"],
        "ssl": ["cert.pem"],
        "hosts": ["done", "127.0.0.1 localhost\n127.1.0.1 api.example.com\n127.1.0.2 b.example.com\n"],
        "nsswitch.conf": ["done", "hosts: files\n"],
        "resolv.conf": ["done", ""],
        "ssl/cert.pem": ["done", "certificates\n"],
        **{f"{act} {name}": how for name in names for act, how in (("write", barred), ("times of", fixed), ("mode of", fixed))},
        "write ssl/cert.pem": fixed,
        "another": fixed,
    }
    assert trust.read_text() == "certificates\n"


async def test_no_name_of_the_scope_is_left_in_memory(engine: Engine, tmp_path: Path) -> None:
    """Neither its hosts, their addresses, nor where the certificates lie on the host: a child is told in /etc/hosts alone."""
    trust = tmp_path / "canary-ca.pem"
    trust.write_text("certificates\n")
    marks = ["canary-place", "127.1.0.", "canary-ca"]
    wanted = scopes.scope("canary-place.example.com:443", trust=trust)
    backwards = [mark[::-1] for mark in marks]
    value, _ = await said(
        engine, tmp_path / "source", lambda: scopes.recipe_of(engine, "attempt", wanted), source(WALK), reversed=backwards
    )
    assert (value["found"], value["objects"] > 10_000) == ([], True)


AT_IMPORT = """
import socket
try:
    with socket.create_connection(("api.example.com", 443), timeout=20) as end:
        end.sendall(b"at import")
    REACHED = True
except ConnectionRefusedError:
    REACHED = "ECONNREFUSED"
except OSError:
    REACHED = False
"""


async def test_an_import_reaches_nobody(engine: Engine, tmp_path: Path) -> None:
    """Nobody listens before a call, so its own kernel refuses it at once; the control is a jail whose doors are open."""
    await engine.load(kit.write(tmp_path, source("return REACHED", AT_IMPORT + "\nif REACHED is True: print('reached')")))
    recipe = scopes.recipe_of(engine, "attempt", scopes.scope(API))
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            assert await answer(jail, recipe) == "ECONNREFUSED"
            listen(jail)
            assert [arrived(end) for end in jail.listeners] == [[]]
            assert await answer(jail, recipe) is True
            assert [arrived(end) for end in jail.listeners] == [[b"at import"]]
        plain = pairs.recipe_of(engine, "attempt")  # as describing is: without a scope
        async with pairs.jail_of(engine, plain) as jail:
            assert await answer(jail, plain) is False


async def test_the_wall_around_it_is_the_same(engine: Engine, tmp_path: Path) -> None:
    """Its jail has in force what one without a scope has, and a network namespace with one device."""
    await engine.load(kit.write(tmp_path, source("return 1")))
    enforced = []
    for recipe in (scopes.recipe_of(engine, "attempt", scopes.scope(API)), pairs.recipe_of(engine, "attempt")):
        async with pairs.jail_of(engine, recipe) as jail:
            enforced.append(dict(jail.enforced))
            if ROOT:
                (first,) = psutil.Process(jail.monitor()).children()
                devices = await trio.Path(f"/proc/{first.pid}/net/dev").read_text()
                assert [line.split(":")[0].strip() for line in devices.splitlines() if ":" in line] == ["lo"]
    assert enforced[0] == enforced[1]
    assert network.TRUST == "/etc/ssl/cert.pem"
