"""Layers: made by our own hands out of pinned wheels, named by content, kept by name."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.images import fetch
from engine.staging import layers
from engine.staging.layers import NativeCode
from engine.staging.wheels import LayerBounds
from tests.staged import digest_of, refusal, wheel

MACHINE = platform.machine()


def add(store: Path, *wheels: Path, name: str = "demo", native: NativeCode = NativeCode.REFUSED, **more: Any) -> layers.Layer:
    """A layer of these wheels, each pinned to what it is."""
    return layers.add(name, wheels, {path.name: frozenset({digest_of(path)}) for path in wheels}, store, native=native, **more)


def test_a_layer_holds_its_wheels(tmp_path: Path) -> None:
    """Modules, single files and both library folders of a wheel lie below ``site``, read-only; the record says what they are."""
    first = wheel(tmp_path, {"demo/__init__.py": b"x = 1", "demo/sub/m.py": b"", "one.py": b"", "demo/data.txt": b"d"})
    second = wheel(tmp_path, {"more-1.0.data/purelib/pure/a.py": b"", "more-1.0.data/platlib/plat.py": b""}, name="more")
    made = add(tmp_path / "store", second, first)
    assert made == layers.Layer(
        name="demo",
        digest="sha256:" + digest_of(made.path / "manifest.json"),
        path=tmp_path / "store" / "sha256" / made.digest[7:9] / made.digest[7:],
        modules=frozenset({"demo", "one", "pure", "plat"}),
        native=False,
        python="py3",
        wheels=("demo-1.0-py3-none-any.whl", "more-1.0-py3-none-any.whl"),
        dropped=(),
    )
    files = sorted(path.relative_to(made.site).as_posix() for path in made.site.rglob("*") if path.is_file())
    assert [path for path in files if "dist-info" not in path] == [
        "demo/__init__.py",
        "demo/data.txt",
        "demo/sub/m.py",
        "one.py",
        "plat.py",
        "pure/a.py",
    ]
    assert (made.site / "demo/__init__.py").read_bytes() == b"x = 1"
    assert {oct(path.stat().st_mode & 0o7777) for path in made.path.rglob("*") if path.is_file()} == {"0o444"}


def test_what_starts_by_itself_is_dropped_and_named(tmp_path: Path) -> None:
    """Path files, scripts, headers and byte code do not come through, and the layer says so."""
    names = [
        "a.pth",
        "demo/__pycache__/x.pyc",
        "demo/y.pyc",
        "demo-1.0.data/scripts/run",
        "demo-1.0.data/headers/h.h",
        "demo-1.0.data/data/etc/x",
    ]
    made = add(tmp_path / "store", wheel(tmp_path, {"demo/__init__.py": b"", **dict.fromkeys(names, b"")}))
    assert made.dropped == tuple(sorted(f"demo-1.0-py3-none-any.whl: {name}" for name in names))
    assert [path.name for path in made.site.rglob("*") if path.is_file()].count("__init__.py") == 1
    assert not [path for path in made.site.rglob("*") if path.suffix in (".pth", ".pyc") or path.name in ("run", "h.h", "x")]


def test_a_name_points_to_the_newest(tmp_path: Path) -> None:
    """Adding another version under one name moves the name; the older content stays for those who use it."""
    store = tmp_path / "store"
    old = add(store, wheel(tmp_path, {"demo.py": b"1"}))
    new = add(store, wheel(tmp_path, {"demo.py": b"2"}, version="2.0"))
    assert (layers.find("demo", store), layers.list_layers(store)) == (new, (new,))
    layers.verify(old, store)
    assert add(store, wheel(tmp_path, {"demo.py": b"1"})) == old == layers.find("demo", store)


def test_removing_a_name_keeps_what_another_name_has(tmp_path: Path) -> None:
    """Content goes with its last name."""
    store, path = tmp_path / "store", wheel(tmp_path, {"demo.py": b"1"})
    first, second = add(store, path, name="a"), add(store, path, name="b")
    layers.remove("a", store)
    assert layers.list_layers(store) == (second,)
    layers.verify(first, store)
    layers.remove("b", store)
    assert (layers.list_layers(store), first.path.exists()) == ((), False)
    assert refusal(layers.find, "b", store) == ("refused.layer", ("there is no layer b: add it with `stockade layer add`",))
    assert refusal(layers.remove, "b", store) == ("refused.layer", ("there is no layer b",))


@pytest.mark.parametrize("name", ["", "A", "1a", "-a", "a_b", "a/b", "..", "a" * 65, "a\n"])
def test_a_bad_name_refuses(tmp_path: Path, name: str) -> None:
    """Layer names are lower case letters, digits and dashes, a letter first, 64 at most; the longest such name is taken."""
    path = wheel(tmp_path, {"demo.py": b""})
    assert refusal(add, tmp_path / "store", path, name=name)[0] == "refused.layer"
    assert add(tmp_path / "store", path, name="a" * 64).name == "a" * 64


@pytest.mark.parametrize("change", ["content", "added", "missing", "writable", "link", "manifest"])
def test_verify_finds_every_change(tmp_path: Path, change: str) -> None:
    """Changed bytes, an added or missing file, a write bit, a link or another manifest each refuse; untouched it verifies."""
    made = add(tmp_path / "store", wheel(tmp_path, {"demo.py": b"1", "other.py": b"2"}))
    layers.verify(made, tmp_path / "store")
    target, added, manifest = made.site / "demo.py", made.site / "sitecustomize.py", made.path / "manifest.json"
    made.site.chmod(0o755)
    if change in ("missing", "link"):
        target.unlink()
    if change == "link":
        target.symlink_to(made.site / "other.py")
    path, mode = {"content": (target, 0o444), "added": (added, 0o444), "writable": (target, 0o644), "manifest": (manifest, 0o444)}.get(
        change, (made.site / "other.py", 0o444)
    )
    path.touch()
    path.chmod(0o644)
    if change in ("content", "manifest"):
        path.write_bytes(b"{}")
    path.chmod(mode)
    made.site.chmod(0o555)
    assert refusal(layers.verify, made, tmp_path / "store")[0] == "refused.layer"


@pytest.mark.parametrize(
    ("tags", "python"),
    [
        (["py3-none-any", "py2.py3-none-any"], "py3"),
        (["py311-none-any"], "py3"),
        ([f"cp311-cp311-manylinux_2_17_{MACHINE}", "py3-none-any"], "cp311"),
        ([f"cp38-abi3-manylinux_2_17_{MACHINE}.manylinux2014_{MACHINE}", f"cp39-abi3-linux_{MACHINE}"], "cp39+"),
        ([f"cp38-abi3-linux_{MACHINE}", f"cp312-cp312-linux_{MACHINE}"], "cp312"),
        ([f"py3-none-musllinux_1_2_{MACHINE}"], "py3"),
    ],
)
def test_a_layer_says_for_which_python_it_is(tmp_path: Path, tags: list[str], python: str) -> None:
    """The tags of all wheels together give the narrowest Python that fits."""
    made = [wheel(tmp_path, {f"m{at}.py": b""}, name=f"n{at}", tag=tag) for at, tag in enumerate(tags)]
    assert add(tmp_path / "store", *made).python == python


@pytest.mark.parametrize(
    ("tag", "fitting"),
    [
        ("py3-none-any", ["3.9.1", "3.11.2", "3.12.1", "3.13.0"]),
        (f"cp311-cp311-linux_{MACHINE}", ["3.11.2"]),
        (f"cp312-abi3-linux_{MACHINE}", ["3.12.1", "3.13.0"]),
    ],
)
def test_a_layer_for_another_python_refuses(tmp_path: Path, tag: str, fitting: list[str]) -> None:
    """Before any of it is imported, which would end in whatever the package says then."""
    made = add(tmp_path / "store", wheel(tmp_path, {"m.py": b""}, tag=tag))
    for python in ("3.9.1", "3.11.2", "3.12.1", "3.13.0"):
        if python in fitting:
            layers.check_python(made, python)
        else:
            line = (
                f"layer demo is built for {made.python}, the worker has Python {python}: add it with this Python, under a name of its own"
            )
            assert refusal(layers.check_python, made, python) == ("refused.layer", (line,))


@pytest.mark.parametrize(
    "tags",
    [
        [f"cp311-cp311-linux_{MACHINE}", f"cp312-cp312-linux_{MACHINE}"],
        [f"cp311-cp311-linux_{MACHINE}", f"cp312-abi3-linux_{MACHINE}"],
        ["cp311-cp311-win_amd64"],
        ["cp311-cp311-linux_other"],
        ["py3-none-macosx_11_0_arm64"],
        ["py2-none-any"],
    ],
)
def test_wheels_that_cannot_be_together_here_refuse(tmp_path: Path, tags: list[str]) -> None:
    """Two Python versions, another system, another machine or Python 2 refuse."""
    made = [wheel(tmp_path, {f"m{at}.py": b""}, name=f"n{at}", tag=tag) for at, tag in enumerate(tags)]
    assert refusal(add, tmp_path / "store", *made)[0] == "refused.layer"


def test_two_wheels_may_share_a_file_only_if_it_is_the_same(tmp_path: Path) -> None:
    """Equal files of two wheels merge, different ones refuse by path."""
    first, same = wheel(tmp_path, {"ns/__init__.py": b"", "ns/a.py": b""}, name="a"), wheel(tmp_path, {"ns/__init__.py": b""}, name="b")
    other = wheel(tmp_path, {"ns/__init__.py": b"x"}, name="c")
    assert add(tmp_path / "store", first, same).modules == {"ns"}
    assert refusal(add, tmp_path / "store", first, other) == (
        "refused.layer",
        ("c-1.0-py3-none-any.whl: another wheel has a different ns/__init__.py",),
    )  # fmt: skip - one value


@pytest.mark.parametrize(
    ("bounds", "line"),
    [
        ({"wheels": 1}, "a layer takes 1 to 1 wheels, not 2"),
        ({"members": 3}, "a-1.0-py3-none-any.whl: it has more than 3 members"),
        ({"member_bytes": 999}, "a-1.0-py3-none-any.whl: a.txt unpacks to more than 999 bytes"),
        ({"total_bytes": 1100}, "a-1.0-py3-none-any.whl: it unpacks to more than 1100 bytes"),
        ({"total_bytes": 2000}, "the wheels unpack to more than 2000 bytes"),
        ({"depth": 1}, "a-1.0-py3-none-any.whl: member 'a-1.0.dist-info/METADATA' has an odd name"),
    ],
)
def test_each_bound_of_a_layer_holds(tmp_path: Path, bounds: dict[str, int], line: str) -> None:
    """Too many wheels or members, too large ones and too deep ones refuse; within the bounds the same wheels are taken."""
    made = [wheel(tmp_path, {f"{name}.py": b"", f"{name}.txt": b"x" * 1000}, name=name) for name in ("a", "b")]
    assert refusal(add, tmp_path / "store", *made, bounds=LayerBounds(**bounds)) == ("refused.layer", (line,))
    assert add(
        tmp_path / "store", *made, bounds=LayerBounds(wheels=2, members=4, member_bytes=1000, total_bytes=4000, depth=2)
    ).modules == {"a", "b"}


def test_no_wheel_is_no_layer(tmp_path: Path) -> None:
    """An empty layer refuses."""
    assert refusal(layers.add, "demo", [], {}, tmp_path, native=NativeCode.REFUSED) == (
        "refused.layer",
        ("a layer takes 1 to 200 wheels, not 0",),
    )


HASH = "--hash=sha256:" + "a" * 64


@pytest.mark.parametrize(
    "text",
    [
        f"Demo.Pkg==1.0 {HASH}",
        f"# why\ndemo-pkg==1.0 \\\n    {HASH} \\\n    --hash=sha256:{'b' * 64}\n    # via other\n",
        f'demo_pkg[extra]==1.0 ; python_version >= "3.8" {HASH}',
    ],
)
def test_a_pinned_requirement_is_read(text: str) -> None:
    """Hash-pinned lines in the form that lock tools write are taken."""
    (pinned,) = fetch.read_requirements(text)
    assert (pinned.name, "a" * 64 in pinned.sha256) == ("demo-pkg", True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "demo==1.0",
        "demo==1.0 --hash=md5:abc",
        f"demo==1.0 {HASH} --hash=sha256:short",
        f"demo>=1.0 {HASH}",
        f"demo==1.* {HASH}",
        f"demo {HASH}",
        f"demo==1.0,!=2.0 {HASH}",
        f"demo @ https://example.invalid/demo.whl {HASH}",
        f"./demo.whl {HASH}",
        f"-e . {HASH}",
        "--no-index",
        f"demo==1.0 {HASH}\n--find-links /srv/wheels",
        f"demo==1.0 {HASH} --global-option=x",
        f"-r other.txt {HASH}",
    ],
)
def test_any_other_line_refuses_before_pip_runs(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A requirement without a hash, an inexact one, an address, a path or an option refuses, and no process starts."""
    (tmp_path / "requirements.txt").write_text(text)
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: pytest.fail("pip was started"))
    assert refusal(fetch.download_wheels, tmp_path / "requirements.txt", tmp_path / "into")[0] == "refused.layer"


