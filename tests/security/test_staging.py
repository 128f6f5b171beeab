"""Staging takes the entry's own regular source files and nothing else; each refusal stands beside its benign twin."""

import os
import socket
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.staging.sources import GraphBounds, Tree
from tests.staged import close, refusal, staged, write

CANARY = "canary = 'd41f'"
DATA = "from engine import tool\n@tool(data=[{!r}])\ndef f(): pass\n"
Files = Mapping[str, str | bytes]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the root, whose bytes must never be staged."""
    return write(tmp_path / "outside", {"secret.py": CANARY, "pkg/__init__.py": CANARY, "secret.txt": CANARY})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


LINKS: list[tuple[str, Files, str, str, str]] = [
    # what is tried, the tree, the link, its target, the benign file in its place
    ("module", {"tool.py": "import a"}, "a.py", "../outside/secret.py", "a.py"),
    ("absolute", {"tool.py": "import a"}, "a.py", "/etc/passwd", "a.py"),
    ("inside", {"tool.py": "import a", "b.py": ""}, "a.py", "b.py", "a.py"),
    ("loop", {"tool.py": "import a"}, "a.py", "a.py", "a.py"),
    ("dangling", {"tool.py": "import a"}, "a.py", "gone.py", "a.py"),
    ("package", {"tool.py": "import pkg"}, "pkg", "../outside/pkg", "pkg/__init__.py"),
    ("namespace", {"tool.py": "import pkg.x"}, "pkg", "../outside", "pkg/x.py"),
    ("submodule", {"tool.py": "from p import a", "p/__init__.py": ""}, "p/a.py", "../../outside/secret.py", "p/a.py"),
    ("entry", {}, "tool.py", "../outside/secret.py", "tool.py"),
    ("data", {"tool.py": DATA.format("*.txt")}, "a.txt", "../outside/secret.txt", "a.txt"),
    ("data by name", {"tool.py": DATA.format("a.txt")}, "a.txt", "../outside/secret.txt", "a.txt"),
    ("data folder", {"tool.py": DATA.format("d/*.txt")}, "d", "../outside", "d/a.txt"),
    ("data everywhere", {"tool.py": DATA.format("**")}, "d", "../outside", "d/a.txt"),
]


@pytest.mark.parametrize(("tree", "link", "target", "twin"), [row[1:] for row in LINKS], ids=[row[0] for row in LINKS])
def test_a_link_is_never_followed(root: Path, outside: Path, tree: Files, link: str, target: str, twin: str) -> None:
    """A link where a file or folder would be used refuses by name, wherever it leads; the file itself is staged."""
    write(root, tree)
    (root / link).symlink_to(target)
    code, lines = refusal(close, root / "tool.py")
    assert (code, lines[0].startswith(f"{link} is a link: ")) == ("refused.source_path", True)
    (root / link).unlink()
    assert twin in staged(root, {twin: ""}).files


def test_a_chain_of_links_is_never_followed(root: Path, outside: Path) -> None:
    """A folder link on the way to a package's submodule refuses like the link itself."""
    write(root, {"tool.py": "import p.q.secret", "p/__init__.py": ""})
    (root / "p" / "q").symlink_to("r")
    (root / "p" / "r").symlink_to("../../outside")
    assert refusal(close, root / "tool.py") == ("refused.source_path", ("p/q is a link: put the folder itself there",))


def test_spans_go_around_links_that_they_do_not_need(root: Path, outside: Path) -> None:
    """``**`` does not pass through a link to a folder: what lies behind it is not found, the rest is."""
    write(root, {"tool.py": DATA.format("**/*.txt"), "d/a.txt": ""})
    (root / "d" / "link").symlink_to("../../outside")
    assert sorted(staged(root, {}).files) == ["d/a.txt", "tool.py"]


def test_the_root_may_be_reached_through_a_link(root: Path, tmp_path: Path) -> None:
    """The folder the caller names is resolved once: the same source has the same graph by either way."""
    write(root, {"tool.py": "import a", "a.py": ""})
    (tmp_path / "way").symlink_to(root)
    assert close(tmp_path / "way" / "tool.py") == close(root / "tool.py")


def test_a_package_that_is_a_link_refuses(root: Path, outside: Path) -> None:
    """A package folder is read like any name: a link in its place refuses, the folder is staged."""
    (root / "pkg").symlink_to(outside / "pkg")
    assert refusal(close, root / "pkg") == ("refused.source_path", ("pkg is a link: name what it points to",))
    assert list(close(outside / "pkg").files) == ["pkg/__init__.py"]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "fifo": lambda path: os.mkfifo(path),
    "socket": make_socket,
    "device": lambda path: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5)),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(("source", "name"), [("import a", "a.py"), (DATA.format("*.txt"), "a.txt"), (DATA.format("**"), "a.txt")])
