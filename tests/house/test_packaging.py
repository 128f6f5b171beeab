"""What is shipped: pinned, offline, complete, and without a trace of the machine it was made on."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.house.reading import PROJECT, files, imports, sources, write

HOST_NAME = re.compile(r"://|--(?:index-url|extra-index-url|find-links)|\b[a-z0-9-]+\.(?:org|com|io|net|dev)\b|(?:^|\s)/")
INDEX = re.compile(r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.org|deb\.debian\.org|--(?:extra-)?index-url\s+\S+/)")
MACHINE_PATH = re.compile(r"(?<![\w.\-*])/(?:root|work|home)/")
MAY_NAME_PATHS = ("tests/", "worker_images/attacks/")  # there they are what must not be reached
TEXT = frozenset(
    {".py", ".toml", ".md", ".txt", ".cfg", ".ini", ".json", ".lock", ".wit", ".js", ".html", ".css", ".svg", ".sh", ".yml", ".yaml", ""}
)
HERE = "tests/house/test_packaging.py"  # names what it looks for
SHIPPED = ("engine/_data/policies/", "engine/_data/worker_images/")
NOT_SHIPPED = re.compile(r"(?:^|/)(?:tests|bench|\.venv[^/]*|__pycache__|\.git|requirements)/|\.pyc$")
MODULES = {"jsonschema_rs": "jsonschema-rs", "ahocorasick_rs": "ahocorasick-rs"}  # where the name imported is not the name installed


def pin_problems(root: Path) -> list[str]:
    """One line for each requirement without a version and hashes, and for each line that names a place."""
    problems = []
    builders = (path for path in files(root, "worker_images") if path.name == "requirements.txt")
    for path in (*files(root, "requirements"), *builders):
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            if HOST_NAME.search(line):
                problems.append(f"{path.name}:{number} names a place")
        for entry in re.sub(r"\\\n", " ", text).splitlines():
            if not re.match(r"[a-z0-9._-]+==\S+ (?:; [^#]+? )?(?:\s*--hash=sha256:[0-9a-f]{64})+\s*$", entry):
                problems.append(f"{path.name}: {entry.split()[0] if entry.split() else 'an empty line'} is not pinned by version and hash")
    return problems


def trace_problems(root: Path) -> list[str]:
    """One line for each package index address, and outside tests and attacks for each path of a machine."""
    problems = []
    for path in files(root):
        name = path.relative_to(root).as_posix()
        if path.suffix not in TEXT or name == HERE:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if INDEX.search(line):
                problems.append(f"{name}:{number} a package index address")
            if MACHINE_PATH.search(line) and not name.startswith(MAY_NAME_PATHS):
                problems.append(f"{name}:{number} a path of a machine")
    return problems


def undeclared(root: Path) -> list[str]:
    """Packages that engine/ imports although pyproject.toml asks for them nowhere."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project.get("dependencies", ()), *(name for extra in project.get("optional-dependencies", {}).values() for name in extra)]
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in asked}
    tops = {found.target.split(".")[0] for source in sources(root, "engine") for found in imports(source)}
    standard = sys.stdlib_module_names | {"_sha2", "annotationlib"}  # as later Pythons have them
    return sorted(top for top in tops - standard - {"engine"} if MODULES.get(top, top).lower() not in names)


def wheel_problems(names: list[str]) -> list[str]:
    """What a wheel of these members lacks, and what it holds although nobody should install it."""
    problems = [f"{folder} is missing" for folder in SHIPPED if not any(name.startswith(folder) for name in names)]
    return problems + [f"{name} does not belong in a wheel" for name in names if NOT_SHIPPED.search(name)]


def test_every_requirement_is_pinned_and_names_no_place() -> None:
    """An installation takes exactly these files or none, from whatever index the machine uses."""
    assert not (found := pin_problems(PROJECT)), "\n".join(found)


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_the_pins_hold_what_an_offline_installation_needs(name: str) -> None:
    """The build backend is among the pins, so that installing the project itself asks no index; so is every dependency."""
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", (PROJECT / "requirements" / name).read_text(encoding="utf-8"), re.M))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["build"]]
    assert {re.split(r"[<>=!~ \[;]", line, maxsplit=1)[0] for line in asked} - pinned == set()


