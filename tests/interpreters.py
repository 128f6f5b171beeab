"""Interpreters of other versions on this machine, each tried before it is named."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


def _runs_as(path: Path) -> tuple[int, int] | None:
    asked = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([path, "-I", "-S", "-c", asked], capture_output=True, text=True, timeout=60, check=False)
    words = done.stdout.split()
    return (int(words[0]), int(words[1])) if done.returncode == 0 and len(words) == 2 else None


@cache
def interpreter(version: tuple[int, int]) -> Path | None:
    """An interpreter of the version: the running one, one of the system, of the path, or of pyenv."""
    name = f"python{version[0]}.{version[1]}"
    found = [Path("/usr/bin") / name, Path("/usr/local/bin") / name]
    found += [Path(path)] if (path := shutil.which(name)) else []
    found += sorted(Path(os.environ.get("PYENV_ROOT", "/nowhere")).glob(f"versions/{version[0]}.{version[1]}.*/bin/python"))
    if sys.version_info[:2] == version:
        found.insert(0, Path(sys.executable))
    return next((path for path in found if path.is_file() and _runs_as(path) == version), None)