def test_a_special_file_is_never_opened(root: Path, kind: str, source: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, socket or endless device refuses at once, as a module and as data; a regular file in its place is staged."""
    monkeypatch.chdir(root)  # the address of a socket is short
    write(root, {"tool.py": source})
    try:
        SPECIAL[kind](Path(name))
    except PermissionError:
        pytest.skip("unproven: making devices needs root")
    assert refusal(close, root / "tool.py") == ("refused.source_path", (f"{name} is not a regular file",))
    (root / name).unlink()
    assert name in staged(root, {name: ""}).files


def test_an_entry_that_is_a_fifo_refuses(root: Path) -> None:
    """The tool file itself must be a regular file."""
    os.mkfifo(root / "tool.py")
    assert refusal(close, root / "tool.py") == ("refused.source_path", ("tool.py is not a regular file",))


def test_a_fifo_swapped_in_after_the_look_does_not_block(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the name looked like a file and opens as a FIFO, reading refuses and does not wait for a writer."""
    write(root, {"a.py": "x"})
    seen = os.stat(root / "a.py")
    (root / "a.py").unlink()
    os.mkfifo(root / "a.py")
    with Tree(root, GraphBounds()) as tree:
        monkeypatch.setattr(tree, "_lstat", lambda parent, path: seen)
        assert refusal(tree.read, "a.py", 10) == ("refused.source_path", ("a.py is not a regular file",))


@pytest.mark.parametrize("path", ["../outside/secret.py", "a/../../outside/secret.py", "/etc/passwd", "./a.py", "a//b.py"])
def test_no_path_leaves_the_root(root: Path, outside: Path, path: str) -> None:
    """Upward, absolute and empty steps refuse in the reader itself, whoever asks."""
    write(root, {"a/b.py": "fine"})
    with Tree(root, GraphBounds()) as tree:
        assert refusal(tree.read, path, 100)[0] in ("refused.source_path", "refused.source_changed")
        assert tree.read("a/b.py", 100) == b"fine"


NATIVE: list[tuple[Files, str, str]] = [
    ({"tool.py": "import a", "a.so": ""}, "a.so is native code: it may come from a layer only", "a.so"),
    (
        {"tool.py": "import a", "a.cpython-311-x86_64-linux-gnu.so": ""},
        "a.cpython-311-x86_64-linux-gnu.so is native code: it may come from a layer only",
        "a.cpython-311-x86_64-linux-gnu.so",
    ),
    ({"tool.py": "import a", "a.abi3.so": "", "a.py": ""}, "a.abi3.so is native code: it may come from a layer only", "a.abi3.so"),
    ({"tool.py": "import a", "a.pyd": ""}, "a.pyd is native code: it may come from a layer only", "a.pyd"),
    (
        {"tool.py": "import p", "p/__init__.so": "", "p/__init__.py": ""},
        "p/__init__.so is native code: it may come from a layer only",
        "p/__init__.so",
    ),
    ({"tool.py": "from p import a", "p/__init__.py": "", "p/a.so": ""}, "p/a.so is native code: it may come from a layer only", "p/a.so"),
    ({"tool.py": "try:\n  import a\nexcept ImportError: pass", "a.so": ""}, "a.so is native code: it may come from a layer only", "a.so"),
    ({"tool.py": "import a", "a.pyc": ""}, "a.pyc is byte code without its source", "a.pyc"),
    ({"tool.py": "import p", "p/__init__.pyc": ""}, "p/__init__.pyc is byte code without its source", "p/__init__.pyc"),
    ({"tool.py": DATA.format("*.dat"), "a.dat": b"\x7fELF\2"}, "a.dat is native code: it may come from a layer only", "a.dat"),
]  # fmt: skip - one attempt a line


@pytest.mark.parametrize(("files", "line", "bad"), NATIVE)
def test_native_and_byte_code_refuse(root: Path, files: Files, line: str, bad: str) -> None:
    """Code that nobody can read refuses by name, also behind a guard, beside its source, or as data; source in its place is staged."""
    assert refusal(staged, root, files) == ("refused.source_native", (line,))
    (root / bad).unlink()
    twin = bad if bad.endswith(".dat") else str(Path(bad).with_name(Path(bad).name.partition(".")[0] + ".py"))
    assert twin in staged(root, {twin: "x = 1"}).files


def test_unreadable_code_that_nobody_imports_is_left_out(root: Path) -> None:
    """The control: native code, byte code and caches beside the source are not staged and do not refuse."""
    files = {"tool.py": "import a", "a.py": "", "b.so": "", "c.pyc": "", "__pycache__/a.cpython-311.pyc": "", "a.pyc": "", "a.other.so": ""}
    assert sorted(staged(root, files).files) == ["a.py", "tool.py"]


RESERVED = frozenset({"engine", "guest", "msgpack"})
SHADOWS: list[tuple[Files, str, str]] = [
    ({"tool.py": "import json", "json.py": ""}, "json.py would shadow json of the standard library: rename it (tool.py:1)", "json.py"),
    ({"tool.py": "import json", "json.so": ""}, "json.so would shadow json of the standard library: rename it (tool.py:1)", "json.so"),
    (
        {"tool.py": "import typing", "typing/__init__.py": ""},
        "typing/__init__.py would shadow typing of the standard library: rename it (tool.py:1)",
        "typing/__init__.py",
    ),
    (
        {"tool.py": "from encodings import idna", "encodings/__init__.py": ""},
        "encodings/__init__.py would shadow encodings of the standard library: rename it (tool.py:1)",
        "encodings/__init__.py",
    ),
    (
        {"tool.py": "from engine import tool", "engine.py": ""},
        "engine.py would shadow engine of the guest: rename it (tool.py:1)",
        "engine.py",
    ),
    (
        {"tool.py": "from engine import tool", "engine/__init__.py": ""},
        "engine/__init__.py would shadow engine of the guest: rename it (tool.py:1)",
        "engine/__init__.py",
    ),
    (
        {"tool.py": "try:\n  import msgpack\nexcept ImportError: pass", "msgpack.py": ""},
        "msgpack.py would shadow msgpack of the guest: rename it (tool.py:2)",
        "msgpack.py",
    ),
    (
        {"tool.py": "import __main__", "__main__.py": ""},
        "__main__.py would shadow __main__ of the guest: rename it (tool.py:1)",
        "__main__.py",
    ),
]  # fmt: skip - one attempt a line


@pytest.mark.parametrize(("files", "line", "bad"), SHADOWS)
def test_a_module_that_would_shadow_refuses(root: Path, files: Files, line: str, bad: str) -> None:
    """A name of the guest's or of the standard library's in the source refuses by file; without that file the import is fine."""
    assert refusal(staged, root, files, reserved=RESERVED) == ("refused.source_shadows", (line,))
    (root / bad).unlink()
    assert list(staged(root, {}, reserved=RESERVED).files) == ["tool.py"]


@pytest.mark.parametrize("name", ["json", "engine", "guest", "__main__"])
@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
def test_an_entry_that_would_shadow_refuses(root: Path, name: str, form: str) -> None:
    """The entry's own name may be none of those either."""
    path = form.format(name)
    assert refusal(staged, root, {path: ""}, path.removesuffix("/__init__.py"), reserved=RESERVED)[0] == "refused.source_shadows"


def test_names_below_a_package_shadow_nothing(root: Path) -> None:
    """The control: a package may have a ``json`` and an ``engine`` of its own, and unimported namesakes are left out."""
    files = {
        "tool.py": "from p import json, engine",
        "p/__init__.py": "",
        "p/json.py": "",
        "p/engine.py": "",
        "typing.py": "",
        "msgpack.py": "",
    }
    assert sorted(staged(root, files, reserved=RESERVED).files) == ["p/__init__.py", "p/engine.py", "p/json.py", "tool.py"]


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
@pytest.mark.parametrize(
    "form",
    ["import {}", "try:\n  import {}\nexcept ImportError: pass", "from engine import tool\n@tool(includes=['{}'])\ndef f(): pass"],
)
def test_start_up_hooks_refuse_even_by_name(root: Path, name: str, form: str) -> None:
    """What an interpreter runs at its start is never staged; beside the source, unnamed, it is left out."""
    write(root, {f"{name}.py": CANARY})
    assert refusal(staged, root, {"tool.py": form.format(name)})[0] == "refused.source_shadows"
    assert list(staged(root, {"tool.py": "x = 1"}).files) == ["tool.py"]


ALIKE: list[tuple[Files, Files]] = [
    ({"tool.py": "import abc_, Abc_", "abc_.py": "", "Abc_.py": ""}, {"tool.py": "import abc_, Abd_", "Abd_.py": ""}),
    ({"tool.py": "import p.a, P.b", "p/a.py": "", "P/b.py": ""}, {"tool.py": "import p.a, Q.b", "Q/b.py": ""}),
    ({"tool.py": DATA.format("d/*"), "d/a": "", "d/A": ""}, {"tool.py": DATA.format("d/a")}),
    ({"tool.py": DATA.format("d/*"), "d/a1": "", "d/a\uff11": ""}, {"tool.py": DATA.format("d/a1")}),
]


@pytest.mark.parametrize(("files", "twin"), ALIKE)
def test_names_alike_refuse(root: Path, files: Files, twin: Files) -> None:
    """Two names that a case-blind system or a reader takes for one refuse; names that differ are staged."""
    code, lines = refusal(staged, root, files)
    assert (code, lines[0].endswith("differ only in case or in look-alike letters")) == ("refused.source_path", True)
    assert len(staged(root, twin).files) >= 2


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\u200bb", " a", "a.", "a ", "a\\b", "C:a", "a\u2028b", os.fsdecode(b"a\xff")]
)
def test_odd_data_names_refuse(root: Path, name: str) -> None:
    """Names that fool a reader, a terminal or another system refuse in one clean line; a plain name is staged."""
    write(root, {"tool.py": DATA.format("d/**"), f"d/{name}": ""})
    code, lines = refusal(close, root / "tool.py")
    assert (code, lines[0].isprintable()) == ("refused.source_path", True)
    (root / "d" / name).unlink()
    assert "d/plain name-1_ä.txt" in staged(root, {"d/plain name-1_ä.txt": ""}).files


