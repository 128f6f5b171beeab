"""The environment of a builder: found, made, made again, and what is missing in words."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from engine.images import builder
from engine.images.builder import Builder, Means, builder_for
from engine.images.cache import Cache
from tests.images import Heard
from tests.staged import digest_of, refusal, wheel


def script(folder: Path, name: str, text: str) -> Path:
    """A program that stands in for an interpreter."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def says(folder: Path, name: str, version: list[int], missing: list[str]) -> Path:
    """An interpreter that says this of itself."""
    return script(folder, name, f"echo '{json.dumps({'version': version, 'base': '/base', 'missing': missing})}'")


def test_a_version_that_is_too_old_is_named(tmp_path: Path) -> None:
    """With what is wanted, how to install it and how to name another one."""
    cache, means = Cache(folder=tmp_path), Means(environment={}, interpreter=says(tmp_path, "python", [3, 10, 1], []))
    code, lines = refusal(builder_for, b"", (3, 12), cache, means, Heard())
    assert (code, lines[1]) == ("refused.image_build", f"{tmp_path / 'python'} is 3.10.1")
    assert "Python 3.12 or newer, with venv and ensurepip" in lines[0]
    assert "--python" in lines[0]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """Some systems ship venv apart."""
    means = Means(environment={}, interpreter=says(tmp_path, "python", [3, 13, 0], ["venv", "ensurepip"]))
    assert (
        refusal(builder_for, b"", (3, 12), Cache(folder=tmp_path), means, Heard())[1][1]
        == f"{tmp_path / 'python'} lacks venv and ensurepip"
    )


def test_every_candidate_that_will_not_do_is_named(tmp_path: Path) -> None:
    """On PATH and among pyenv's: a place holder that fails, one that is too old under a false name, one that lacks something."""
    path, home = tmp_path / "bin", tmp_path / "home"
    script(path, "python3.99", "exit 1")
    says(path, "python3", [3, 9, 0], [])
    script(path, "python3.14", "echo pyenv: not found >&2; exit 127")
    says(home / ".pyenv/versions/3.13.0/bin", "python3.13", [3, 13, 0], ["venv"])
    means = Means(environment={"PATH": str(path), "HOME": str(home)})
    _, lines = refusal(builder_for, b"", (3, 99), Cache(folder=tmp_path), means, Heard())
    assert lines[1:] == (f"{path / 'python3'} is 3.9.0",)
    _, lines = refusal(builder_for, b"", (3, 13), Cache(folder=tmp_path), means, Heard())
    assert lines[1:] == (
        f"{path / 'python3.14'} cannot be run",
        f"{home / '.pyenv/versions/3.13.0/bin/python3.13'} lacks venv",
        f"{path / 'python3'} is 3.9.0",
    )


def test_without_any_candidate_it_says_where_was_looked(tmp_path: Path) -> None:
    """And what this interpreter is."""
    _, lines = refusal(builder_for, b"", (3, 99), Cache(folder=tmp_path), Means(environment={}), Heard())
    assert lines[1] == f"there is none on PATH or in ~/.pyenv/versions, and this is {sys.version.split()[0]}"


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with one wheel, and the variables by which pip finds it and no index."""
    folder = tmp_path_factory.mktemp("wheels")
    made = wheel(folder, {"demo/__init__.py": b"x = 1\n", "demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"})
    return made, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}


@pytest.mark.slow
def test_an_environment_is_made_once_and_again_when_it_was_cut_short(tmp_path: Path, offline: tuple[Path, dict[str, str]]) -> None:
    """Exactly what the hash names is in it; the second time nothing runs; without the mark of completeness it is made anew."""
    cache, heard = Cache(folder=tmp_path), Heard()
    pins = f"demo==1.0 --hash=sha256:{digest_of(offline[0])}\n".encode()

    def ask() -> Builder:
        return builder_for(pins, (3, 11), cache, Means(environment=offline[1]), heard)

    with cache.writing(lambda: None):
        made = ask()
        assert (made.versions["demo"], ask() == made, len(heard.steps)) == ("1.0", True, 1)
        (folder,) = cache.builders.iterdir()
        assert folder.name in builder.keys_in_use(cache, {pins}, Means(environment={}), {(3, 11)})
        (folder / "complete.json").unlink()
        assert (ask(), len(heard.steps)) == (made, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"demo==1.0 --hash=sha256:{'0' * 64}", "THESE PACKAGES DO NOT MATCH THE HASHES"),
        ("demo==1.0", "Hashes are required"),
        (f"gone==1.0 --hash=sha256:{'0' * 64}", "stockade image import FILE"),
    ],
)
def test_what_no_hash_names_is_not_installed(tmp_path: Path, offline: tuple[Path, dict[str, str]], line: str, told: str) -> None:
    """Another hash, no hash, and what cannot be fetched, which has its way out; no environment is left."""
    cache = Cache(folder=tmp_path)
    with cache.writing(lambda: None):
        code, lines = refusal(builder_for, line.encode(), (3, 11), cache, Means(environment=offline[1]), Heard())
    assert (code, told in " ".join(lines), list(cache.builders.iterdir())) == ("refused.image_build", True, [])
