"""A session shows each payload that it decodes to whoever watches, as it came."""

import msgpack
import pytest

from engine.wire.framing import RemoteFault
from engine.wire.messages import Event, Partial, Result
from engine.wire.session import Large, Session
from tests.unit.test_session_large import LARGE, running, sent


def watched(large_bytes: int | None = LARGE) -> Session:
    """A running session whose watcher sees the bytes."""
    session = running(large_bytes)
    session.watch = bytes
    return session


def test_what_it_saw_is_of_the_last_message() -> None:
    """The payload without its length, to the byte."""
    session = watched()
    session.feed(sent(20, "one") + sent(18, "two") + sent(23, 3))
    seen = [(session.next(), session.seen) for _ in range(3)]
    assert seen == [
        (Event(value="one"), msgpack.packb([20, "one"])),
        (Partial(value="two"), msgpack.packb([18, "two"])),
        (Result(value=3), msgpack.packb([23, 3])),
    ]


def test_a_large_one_is_shown_by_whoever_takes_it() -> None:
    """Nothing is seen of it here, nor anything left of the one before."""
    session = watched(100)
    session.feed(sent(20, "one") + sent(20, [[]] * 998))
    assert (session.next(), session.seen) == (Event(value="one"), msgpack.packb([20, "one"]))
    assert isinstance(session.next_or_large(), Large)
    assert session.seen == ()


def test_without_a_watcher_nothing_is_seen() -> None:
    """And nothing is called."""
    session = running()
    session.feed(sent(20, "one"))
    assert (session.next(), session.seen) == (Event(value="one"), ())


def test_what_does_not_decode_was_seen_all_the_same() -> None:
    """It is looked through before it is believed to be anything."""
    session = watched()
    session.feed(sent(20))
    with pytest.raises(RemoteFault):
        session.next()
    session = watched()
    session.feed(sent(21, "loud", "", {}))
    with pytest.raises(RemoteFault):
        session.next()
    assert session.seen == msgpack.packb([21, "loud", "", {}])
