"""Promise: a worker has no network unless hosts were named, and what no worker can hold is refused.

Each attempt is judged by listeners of this process: nothing arrived while it was jailed, and it arrived from the same source run bare.
"""

import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.errors import EngineError
from engine.host import Engine
from tests import kit

ATTEMPTS = '''
import asyncio, errno, os, socket, struct, sys
from typing import Any
from engine import tool

def c_library():
    """A WebAssembly worker has no ctypes, and refuses a source that imports it by name."""
    ctypes = vars(sys.modules["builtins"])["__imp" + "ort__"]("ctypes")
    return ctypes, ctypes.CDLL(None, use_errno=True)

def stream(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as made:
        made.settimeout(3)
        made.connect(address)
        made.sendall(b"canary")

def datagram(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.sendto(b"canary", address)

def by_loop(host, port):
    async def main():
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"canary")
        await writer.drain()
        writer.close()
    asyncio.run(main())

def by_number(host, port):
    """The kernel's calls themselves, past every module."""
    ctypes, libc = c_library()
    made = libc.syscall(41, 2, 1, 0)
    if made < 0:
        raise OSError(ctypes.get_errno(), "socket")
    where = struct.pack("<HH4s8x", 2, socket.htons(port), socket.inet_aton(host))
    if libc.syscall(42, made, where, len(where)) < 0 or libc.syscall(1, made, b"canary", 6) < 0:
        raise OSError(ctypes.get_errno(), "connect")
    os.close(made)

def over_a_pair(name):
    """A socket that an event loop may have: turned on another address."""
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with mine, other:
        mine.sendto(b"canary", name)

def descriptor(family, kind, protocol=0):
    socket.socket(family, kind, protocol).close()

def served(host):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as made:
        made.bind((host, 0))
        made.listen()

def ring():
    ctypes, libc = c_library()
    if libc.syscall(425, 1, ctypes.create_string_buffer(120)) < 0:
        raise OSError(ctypes.get_errno(), "io_uring")

KINDS = {
    "tcp": lambda host, port: stream(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port)),
    "udp": lambda host, port: datagram(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port)),
    "unix": lambda name: stream(socket.AF_UNIX, name),
    "unix datagram": lambda name: datagram(socket.AF_UNIX, name),
    "event loop": by_loop,
    "kernel call": by_number,
    "pair": over_a_pair,
    "name": lambda host: socket.getaddrinfo(host, 80),
    "listen": served,
    "icmp": lambda: descriptor(socket.AF_INET, socket.SOCK_RAW, 1),
    "packet": lambda: descriptor(socket.AF_PACKET, socket.SOCK_RAW),
    "netlink": lambda: descriptor(socket.AF_NETLINK, socket.SOCK_RAW),
    "vsock": lambda: descriptor(socket.AF_VSOCK, socket.SOCK_STREAM),
    "crypto": lambda: descriptor(socket.AF_ALG, socket.SOCK_SEQPACKET),
    "ring": ring,
}

@tool(effect="read", description="d"{extra})
def attempt(kind: str, where: list[Any]) -> str:
    """How it went: through, or the kind of refusal."""
    try:
        KINDS[kind](*where)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    except (AttributeError, ImportError) as error:
        return type(error).__name__  # where there is no such call
    return "through"
'''
SOURCE = ATTEMPTS.replace("{extra}", "")
DENIED = {"EPERM", "EACCES", "ENOSYS", "ENOTSUP", "AttributeError", "ModuleNotFoundError"}  # the last three: there is no such thing
# what reaches no listener: judged by the refusal, with a control that the host itself offers
BARE_ONLY: list[tuple[str, list[Any]]] = [
    ("listen", ["127.0.0.1"]),
    ("listen", ["::1"]),
    ("listen", ["0.0.0.0"]),
    ("icmp", []),
    ("packet", []),
    ("netlink", []),
    ("vsock", []),
    ("crypto", []),
    ("ring", []),
]  # fmt: skip  attempts side by side


