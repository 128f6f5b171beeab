"""The rivals' environments: one for each ``requirements/rivals-NAME.txt``, below ``.venv-rivals``, pinned by hash.

Its job: the first interpreter that a rival's wheels fit, its environment, the stamp that says it is whole.
Not its job: using them. A rival that does not install is absent from the bench, and nothing else.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.harness import HOMES
from bench.machine import PROJECT

NEWER = ("3.13", "3.12", "3.14")  # asked for when a rival has no wheel for the interpreter of the bench


def interpreters() -> Iterator[str]:
    """The bench's own interpreter, then others that the machine has."""
    yield os.path.realpath(sys.executable)
    for version in NEWER:
        found = shutil.which(f"python{version}")
        yield from [found] if found else []
        kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        yield from (str(path) for path in sorted(kept.glob(f"{version}.*/bin/python")))


def install(homes: Path = HOMES) -> int:
    """Make what is missing; the exit code is 0 even when a rival does not install: the bench says so in its place."""
    for pins in sorted((PROJECT / "requirements").glob("rivals-*.txt")):
        name = pins.stem.removeprefix("rivals-")
        home = homes / name
        stamp = home / "installed"
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == pins.read_text(encoding="utf-8"):
            print(f"{name}: already there")
            continue
        reason = "no interpreter"
        for python in interpreters():
            reason = _made(python, home, pins)
            if not reason:
                stamp.write_text(pins.read_text(encoding="utf-8"), encoding="utf-8")
                break
        if reason:
            shutil.rmtree(home, ignore_errors=True)
        print(f"{name}: {f'absent: {reason}' if reason else 'installed'}", flush=True)
    return 0


def _made(python: str, home: Path, pins: Path) -> str:
    """Why it did not work, empty when it did."""
    shutil.rmtree(home, ignore_errors=True)
    made = subprocess.run([python, "-m", "venv", str(home)], capture_output=True, text=True, check=False)
    if made.returncode:
        return _last(made.stderr or made.stdout)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes"]
    done = subprocess.run([*pip, "--only-binary", ":all:", "-r", str(pins)], capture_output=True, text=True, check=False)
    return _last(done.stderr) if done.returncode else ""


def _last(said: str) -> str:
    lines = said.strip().splitlines()
    return " ".join(lines[-1].split())[:160] if lines else "nothing said"
