"""What a hostile worker can put into a frame: each shape is refused for its own reason, and its harmless twin is taken."""

import resource
import struct
import subprocess
import sys

import msgpack
import pytest

from engine.wire.framing import frame
from engine.wire.messages import Partial, Result
from engine.wire.session import Bounds
from tests.security.hostile_stream import LONGEST, answers, cost, refusal, result, value


class TestLengths:
    """Attack: a length that makes the reader set aside, or await, more than it should."""

    @pytest.mark.parametrize("length", [0, 1])
    def test_too_short(self, length: int) -> None:
        """An empty frame is a fault, not an empty message."""
        stream = length.to_bytes(4, "big") + b"\x90" * length
        assert refusal(stream) == "violation.protocol: the worker sent a frame too short for any message"

    @pytest.mark.parametrize("length", [LONGEST + 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1])
    def test_too_long(self, length: int) -> None:
        """Refused from four bytes, with nothing set aside."""
        fault, taken = cost(length.to_bytes(4, "big"))
        assert fault == "violation.protocol: the worker sent a frame longer than its bound"
        assert taken < 16 << 10

    @pytest.mark.parametrize("length", [LONGEST - 1, LONGEST])
    def test_the_longest_is_taken(self, length: int) -> None:
        """One byte below the bound, and at it: taken whole, nothing cut off."""
        text = "x" * (length - 7)
        stream = result(b"\xdb" + struct.pack(">I", len(text)) + text.encode())
        assert len(stream) == 4 + length
        assert value(stream) == text

    def test_a_length_is_not_signed(self) -> None:
        """Minus one is four gigabytes and so too long, not a step back."""
        assert refusal(struct.pack(">i", -1)) == "violation.protocol: the worker sent a frame longer than its bound"


class TestPromises:
    """Attack: a head that promises more than the frame holds, so that the decoder sets it aside."""

    @pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"], ids=["array32", "map32", "str32", "bin32", "ext32"])
    @pytest.mark.parametrize("count", [1000, 1 << 20, 1 << 31, (1 << 32) - 2])
    def test_of_one_head(self, head: bytes, count: int) -> None:
        """Refused in little memory."""
        fault, taken = cost(result(head + struct.pack(">I", count) + b"\x01\xc0"))
        assert fault == "violation.protocol: the worker sent a frame that does not decode (OutOfData)"
        assert taken < 64 << 10

    @pytest.mark.parametrize(("tail", "reason"), [(b"", "that does not decode (ValueError)"), (b"\x01\xc0", "with bytes after its value")])
    def test_of_the_longest_extension(self, tail: bytes, reason: str) -> None:
        """Length and type together are one more than 32 bits can hold, so that a decoder may see none; it is refused all the same."""
        fault, taken = cost(result(b"\xc9\xff\xff\xff\xff" + tail))
        assert fault == f"violation.protocol: the worker sent a frame {reason}"
        assert taken < 64 << 10

    @pytest.mark.parametrize(("head", "short"), [(b"\xdd", b"\x90"), (b"\xdf", b"\x80")], ids=["array32", "map32"])
    def test_of_heads_in_heads(self, head: bytes, short: bytes) -> None:
        """A thousand promises of which each one alone could be kept do not add up to gigabytes."""
        size = 1 << 20
        stream = result((head + struct.pack(">I", size - 6000) + (b"\xa1a" if head == b"\xdf" else b"")) * 800 + short * (size - 5000))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fault, taken = cost(stream)
        assert fault == "violation.protocol: the worker sent a frame that does not decode (OutOfData)"
        assert taken < 5 * size
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10  # KiB

    def test_kept_promises_are_taken(self) -> None:
        """The longest form of a head is no fault when it is true."""
        assert value(result(b"\xdd\0\0\0\2\x01\x02")) == [1, 2]
        assert value(result(b"\xdf\0\0\0\1\xa1a\x02")) == {"a": 2}
        assert value(result(b"\xdb\0\0\0\2ab")) == "ab"

    @pytest.mark.parametrize("cheap", [b"\x80", b"\x90", b"\xc0"], ids=["maps", "arrays", "nothings"])
    def test_many_cheap_values(self, cheap: bytes) -> None:
        """A value of one byte that costs seventy in memory: counted before it is built."""
        bounds = Bounds(frame_bytes=LONGEST, result_bytes=LONGEST, events=1, event_bytes=1, nodes=10_000)
        stream = result(b"\xdd" + struct.pack(">I", 100_000) + cheap * 100_000)
        fault, taken = cost(stream, bounds)
        assert fault == "violation.protocol: the worker sent more values than its bound"
        assert taken < 4 * len(stream)
        stream = result(b"\xdd" + struct.pack(">I", 10_000 - 1) + cheap * 9_999)
        assert answers(stream, bounds) == ([Result(value=[msgpack.unpackb(cheap)] * 9_999)], None)

    @pytest.mark.parametrize("hiding", [b"\xc4\x05\xdb\0\x2d\xc6\xc0", b"\xc7\x05\xff\xdb\0\x2d\xc6\xc0"], ids=["bin", "timestamp"])
    def test_values_hidden_from_the_count(self, hiding: bytes) -> None:
        """Bytes inside a binary that look like the head of a long text do not hide what follows."""
        bounds = Bounds(frame_bytes=LONGEST, result_bytes=LONGEST, events=1, event_bytes=1, nodes=10_000)
        count = 0x2DC6C0 - 2  # the false head's text would end where the frame ends
        fault, taken = cost(result(b"\xdd" + struct.pack(">I", count + 1) + hiding + b"\x80" * count), bounds)
        assert taken < 4 * count
        assert fault == "violation.protocol: the worker sent a binary or extension type, which is not data"


