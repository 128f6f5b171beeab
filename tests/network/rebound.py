"""A name whose addresses change: what a name server says of it each time, and what must come of a tool that connects to it.

As a program it is the same with the host's own resolver, in a mount and network namespace where the name server is all there is:
``python -m tests.network.rebound FOLDER`` prints what came of every case as JSON.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trio

from engine.host import Engine
from tests import kit
from tests.network import responder, scoped
from tests.network.servers import Authority, Server, serving

SECOND = "127.0.0.2"  # the server listens there as well, and no rule names it
MANY = "many.example.test"  # a rule of its own allows more of loopback
_MANY_ALLOWED = tuple(f"127.0.0.{number}" for number in (1, *range(3, 27)))
TOOL = """
import socket, ssl
from engine import tool

@tool(effect="read", network={places!r})
def reach(host: str, port: int, times: int) -> list[str]:
    \"\"\"What came of as many connections, one after the other.\"\"\"
    found = []
    for _ in range(times):
        try:
            with socket.create_connection((host, port), timeout=30) as plain:
                with ssl.create_default_context().wrap_socket(plain, server_hostname=host) as made:
                    made.sendall(b"GET / HTTP/1.1\\r\\nHost: any\\r\\n\\r\\n")
                    found.append(made.recv(1000).decode()[-5:])
        except OSError:
            found.append("denied")
    return found
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """What the name server says, the last for ever; what the tool has of as many connections, where they came to, what was denied."""

    rounds: tuple[tuple[str, ...], ...]
    values: tuple[str, ...]
    at: tuple[str, ...]
    denied: Mapping[str, int]
    host: str = scoped.API


ALLOWED = Case(((scoped.LOOPBACK,),), ("hello", "hello"), (scoped.LOOPBACK, scoped.LOOPBACK), {})  # the control of all that follow
_ONE_BAD = Case((), ("denied",), (), {"address": 1})
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "the allowed address each time": ALLOWED,
        "another address the second time": Case(((scoped.LOOPBACK,), (SECOND,)), ("hello", "denied"), (scoped.LOOPBACK,), {"address": 1}),
        "the allowed address after a bad one": Case(
            ((SECOND,), (scoped.LOOPBACK,)), ("denied", "hello"), (scoped.LOOPBACK,), {"address": 1}
        ),
        "a bad address beside an allowed one": dataclasses.replace(_ONE_BAD, rounds=((scoped.LOOPBACK, SECOND),)),
        "a bad address before an allowed one": dataclasses.replace(_ONE_BAD, rounds=((SECOND, scoped.LOOPBACK),)),
        "a metadata address beside an allowed one": dataclasses.replace(_ONE_BAD, rounds=((scoped.LOOPBACK, "169.254.169.254"),)),
        "many addresses, all allowed": Case((_MANY_ALLOWED,), ("hello",), (scoped.LOOPBACK,), {}, host=MANY),
        "many addresses, one of them bad": dataclasses.replace(_ONE_BAD, rounds=((*_MANY_ALLOWED[:-1], "127.0.0.40"),), host=MANY),
        "the allowed address as an IPv6 one": dataclasses.replace(_ONE_BAD, rounds=((f"::ffff:{scoped.LOOPBACK}",),)),
        "the allowed address behind NAT64": dataclasses.replace(_ONE_BAD, rounds=(("64:ff9b::7f00:1",),)),
        "an IPv6 loopback beside the allowed one": dataclasses.replace(_ONE_BAD, rounds=((scoped.LOOPBACK, "::1"),)),
        "no address at all": Case(((),), ("denied",), (), {"resolve": 1}),
    }
)


@dataclasses.dataclass(frozen=True)
class Came:
    """What came of a case, said by the tool, the server, the receipt, and the name server: how often it was asked for IPv4."""

    values: tuple[str, ...]
    at: tuple[str, ...]
    denied: Mapping[str, int]
    asked: int

    @classmethod
    def wanted(cls, case: Case) -> "Came":
        """What must come of it: each connection asks once, and goes to what was looked at."""
        return cls(case.values, case.at, case.denied, len(case.values))