def test_both_sets_of_pins_agree() -> None:
    """What runs is what was tested: the pins for running are among the pins for developing."""
    run, dev = ((PROJECT / "requirements" / name).read_text(encoding="utf-8").splitlines() for name in ("run.txt", "dev.txt"))
    # for which Python a package is needed may differ: another one may ask for it as well
    assert {line.partition(" ; ")[0] for line in run} - {line.partition(" ; ")[0] for line in dev} == set()


def test_no_file_tells_of_the_machine_it_was_made_on() -> None:
    """No package index address and no path of a developer's machine is in the tree."""
    assert not (found := trace_problems(PROJECT)), "\n".join(found)


def test_every_package_imported_is_declared() -> None:
    """The engine imports nothing that its own metadata does not ask for."""
    assert not (found := undeclared(PROJECT)), "\n".join(found)


@pytest.mark.slow
def test_the_wheel_holds_all_that_is_needed_and_nothing_else(tmp_path: Path) -> None:
    """A wheel built without an index holds the engine, the policies and the jailed side, and no tests, benches or environments."""
    tree = tmp_path / "tree"
    for path in files(PROJECT):
        (tree / path.relative_to(PROJECT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, tree / path.relative_to(PROJECT))
    write(tree, **{".venv/lib/a.py": "", "bench/a.py": "", "engine/__pycache__/a.pyc": "", "worker_images/guest/__pycache__/a.pyc": ""})
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    built = subprocess.run(command, cwd=tree, env={"PATH": "", "HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tree / "dist").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel_problems(names) == []
    data = [f"engine/_data/{path.relative_to(tree).as_posix()}" for path in files(tree, "policies", "worker_images")]
    code = [path.relative_to(tree).as_posix() for path in files(tree, "engine")]
    assert {*data, *code} - set(names) == set()


def test_a_wheel_that_lacks_or_leaks_is_reported() -> None:
    """A missing folder and each foreign member have their line."""
    members = [
        "engine/a.py",
        "engine/_data/policies/p.toml",
        "tests/a.py",
        "engine/__pycache__/a.cpython-311.pyc",
        "bench/b.py",
        ".venv/c.py",
    ]
    assert wheel_problems(members) == [
        "engine/_data/worker_images/ is missing",
        *(f"{name} does not belong in a wheel" for name in members[2:]),
    ]


def test_a_loose_requirement_is_reported(tmp_path: Path) -> None:
    """No hash, no version or a place: each is a fault; the pinned line beside them is not."""
    pinned = "good==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:" + "a" * 64
    text = f"{pinned}\nbare==1.0\nloose>=1 --hash=sha256:{'a' * 64}\n--index-url https://index.example.org/simple\n"
    tree = {"requirements/run.txt": text, "worker_images/a/requirements.txt": "builder==1.0\n", "worker_images/a/other.txt": "x\n"}
    assert pin_problems(write(tmp_path, **tree)) == [
        "run.txt:5 names a place",
        "run.txt: bare==1.0 is not pinned by version and hash",
        "run.txt: loose>=1 is not pinned by version and hash",
        "run.txt: --index-url is not pinned by version and hash",
        "requirements.txt: builder==1.0 is not pinned by version and hash",
    ]


def test_a_trace_of_a_machine_is_reported(tmp_path: Path) -> None:
    """Index addresses anywhere, machine paths outside tests and attacks."""
    tree = {
        "engine/a.py": "X = '/home/someone/x'\n",
        "policies/a.toml": "x = 'https://pypi.org/simple'\n",
        "tests/a.py": "X = '/root/.ssh/id'\n",
        "worker_images/attacks/files/a.py": "X = '/root/.ssh/id'\n",
        "engine/b.py": "X = '/homework/', 'a/home/b'\n",
    }
    assert trace_problems(write(tmp_path, **tree)) == ["engine/a.py:1 a path of a machine", "policies/a.toml:1 a package index address"]


def test_an_undeclared_package_is_reported(tmp_path: Path) -> None:
    """Imports in functions count; extras and names that differ from the package's are known."""
    tree = {
        "pyproject.toml": "[project]\ndependencies = ['trio>=1', 'jsonschema-rs']\noptional-dependencies = { mcp = ['mcp>=2'] }\n",
        "engine/a.py": "import os, trio, jsonschema_rs\nfrom engine import errors\ndef f():\n    import mcp.server, yaml\n",
    }
    assert undeclared(write(tmp_path, **tree)) == ["yaml"]