class TestNesting:
    """Attack: data nested so deep that a reader runs out of stack."""

    @pytest.mark.parametrize("depth", [1100, 10_000, 1_000_000])
    @pytest.mark.parametrize("head", [b"\x91", b"\x81\xa1a", b"\xdd\0\0\0\1"], ids=["array", "map", "array32"])
    def test_beyond_the_decoder(self, head: bytes, depth: int) -> None:
        """Refused by the pass that builds nothing."""
        bounds = Bounds(frame_bytes=8 << 20, result_bytes=8 << 20, events=1, event_bytes=1)
        line = "violation.protocol: the worker sent a frame that does not decode (StackError)"
        assert refusal(result(head * depth + b"\xc0"), bounds) == line

    @pytest.mark.parametrize("head", [b"\x91", b"\x81\xa1a"], ids=["array", "map"])
    def test_beyond_the_bound(self, head: bytes) -> None:
        """One level more than the bound is refused, the bound itself is taken."""
        assert refusal(result(head * 129 + b"\xc0")) == "violation.protocol: the worker sent data nested deeper than its bound"
        assert value(result(head * 128 + b"\xc0")) is not None


class TestTypes:
    """Attack: a value that is no data, or that two readers take for two values."""

    @pytest.mark.parametrize(
        "inside",
        [
            pytest.param(b"\xd4\x01a", id="fixext1"),
            pytest.param(b"\xd8\x7f" + b"a" * 16, id="fixext16"),
            pytest.param(b"\xc7\x03\x05abc", id="ext8"),
            pytest.param(b"\xc8\0\x03\x05abc", id="ext16"),
            pytest.param(b"\xc9\0\0\0\x03\x05\x80\x80\x80", id="ext32"),
            pytest.param(b"\xd6\xff\0\0\0\1", id="timestamp of 4 bytes"),
            pytest.param(b"\xd7\xff" + b"\0" * 8, id="timestamp of 8 bytes"),
            pytest.param(b"\xc7\x0c\xff" + b"\0" * 12, id="timestamp of 12 bytes"),
            pytest.param(b"\xc7\x0c\xff" + b"\xff" * 12, id="timestamp out of range"),
            pytest.param(b"\xc4\x01a", id="bin8"),
            pytest.param(b"\xc5\0\x01a", id="bin16"),
            pytest.param(b"\xc6\0\0\0\x01a", id="bin32"),
        ],
    )
    def test_bytes_and_extensions(self, inside: bytes) -> None:
        """Nothing but text is text, and no extension revives anything, whatever its number; the same letter as text is taken."""
        line = "violation.protocol: the worker sent a frame that does not decode (ValueError)"
        assert refusal(result(inside)) == line
        assert refusal(result(b"\x81\xa1k" + inside)) == line
        assert refusal(result(b"\x81" + inside + b"\xc0")) == line
        assert value(result(b"\xa1a")) == "a"

    @pytest.mark.parametrize(
        ("inside", "what"),
        [
            (b"\xc7\0\x05", "an extension type, which is not data"),
            (b"\xc4\0", "data of type bytes"),
            (b"\x81\xc4\0\xc0", "a map with a key of type bytes"),
        ],
    )
    def test_empty_bytes_and_extensions(self, inside: bytes, what: str) -> None:
        """No length of a binary or an extension is short enough."""
        assert refusal(result(inside)) == f"violation.protocol: the worker sent {what}"

    @pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xc0\x80"])
    def test_no_utf8(self, text: bytes) -> None:
        """Bad UTF-8, lone surrogates and overlong forms are refused, as value and as key."""
        head = bytes((0xA0 | len(text),))
        line = "violation.protocol: the worker sent a frame that does not decode (UnicodeDecodeError)"
        assert refusal(result(head + text)) == line
        assert refusal(result(b"\x81" + head + text + b"\xc0")) == line

    def test_odd_text_is_data(self) -> None:
        """NUL, escapes and the last code point are text: kept exactly, and nobody's business here."""
        text = "\0\x1b[31m\r\n\u202e\U0010ffff__proto__ %n {0.__class__}"
        encoded = msgpack.packb(text)
        assert value(result(encoded)) == text
        assert value(result(b"\x81" + encoded + encoded)) == {text: text}

    @pytest.mark.parametrize("pair", [b"\xa1a\x01\xa1a\x02", b"\xa1a\x01\xd9\x01a\x01", b"\xa0\xc0\xa0\xc0"])
    def test_one_key_twice(self, pair: bytes) -> None:
        """Neither the first nor the last of two equal keys wins, even when their bytes or values do not differ."""
        assert refusal(result(b"\x82" + pair)) == "violation.protocol: the worker sent a map that holds one key twice"
        assert refusal(result(b"\x91\x81\xa1x\x82" + pair)) == "violation.protocol: the worker sent a map that holds one key twice"
        assert value(result(b"\x82\xa1a\x01\xa1A\x02")) == {"a": 1, "A": 2}

    @pytest.mark.parametrize("key", [b"\x01", b"\xc0", b"\xc3", b"\xcb" + b"\0" * 8, b"\x90", b"\x80", b"\xd6\xff\0\0\0\1"])
    def test_keys_that_are_no_text(self, key: bytes) -> None:
        """A key is a str: no number, no container, nothing that cannot be hashed."""
        line = "violation.protocol: the worker sent a frame that does not decode (ValueError)"
        assert refusal(result(b"\x81" + key + b"\xc0")) == line

    @pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), -float("nan")])
    def test_numbers_that_are_not_finite(self, number: float) -> None:
        """In either width: infinity slips past a maximum, nan past any comparison."""
        line = "violation.protocol: the worker sent a float that is not finite"
        assert refusal(result(b"\xcb" + struct.pack(">d", number))) == line
        assert refusal(result(b"\x91\xca" + struct.pack(">f", number))) == line

    def test_the_sign_of_zero_is_kept(self) -> None:
        """Minus zero is a finite number and stays what it is."""
        assert repr(value(result(b"\xcb\x80" + b"\0" * 7))) == "-0.0"

    @pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1])
    def test_ints_beyond_64_bits_with_sign(self, number: int) -> None:
        """What a reader with signed numbers would take for a negative one is refused; the largest it can hold is taken."""
        assert refusal(result(b"\xcf" + struct.pack(">Q", number))) == "violation.protocol: the worker sent an int outside 64 bits"
        assert value(result(b"\xcf" + struct.pack(">Q", (1 << 63) - 1))) == (1 << 63) - 1

    def test_the_unused_form(self) -> None:
        """The one byte that msgpack never uses is refused."""
        assert refusal(result(b"\xc1")) == "violation.protocol: the worker sent a frame that does not decode (FormatError)"

    def test_bytes_that_a_pickle_would_run(self) -> None:
        """A text that another reader would run is a text here."""
        text = "cos\nsystem\n(S'true'\ntR."
        assert value(result(msgpack.packb(text))) == text


@pytest.mark.slow
def test_keys_do_not_stay_in_memory_for_ever() -> None:
    """Attack: new keys in every message, which a decoder that interns them would keep until the engine ends."""
    program = (
        "import msgpack\n"
        "from engine.wire import messages\n"
        "def size(): return int(open('/proc/self/statm').read().split()[1]) * 4\n"
        "for round in range(40):\n"
        "    keys = {f'{round}-{n}-' + 'x' * 80: None for n in range(10_000)}\n"
        "    messages.decode(memoryview(msgpack.packb([18, keys])), messages.Partial)\n"
        "    if round == 10: before = size()\n"
        "print(size() - before)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert int(ran.stdout) < 8 << 10  # KiB; 29 rounds of interned keys would be 40 MiB


def test_a_partial_is_taken() -> None:
    """The control of all the above: a worker that keeps to the rules is heard."""
    data = {"a": [1, -0.5, "ß", None, True]}
    assert answers(frame(msgpack.packb([18, data]))) == ([Partial(value=data)], None)