def test_a_folder_with_something_in_it_refuses(tmp_path: Path) -> None:
    """Wheels go into an empty folder, so that none is taken that was not downloaded now."""
    (tmp_path / "requirements.txt").write_text(f"demo==1.0 {HASH}")
    assert refusal(fetch.download_wheels, tmp_path / "requirements.txt", tmp_path) == ("refused.storage", (f"{tmp_path} must be empty",))


MARKDOWN = """
markdown-it-py==3.0.0 --hash=sha256:355216845c60bd96232cd8d8c40e8f9765cc86f46880e43a8fd22dc1a1a8cab1
mdurl==0.1.2 --hash=sha256:84008a41e51615a49fc9966191ff91509e3c40b939176e643fd50a5c2196b8f8
"""
RENDER = "import sys; sys.path.insert(0, sys.argv[1]); from markdown_it import MarkdownIt; print(MarkdownIt().render('*x*'))"
NO_NETWORK = ("Could not find a version", "No matching distribution", "Connection", "Temporary failure", "timed out", "ProxyError")


@pytest.mark.network
def test_a_real_layer_is_fetched_added_and_imported(tmp_path: Path) -> None:
    """Two packages by hash from the registry make a layer that an isolated interpreter imports."""
    (tmp_path / "requirements.txt").write_text(MARKDOWN)
    names = ("PIP_INDEX_URL", "PIP_CERT", "PIP_FIND_LINKS", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    try:
        got = fetch.download_wheels(tmp_path / "requirements.txt", tmp_path / "into", environment=environment)
    except Exception as error:
        if any(word in str(error) for word in NO_NETWORK):
            pytest.skip(f"unproven: the registry cannot be reached: {error}")
        raise
    made = layers.add("markdown", got.wheels, got.pins, tmp_path / "store", native=NativeCode.REFUSED)
    assert (made.modules, made.python) == (frozenset({"markdown_it", "mdurl"}), "py3")
    said = subprocess.run([sys.executable, "-I", "-S", "-c", RENDER, made.site], capture_output=True, text=True, check=True)
    assert said.stdout == "<p><em>x</em></p>\n\n"


@pytest.mark.network
def test_a_wrong_hash_is_not_fetched(tmp_path: Path) -> None:
    """The control: with another hash pip refuses, and nothing is left to be added."""
    (tmp_path / "requirements.txt").write_text(f"mdurl==0.1.2 {HASH}")
    code, lines = refusal(fetch.download_wheels, tmp_path / "requirements.txt", tmp_path / "into")
    if any(word in " ".join(lines) for word in NO_NETWORK):
        pytest.skip(f"unproven: the registry cannot be reached: {lines[-1]}")
    assert (code, any("sha256" in line for line in lines), list((tmp_path / "into").iterdir())) == ("refused.layer", True, [])
