"""Tools over formats and structures."""

import array
import bisect
import collections
import configparser
import csv
import dataclasses
import enum
import gzip
import hashlib
import hmac
import io
import ipaddress
import json
import pickle
import sqlite3
import struct
import tomllib
import uuid
import xml.etree.ElementTree as tree
import zipfile
import zlib
from pathlib import Path
from typing import Any

from engine import tool


@tool(effect="read")
def spelled(value: Any) -> list[str]:
    """A value as JSON, in three ways."""
    return [json.dumps(value), json.dumps(value, sort_keys=True, indent=1), json.dumps(value, ensure_ascii=False, separators=(",", ":"))]


@tool(effect="read")
def parsed(text: str) -> Any:
    """JSON with exact numbers kept as texts."""
    return json.loads(text, parse_float=str, object_pairs_hook=lambda pairs: [[key, value] for key, value in pairs])


@tool(effect="read")
def rows(text: str) -> list[dict[str, str]]:
    """A table, by its first row."""
    return [dict(row) for row in csv.DictReader(io.StringIO(text))]


@tool(effect="read")
def table(lines: list[list[str]]) -> str:
    """Rows as CSV."""
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_MINIMAL).writerows(lines)
    return out.getvalue()


@tool(effect="read", data=["corpus/rivers.csv"])
def bundled() -> list[Any]:
    """A data file that lies beside this one."""
    place = Path(__file__).with_name("rivers.csv")
    with place.open(newline="", encoding="utf-8") as file:
        longest = max(csv.DictReader(file), key=lambda row: int(row["km"]))
    return [longest, place.stat().st_size, place.exists(), place.with_name("none").exists(), place.name, place.read_bytes()[:4].hex()]


@tool(effect="read")
def settings(text: str) -> dict[str, dict[str, str]]:
    """An INI file, its defaults filled in."""
    reader = configparser.ConfigParser()
    reader.read_string(text)
    return {name: dict(reader[name]) for name in reader.sections()}


@tool(effect="read")
def options(text: str) -> dict[str, Any]:
    """A TOML file, its dates as texts."""
    read = tomllib.loads(text)
    return {key: value if isinstance(value, str | int | float | list) else str(value) for key, value in read.items()}


@tool(effect="read")
def elements(text: str) -> dict[str, Any]:
    """What an XML text holds."""
    root = tree.fromstring(text)  # noqa: S314 - a tool reads what it is given; the jail is the wall
    tree.indent(root)
    return {
        "tag": root.tag,
        "items": [[one.tag, one.attrib, one.text] for one in root.iter("item")],
        "text": tree.tostring(root, "unicode"),
    }


@tool(effect="read")
def queried(values: list[list[Any]]) -> list[Any]:
    """Sums by key, from a database in memory."""
    with sqlite3.connect(":memory:") as database:
        database.execute("create table t (key text, value real)")
        database.executemany("insert into t values (?, ?)", values)
        found = database.execute("select key, count(*), sum(value), group_concat(value) from t group by key order by 2 desc, 1").fetchall()
        windows = database.execute("select key, row_number() over (order by value) from t order by value").fetchall()
    return [
        [list(row) for row in found],
        [list(row) for row in windows],
        database.execute("select json_extract('[1,2]', '$[1]')").fetchone()[0],
    ]


@tool(effect="read")
def packed(text: str) -> dict[str, Any]:
    """A text, compressed and got back."""
    data = text.encode()
    raw = zlib.compress(data, 6)
    same = gzip.decompress(gzip.compress(data, mtime=0)) == zlib.decompress(raw) == data
    return {"same": same, "smaller": len(raw) < len(data), "crc": zlib.crc32(data), "adler": zlib.adler32(data)}


@tool(effect="read")
def digests(text: str) -> dict[str, str]:
    """Its digests."""
    data = text.encode()
    names = ("md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b", "blake2s")
    found = {name: hashlib.new(name, data, usedforsecurity=False).hexdigest() for name in names}
    return {**found, "hmac": hmac.new(b"key", data, "sha256").hexdigest(), "shake": hashlib.shake_128(data).hexdigest(9)}


@tool(effect="read")
def stretched(word: str) -> str:
    """A key made of a word."""
    key = b"salt"
    for _ in range(200):
        key = hmac.digest(word.encode(), key, "sha256")
    return key.hex()


@tool(effect="read")
def archived(files: dict[str, str]) -> list[list[Any]]:
    """The files, put into an archive in memory and listed."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    with zipfile.ZipFile(made) as archive:
        return [[info.filename, info.file_size, info.CRC, archive.read(info).decode()] for info in archive.infolist()]


@tool(effect="read")
def laid_out(number: int, ratio: float) -> list[str]:
    """Numbers as bytes."""
    return [
        struct.pack("<IHd", number, number % 65536, ratio).hex(),
        struct.pack(">q?4s", number, True, b"ab").hex(),
        array.array("d", [ratio]).tobytes().hex(),
    ]


@tool(effect="read")
def names(text: str) -> list[str]:
    """Identifiers that depend on the text alone."""
    return [str(uuid.uuid5(uuid.NAMESPACE_URL, text)), str(uuid.uuid3(uuid.NAMESPACE_DNS, text)), uuid.UUID(int=len(text)).hex]


@tool(effect="read")
def networks(texts: list[str]) -> list[dict[str, Any]]:
    """What they are of networks."""
    found = [ipaddress.ip_network(text, strict=False) for text in texts]
    return [{"net": str(one), "many": one.num_addresses, "private": one.is_private, "last": str(one[-1])} for one in found]


class Colour(enum.Enum):
    """Three of them."""

    RED = "red"
    GREEN = "green"
    BLUE = "blue"


@dataclasses.dataclass(order=True)
class Stone:
    """A thing with defaults and an order."""

    weight: float
    colour: Colour = dataclasses.field(default=Colour.RED, compare=False)
    marks: list[str] = dataclasses.field(default_factory=list, compare=False)


@tool(effect="read")
def stones(given: list[Stone]) -> dict[str, Any]:
    """The stones, sorted, the heaviest changed."""
    found = sorted(given)
    heaviest = dataclasses.replace(found[-1], marks=["heavy"])
    return {"order": found, "heaviest": heaviest, "fields": [field.name for field in dataclasses.fields(Stone)], "text": repr(found[0])}


@tool(effect="read")
def kept(values: list[int]) -> Any:
    """Values through pickle and containers of collections."""
    counted = collections.Counter(values)
    deque = collections.deque(pickle.loads(pickle.dumps(values)), maxlen=3)
    chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    ordered: list[int] = []
    for value in values:
        bisect.insort(ordered, value)
    return {"most": counted.most_common(2), "last": list(deque), "chain": dict(chain), "ordered": ordered}
