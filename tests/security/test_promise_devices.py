"""Of devices and special files a worker has five and can make none; the host's own nodes stay as they are.

Every attempt runs bare first, as a plain process of this user, where it gets through; what the host itself keeps from this user is named.
"""

import os
from pathlib import Path

from engine.host import Engine
from tests import kit
from tests.attempts import given, source

DEVICES = ["full", "null", "random", "urandom", "zero"]
SPECIAL = """
import socket
return {"fifo": tried(os.mkfifo, "fifo"), "character": tried(os.mknod, "c", 0o20666, os.makedev(1, 3)), "block": tried(os.mknod,
    "b", 0o60666, 1),
        "socket": tried(lambda: socket.socket(socket.AF_UNIX).bind("s")), "left": sorted(os.listdir("."))}
"""


async def test_no_special_file_can_be_made(engine: Engine, tmp_path: Path) -> None:
    """No FIFO on which the supervisor could hang, no device, no socket."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(SPECIAL), "attempt", given())
    refused = ["refused", "EPERM"]
    assert outcome.value == {"fifo": refused, "character": refused, "block": refused, "socket": ["refused", "EACCES"], "left": []}
    work = tmp_path / "work"
    work.mkdir()
    bare = kit.bare(tmp_path / "bare", source(SPECIAL), "attempt", given(), cwd=work).value
    assert (bare["fifo"][0], bare["socket"][0]) == ("done", "done")
    # devices take a capability that an ordinary user has not: the host refuses those itself
    assert bare["character"] == (["done", "None"] if os.geteuid() == 0 else refused)


async def test_five_devices_and_no_other(engine: Engine, tmp_path: Path) -> None:
    """Whatever the host's own device folder holds, only the null, zero, full and random ones are there, and do their work."""
    body = """
    found = sorted(name for name in given["names"] if tried(os.stat, "/dev/" + name)[0] == "done")
    numbers = {name: [os.major(os.stat("/dev/" + name).st_rdev), os.minor(os.stat("/dev/" + name).st_rdev)] for name in given["known"]}
    return {"found": found, "numbers": numbers, "zero": read("/dev/zero")[:2],
        "random": len(read("/dev/urandom")) + len(read("/dev/random")),
            "null": tried(write, "/dev/null"), "full": tried(write, "/dev/full"), "end": read("/dev/null")}
    """
    hidden = [
        "tty",
        "ptmx",
        "console",
        "kmsg",
        "mem",
        "kvm",
        "fuse",
        "shm",
        "mqueue",
        "pts",
        "fd",
        "stdin",
        "net/tun",
        "vsock",
        "loop-control",
    ]
    names = sorted({*os.listdir("/dev"), *hidden, *DEVICES})
    looked = source(body)
    outcome = await kit.jailed(engine, tmp_path / "jailed", looked, "attempt", given(names=names, known=DEVICES))
    assert outcome.value == {
        "found": DEVICES,
        "numbers": {"full": [1, 7], "null": [1, 3], "random": [1, 8], "urandom": [1, 9], "zero": [1, 5]},
        "zero": "\0\0",
        "random": 8192,
        "null": ["done", "written"],
        "full": ["refused", "ENOSPC"],
        "end": "",
    }
    bare = kit.bare(tmp_path / "bare", looked, "attempt", given(names=names, known=DEVICES)).value
    assert set(bare["found"]) > set(DEVICES)


async def test_a_device_keeps_the_hosts_times_and_mode(engine: Engine, tmp_path: Path) -> None:
    """The host's own node cannot be stamped from inside, or one jail could leave a time for another to read."""
    body = "return [tried(os.utime, given['path']), tried(os.chmod, given['path'], 0o666)]"
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", given(path="/dev/null"))
    assert outcome.value == [["refused", "EROFS"], ["refused", "EROFS"]]
    bare = kit.bare(tmp_path / "bare", source(body), "attempt", given(path="/dev/null")).value
    assert bare == [["done", "None"], ["done", "None"] if os.geteuid() == 0 else ["refused", "EPERM"]]
