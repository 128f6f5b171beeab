"""Ids: met once, finished for one line to the byte, begun until they are finished."""

import dataclasses
import hashlib

import pytest

from engine.batch.ids import Ids, Met, Past, Standing


def digest(text: str) -> str:
    """Of a line."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


A, B = digest("a"), digest("b")
DONE = Past(reason="ok.done", wall_ms=1.5)
NEW, BEGUN = (Met(standing=standing) for standing in (Standing.NEW, Standing.BEGUN))
FINISHED = Met(standing=Standing.FINISHED, past=DONE)


@pytest.fixture
def ids() -> Ids:
    """None met."""
    return Ids()


def test_an_id_is_new_once(ids: Ids) -> None:
    """A second line with it is told where the first stands, even when it is the same."""
    assert [ids.meet("x", 1, A), ids.meet("y", 2, A), ids.meet("x", 3, A)] == [NEW, NEW, Met(standing=Standing.TAKEN, line=1)]


def test_a_finished_id_is_finished_for_its_own_line(ids: Ids) -> None:
    """Wherever that stands now; of another line with the id it is taken."""
    ids.finished("x", 1, A, DONE)
    assert [ids.meet("x", 7, B), ids.meet("x", 8, A)] == [Met(standing=Standing.TAKEN), FINISHED]
    assert ids.meet("x", 9, A) == Met(standing=Standing.TAKEN, line=8)


def test_a_begun_id_is_begun_until_it_is_finished(ids: Ids) -> None:
    """And once it is finished, that it was begun is still known."""
    ids.finished("y", 2, A, DONE)
    for id in "xyx":
        ids.begun(id)
    assert [ids.meet(id, 1, A) for id in "xy"] == [BEGUN, dataclasses.replace(FINISHED, begun=True)]


def test_the_last_outcome_counts(ids: Ids) -> None:
    """With its reason and its time."""
    ids.finished("x", 1, A, Past(reason="crashed.worker"))
    ids.finished("x", 1, A, DONE)
    assert ids.meet("x", 1, A) == FINISHED


@pytest.mark.parametrize(("begun", "standing"), [(False, Standing.NEW), (True, Standing.TAKEN)])
def test_an_outcome_may_leave_the_id_to_another_line(ids: Ids, begun: bool, standing: Standing) -> None:
    """Once, to the first that has it, and not when a note says that it was begun."""
    ids.finished("x", 1, A, Past(reason="refused.request"), open=True)
    if begun:
        ids.begun("x")
    assert ids.meet("x", 1, B).standing is standing
    assert ids.meet("x", 2, A).standing is (Standing.FINISHED if begun else Standing.TAKEN)


def test_a_line_without_an_id_is_known_by_its_place_and_its_bytes(ids: Ids) -> None:
    """Moved or mended it is another."""
    ids.finished(None, 1, A, DONE)
    assert [ids.meet(None, 1, A), ids.meet(None, 2, A), ids.meet(None, 1, B)] == [FINISHED, NEW, NEW]


def test_no_id_passes_for_a_line_without_one(ids: Ids) -> None:
    """However it is written."""
    ids.finished(f"1 {A}", 5, B, DONE)
    ids.finished(f"id 1 {A}", 5, B, DONE)
    assert ids.meet(None, 1, A) == NEW
