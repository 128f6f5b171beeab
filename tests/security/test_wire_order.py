"""What a hostile worker can make of whole frames: cut, doubled, after the answer, too many, or with words meant for our log."""

from typing import Any

import msgpack
import pytest

from engine import errors
from engine.wire.framing import RemoteFault, frame
from engine.wire.messages import Event, HostCall, Log, Result
from engine.wire.session import Bounds
from tests.security.hostile_stream import BOUNDS, LONGEST, answers, refusal, result, running


class TestFrames:
    """Attack: frames that hold less or more than one message."""

    @pytest.mark.parametrize("tail", [b"\xc0", b"\0", b"\x92\x17\xc0", b"\xff" * 40])
    def test_bytes_after_the_value(self, tail: bytes) -> None:
        """Trailing bytes and a second value in one frame are refused, not skipped."""
        assert refusal(result(b"\xc0" + tail)) == "violation.protocol: the worker sent a frame with bytes after its value"

    @pytest.mark.parametrize("payload", [b"\xc0\x17", b"\x81\x17", b"\xdc\0\x02\x17\xc0", b"\xa2ab", b"\x92\xcc\x17\xc0", b"\x92\xc3\xc0"])
    def test_no_message(self, payload: bytes) -> None:
        """A message is a short array whose first byte is its number; no other form of the same value is one."""
        got, fault = answers(frame(payload))
        assert got == []
        assert fault is not None
        assert fault.startswith("violation.protocol: the worker sent ")

    @pytest.mark.parametrize("cut", range(1, 8))
    def test_cut_short_and_closed(self, cut: int) -> None:
        """A frame cut at any byte and then the end of the stream is a fault; the whole frame is an answer."""
        stream = result(b"\xa1a")
        session = running()
        session.feed(stream[:cut])
        assert session.next() is None
        ended = session.eof()
        assert ended is not None
        assert (ended.code, ended.line) == ("violation.protocol", "the worker closed its channel inside a frame")
        session = running()
        session.feed(stream)
        assert session.next() == Result(value="a")
        assert session.eof() is None

    def test_closed_at_once(self) -> None:
        """A stream without a byte is silence: the process ended, it did not speak wrongly."""
        ended = running().eof()
        assert ended is not None
        assert ended.code == "crashed.silent"

    def test_one_byte_at_a_time(self) -> None:
        """A frame that drips in costs no more than its bytes; how long it may take is the deadline's matter."""
        session, stream = running(), result(msgpack.packb(["x" * 300] * 3))
        for at in range(len(stream) - 1):
            session.feed(stream[at : at + 1])
            assert session.next() is None
        session.feed(stream[-1:])
        assert session.next() == Result(value=["x" * 300] * 3)


PARTIAL, HOST_CALL = frame(msgpack.packb([18, 1])), frame(msgpack.packb([22, 1, "n", {}]))
RESULT, FAILURE = result(b"\x01"), frame(msgpack.packb([24, "exception", "E", "m"]))
AFTER = "violation.protocol: the worker sent something after its answer"


class TestAfterTheAnswer:
    """Attack: a thread, a child or an exit hook that writes after the answer, to change it or to reach the next call."""

    @pytest.mark.parametrize("first", [RESULT, FAILURE], ids=["result", "failure"])
    @pytest.mark.parametrize(
        "second",
        [RESULT, FAILURE, result(b"\x02"), PARTIAL, HOST_CALL, b"\0", b"\xff\xff\xff\xff"],
        ids=["result", "failure", "another result", "partial", "host call", "one byte", "a length"],
    )
    def test_anything(self, first: bytes, second: bytes) -> None:
        """The first answer is delivered and stays; whatever follows breaks the stream and is never decoded."""
        got, fault = answers(first + second)
        assert [type(message).__name__ for message in got] == ["Result" if first is RESULT else "Failure"]
        assert fault == AFTER

    def test_nothing(self) -> None:
        """An answer and the end of the stream is how a call ends well."""
        got, fault = answers(RESULT)
        assert (got, fault) == ([Result(value=1)], None)

    def test_later(self) -> None:
        """It does not matter how much later it comes."""
        session = running()
        session.feed(RESULT)
        assert session.next() == Result(value=1)
        assert session.next() is None
        session.feed(b"\0")
        with pytest.raises(RemoteFault) as caught:
            session.next()
        assert str(caught.value) == AFTER
        assert session.eof() is not None


