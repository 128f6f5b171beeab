"""What a session knows beforehand: an Init that was encoded for all children of a worker, and the Ready that each should send."""

import msgpack
import pytest

from engine.errors import EngineBug
from engine.wire.framing import frame
from engine.wire.messages import Call, EncodedInit, Expected, Failure, FromWorker, Ready
from engine.wire.session import Session, State
from tests.unit.test_session import BOUNDS, INIT, OPEN, OURS, THEIRS, at, fault, written

EXPECTED = Expected.ready("sha256:d")


def expecting() -> Session:
    """A session that waits for its Ready."""
    session = Session(BOUNDS, expected=EXPECTED)
    session.send(INIT)
    return session


def test_an_encoded_init_is_the_same_frame() -> None:
    """And the talk goes on as after any Init."""
    session = Session(BOUNDS)
    assert (session.send(EncodedInit.of(INIT)), session.state) == (written(INIT), State.STARTING)


@pytest.mark.parametrize("state", [state for state in State if state is not State.NEW])
def test_an_encoded_init_is_sent_first_alone(state: State) -> None:
    """As the table says of any Init: else it is our bug, and changes nothing."""
    session = at(state)
    with pytest.raises(EngineBug) as caught:
        session.send(EncodedInit.of(INIT))
    assert (caught.value.lines, session.state) == ((f"the engine tried to send Init while {state}",), state)


def test_a_repr_of_an_encoded_init_hides_what_is_in_it() -> None:
    """An environment may hold secrets."""
    assert repr(EncodedInit.of(INIT)) == "EncodedInit()"


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_the_expected_message_is_taken_as_it_is(piece: int) -> None:
    """However its bytes come; what follows it is looked at like anything else."""
    session, data = expecting(), written(EXPECTED.message)
    taken: list[object] = []
    for at_byte in range(0, len(data), piece):
        session.feed(data[at_byte : at_byte + piece])
        taken.append(session.next())
    assert taken[:-1] == [None] * (len(taken) - 1)
    assert taken[-1] is EXPECTED.message
    assert (session.state, session.next()) == (State.READY, None)
    session.send(OURS[Call])
    session.feed(written(EXPECTED.message))
    assert fault(session) == ("violation.protocol", "the worker sent Ready while running")


@pytest.mark.parametrize("other", ["sha256:e", "sha256:dd", None, ""])
def test_another_digest_is_what_it_says(other: str | None) -> None:
    """It is decoded, and never taken for the one that was expected."""
    session = expecting()
    session.feed(written(Ready(declaration=other)))
    assert (session.next(), session.state) == (Ready(declaration=other), State.READY)


def test_another_spelling_of_the_same_is_decoded() -> None:
    """A text with a longer head than it needs."""
    session = expecting()
    session.feed(frame(b"\x92\x10\xd9\x08sha256:d"))
    assert session.next() == EXPECTED.message


@pytest.mark.parametrize("kind", [kind for kind in THEIRS if kind not in (Ready, Failure)])
def test_what_is_not_expected_may_still_not_come(kind: type[FromWorker]) -> None:
    """The table holds as without it."""
    session = expecting()
    session.feed(written(THEIRS[kind]))
    assert fault(session) == ("violation.protocol", f"the worker sent {kind.__name__} while starting")


@pytest.mark.parametrize("state", [state for state in OPEN if state is not State.STARTING])
def test_the_expected_message_may_come_in_its_state_alone(state: State) -> None:
    """To the byte or not: the table is asked first."""
    session = at(state)
    session._expected = EXPECTED
    session.feed(frame(EXPECTED.payload))
    assert fault(session) == ("violation.protocol", f"the worker sent Ready while {state}")


def test_a_ready_that_is_no_text_is_a_fault() -> None:
    """As without it."""
    session = expecting()
    session.feed(frame(msgpack.packb([Ready.NUMBER, 1])))
    assert fault(session) == ("violation.protocol", "the worker sent Ready whose declaration may not be this int")
