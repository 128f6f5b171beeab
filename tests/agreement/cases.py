"""The calls that every kind of worker and plain Python must answer alike, and the ones that cannot, each with its reason."""

import dataclasses
from typing import Any

Case = tuple[str, dict[str, Any]]

TEXT = "Straße, naïve Ⅷ e\u0301 ﬁn — 東京 😀 İ"
CASES: tuple[Case, ...] = (
    ("words", {"text": "The end, the END; and the rest of the straße STRASSE"}),
    ("replaced", {"text": "2024-01-31 and 1999-12-24", "pattern": r"(\d+)-(\d+)-(\d+)", "by": r"\3.\2.\1"}),
    ("groups", {"text": r"a = 1; b=two words ;c=\;; d ="}),
    ("parted", {"text": " a, b;; c\td\n"}),
    ("normal", {"text": TEXT}),
    ("character", {"text": TEXT}),
    ("cases", {"text": TEXT}),
    ("encoded", {"text": TEXT}),
    ("decoded", {"digits": "6162ff80", "encoding": "utf-8", "errors": "replace"}),
    ("decoded", {"digits": "6162ff80", "encoding": "utf-8", "errors": "strict"}),
    ("decoded", {"digits": "6162ff80", "encoding": "utf-8", "errors": "surrogateescape"}),
    ("decoded", {"digits": "82a082a2", "encoding": "shift_jis", "errors": "strict"}),
    ("decoded", {"digits": "00", "encoding": "no such", "errors": "strict"}),
    ("domain", {"name": "bücher.example"}),
    ("wrapped", {"text": "    one two three four five six seven eight nine ten", "width": 14}),
    ("differences", {"before": ["a", "b", "c"], "after": ["a", "x", "c", "d"]}),
    ("alike", {"word": "appel", "among": ["ape", "apple", "peach", "puppy"]}),
    ("escaped", {"text": "<a href='x?y=1&z'>é &amp; $HOME</a>"}),
    ("address", {"text": "https://user@Example.com:8443/a/b;c?x=1&x=2&y=%C3%A9#f"}),
    ("based", {"text": TEXT}),
    ("formatted", {"name": "café", "number": 1234.5678}),
    ("long", {"length": 100_000}),
    ("money", {"amounts": ["0.1", "0.2", "1E+3", "2.675"]}),
    ("precise", {"digits": 60}),
    ("ratios", {"parts": ["1/3", "1/7", "0.125", "-2"]}),
    ("described", {"values": [1.0, 2.5, 2.5, 4.75, 9.125]}),
    ("described", {"values": [1.0]}),
    ("trend", {"x": [1.0, 2.0, 3.0, 4.0], "y": [2.1, 3.9, 6.2, 7.8]}),
    ("functions", {"x": 8.5}),
    ("turned", {"real": 3.0, "imaginary": -4.0}),
    ("power", {"base": 7, "exponent": 5000}),
    ("factorial", {"number": 300}),
    ("primes", {"below": 2000}),
    ("modular", {"number": 12345, "modulus": 1_000_003}),
    ("modular", {"number": 6, "modulus": 9}),
    ("floats", {"texts": ["0.1", "1e-320", "-0", "123456789012345678", "0.30000000000000004"]}),
    ("drawn", {"seed": 7, "count": 8}),
    ("later", {"day": "2024-02-29", "days": 366}),
    ("moment", {"text": "2024-03-10T23:59:59+0100"}),
    ("zoned", {"text": "2024-03-31T00:59:59+00:00", "zones": ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]}),
    ("zoned", {"text": "2024-10-27T01:30:00+00:00", "zones": ["Europe/Berlin"]}),
    ("zoned", {"text": "2024-10-27T01:30:00+00:00", "zones": ["No/Where"]}),
    ("month", {"year": 2024, "number": 2}),
    ("smallest", {"values": [5, 3, 9, 1, 7, 3], "count": 3}),
    ("spelled", {"value": {"b": [1, 2.5, None, True], "a": TEXT, "c": {}}}),
    ("parsed", {"text": '{"a": 1.10, "a": [1e3, "\\u00e9"], "b": -0.0}'}),
    ("rows", {"text": 'name,note\n"a, b","say ""hi"""\nc,\n'}),
    ("table", {"lines": [["a", 'b"c'], ["d,e", "f\ng"]]}),
    ("bundled", {}),
    ("settings", {"text": "[DEFAULT]\nhome=/x\n[a]\npath=%(home)s/y\n[b]\nflag: yes\n"}),
    ("options", {"text": 'title = "é"\nwhen = 1979-05-27T07:32:00Z\nmany = [1, 2]\nratio = 6.5\n'}),
    ("elements", {"text": "<list><item key='1'>a&amp;b</item><item>ü</item></list>"}),
    ("queried", {"values": [["a", 1.5], ["b", 2.0], ["a", 3.0], ["c", -1.0]]}),
    ("packed", {"text": "banana " * 500}),
    ("digests", {"text": TEXT}),
    ("stretched", {"word": "correct horse"}),
    ("archived", {"files": {"a.txt": "hello " * 50, "d/ü.txt": TEXT}}),
    ("laid_out", {"number": 4_000_000_000, "ratio": 0.1}),
    ("names", {"text": "https://example.org/"}),
    ("networks", {"texts": ["10.1.2.3/8", "2001:db8::/112"]}),
    ("networks", {"texts": ["300.0.0.0/8"]}),
    ("stones", {"given": [{"weight": 2.5}, {"weight": 1.0, "colour": "blue", "marks": ["x"]}]}),
    ("kept", {"values": [3, 1, 3, 2, 2, 3]}),
    ("counted", {"upto": 20}),
    ("stepped", {"values": [1, 2, 3]}),
    ("counted_slowly", {"upto": 5}),
    ("gathered", {"delays": [0.03, 0.001, 0.015]}),
    ("given_up", {}),
    ("queued", {"count": 10}),
    ("group_fails", {}),
    ("in_context", {"value": 3}),
    ("shows", {"text": "x"}),
    ("prints", {"lines": 5}),
    ("prints_much", {"size": 100_000}),
    ("reads", {}),
    ("records", {"word": "thing"}),
    ("composed", {"numbers": [1, 2, 3]}),
    ("matched", {"value": {"kind": "point", "at": [1, 2], "more": 0}}),
    ("matched", {"value": [1, 2, 3]}),
    ("raises", {"text": "ü"}),
    ("missing", {"key": "b"}),
    ("divided", {"by": 0}),
    ("unparsed", {"text": '{"a": nul}'}),
    ("undecoded", {}),
    ("unencoded", {}),
    ("left", {"code": "enough"}),
    ("raises_several", {"many": 2}),
    ("endless", {}),
    ("no_data", {}),
    ("not_finite", {}),
    ("too_large", {}),
    ("inexact", {}),
    ("asserted", {"value": 3}),
    ("half_way", {}),
    ("in_task", {}),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A tool of ``differing.py`` that cannot answer alike: what it says in the WebAssembly guest, and why."""

    tool: str
    guest: Any
    reason: str


DIFFERENCES: tuple[Difference, ...] = (
    Difference(tool="version", guest="3.14", reason="the guest brings its own interpreter, whatever the host's is"),
    Difference(
        tool="words_of_errors", guest=["PatternError", "expected a nonnegative input, got -1.0"], reason="a newer interpreter says it anew"
    ),
    Difference(tool="platform", guest="wasi", reason="it is another platform"),
    Difference(tool="width", guest=[2147483647, 4, 4], reason="WebAssembly has 32-bit pointers, and a C long of 32 bits"),
    Difference(
        tool="absent", guest="FileNotFoundError: [Errno 44] No such file or directory: '/absent'", reason="WASI numbers errors anew"
    ),
    Difference(tool="threads", guest="RuntimeError: can't start new thread", reason="there are no threads"),
    Difference(tool="programs", guest="OSError: [Errno 58] wasi does not support processes.", reason="there are no processes"),
    Difference(tool="sockets", guest="PermissionError: [Errno 2] Permission denied", reason="there is no network, of any kind"),
    Difference(
        tool="modules",
        guest=["_bz2", "_ctypes", "_hashlib", "_lzma", "_ssl", "fcntl", "mmap", "pwd", "resource"],
        reason="they need the host's C libraries",
    ),
    Difference(tool="stretched_by_openssl", guest="AttributeError", reason="pbkdf2_hmac and scrypt are OpenSSL's"),
    Difference(tool="process", guest=42, reason="there are no processes, and so no numbers of them"),
    Difference(tool="scratch", guest="FileNotFoundError", reason="there is no scratch folder: nothing can be written"),
    Difference(tool="local_time", guest=["UTC", 0], reason="the C library has no time zones; zoneinfo does"),
)