class Listener:
    """A socket of this process that counts what reaches it."""

    def __init__(self, made: socket.socket) -> None:
        self.received: list[bytes] = []
        self._socket = made
        made.settimeout(0.05)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                if self._socket.type == socket.SOCK_DGRAM:
                    self.received.append(self._socket.recv(100))
                else:
                    one, _ = self._socket.accept()
                    with one:
                        one.settimeout(5)
                        self.received.append(one.recv(100))

    def close(self) -> None:
        """Stop, after all that has arrived was counted."""
        self._stop.set()
        self._thread.join()
        self._socket.close()


def lan_address() -> str | None:
    """An address of this host that is not its loopback."""
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == socket.AF_INET and name != "lo" and not one.address.startswith("127."):
                return str(one.address)
    return None


def bound(family: int, kind: int, address: Any) -> socket.socket:
    """A bound socket, listening where it takes connections."""
    made = socket.socket(family, kind)
    made.bind(address)
    if kind == socket.SOCK_STREAM:
        made.listen(20)
    return made


def inet(host: str, kind: int) -> tuple[socket.socket, list[Any]]:
    """A listener's socket there, and where it is."""
    made = bound(socket.AF_INET6 if ":" in host else socket.AF_INET, kind, (host, 0))
    return made, [host, made.getsockname()[1]]


def unix(name: str, kind: int) -> tuple[socket.socket, list[Any]]:
    """The same for a path or an abstract name."""
    return bound(socket.AF_UNIX, kind, name), [name]


def mapped() -> tuple[socket.socket, list[Any]]:
    """Loopback, spelt as an IPv6 address."""
    made, (_, port) = inet("127.0.0.1", socket.SOCK_STREAM)
    return made, ["::ffff:127.0.0.1", port]


STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
TARGETS: dict[str, tuple[str, Callable[[Path], tuple[socket.socket, list[Any]]]]] = {
    "tcp to 127.0.0.1": ("tcp", lambda _: inet("127.0.0.1", STREAM)),
    "tcp to ::1": ("tcp", lambda _: inet("::1", STREAM)),
    "tcp to a mapped address": ("tcp", lambda _: mapped()),
    "tcp to the LAN address": ("tcp", lambda _: inet(lan_address() or "127.0.0.1", STREAM)),
    "udp to 127.0.0.1": ("udp", lambda _: inet("127.0.0.1", DATAGRAM)),
    "udp to ::1": ("udp", lambda _: inet("::1", DATAGRAM)),
    "udp to the LAN address": ("udp", lambda _: inet(lan_address() or "127.0.0.1", DATAGRAM)),
    "an event loop": ("event loop", lambda _: inet("127.0.0.1", STREAM)),
    "kernel calls by number": ("kernel call", lambda _: inet("127.0.0.1", STREAM)),
    "a unix socket at a path": ("unix", lambda folder: unix(f"{folder}/s", STREAM)),
    "an abstract unix socket": ("unix", lambda folder: unix(f"\0{folder.name}-{os.getpid()}", STREAM)),
    "an abstract unix datagram socket": ("unix datagram", lambda folder: unix(f"\0d{folder.name}-{os.getpid()}", DATAGRAM)),
    "an abstract socket over a pair": ("pair", lambda folder: unix(f"\0p{folder.name}-{os.getpid()}", DATAGRAM)),
}


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name fits into a socket's address."""
    with tempfile.TemporaryDirectory(prefix="net-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("target", TARGETS)
async def test_nothing_reaches_a_listener_of_the_host(engine: Engine, tmp_path: Path, short: Path, target: str) -> None:
    """Twice jailed in one engine, nothing arrived; the same source bare got its word across."""
    kind, make = TARGETS[target]
    if "LAN" in target and lan_address() is None:
        pytest.skip("unproven here: this host has no address but its loopback")
    made, where = make(short)
    if kind == "kernel call" and os.uname().machine != "x86_64":
        made.close()
        pytest.skip("the numbers are those of x86_64")
    listener = Listener(made)
    try:
        arguments = {"kind": kind, "where": where}
        for _ in range(2):
            outcome = await kit.jailed(engine, tmp_path / "source", SOURCE, "attempt", arguments)
            assert (outcome.reason, outcome.value in DENIED) == ("ok.done", True), outcome
        assert listener.received == []
        assert kit.bare(tmp_path / "bare", SOURCE, "attempt", arguments).value == "through"
    finally:
        listener.close()
    assert listener.received == [b"canary"]


@pytest.mark.parametrize(("kind", "where"), BARE_ONLY)
async def test_no_socket_of_any_kind_can_be_had(engine: Engine, tmp_path: Path, kind: str, where: list[Any]) -> None:
    """Jailed it is denied as such; bare it is had, where this user and this kernel offer it at all."""
    outcome = await kit.jailed(engine, tmp_path / "source", SOURCE, "attempt", {"kind": kind, "where": where})
    assert (outcome.reason, outcome.value in DENIED) == ("ok.done", True), outcome
    bare = kit.bare(tmp_path / "bare", SOURCE, "attempt", {"kind": kind, "where": where}).value
    offered = {"listen", "netlink"} | ({"icmp", "packet"} if os.geteuid() == 0 else set())
    assert bare == "through" or kind not in offered


async def test_no_name_is_resolved(engine: Engine, tmp_path: Path) -> None:
    """Not even the host's own for itself; bare it is."""
    arguments = {"kind": "name", "where": ["localhost"]}
    outcome = await kit.jailed(engine, tmp_path / "source", SOURCE, "attempt", arguments)
    assert (outcome.reason, outcome.value) == ("ok.done", "gaierror")
    assert kit.bare(tmp_path / "bare", SOURCE, "attempt", arguments).value == "through"


@pytest.mark.parametrize("where", [["169.254.169.254", 80], ["fd00:ec2::254", 80], ["100.100.100.200", 80]])
async def test_no_metadata_service_is_asked(engine: Engine, tmp_path: Path, where: list[Any]) -> None:
    """Denied before an address matters: at the socket, by a filter; bare, a datagram leaves or the host has no such route."""
    outcome = await kit.jailed(engine, tmp_path / "source", SOURCE, "attempt", {"kind": "tcp", "where": where})
    assert (outcome.reason, outcome.value in DENIED) == ("ok.done", True)
    assert kit.bare(tmp_path / "bare", SOURCE, "attempt", {"kind": "udp", "where": where}).value in (
        "through",
        "ENETUNREACH",
        "EADDRNOTAVAIL",
    )


async def test_an_import_has_no_network_either(engine: Engine, tmp_path: Path) -> None:
    """Nor does the describing of a source: judged by the listener; bare, the import gets its word across."""
    made, (host, port) = inet("127.0.0.1", STREAM)
    listener = Listener(made)
    source = SOURCE + f"\nAT_IMPORT = attempt.function('tcp', [{host!r}, {port}])\n"
    source += "\n@tool(effect='read', description='d')\ndef at_import() -> str:\n    return AT_IMPORT\n"
    try:
        assert (await kit.jailed(engine, tmp_path / "source", source, "at_import")).value in DENIED
        assert listener.received == []
        assert kit.bare(tmp_path / "bare", source, "at_import").value == "through"
    finally:
        listener.close()
    assert listener.received == [b"canary"]


PROFILE = """purpose = "a test"
[[allow]]
to = "api.example.com:443"
reason = "a test"
[examples]
allowed = ["api.example.com:443"]
denied = ["api.example.com:80"]
"""


class TestAsked:
    """What a tool may ask for, and what comes of it."""

    async def refused(self, folder: Path, extra: str, *, profile: str = '"none"') -> tuple[str, tuple[str, ...], bool]:
        """Reason, lines and whether a worker was started, of a tool that asks for it under a policy with that profile."""
        place = folder / "policy.toml"
        place.write_text(f'extends = "required"\n[network]\nprofile = {{ value = {profile}, reason = "a test" }}\n')
        (folder / "network").mkdir()
        (folder / "network" / "shop.toml").write_text(PROFILE)
        async with kit.clean_engine(folder / "state", policy=place) as engine:
            arguments = {"kind": "listen", "where": ["127.0.0.1"]}
            outcome = await kit.jailed(engine, folder / "source", ATTEMPTS.replace("{extra}", extra), "attempt", arguments)
        return outcome.reason, outcome.lines, (await outcome.concluded())["worker"]["started"]

    async def test_a_network_without_bounds_is_granted_to_nobody(self, tmp_path: Path) -> None:
        """Even where hosts are granted."""
        found = await self.refused(tmp_path, ", network=True", profile='"shop"')
        assert found == ("refused.network_unbounded", ("tool attempt asks for a network without bounds",), False)

    async def test_hosts_that_are_not_granted_refuse_without_their_names(self, tmp_path: Path) -> None:
        """One of two is enough."""
        asked = ", network=['api.example.com:443', 'canary.example.com:443']"
        found = await self.refused(tmp_path, asked, profile='"shop"')
        assert found == ("refused.not_granted", ("network: 1 of the hosts asked for are not granted",), False)

    async def test_hosts_refuse_under_a_policy_without_a_profile(self, tmp_path: Path) -> None:
        """Nothing that a tool asks for is granted by default."""
        found = await self.refused(tmp_path, ", network=['api.example.com:443']")
        assert found == ("refused.not_granted", ("network: 1 of the hosts asked for are not granted",), False)

    @pytest.mark.parametrize("extra", ["", ", network=False", ", network=[]", ", network=()"])
    async def test_nothing_asked_is_nothing_had(self, engine: Engine, tmp_path: Path, extra: str) -> None:
        """The tool runs, and is denied."""
        source = ATTEMPTS.replace("{extra}", extra)
        outcome = await kit.jailed(engine, tmp_path, source, "attempt", {"kind": "listen", "where": ["127.0.0.1"]})
        assert (outcome.reason, outcome.value in DENIED) == ("ok.done", True)

    @pytest.mark.parametrize(
        ("extra", "code"),
        [
            (", network=None", "refused.declaration"),
            (", network='none'", "refused.declaration"),
            (", network='*'", "refused.declaration"),
            (", network=1", "refused.declaration"),
            (", network=['*']", "refused.declaration"),
            (", network=['*:443']", "refused.declaration"),
            (", network=['*.example.com:443']", "refused.declaration"),
            (", network=['api.example.com']", "refused.declaration"),
            (", network=['api.example.com:0']", "refused.declaration"),
            (", network=['API.example.com:443']", "refused.declaration"),
            (", network=['api.example.com:443', None]", "refused.declaration"),
            (", netwrok=True", "tool_error.import"),
        ],
    )
    async def test_a_misspelt_wish_never_loads(self, engine: Engine, tmp_path: Path, extra: str, code: str) -> None:
        """No value that is not understood comes to mean "no bound"."""
        with pytest.raises(EngineError) as caught:
            await engine.load(kit.write(tmp_path, ATTEMPTS.replace("{extra}", extra)))
        assert caught.value.code == code

    @pytest.mark.parametrize(
        ("profile", "code"),
        [
            ("true", "refused.network_unbounded"),
            *(
                (word, "refused.policy")
                for word in ("false", '"*"', '["*"]', '"api.example.com:443"', '["shop"]', '""', '"shops"', '"../shop"')
            ),
        ],
    )
    async def test_a_grant_without_bounds_is_no_policy(self, tmp_path: Path, profile: str, code: str) -> None:
        """The policy file refuses."""
        with pytest.raises(EngineError) as caught:
            await self.refused(tmp_path, "", profile=profile)
        assert caught.value.code == code
