"""Which ids a batch has met, in this run and in those before it.

Its job: for each line whether it is new, was finished before, was begun and not finished, or takes another's id.
Not its job: the files this is read from (``files.py``), what is done about it (``run.py``).
Laws:
1. An id is met once: a second line with it is told where the first stands (tests/unit/test_batch_ids.py).
2. An id that is finished belongs to the line it was finished for, to the byte (tests/unit/test_batch_ids.py).
3. Memory stays flat, however many there are: they lie in a temporary file without a name (tests/unit/test_batch_flat.py).
"""

import dataclasses
import enum
import hashlib
import sqlite3

from engine.errors import HostError

_KEY_BYTES = 16  # of a digest; two of a million ids agree by chance once in 10^26
_SET_UP = (
    "PRAGMA journal_mode = OFF",  # nothing of it is needed after a crash: it is read again from the files
    "PRAGMA synchronous = OFF",
    "PRAGMA cache_size = -8192",  # KiB; beyond it pages go to the file
    "CREATE TABLE ids (key BLOB PRIMARY KEY, digest BLOB, line INTEGER) WITHOUT ROWID",
    "BEGIN",
)


class Standing(enum.Enum):
    """What is known of a line."""

    NEW = "new"
    FINISHED = "finished"
    BEGUN = "begun"
    TAKEN = "taken"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Met:
    """A line's standing; where it is taken, the line of this run that has its id, or None when an earlier run had it."""

    standing: Standing
    line: int | None = None


class Ids:
    """The ids of one batch. Raises HostError ``refused.storage`` when there is no room for them."""

    def __init__(self) -> None:
        # an empty name is a file of sqlite's own that has no name and goes with the connection; threads use it one after another
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in _SET_UP:
            self._run(statement)

    def finished(self, id: str | None, number: int, digest: str) -> bool:
        """Take down that an earlier run finished this line; says whether that was known."""
        key = _key(id, number, digest)
        known = self._run("SELECT digest FROM ids WHERE key = ?", key)
        self._run("INSERT OR REPLACE INTO ids VALUES (?, ?, NULL)", key, _short(digest))
        return bool(known) and known[0][0] is not None

    def begun(self, id: str) -> None:
        """Take down that an earlier run began this id, unless it is known to be finished."""
        self._run("INSERT OR IGNORE INTO ids VALUES (?, NULL, NULL)", _key(id, 0, ""))

    def meet(self, id: str | None, number: int, digest: str) -> Met:
        """What stands about this line, met now in this run. Without an id of its own a line is known by its place and its bytes."""
        key = _key(id, number, digest)
        found = self._run("SELECT digest, line FROM ids WHERE key = ?", key)
        if not found:
            self._run("INSERT INTO ids VALUES (?, NULL, ?)", key, number)
            return Met(standing=Standing.NEW)
        kept, line = found[0]
        if line is not None or (kept is not None and kept != _short(digest)):
            return Met(standing=Standing.TAKEN, line=line)
        self._run("UPDATE ids SET line = ? WHERE key = ?", number, key)
        return Met(standing=Standing.BEGUN if kept is None else Standing.FINISHED)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _run(self, statement: str, *values: object) -> list[tuple[bytes | None, int | None]]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise HostError("refused.storage", f"no room for the ids of the batch: {error}: set TMPDIR to a folder with room") from None


def _key(id: str | None, number: int, digest: str) -> bytes:
    named = f"{number} {digest}" if id is None else f"id {id}"  # a number never begins with a letter, so neither is taken for the other
    return hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


def _short(digest: str) -> bytes:
    return bytes.fromhex(digest.removeprefix("sha256:"))[:_KEY_BYTES]
