"""Staged files read as files, by every way there is, and nothing else does."""

import pytest

from engine.wire import messages
from tests import wasm_guest

FILES = {
    "tools.py": """
import os, io, sys, glob, pathlib, shutil, zipfile
from typing import Any
from engine import tool
HERE = pathlib.Path(__file__)

@tool(effect="read", description="One of a test.")
def told(text: str) -> Any:
    try:
        return eval(text)
    except Exception as error:
        number = getattr(error, "errno", None)
        return [type(error).__name__, os.strerror(number) if number else str(error)]
""",
    "w.csv": "a,b\nc,\xc3\xa9\n",
    "pkg/__init__.py": "",
    "pkg/data.txt": "hello",
    "pkg/sub/deep.bin": "\x00\xff",
    "z.zip": "PK\x05\x06" + "\x00" * 18,
}
READ_ONLY = ["OSError", "Read-only file system"]
ABSENT = ["FileNotFoundError", "No such file or directory"]


def told(guest: wasm_guest.Guest, text: str) -> object:
    """What an expression is in the guest."""
    last = guest.call(FILES, "told", {"text": text}).last
    assert isinstance(last, messages.Result), last
    return last.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("open('/bundle/w.csv', encoding='utf-8').read()", "a,b\nc,é\n"),
        ("open('bundle/w.csv', encoding='utf-8').readlines()", ["a,b\n", "c,é\n"]),
        ("HERE.with_name('w.csv').read_text('utf-8')", "a,b\nc,é\n"),
        ("HERE.with_name('w.csv').read_bytes()[:3].decode()", "a,b"),
        ("io.open(b'/bundle/pkg/sub/deep.bin', 'rb').read().hex()", "00ff"),
        ("open('/bundle/w.csv', 'rb', 0).readinto(bytearray(5))", 5),
        ("io.FileIO('/bundle/pkg/data.txt').read().decode()", "hello"),
        ("[f := open('/bundle/w.csv', 'rb'), f.seek(-3, 2), f.read().hex(), f.tell()][1:]", [6, "c3a90a", 9]),
        ("[open('/bundle/w.csv').mode, open('/bundle/w.csv').name]", ["r", "/bundle/w.csv"]),
        ("sorted(os.listdir('/bundle'))", ["pkg", "tools.py", "w.csv", "z.zip"]),
        ("sorted((e.name, e.is_dir(), e.path) for e in os.scandir('/bundle/pkg'))[1]", ["data.txt", False, "/bundle/pkg/data.txt"]),
        (
            "[list(row) for row in os.walk('/bundle/pkg')][1]",
            ["/bundle/pkg/sub", [], ["deep.bin"]],
        ),
        ("sorted(glob.glob('/bundle/**/*.*', recursive=True))[:2]", ["/bundle/pkg/__init__.py", "/bundle/pkg/data.txt"]),
        ("sorted(str(p) for p in HERE.parent.rglob('*.bin'))", ["/bundle/pkg/sub/deep.bin"]),
        ("[os.path.exists('/bundle/w.csv'), os.path.isdir('/bundle/pkg'), os.path.getsize('/bundle/w.csv')]", [True, True, 9]),
        (
            "[os.path.realpath('/bundle/pkg/../w.csv'), *(os.access('/bundle/w.csv', how) for how in (4, 2, 1))]",
            ["/bundle/w.csv", True, False, False],
        ),
        ("__import__('pkgutil').get_data('pkg', 'data.txt').decode()", "hello"),
        ("__import__('importlib.resources').resources.files('pkg').joinpath('data.txt').read_text()", "hello"),
        ("__import__('linecache').getline('/bundle/w.csv', 1)", "a,b\n"),
        ("zipfile.ZipFile('/bundle/z.zip').namelist()", []),
    ],
)
def test_reading(guest: wasm_guest.Guest, text: str, value: object) -> None:
    """Each way gives what a file system would."""
    assert told(guest, text) == value


@pytest.mark.parametrize(
    "text",
    [
        "open('/bundle/new', 'w')",
        "open('/bundle/w.csv', 'a')",
        "open('/bundle/w.csv', 'r+b')",
        "open('/bundle/new', 'x')",
        "HERE.with_name('new').write_text('')",
        "HERE.with_name('new').mkdir()",
        "os.remove('/bundle/w.csv')",
        "os.rename('/bundle/w.csv', '/new')",
        "os.rename('/new', '/bundle/new')",
        "os.rmdir('/bundle/pkg')",
        "os.utime('/bundle/w.csv')",
        "os.symlink('/x', '/bundle/new')",
        "os.open('/bundle/w.csv', os.O_RDWR)",
        "os.open('/bundle/w.csv', os.O_WRONLY)",
        "io.FileIO('/bundle/w.csv', 'r+')",
        "open('new', 'w')",
        "open('/tmp/new', 'xb')",
        "io.FileIO('/new', 'a')",
        "os.open('/new', os.O_WRONLY | os.O_CREAT)",
        "os.mkdir('/new')",
        "pathlib.Path('/new').write_text('')",
        "shutil.copy('/bundle/w.csv', '/bundle/new')",
    ],
)
def test_writing(guest: wasm_guest.Guest, text: str) -> None:
    """Refused, as a read-only file system refuses."""
    assert told(guest, text) == READ_ONLY


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("open('/bundle/none')", ABSENT),
        ("open('/etc/passwd')", ABSENT),
        ("open('/bundle/../etc/passwd')", ABSENT),
        ("open('/guest/guest/main.py')", ABSENT),
        ("os.listdir('/')", ABSENT),
        ("os.stat('/bundlex')", ABSENT),
        ("open('/new', 'r+')", ABSENT),
        ("io.FileIO('/none')", ABSENT),
        ("os.open('/none', os.O_RDONLY)", ABSENT),
        ("os.open('/bundle/none', os.O_RDONLY)", ABSENT),
        ("os.open('/bundle/w.csv', os.O_RDONLY)", ["OSError", "Not supported"]),
        ("os.chdir('/bundle')", ABSENT),
        ("open('/new', 'wq')", ["ValueError", "invalid mode: 'wq'"]),
        ("open('/bundle')", ["IsADirectoryError", "Is a directory"]),
        ("open('/bundle/w.csv/x')", ["NotADirectoryError", "Not a directory"]),
        ("os.listdir('/bundle/w.csv')", ["NotADirectoryError", "Not a directory"]),
        ("open('/bundle/w.csv', 'q')", ["ValueError", "invalid mode: 'q'"]),
        ("open('/bundle/w.csv', 'rb', encoding='x')", ["ValueError", "binary mode doesn't take an encoding argument"]),
        ("open('/bundle/w.csv\\0')", ["ValueError", "embedded null byte"]),
    ],
)
def test_what_is_not_there(guest: wasm_guest.Guest, text: str, value: object) -> None:
    """There is no file system but what was staged."""
    assert told(guest, text) == value


@pytest.mark.parametrize(("zone", "name"), [("UTC", "UTC"), ("Europe/Berlin", "CEST")])
def test_time_zones(guest: wasm_guest.Guest, zone: str, name: str) -> None:
    """They are found by their names."""
    moment = f"__import__('datetime').datetime(2024, 7, 1, tzinfo=__import__('zoneinfo').ZoneInfo({zone!r}))"
    assert told(guest, f"{moment}.tzname()") == name
