"""What a builder is held by that imports a tool: the wall around making the image of one source.

Its job: what is needed of the kernel, the filter, the limits; as data, for the process that locks itself.
Not its job: locking (``worker_images/publish/main.py``), which calls the filter allows (``policies/syscalls/publish.toml``).
Laws:
1. There is one wall for every policy, and no way without it (tests/security/test_publishing.py).
"""

import platform
from pathlib import Path
from typing import Any, Final

from engine.jail import bpf, syscalls
from engine.outcome import error_for

PROFILES: Final = ("publish",)
LANDLOCK: Final = 6  # with it nothing of a place is left out: files, truncation, devices, TCP, signals (Linux 6.12), as ``required`` needs
# rights by bit (landlock(7)): files and folders are read; what is written is plain files and folders, no links, sockets or devices
_READ: Final = 1 << 2 | 1 << 3
_WRITE: Final = _READ | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14
# setrlimit(2): a build takes 25 s of processor time and 0.7 GiB; what it writes is the component and the unpacked standard library
LIMITS: Final = {"CPU": 300, "DATA": 2 << 30, "FSIZE": 512 << 20, "NOFILE": 64, "CORE": 0}


def wall(policies: Path) -> dict[str, Any]:
    """The wall as that process takes it. Raises PolicyError for profiles that cannot be read, refused.cannot_enforce for the machine."""
    try:
        arch = syscalls.Arch(platform.machine())
    except ValueError:
        raise error_for("refused.cannot_enforce", f"there is no filter for {platform.machine()}, and none is made without one") from None
    program = bpf.compile_filter(syscalls.compose(syscalls.load_profiles(policies / "syscalls"), PROFILES, arch))
    return {
        "landlock": LANDLOCK,
        "handled": [(1 << 16) - 1, 3, 3],  # every right to files; TCP; abstract sockets and signals
        "read": _READ,
        "write": _WRITE,
        "filter": program.blob.hex(),
        "limits": dict(LIMITS),
    }
