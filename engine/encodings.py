"""The spellings in which a secret value is looked for in what leaves a call.

Its job: from one value all byte strings that a tool, a library or a log would turn it into without meaning harm, and the usual ways of
meaning it.
Not its job: looking (``redact.py``), which values there are (``egress/vault.py``), what is no value but looks like one
(``policy/shapes.py``).
Laws:
1. Each spelling of ``redact.py``'s table is among the forms (tests/unit/test_redact_encodings.py).
2. No form is shorter than 8 bytes, so that none is found in ordinary data by chance (tests/unit/test_redact_encodings.py).
3. The longest form of any value is ``LONGEST_FORM`` bytes or less, however long the value is (tests/unit/test_redact_encodings.py).
"""

import base64
import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from urllib.parse import quote

SHORTEST_FORM = 8  # bytes; a shorter one stands in ordinary data by chance
PIECE = 1024  # characters; of a longer value its pieces are looked for, each by itself
LONGEST_FORM = 16 * PIECE  # a character outside the BMP, as two \uXXXX whose backslashes are escaped again, is 14 bytes
_CASE_FROM = 12  # characters; the upper and lower case of a shorter value may be an ordinary word
_WHOLLY_TO = 256  # characters; a spelling that escapes every character is six times the value
_LINE_FROM = 32  # characters; a line of a key file is 64 or more, its head and foot begin with dashes
# what is left as it is by: RFC 3986, Python's quote, forms, encodeURIComponent, encodeURI
_UNESCAPED = ("", "/", "*", "!'()*", ";,/?:@&=+$!*'()#")
_HEX_ESCAPE = re.compile(r"%[0-9A-F]{2}")
_UNICODE_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")
_APOSTROPHES = ("&#x27;", "&#39;", "&apos;")


def forms(value: str) -> frozenset[bytes]:
    """All byte strings that stand for this value, those too short to be looked for left out."""
    found: set[bytes] = set()
    for piece in _pieces(value):
        found.update(_plain(piece))
        found.update(text.encode("utf-8", "surrogatepass") for text in _escaped(piece))
        for data in {piece.encode("utf-8", "surrogatepass"), unicodedata.normalize("NFC", piece).encode("utf-8", "surrogatepass")}:
            found.update(_recoded(data))
    for line in _lines(value):
        found.update(text.encode("utf-8", "surrogatepass") for text in (line, *_json(line)))
    return frozenset(form for form in found if len(form) >= SHORTEST_FORM)


def _pieces(value: str) -> list[str]:
    if len(value) <= PIECE:
        return [value]
    # the last piece overlaps the one before it, so that no short end of the value stays readable
    return [value[at : at + PIECE] for at in range(0, len(value) - PIECE + 1, PIECE)] + [value[-PIECE:]]


def _lines(value: str) -> Iterator[str]:
    """The long lines of a value of many: a key that was indented or wrapped anew is still found by them."""
    if "\n" in value:
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE_FROM and not line.startswith("-----"))


def _plain(value: str) -> Iterator[bytes]:
    texts = {value, value.replace("\n", "\r\n"), unicodedata.normalize("NFC", value), unicodedata.normalize("NFD", value)}
    if len(value) >= _CASE_FROM:
        texts |= {value.upper(), value.lower(), value.swapcase()}
    yield from (text.encode("utf-8", "surrogatepass") for text in texts)
    # without its last byte this is a part of both byte orders
    yield value.encode("utf-16-le", "surrogatepass")[:-1]


def _escaped(value: str) -> Iterator[str]:
    yield from _json(value)
    yield from _percent(value)
    for quoted in (html.escape(value, quote=True), html.escape(value, quote=False)):
        for apostrophe in _APOSTROPHES:
            yield quoted.replace("&#x27;", apostrophe)
    parts = value.split("'")  # without apostrophes Python puts a text between them, and quotation marks stay as they are
    for show in (repr, ascii, lambda part: repr(part.encode("utf-8", "surrogatepass"))[1:]):
        shown = "'".join(show(part)[1:-1] for part in parts)
        yield from (shown, shown.replace("'", "\\'"), shown.replace('"', '\\"'))


def _json(value: str) -> Iterator[str]:
    once = set()
    for only_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=only_ascii)[1:-1]
        safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("'", "\\u0027")
        for spelt in {text, text.replace("/", "\\/"), text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"), safe}:
            once |= {spelt, _UNICODE_ESCAPE.sub(lambda found: "\\u" + found[0][2:].upper(), spelt)}
    if len(value) <= _WHOLLY_TO:
        units = value.encode("utf-16-be", "surrogatepass")
        once |= {"".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))}
    for text in once:
        yield text
        yield text.replace("\\", "\\\\").replace('"', '\\"')  # text that holds JSON, in JSON


def _percent(value: str) -> Iterator[str]:
    for unescaped in _UNESCAPED:
        text = quote(value, safe=unescaped, errors="surrogatepass")
        for spelt in {text, text.replace("~", "%7E")}:
            for blanks in {spelt, spelt.replace("%20", "+")}:
                yield blanks
                yield _HEX_ESCAPE.sub(lambda found: found[0].lower(), blanks)
    if len(value) <= _WHOLLY_TO:
        data = value.encode("utf-8", "surrogatepass")
        for form in ("%{:02X}", "%{:02x}", "\\x{:02x}"):
            yield "".join(form.format(byte) for byte in data)


def _recoded(data: bytes) -> Iterator[bytes]:
    yield data.hex().encode()
    yield data.hex().upper().encode()
    for before in range(3):
        yield from _inside(data, before, 6, base64.b64encode)
        yield from _inside(data, before, 6, base64.urlsafe_b64encode)
    for before in range(5):
        yield from _inside(data, before, 5, base64.b32encode)


def _inside(data: bytes, before: int, bits: int, encode: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """What stands for the data alone when so many bytes come before it: characters shared with a neighbour are cut."""
    first = -(-8 * before // bits)
    last = 8 * (before + len(data)) // bits
    yield encode(bytes(before) + data)[first:last]
