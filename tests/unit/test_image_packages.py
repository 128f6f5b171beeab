"""The packages of an image: what pyodide-build's model and tools let through, in the environment that the builder makes for them.

That environment is made once per machine, in the user's own cache; where nothing can be fetched these tests are unproven.
"""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError
from engine.images import packages, running
from engine.images.builder import Builder, Means, builder_for
from engine.images.cache import Cache
from engine.images.recipe import COLLECTING_PYTHON, Package
from tests import machine
from tests.images import Heard
from tests.kit import PROJECT
from tests.staged import digest_of, refusal, wheel

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.filterwarnings("default:unproven")]
COLLECT = PROJECT / "worker_images" / "packages" / "collect.py"
WASM, ELF = b"\0asm\1\0\0\0", b"\x7fELF\2\1\1"


@pytest.fixture(scope="session")
def collector() -> Builder:
    """An environment with pyodide-build."""
    cache, pins = Cache(folder=machine.IMAGE_DIR), (COLLECT.parent / "requirements.txt").read_bytes()
    try:
        with cache.writing(lambda: None):
            return builder_for(pins, COLLECTING_PYTHON, cache, Means(environment=os.environ), Heard())
    except EngineError as error:
        text = f"unproven: no environment with pyodide-build: {error}"
        warnings.warn(text, stacklevel=2)
        pytest.skip(text)


def meta(folder: Path, name: str = "demo", text: str | None = None, *, file: str = "", sha256: str = "a" * 64, more: str = "") -> None:
    """A package's recipe below ``recipes``."""
    place = folder / "recipes" / name / "meta.yaml"
    place.parent.mkdir(parents=True, exist_ok=True)
    url = file or f"{name}-1.0-py3-none-any.whl"
    place.write_text(text or f"package:\n  name: {name}\n  version: '1.0'\nsource:\n  url: {url}\n  sha256: {sha256}\n{more}")


def step(collector: Builder, folder: Path, name: str, spec: Mapping[str, Any]) -> Any:
    """One step of the collector. Raises running.Failed."""
    (folder / "spec.json").write_text(json.dumps(dict(spec)))
    environment = {"HOME": str(folder), "PATH": str(collector.python.parent)}
    said = running.run([collector.python, COLLECT, name, folder / "spec.json"], environment=environment, seconds=60)
    return json.loads(said.splitlines()[-1]) if said.strip() else None


def read(collector: Builder, folder: Path, *names: str) -> Any:
    """The packages of these recipes."""
    return step(collector, folder, "read", {"recipes": str(folder / "recipes"), "names": list(names)})


def refused(action: Any, *args: Any, **more: Any) -> str:
    """The collector's last word."""
    with pytest.raises(running.Failed) as caught:
        action(*args, **more)
    return str(caught.value.lines[-1])


