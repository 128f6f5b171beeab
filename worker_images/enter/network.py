"""The doors of a scoped jail: a bound socket for each place that its tool may reach, which nobody but the supervisor keeps.

Its job: bring up the jail's own loopback device, bind what the plan lists, write the files by which names lead there, hand sockets over.
Not its job: which places there are (``engine/jail/network.py``), what is done with a connection (``engine/egress``).
Laws:
1. The sockets leave with the report, in the plan's order, before anything of a tool runs in here, and none stays
   (tests/security/test_scoped_jail.py).
2. They are of this jail's network namespace, which nobody else is in (tests/security/test_scoped_jail.py).
3. What connections in it hold of the kernel's memory is bounded, read or not (tests/security/test_scoped_jail.py).
4. None of them listens: until the supervisor has one do so, the kernel refuses whoever connects (tests/security/test_scoped_jail.py).
"""

import _socket
import fcntl
import os
import struct

from enter.enter import Plan, named
from enter.kernel import Step

_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C  # netdevice(7)
_IFF_UP = 1
_INDEX = struct.Struct("i")


def doors(plan: Plan) -> list[int]:
    """The sockets that a plan wants, bound, in its order; the files, below a root that is not turned over yet. Raises Step."""
    wanted = plan["network"]
    if wanted is None:
        return []
    if "network" not in plan["namespaces"]:  # security: all of this would be done to the host's own
        raise Step("bring the loopback device up", 0, "the network is the host's")
    for path, text in wanted["settings"]:
        _write(f"set {os.path.basename(path)}", path, text, os.O_WRONLY)
    for path, text in wanted["files"]:
        _write(f"write {path}", plan["mountpoint"] + path, text, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    _bring_up(wanted["addresses"])
    return [_bound(address, port) for address, port in wanted["listeners"]]


def report(control: _socket.socket, record: bytes, listeners: list[int]) -> None:
    """Send the record that the jail is up, with the listeners; from then on the supervisor alone has them."""
    if not listeners:
        control.send(record)
        return
    control.sendmsg([record], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(map(_INDEX.pack, listeners)))])
    for listener in listeners:
        os.close(listener)  # security: whoever has one here can take connections, or keep what a call before left waiting


def _write(step: str, path: str, text: str, flags: int) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o444)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise named(step, error) from None


def _bring_up(addresses: list[str]) -> None:
    """The loopback device of this namespace: 127.0.0.0/8 comes with it, each address beside that by a label of its own."""
    end = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
    _ask(end, "bring the loopback device up", _SIOCSIFFLAGS, b"lo", struct.pack("H22x", _IFF_UP))
    for number, address in enumerate(addresses):
        # the mask second: the first call gives the one of the address's class, with which a whole network would be this device's
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
            told = struct.pack("HH4s16x", _socket.AF_INET, 0, _socket.inet_aton(value))
            _ask(end, "give the loopback device an address", request, b"lo:%d" % number, told)
    end.close()


def _ask(end: _socket.socket, step: str, request: int, device: bytes, told: bytes) -> None:
    try:
        fcntl.ioctl(end.fileno(), request, device.ljust(16, b"\0") + told)
    except OSError as error:
        raise named(step, error) from None


def _bound(address: str, port: int) -> int:
    end = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        end.bind((address, port))
        # after it is bound, so that no two get one place: it has to listen again although connections of the call before linger
        end.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    except OSError as error:
        raise named("bind a listener", error) from None
    return end.detach()
