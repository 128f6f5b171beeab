"""Runs the tests of the wall again as ``nobody``: an ordinary user, without a home, in a copy that it can only read.

Needs root to change the user; as an ordinary user the first run was that already, and this one says so. Where the interpreter
lies in a folder that is closed to nobody (a home), it is shown in its place in a mount namespace of this run's own. The image of
WebAssembly workers comes along out of root's cache; of what runs on both kinds, it is the promises that run on both here.

    python -m tests.nobody [pytest's arguments]
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.errors import EngineError
from tests import machine

PROJECT = Path(__file__).resolve().parents[1]
# of the contract what depends on who runs it; the rest is judgement and books, or has no process that knows its user
_CONTRACT = """
    cancelling checker concluding deadlines endings first freshness jails kept_warm large launcher modes parser receipts refusals
    scoped_pool snapshot unbound warm wasm_jails
"""
TREES = (
    *(f"tests/contract/test_{part}.py" for part in _CONTRACT.split()),
    *(f"tests/e2e/test_{part}.py" for part in ("cli_demo", "cli_doctor", "cli_run", "cli_signals", "embedding", "two_engines")),
    *(f"tests/security/test_{part}_*.py" for part in ("promise", "kernel", "interpreter", "scoped", "snapshot")),
    "tests/security/test_canaries.py",
    "tests/security/test_wasm_promises.py",
    "tests/network",
)
# the contract on both kinds is proved by whoever runs this; a wall depends on the user, so what proves the promises runs again
CASES = ("-k", "not [wasm or promise or network or canaries")
NOBODY = "65534"
_LEFT_BEHIND = shutil.ignore_patterns(".git", ".venv*", "*_cache", ".hypothesis", "dist", "build")
_HEAVY = shutil.ignore_patterns("mypy*", "ruff*", "uv*", "setuptools*", "__pycache__", "*mypyc*")


def closed_folder(path: Path) -> Path | None:
    """The first folder on the way to a path that others may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def command(interpreter: Path, arguments: list[str], hold: Path) -> list[str]:
    """How the interpreter is started as nobody, in no group."""
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", str(interpreter), *arguments]
    closed = closed_folder(interpreter)
    if closed is None:
        return become
    prefix = shlex.quote(sys.base_prefix)
    steps = [
        f"mount --bind {prefix} {shlex.quote(str(hold))}",
        f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}",
        f"mkdir -p {prefix}",
        f"mount --bind {shlex.quote(str(hold))} {prefix}",
        f"exec {shlex.join(become)}",
    ]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(steps)]


def wanted() -> list[str]:
    """The files and folders of ``TREES``."""
    return [str(found.relative_to(PROJECT)) for tree in TREES for found in sorted(PROJECT.glob(tree))]


def take_image(folder: Path) -> None:
    """Have the image in a cache there; where there is none, the tests of it say so."""
    found = machine.image()
    if isinstance(found, EngineError):
        print(f"UNPROVEN: no WebAssembly worker will be tried: {found}", flush=True)
        return
    shutil.copytree(found.entry.path, folder / "stockade" / "images" / found.entry.path.name)


def run(arguments: list[str]) -> int:
    """Copy what is needed, run pytest there, remove the copy; pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="as-nobody-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        packages = Path(pytest.__file__).resolve().parents[1]
        shutil.copytree(packages, folder / "packages", ignore=_HEAVY)
        shutil.copytree(PROJECT, folder / "project", ignore=_LEFT_BEHIND)
        (folder / "hold").mkdir()
        take_image(folder / "cache")
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder / "packages"), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
        if "CI" in os.environ:
            environment["CI"] = os.environ["CI"]
        interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        again = ["-m", "pytest", "-p", "no:cacheprovider", *(arguments or ("-q", *CASES, *wanted()))]
        started = command(interpreter, again, folder / "hold")
        return subprocess.run(started, cwd=folder / "project", env=environment, check=False).returncode


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("not root: the suite ran as an ordinary user already")
        sys.exit(0)
    sys.exit(run(sys.argv[1:]))
