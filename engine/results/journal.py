"""The file of receipts, one line each. Several engines may append to it.

Its job: receipts in groups to the file, soon after their calls; what the disk does not take is kept and written first.
Not its job: what a receipt says (``receipts.py``).
Laws:
1. A full disk loses neither an answer nor a receipt: what it did not take is written before a call starts (tests/e2e/test_storage.py).
2. A line of the journal is a whole receipt, or half of one that a full disk cut; what follows it is whole (tests/unit/test_journal.py).
3. A receipt is in the file a twentieth of a second after its call, or at once for who waits for it (tests/unit/test_journal.py).
   Until then it is in memory alone: a supervisor that is killed loses it, with whoever had the answer.
"""

import os
from pathlib import Path

import trio

from engine.errors import HostError

_GROUP_SECONDS = 0.03  # receipts that come within it are one write


class Line:
    """One receipt on its way. ``ran`` says that it is of a call that started, which must not be lost."""

    def __init__(self, data: bytes, *, ran: bool) -> None:
        self.data, self.ran = data, ran
        self.written = False


class Journal:
    """The journal of one engine. Raises HostError ``refused.storage`` when it cannot be opened."""

    def __init__(self, folder: Path, *, ephemeral: bool) -> None:
        self.kind = "ephemeral" if ephemeral else "durable"
        self._waiting: list[Line] = []
        self._some = trio.Event()
        self._problem: str | None = None  # why the last write failed; no new call starts while there is one
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(folder / "receipts.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HostError("refused.storage", f"the journal cannot be opened: {error.strerror}") from None

    def require(self) -> None:
        """That nothing is owed, so that a call may start. Raises HostError ``refused.storage`` while the disk takes no more."""
        if self._problem is not None and not self.flush():
            raise HostError("refused.storage", f"{len(self._waiting)} receipts of earlier calls are not in the journal: {self._problem}")

    def append(self, made: bytes, *, ran: bool) -> Line:
        """Take one receipt to be written with the next group."""
        line = Line(made + b"\n", ran=ran)
        self._waiting.append(line)
        self._some.set()
        return line

    def flush(self) -> bool:
        """Write what waits, now; says whether the disk took it. What it did not take is owed, but for calls that never started."""
        taken, self._problem = self._write(b"".join(line.data for line in self._waiting))
        for line in self._waiting:
            taken -= len(line.data)
            line.written = taken >= 0
        self._waiting = [line for line in self._waiting if line.ran and not line.written]
        if not self._waiting:
            self._problem = None  # of a refusal nothing is owed
        return self._problem is None

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def keep(self) -> None:
        """Write groups as they come, for as long as the engine lives."""
        while True:
            await self._some.wait()
            self._some = trio.Event()
            await trio.sleep(_GROUP_SECONDS)
            self.flush()

    def close(self) -> None:
        """Write the rest and let go of the file. Raises HostError ``refused.storage`` when receipts are owed that still do not fit."""
        try:
            self.flush()
            self.require()
        finally:
            os.close(self._file)
            self._file = -1  # the number may be another file's by now, and a late receipt would go there

    def _write(self, data: bytes) -> tuple[int, str | None]:
        """How many of these bytes are in the file now, and why not all."""
        if not data:
            return 0, None
        if self._file < 0:
            return 0, "the journal is closed"
        try:
            mend = b"\n" if self._is_torn() else b""
            # one write: lines of several engines cannot mix (write(2), O_APPEND)
            taken = os.write(self._file, mend + data) - len(mend)
        except OSError as error:
            return 0, error.strerror or type(error).__name__
        return taken, None if taken == len(data) else "the disk took only a part of it"

    def _is_torn(self) -> bool:
        """Whether the file ends in half a line: a full disk took no more of it, from whichever engine."""
        end = os.fstat(self._file).st_size
        return end > 0 and os.pread(self._file, 1, end - 1) != b"\n"
