"""Which ids a batch has met, in this run and in those before it.

Its job: for each line whether it is new, was finished before, was begun and not finished, or takes another's id.
Not its job: the files this is read from (``files.py``), what is done about it (``run.py``).
Laws:
1. An id is met once: a second line with it is told where the first stands (tests/unit/test_batch_ids.py).
2. An id that is finished belongs to the line it was finished for, to the byte, unless its outcome was open to a mended line
   (tests/unit/test_batch_ids.py).
3. Memory stays flat, however many there are: they lie in a temporary file without a name (tests/unit/test_batch_flat.py).
"""

import dataclasses
import enum
import hashlib
import sqlite3
from typing import Any

from engine.errors import HostError

_KEY_BYTES = 16  # of a digest; two of a million ids agree by chance once in 10^26
CACHE_KIB = 8192
_SET_UP = (
    "PRAGMA journal_mode = OFF",  # nothing of it is needed after a crash: it is read again from the files
    "PRAGMA synchronous = OFF",
    f"PRAGMA cache_size = -{CACHE_KIB}",  # beyond it pages go to the file
    # digest, reason, wall_ms, open: of the last outcome; begun: a note says so; line: met in this run
    "CREATE TABLE ids (key BLOB PRIMARY KEY, digest BLOB, reason TEXT, wall_ms REAL, open INTEGER, begun INTEGER DEFAULT 0, line INTEGER)"
    " WITHOUT ROWID",
    "BEGIN",
)


class Standing(enum.Enum):
    """What is known of a line."""

    NEW = "new"
    FINISHED = "finished"
    BEGUN = "begun"
    TAKEN = "taken"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Past:
    """The last outcome that earlier runs wrote for a line: its reason, and the wall time of its worker, None when none ran."""

    reason: str
    wall_ms: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Met:
    """A line's standing; where it is taken, the line of this run that has its id, or None when an earlier run had it.

    Where it is finished: ``past`` is how, ``begun`` whether a note says that it was begun, before or after that.
    """

    standing: Standing
    line: int | None = None
    past: Past | None = None
    begun: bool = False


class Ids:
    """The ids of one batch. Raises HostError ``refused.storage`` when there is no room for them."""

    def __init__(self) -> None:
        # an empty name is a file of sqlite's own that has no name and goes with the connection; threads use it one after another
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in _SET_UP:
            self._run(statement)

    def finished(self, id: str | None, number: int, digest: str, past: Past, *, open: bool = False) -> None:
        """Take down that an earlier run finished this line so; the last one counts. ``open``: another line may take the id."""
        values = (_key(id, number, digest), _short(digest), past.reason, past.wall_ms, open)
        self._run("INSERT OR REPLACE INTO ids (key, digest, reason, wall_ms, open) VALUES (?, ?, ?, ?, ?)", *values)

    def begun(self, id: str) -> None:
        """Take down that an earlier run began this id; call it when all that are finished are known."""
        self._run("INSERT INTO ids (key, begun) VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET begun = 1", _key(id, 0, ""))

    def meet(self, id: str | None, number: int, digest: str) -> Met:
        """What stands about this line, met now in this run. Without an id of its own a line is known by its place and its bytes."""
        key = _key(id, number, digest)
        found = self._run("SELECT digest, reason, wall_ms, open, begun, line FROM ids WHERE key = ?", key)
        if not found:
            self._run("INSERT INTO ids (key, line) VALUES (?, ?)", key, number)
            return Met(standing=Standing.NEW)
        kept, reason, wall_ms, open, begun, line = found[0]
        other = kept is not None and kept != _short(digest)
        if line is not None or (other and (begun or not open)):
            return Met(standing=Standing.TAKEN, line=line)
        self._run("UPDATE ids SET line = ? WHERE key = ?", number, key)
        if other or kept is None:
            return Met(standing=Standing.NEW if other else Standing.BEGUN)
        return Met(standing=Standing.FINISHED, past=Past(reason=reason, wall_ms=wall_ms), begun=bool(begun))

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise HostError("refused.storage", f"no room for the ids of the batch: {error}: set TMPDIR to a folder with room") from None


def _key(id: str | None, number: int, digest: str) -> bytes:
    named = f"{number} {digest}" if id is None else f"id {id}"  # a number never begins with a letter, so neither is taken for the other
    return hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


def _short(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))[:_KEY_BYTES]