@pytest.mark.parametrize("name", ["my-tool.py", "1.py", "a b.py", "a.b.py", "\ufb01x.txt", "tool"])
def test_an_entry_without_a_module_name_refuses(root: Path, name: str) -> None:
    """A file that no import statement could name is no entry."""
    assert refusal(staged, root, {name: ""}, name)[0] in ("refused.source_path", "refused.source_missing")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (b"(" * 1_000_000, "refused.source_syntax"),
        (b"-" * 1_000_000 + b"1", "refused.source_limits"),
        (b"a" + b".b" * 400_000, "refused.source_limits"),
        (b"x" * 100_000_000, "refused.source_limits"),
        (b"a\0b", "refused.source_syntax"),
        (b"# coding: utf-7\n", "refused.source_syntax"),
        (b"# coding: punycode\n", "refused.source_syntax"),
        (b"\xff\xfeimport a", "refused.source_syntax"),
        ("a\u200bb = 1".encode(), "refused.source_syntax"),
    ],
    ids=["parentheses", "minus", "attributes", "100 MB", "NUL", "utf-7", "punycode", "utf-16", "zero width"],
)
def test_source_that_is_hostile_to_the_parser_refuses(root: Path, source: bytes, code: str) -> None:
    """Depth, size, bytes and encodings made to hurt a parser have a code and name the file; a plain file is staged."""
    found, lines = refusal(staged, root, {"tool.py": source})
    assert (found, lines[0].startswith("tool.py")) == (code, True)
    assert list(staged(root, {"tool.py": "x = 1"}).files) == ["tool.py"]