class TestFloods:
    """Attack: more messages than anybody can want."""

    @pytest.mark.parametrize(
        "fields", [[18, 1], [19, 1, None, ""], [20, 1], [21, "info", "", {}]], ids=["partial", "progress", "event", "log"]
    )
    def test_of_events(self, fields: list[Any]) -> None:
        """The bound's number of events is delivered, the next one ends the call as a limit."""
        got, fault = answers(frame(msgpack.packb(fields)) * (BOUNDS.events + 1) + RESULT)
        assert (len(got), fault) == (BOUNDS.events, "limit_exceeded.events: the worker sent more events than its bound")
        got, fault = answers(frame(msgpack.packb(fields)) * BOUNDS.events + RESULT)
        assert (len(got), fault) == (BOUNDS.events + 1, None)

    def test_of_large_events(self) -> None:
        """Bytes of events have a bound of their own."""
        bounds = Bounds(frame_bytes=LONGEST, result_bytes=LONGEST, events=100, event_bytes=1000)
        large = frame(msgpack.packb([20, "x" * 300]))
        got, fault = answers(large * 4, bounds)
        assert ([type(message) for message in got], fault) == (
            [Event] * 3,
            "limit_exceeded.events: the worker sent more bytes of events than their bound",
        )

    def test_of_host_calls(self) -> None:
        """Host calls that nobody answered yet are remembered, so their number has a bound."""
        stream = b"".join(frame(msgpack.packb([22, number, "n", {}])) for number in range(BOUNDS.host_calls + 1))
        got, fault = answers(stream)
        assert ({type(message) for message in got}, len(got)) == ({HostCall}, BOUNDS.host_calls)
        assert fault == "limit_exceeded.events: the worker has more host calls waiting than its bound"

    def test_of_the_result(self) -> None:
        """A result beyond its bound is refused from its head; one of the same size below it is taken."""
        bounds = Bounds(frame_bytes=LONGEST, result_bytes=1000, events=1, event_bytes=1)
        assert refusal(result(msgpack.packb("x" * 998))[:6], bounds) == "limit_exceeded.result: the result is longer than its bound"
        assert answers(result(msgpack.packb("x" * 997)), bounds) == ([Result(value="x" * 997)], None)


class TestFaultLines:
    """Attack: text in a message that comes out in our log, our terminal or our error."""

    @pytest.mark.parametrize(
        "fields",
        [
            [21, "evil\n\x1b[31mlevel", "m", {}],
            [24, "evil\n\x1b[31mkind", "T", "m"],
            [19, "evil\n\x1b[31mdone", None, ""],
            [22, "evil\n\x1b[31mnumber", "n", {}],
        ],
    )
    def test_never_hold_what_was_sent(self, fields: list[Any]) -> None:
        """A fault names fields and types only."""
        fault = refusal(frame(msgpack.packb(fields)))
        assert "evil" not in fault
        assert fault.isprintable()
        assert fault.isascii()

    def test_a_log_record_is_only_data(self) -> None:
        """A record with a forged line in it arrives as it was sent; whoever prints it makes one line of it."""
        forged = "ok\nERROR engine: all is lost \x1b[2J"
        got, fault = answers(frame(msgpack.packb([21, "info", forged, {"{0.__class__}": "%n"}])))
        assert (got, fault) == ([Log(level="info", message=forged, data={"{0.__class__}": "%n"})], None)
        assert errors.one_line(forged) == "ok ERROR engine: all is lost"

    def test_a_fault_keeps_no_frame_alive(self) -> None:
        """The exception that is kept does not hold on to a large frame by its context."""
        session = running()
        session.feed(frame(msgpack.packb([18, [1, b"x" * 1000]])))
        with pytest.raises(RemoteFault) as caught:
            session.next()
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)
