"""The session of a worker that serves call after call: what is carried from one to the next, which is nothing."""

import pytest

from engine.errors import EngineBug
from engine.wire.messages import Call, Event, Failure, FromWorker, HostCall, Result
from engine.wire.session import State
from tests.unit.test_session import BOUNDS, OURS, THEIRS, at, fault, heard, written


class TestAgain:
    """A worker that serves call after call has a session for each."""

    def test_an_answered_session_is_followed_by_a_ready_one(self) -> None:
        """It has counted nothing, holds to the same bounds, and knows nothing of host calls that still wait."""
        session = at(State.ANSWERED)
        following = session.again()
        assert (following.state, session.state) == (State.READY, State.ANSWERED)
        assert (following.events, following.event_bytes, following.result_bytes) == (0, 0, 0)
        following.send(OURS[Call])
        assert heard(following, HostCall(number=7, name="n", arguments={})) == [HostCall(number=7, name="n", arguments={})]
        assert heard(following, *[Event(value=1)] * BOUNDS.events) == [Event(value=1)] * BOUNDS.events
        following.feed(written(Event(value=1)))
        assert fault(following) == ("limit_exceeded.events", "the worker sent more events than its bound")

    @pytest.mark.parametrize("state", [state for state in State if state is not State.ANSWERED])
    def test_no_other_one_is(self, state: State) -> None:
        """Only an answer is an end that the worker lives through."""
        session = at(state)
        assert not session.over()
        with pytest.raises(EngineBug) as caught:
            session.again()
        assert caught.value.lines == (f"the engine tried to go on with a worker while {state}",)

    @pytest.mark.parametrize("late", [b"\0", written(Result(value=2))], ids=["a byte", "an answer"])
    def test_nor_one_with_bytes_after_its_answer(self, late: bytes) -> None:
        """They are a fault of this call, and never the beginning of the next; the control is an answer alone."""
        session = at(State.ANSWERED)
        assert session.over()
        session.feed(late)
        assert not session.over()
        with pytest.raises(EngineBug):
            session.again()
        assert fault(session) == ("violation.protocol", "the worker sent something after its answer")

    @pytest.mark.parametrize("early", THEIRS.values(), ids=[kind.__name__ for kind in THEIRS])
    def test_what_comes_before_the_next_call(self, early: FromWorker) -> None:
        """Nothing answers a call that was not made: a failure says that the worker gave up, all else is a fault."""
        following = at(State.ANSWERED).again()
        following.feed(written(early))
        if isinstance(early, Failure):
            assert following.next() == early
            with pytest.raises(EngineBug):
                following.send(OURS[Call])
            return
        assert fault(following) == ("violation.protocol", f"the worker sent {type(early).__name__} while ready")
