"""Ids: met once, finished for one line to the byte, begun until they are finished."""

import hashlib

import pytest

from engine.batch.ids import Ids, Met, Standing


def digest(text: str) -> str:
    """Of a line."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


A, B = digest("a"), digest("b")
NEW, FINISHED, BEGUN = (Met(standing=standing) for standing in (Standing.NEW, Standing.FINISHED, Standing.BEGUN))


@pytest.fixture
def ids() -> Ids:
    """None met."""
    return Ids()


def test_an_id_is_new_once(ids: Ids) -> None:
    """A second line with it is told where the first stands, even when it is the same."""
    assert [ids.meet("x", 1, A), ids.meet("y", 2, A), ids.meet("x", 3, A)] == [NEW, NEW, Met(standing=Standing.TAKEN, line=1)]


def test_a_finished_id_is_finished_for_its_own_line(ids: Ids) -> None:
    """Wherever that stands now; of another line with the id it is taken."""
    ids.finished("x", 1, A)
    assert [ids.meet("x", 7, B), ids.meet("x", 8, A)] == [Met(standing=Standing.TAKEN), FINISHED]
    assert ids.meet("x", 9, A) == Met(standing=Standing.TAKEN, line=8)


def test_a_begun_id_is_begun_until_it_is_finished(ids: Ids) -> None:
    """In whichever order the two are learnt."""
    ids.begun("x")
    ids.begun("y")
    assert [ids.finished("y", 2, A), ids.finished("y", 2, A), ids.finished("z", 3, A)] == [False, True, False]
    ids.begun("z")
    assert [ids.meet(id, 1, A) for id in "xyz"] == [BEGUN, FINISHED, FINISHED]


def test_a_line_without_an_id_is_known_by_its_place_and_its_bytes(ids: Ids) -> None:
    """Moved or mended it is another."""
    ids.finished(None, 1, A)
    assert [ids.meet(None, 1, A), ids.meet(None, 2, A), ids.meet(None, 1, B)] == [FINISHED, NEW, NEW]


def test_no_id_passes_for_a_line_without_one(ids: Ids) -> None:
    """However it is written."""
    ids.finished(f"1 {A}", 5, B)
    ids.finished(f"id 1 {A}", 5, B)
    assert ids.meet(None, 1, A) == NEW