@contextlib.asynccontextmanager
async def loaded(folder: Path, server: Server, trust: Path, **options: Any) -> AsyncIterator[Engine]:
    """An engine that has the tool, by a policy with both rules."""
    api, many = f"{scoped.API}:{server.port}", f"{MANY}:{server.port}"
    rules = scoped.Rule(api), scoped.Rule(many, private=("127.0.0.1/32", "127.0.0.3/32", "127.0.0.4/30", "127.0.0.8/29", "127.0.0.16/28"))
    place = scoped.policy(folder, *rules, trust=trust)
    async with kit.plain_engine(folder / "state", policy=place, **options) as engine:
        await engine.load(kit.write(folder / "source", TOOL.replace("{places!r}", repr([api, many]))))
        yield engine


async def came(engine: Engine, server: Server, names: responder.Responder, case: Case) -> Came:
    """What comes of that case."""
    server.forget()
    names.asked.clear()
    names.answers = responder.in_turn(*case.rounds)
    outcome, receipt = await scoped.called(
        engine, "reach", {"host": case.host, "port": server.port, "times": len(case.values)}, tenant="rebound"
    )
    assert outcome.reason == "ok.done", outcome
    await server.wait_async(lambda server: server.living == 0)
    asked = names.asked.count(responder.Question(case.host, responder.A))
    at = tuple(connection.at for connection in server.connections if connection.reached)
    return Came(tuple(outcome.value), at, scoped.denied(receipt), asked)


def server_of(authority: Authority) -> contextlib.AbstractContextManager[Server]:
    """The server of these tests."""
    return serving(authority.serving(scoped.API, MANY), addresses=(scoped.LOOPBACK, SECOND))


# ---- the program


def in_namespaces(folder: Path) -> list[str]:
    """The words that run this program where the files of name lookup are its own and loopback is all there is."""
    files = {"resolv.conf": "nameserver 127.0.0.1\n", "hosts": "127.0.0.1 localhost\n", "nsswitch.conf": "hosts: files dns\n"}
    etc = folder / "etc"
    steps = [f"cp -a /etc/. {etc}/ 2>/dev/null || true", f"cd {etc}", f"rm -f {' '.join(files)}"]
    steps += [f"printf '{text}' >{name}".replace("\n", "\\n") for name, text in files.items()]
    steps += [f"mount --bind {etc} /etc", f"cd {kit.PROJECT}", f"exec {sys.executable} -m tests.network.rebound {folder}"]
    etc.mkdir()
    alone = ["unshare", "--mount", "--net", "--propagation", "private"]
    return [*alone, *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-ec", "\n".join(steps)]


def refusal() -> str | None:
    """Why this host makes no such namespaces, None when it does."""
    alone = ["unshare", "--mount", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "true"]
    try:
        done = subprocess.run(alone, capture_output=True, timeout=60, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.decode("utf-8", "replace").strip()


def _raise_loopback() -> None:
    get, put, up = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP (netdevice(7))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        (flags,) = struct.unpack_from("H", fcntl.ioctl(made, get, struct.pack("16sH14x", b"lo", 0)), 16)
        fcntl.ioctl(made, put, struct.pack("16sH14x", b"lo", flags | up))


async def _main(folder: Path) -> None:
    _raise_loopback()
    authority = Authority()
    found: dict[str, dict[str, Any]] = {}
    with server_of(authority) as server, responder.responding(responder.in_turn(()), port=53) as names:
        async with loaded(folder, server, authority.write(folder)) as engine:
            for name, case in CASES.items():
                found[name] = dataclasses.asdict(await came(engine, server, names, case))
    print(json.dumps(found))


if __name__ == "__main__":
    trio.run(_main, Path(sys.argv[1]))
