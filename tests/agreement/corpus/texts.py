"""Tools over text."""

import base64
import difflib
import html
import re
import shlex
import string
import textwrap
import unicodedata
import urllib.parse
from typing import Any

from engine import tool


@tool(effect="read")
def words(text: str) -> dict[str, int]:
    """How often each word is in the text."""
    found: dict[str, int] = {}
    for word in re.findall(r"\w+", text.casefold()):
        found[word] = found.get(word, 0) + 1
    return dict(sorted(found.items()))


@tool(effect="read")
def replaced(text: str, pattern: str, by: str) -> str:
    """The text with every match of the pattern replaced."""
    return re.sub(pattern, by, text)


@tool(effect="read")
def groups(text: str) -> list[dict[str, str | None]]:
    """Named groups, look-behind and a verbose pattern."""
    pattern = re.compile(r"(?x) (?P<key> \w+ ) \s*=\s* (?P<value> (?<!\\) [^;]* )? ;?")
    return [match.groupdict() for match in pattern.finditer(text)]


@tool(effect="read")
def parted(text: str) -> list[str]:
    """The text split at runs of separators."""
    return re.split(r"[\s,;]+", text.strip())


@tool(effect="read")
def normal(text: str) -> dict[str, str]:
    """The four normal forms."""
    return {form: unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}


@tool(effect="read")
def character(text: str) -> list[dict[str, Any]]:
    """What Unicode says of each character."""
    return [
        {"name": unicodedata.name(one, "?"), "category": unicodedata.category(one), "width": unicodedata.east_asian_width(one)}
        for one in text
    ]


@tool(effect="read")
def cases(text: str) -> list[str]:
    """The text in its cases."""
    return [text.upper(), text.lower(), text.title(), text.casefold(), text.swapcase(), text.capitalize()]


@tool(effect="read")
def encoded(text: str) -> dict[str, str]:
    """The text's bytes in a few encodings, in hexadecimal digits."""
    return {name: text.encode(name, "backslashreplace").hex() for name in ("utf-8", "utf-16-le", "latin-1", "cp1252", "ascii", "utf-8-sig")}


@tool(effect="read")
def decoded(digits: str, encoding: str, errors: str) -> str:
    """The text of bytes that may not be of the encoding."""
    return bytes.fromhex(digits).decode(encoding, errors)


@tool(effect="read")
def domain(name: str) -> str:
    """A name as it stands in the name system."""
    return name.encode("idna").decode("ascii")


@tool(effect="read")
def wrapped(text: str, width: int) -> list[str]:
    """The text in lines."""
    return textwrap.wrap(textwrap.dedent(text), width)


@tool(effect="read")
def differences(before: list[str], after: list[str]) -> list[str]:
    """A unified diff."""
    return list(difflib.unified_diff(before, after, "before", "after", lineterm=""))


@tool(effect="read")
def alike(word: str, among: list[str]) -> list[str]:
    """The words that are most alike."""
    return difflib.get_close_matches(word, among, n=2)


@tool(effect="read")
def escaped(text: str) -> list[str]:
    """The text made safe in several ways."""
    return [html.escape(text), html.unescape(text), urllib.parse.quote(text), shlex.quote(text), re.escape(text), ascii(text), repr(text)]


@tool(effect="read")
def address(text: str) -> dict[str, Any]:
    """The parts of a URL."""
    parts = urllib.parse.urlsplit(text)
    return {
        "scheme": parts.scheme,
        "host": parts.hostname,
        "port": parts.port,
        "path": parts.path,
        "query": urllib.parse.parse_qs(parts.query),
    }


@tool(effect="read")
def based(text: str) -> list[str]:
    """The text in four alphabets."""
    data = text.encode()
    return [made(data).decode() for made in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode, base64.b85encode)]


@tool(effect="read")
def formatted(name: str, number: float) -> list[str]:
    """Four ways to put values into a text."""
    template = string.Template("$name: $number")
    return [
        f"{name!r:>12}|{number:+.3e}",
        format(name, "^9") + format(number, "08.2f"),
        template.substitute(name=name, number=number),
        f"{number:,.2f} {int(number):#x} {int(number):_b}",
    ]


@tool(effect="read")
def long(length: int) -> str:
    """A long text."""
    return "abcdefghijklmnopqrstuvwxyzäöü€😀"[:31] * (length // 31)
