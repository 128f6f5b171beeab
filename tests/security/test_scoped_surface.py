"""What a tool with a scope may ask of the kernel: to be a client of streams over IPv4, and no more. Filter and Landlock, each by itself."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from engine.host import Engine
from engine.supervision.spare import Recipe
from tests import kit
from tests.attempts import given, pairs, scopes, source
from tests.security.test_scoped_jail import API, REACH, places, said

RAW = pytest.mark.skipif(os.uname().machine != "x86_64", reason="unproven here: raw numbers are those of x86_64")


async def test_landlock_alone_leaves_the_ports(engine: Engine, tmp_path: Path) -> None:
    """Without filters another port and a listener of its own are refused; without Landlock neither is by that, so it was Landlock."""
    body = REACH.replace(
        "return made",
        """
with socket.socket() as end:
    made["bind"] = tried(end.bind, ("127.0.0.1", 443))
return made""",
    )
    asked = places("api.example.com:444", API)
    reached = ["done", ["127.1.0.1", 443]]
    for change, found in (
        (pairs.without_filters, {"api.example.com:444": ["refused", "EACCES"], API: reached, "bind": ["refused", "EACCES"]}),
        (pairs.without_landlock, {"api.example.com:444": ["refused", "ECONNREFUSED"], API: reached, "bind": ["refused", "EPERM"]}),
    ):

        def recipe(change: pairs.Change = change) -> Recipe:
            def portless(order: pairs.Order) -> None:
                change(order)
                order["landlock"]["ports"] = order["landlock"]["ports"] if order["landlock"]["network"] else []

            return scopes.recipe_of(engine, "attempt", scopes.scope(API), portless)

        value, _ = await said(engine, tmp_path, recipe, source(body), places=asked)
        assert value == found


SOCKETS = """
import socket
made = {}
for family in range(65):
    for kind in (*range(7), 10, 1 | socket.SOCK_CLOEXEC, 1 | socket.SOCK_NONBLOCK):
        for protocol in (0, 6, 17, 1, 262):
            for high in (0, 1 << 32):
                how = tried(raw, 41, family | high, kind, protocol)
                if how[0] == "done":
                    os.close(how[1])
                    how = ["done"]
                    made.setdefault("opened", set()).add((family, kind & 0xF, protocol))
                made[" ".join(how)] = made.get(" ".join(how), 0) + 1
made["opened"] = sorted(map(list, made.get("opened", ())))
return made
"""


@RAW
async def test_a_socket_is_a_stream_over_ipv4_or_none(engine: Engine, tmp_path: Path) -> None:
    """65 families of ten types and five protocols: no datagram, raw, local, netlink, packet or vsock socket, no IPv6, no MPTCP."""
    value, _ = await said(engine, tmp_path / "a", lambda: scopes.recipe_of(engine, "attempt", scopes.scope(API)), source(SOCKETS))
    assert value == {"opened": [[2, 1, 0], [2, 1, 6]], "done": 3 * 2 * 2, "refused EACCES": 65 * 10 * 5 * 2 - 12}
    bare = kit.bare(tmp_path / "bare", source(SOCKETS), "attempt", given()).value
    assert [2, 2, 0] in bare["opened"]
    assert [1, 1, 0] in bare["opened"]


SERVE = """
import socket, struct
def stream():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
def option(level, name):
    with stream() as end:
        return end.setsockopt(level, name, 1)
made = {}
with stream() as end:
    made["bind"] = tried(end.bind, ("127.0.0.1", 443))
    made["listen"] = tried(end.listen)
    made["accept"] = tried(raw, 43, end.fileno(), 0, 0)
    made["accept4"] = tried(raw, 288, end.fileno(), 0, 0, 0)
    end.connect(("api.example.com", 443))
    made["plain"] = tried(end.sendmsg, [b"a", b"b"])
    made["urgent"] = tried(end.sendmsg, [b"a"], [], socket.MSG_OOB)
    made["lent"] = tried(end.sendmsg, [b"a"], [], 0x4000000)
    made["recvmsg"] = tried(end.recvmsg, 1)
    made["sendmmsg"] = tried(raw, 307, end.fileno(), BUFFER, 1, 0)
with stream() as end:
    made["fast open"] = tried(end.sendto, b"a", 0x20000000, ("api.example.com", 443))
left, right = socket.socketpair()
made["a pair turned to a place"] = tried(raw, 42, left.fileno(), struct.pack("=HH4s8x", 2, 0xBB01, bytes([127, 1, 0, 1])), 16)
made["a pair turned to a socket"] = [tried(raw, 42, left.fileno(), struct.pack("=H14s", 1, b"/granted/d/s"), 16)]
made["a descriptor over the channel"] = tried(socket.send_fds, left, [b"a"], [0])
made["received"] = [tried(right.recv, 1), tried(right.recvmsg, 1, 100)]
right.close()
made["a pair turned to a socket"].append(tried(raw, 42, left.fileno(), struct.pack("=H14s", 1, b"/granted/d/s"), 16))
made["options"] = [tried(option, *pair) for pair in given["options"]]
return made
"""


@RAW
async def test_a_tool_is_a_client_and_no_more(engine: Engine, tmp_path: Path) -> None:
    """It serves nobody, sends nothing out of the stream's order, and receives no descriptor; what clients set, it may set.

    A local socket that lies in a granted folder, open to all, is not reached by a pair, which stays connected to its other end.
    """
    set_by_clients = [[1, 9], [6, 1], [6, 4], [6, 5], [6, 6], [6, 18]]
    others = [[1, 2], [1, 15], [1, 25], [1, 36], [1, 60], [6, 23], [6, 30], [6, 31], [0, 1], [0, 15], [0, 19], [41, 26]]
    with tempfile.TemporaryDirectory(prefix="d-") as shown, socket.socket(socket.AF_UNIX) as local:
        os.chmod(shown, 0o755)  # noqa: S103 - open to all, so that only the wall can refuse
        local.bind(f"{shown}/s")
        os.chmod(f"{shown}/s", 0o777)  # noqa: S103 - open to all as well
        local.listen()
        local.setblocking(False)

        def recipe() -> Recipe:
            return scopes.recipe_of(engine, "attempt", scopes.scope(API), folders={"d": os.path.realpath(shown)})

        value, _ = await said(engine, tmp_path, recipe, source(SERVE), options=[*set_by_clients, *others])
        with pytest.raises(BlockingIOError):
            local.accept()
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(f"{shown}/s")
            local.accept()[0].close()
    refused = ["refused", "EPERM"]
    assert value == {
        **dict.fromkeys(("bind", "listen", "accept", "accept4", "urgent", "lent", "recvmsg", "sendmmsg", "fast open"), refused),
        "plain": ["done", 2],
        "a pair turned to a place": ["refused", "EINVAL"],
        "a pair turned to a socket": [["refused", "EISCONN"]] * 2,
        "a descriptor over the channel": ["done", 1],
        "received": [["done", "b'a'"], refused],
        "options": [["done", "None"]] * len(set_by_clients) + [refused] * len(others),
    }
