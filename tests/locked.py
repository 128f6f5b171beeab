"""How a process that checks large values is locked on this machine, for tests without an engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.jail.plan import Places, parser_order
from engine.places import data_dir
from engine.worker.launcher import Launcher

_NOWHERE = Path("/nonexistent")


async def lock_of_this_host() -> Mapping[str, Any]:
    """The lock that an engine would give it, with a minute of CPU and 1 GiB."""
    launcher = await Launcher.start()
    try:
        syscalls = data_dir("policies") / "syscalls"
        places = Places(engine=_NOWHERE, mountpoint=_NOWHERE, empty=_NOWHERE, syscalls=syscalls, scratch=_NOWHERE)
        return {**parser_order(launcher.facts, places), "cpu_s": 60, "address_bytes": 1 << 30}
    finally:
        await launcher.close()