def test_a_recipe_is_read_by_pyodide_build_s_own_model(collector: Builder, tmp_path: Path) -> None:
    """Name, version, the one wheel and its hash, what it needs."""
    meta(tmp_path, more="requirements:\n  run:\n    - other>=1\n")
    meta(tmp_path, "other")
    first, _ = read(collector, tmp_path, "demo", "other")
    assert first == {
        "name": "demo",
        "version": "1.0",
        "file": "demo-1.0-py3-none-any.whl",
        "tags": ["py3-none-any"],
        "sha256": "a" * 64,
        "depends": ["other"],
    }


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"more": "surprise: 1\n"}, "pyodide-build does not take its meta.yaml"),
        ({"text": "package:\n  name: demo\n"}, "pyodide-build does not take its meta.yaml"),
        ({"text": "package: {name: demo, version: '1.0'}\nsource: {url: demo-1.0-py3-none-any.whl}\n"}, "sha256"),
        ({"text": "!!python/object/apply:os.system ['true']\n"}, "pyodide-build does not take its meta.yaml"),
        ({"file": "https://example.test/demo-1.0-py3-none-any.whl"}, "the name of a wheel, without a place"),
        ({"file": "../demo-1.0-py3-none-any.whl"}, "the name of a wheel, without a place"),
        ({"sha256": "0" * 64}, "and its sha256"),  # a number to YAML: to be quoted
        ({"file": "demo-1.0.tar.gz"}, "the name of a wheel, without a place"),
        ({"file": "demo-2.0-py3-none-any.whl"}, "do not agree"),
        ({"file": "other-1.0-py3-none-any.whl"}, "do not agree"),
        ({"more": "build:\n  post: touch x\n"}, "nothing is built here"),
        ({"more": "build:\n  script: touch x\n"}, "pyodide-build does not take its meta.yaml"),
        ({"more": "requirements:\n  executable:\n    - rustc\n"}, "nothing is built here"),
        ({"more": "requirements:\n  run:\n    - gone\n"}, "needs gone: add it to the image's recipe"),
    ],
)
def test_a_recipe_that_asks_for_more_refuses(collector: Builder, tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    """A place, a step that would run, an archive that would be built, keys the model does not know."""
    meta(tmp_path, **changes)
    assert word in refused(read, collector, tmp_path, "demo")


def unpack(collector: Builder, folder: Path, files: Mapping[str, bytes], without: list[str] | None = None, **more: Any) -> Any:
    """A wheel of these files, unpacked and looked through; gives the lock."""
    (folder / "wheels").mkdir()
    made = wheel(folder / "wheels", {"demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n", **files})
    wanted = {"name": "demo", "version": "1.0", "file": made.name, "sha256": digest_of(made), "depends": [], **more}
    spec = {"packages": [wanted], "wheels": str(made.parent), "without": {"demo": without or []}}
    step(collector, folder, "unpack", {**spec, "into": str(folder / "site"), "lock": str(folder / "lock.json")})
    return json.loads((folder / "lock.json").read_text())


def test_a_pure_wheel_is_unpacked_and_locked(collector: Builder, tmp_path: Path) -> None:
    """Its files are below its name, the lock has pyodide-lock's shape; the control of the refusals below."""
    lock = unpack(collector, tmp_path, {"demo/__init__.py": b"x = 1\n", "demo/data.txt": b"data"})
    assert (tmp_path / "site/demo/demo/__init__.py").read_bytes() == b"x = 1\n"
    locked = lock["packages"]["demo"]
    assert (locked["version"], locked["imports"], locked["depends"], len(locked["sha256"])) == ("1.0", ["demo"], [], 64)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("demo/fast.so", b"x"),
        ("demo/fast.cpython-314-wasm32-wasi.so", WASM),
        ("demo/fast.so.1", b"x"),
        ("demo/fast.pyd", b"MZ"),
        ("demo/fast.dylib", b"x"),
        ("demo/fast.a", b"!<arch>\n"),
        ("demo/hidden.txt", WASM),
        ("demo/hidden.py", ELF),
        ("demo/hidden.bin", b"\xcf\xfa\xed\xfe"),
        ("demo/run.js", b"x"),
        ("demo.pth", b"import os"),
        ("demo/a.pyc", b"x"),
        ("demo-1.0.data/scripts/run", b"x"),
    ],
)
def test_native_code_and_what_starts_by_itself_refuses(collector: Builder, tmp_path: Path, name: str, data: bytes) -> None:
    """By its name or by its first bytes, for whatever platform it is."""
    assert name.partition("/scripts")[0] in refused(unpack, collector, tmp_path, {"demo/__init__.py": b"", name: data})


def test_native_code_is_left_out_by_name_alone(collector: Builder, tmp_path: Path) -> None:
    """What the image's recipe names goes, and the rest must be pure."""
    unpack(collector, tmp_path, {"demo/__init__.py": b"", "demo/fast.so": ELF}, ["demo/fast.so"])
    assert not (tmp_path / "site/demo/demo/fast.so").exists()
    for number, (files, without) in enumerate(
        [
            ({"demo/a.so": ELF, "demo/b.so": ELF}, ["demo/a.so"]),
            ({"demo/a.py": b""}, ["demo/a.py"]),
            ({"demo/a.py": b""}, ["demo/gone.so"]),
            ({"demo/a.py": b""}, ["../a.so"]),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert refused(unpack, collector, folder, files, without).startswith("demo: ")


def test_what_its_metadata_needs_must_be_in_its_recipe(collector: Builder, tmp_path: Path) -> None:
    """Markers are read for the guest's platform: what is for another one is not needed."""
    head = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
    needs = 'Requires-Dist: other; sys_platform == "win32"\nRequires-Dist: more; extra == "y"\n'
    files = {"demo/__init__.py": b"", "demo-1.0.dist-info/METADATA": (head + needs).encode()}
    unpack(collector, tmp_path, files)
    files["demo-1.0.dist-info/METADATA"] = (head + needs + 'Requires-Dist: gone; sys_platform != "win32"\n').encode()
    (tmp_path / "again").mkdir()
    assert refused(unpack, collector, tmp_path / "again", files) == "demo: needs gone: add it to requirements/run in its meta.yaml"


def test_another_wheel_than_the_pinned_one_refuses(collector: Builder, tmp_path: Path) -> None:
    """Its hash is looked at again before it is unpacked."""
    assert "its SHA-256 is not the one" in refused(unpack, collector, tmp_path, {"demo/__init__.py": b""}, sha256="0" * 64)


def test_a_package_that_cannot_be_fetched_has_its_way_out(collector: Builder, tmp_path: Path) -> None:
    """Offline, and likewise for a hash that no index has."""
    meta(tmp_path, file="demo-1.0-py3-none-any.whl")
    (tmp_path / "packages").symlink_to(tmp_path / "recipes")
    (tmp_path / "recipes" / "collect.py").symlink_to(COLLECT)
    means = Means(environment={"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull})
    wanted = (Package(name="demo", without=()),)
    code, lines = refusal(packages.collect, wanted, tmp_path, tmp_path, collector, means, Heard())
    assert (code, "stockade image import FILE" in lines[-1]) == ("refused.image_build", True)
