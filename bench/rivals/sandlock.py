"""sandlock around ``python -I -S``: Landlock and seccomp with user notification, a clean environment, the interpreter to be read."""

from pathlib import Path
from typing import Any

from bench import measurement
from bench.measurement import Absent
from bench.rivals.started import PREFIX, ask, jobs_for, python

_READ = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/urandom", "/dev/null")


def _sandbox(**more: Any) -> Any:
    from sandlock import Sandbox

    return Sandbox(fs_readable=[place for place in (*_READ, PREFIX) if Path(place).exists()], clean_env=True, **more)


def _start(command: list[str], stdin: str) -> str:
    # sandlock gives its command no stdin of the caller's: what the program reads comes as its own text
    *head, program = command
    told = program.replace("json.load(sys.stdin)", f"json.loads({stdin!r})")
    result = _sandbox().run([*head, told])
    if not result.success:
        raise Absent(f"sandlock does not run here: {(result.error or bytes(result.stderr).decode('utf-8', 'replace')).strip()[-160:]}")
    return bytes(result.stdout).decode("utf-8")


def _deadline(run: measurement.Run) -> None:
    from bench.rivals import jobs

    def loop(way: str) -> object:
        result = _sandbox().run([python(), "-I", "-S", "-c", "while True: pass"], timeout=0.2)
        return result if result.success else "ended"

    jobs.late(run, loop, (), lambda region: ask(_start, "lookup", region))


# a command's arguments are bounded by the kernel: 1 MB as one of them is too much
JOBS = {name: job for name, job in jobs_for(_start).items() if name != "large"} | {"deadline": _deadline}

if __name__ == "__main__":
    measurement.main(JOBS, "sandlock")
