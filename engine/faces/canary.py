"""Things outside of the wall that no tool may reach, and a look at them afterwards.

Its job: a folder with a file that anybody may write, a listener on loopback that anybody may reach, both watched.
Not its job: the attempts on them (``worker_images/demo/mischief.py``).
Laws:
1. The listener was reached once by ourselves before anything is concluded from nobody reaching it (tests/e2e/test_cli_demo.py).
"""

import dataclasses
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.outcome import error_for

_TEXT = "untouched "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canary:
    """What stands outside: ``token`` is in the file, and is to be found nowhere else."""

    folder: Path
    file: Path
    port: int
    token: str
    listener: socket.socket = dataclasses.field(repr=False)

    def harm(self) -> list[str]:
        """What was done to it since the last look, one line each."""
        found = []
        if self.file.read_text(encoding="utf-8", errors="replace") != _TEXT + self.token:
            found.append("the file outside was changed")
        if extra := sorted(set(os.listdir(self.folder)) - {self.file.name}):
            found.append(f"files were made outside: {len(extra)}")
        if count := self._accepted():
            found.append(f"the listener was reached {count} times")
        return found

    def _accepted(self) -> int:
        count = 0
        while True:
            try:
                self.listener.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


@contextmanager
def canary() -> Iterator[Canary]:
    """One of them, removed at the end. Raises HostError when this host does not let it be set up."""
    token = secrets.token_hex(16)
    try:
        listener = socket.create_server(("127.0.0.1", 0))
    except OSError as error:
        raise error_for("refused.start_failed", f"no listener can be made on loopback: {error.strerror}") from None
    with listener, tempfile.TemporaryDirectory(prefix="stockade-canary-") as folder:
        listener.setblocking(False)
        file = Path(folder) / "canary.txt"
        file.write_text(_TEXT + token, encoding="utf-8")
        os.chmod(folder, 0o777)  # noqa: S103 - so that nothing but the wall keeps a tool away from it
        file.chmod(0o666)
        made = Canary(folder=Path(folder), file=file, port=listener.getsockname()[1], token=token, listener=listener)
        with socket.create_connection(("127.0.0.1", made.port), timeout=5):
            if made.harm() != ["the listener was reached 1 times"]:
                raise error_for("refused.start_failed", "the listener on loopback does not see who reaches it")
        yield made