def test_nothing_of_the_source_runs(root: Path) -> None:
    """Staging leaves no trace of import-time code; a plain run of the same file does."""
    mark = root / "ran"
    write(root, {"tool.py": "import pkg.sub", "pkg/__init__.py": f"open({str(mark)!r}, 'w').close()", "pkg/sub.py": ""})
    staged(root, {})
    assert not mark.exists()
    subprocess.run([sys.executable, root / "tool.py"], check=True)
    assert mark.exists()


def test_the_parser_opens_no_file(root: Path) -> None:
    """A syntax error and a warning quote a line of the file they are in; the parser of hostile bytes is told of none."""
    opened: list[Any] = []
    watching = True
    sys.addaudithook(lambda event, args: opened.append(args[0]) if watching and event == "open" else None)
    from enter import parse

    twin = write(root, {"quoted.py": "x = ("}) / "quoted.py"
    with pytest.raises(SyntaxError):
        compile("x = (", twin, "exec")
    assert str(twin) in [str(name) for name in opened]  # the control: told of a file, the compiler opens it
    opened.clear()
    with warnings.catch_warnings(action="error"):
        answers = [parse.facts(source, "/etc/passwd")["ok"] for source in (b"x = (", b"'\\d'", b"1 is 1", b"# coding: rot13\n")]
    watching = False
    assert (answers, [name for name in opened if name != "/dev/null/source"]) == ([False, True, True, False], [])


def test_only_what_is_imported_is_readable(root: Path, tmp_path: Path) -> None:
    """Undeclared siblings, the host's own packages and everything above the root are not staged and stay unmet."""
    files = {"tool.py": "import trio, pytest", "sibling.py": CANARY, "x/y.py": CANARY, ".env": CANARY}
    graph = staged(root, files)
    assert (list(graph.files), dict(graph.externals)) == (["tool.py"], {"trio": "tool.py:1", "pytest": "tool.py:1"})


def test_errors_do_not_tell_where_the_root_is(root: Path) -> None:
    """Names in lines are relative to the root."""
    for files in (
        {"tool.py": "import p.x", "p/__init__.py": ""},
        {"tool.py": "("},
        {"tool.py": "x" * 2_000_000},
        {"tool.py": "from .. import x"},
    ):
        assert str(root.parent) not in " ".join(refusal(staged, root, files)[1])
