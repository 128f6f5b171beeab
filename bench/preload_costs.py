"""What each module of ``policies/preload.toml`` adds to one fork, and what a child that has to import it itself pays instead.

Its job: ``python -m bench.preload_costs``: one fresh interpreter per module and round, forks without it and with it; a table.
Not its job: deciding what is listed (the operator does), judging (nothing here passes or fails).
The smallest of many is printed: on a shared machine it is the only figure that comes back.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

ROUNDS, FORKS = 5, 400
ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import gc, os, sys, time
folder, name, forks = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, folder)
sys.argv[1:] = []
import enter.main

def fork_us():
    gc.collect()
    gc.freeze()
    best = []
    for _ in range(forks):
        started = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        best.append((time.perf_counter() - started) * 1e6)
    return min(best)

def import_us():
    ours, theirs = os.pipe()
    if os.fork() == 0:
        started = time.perf_counter()
        __import__(name)
        os.write(theirs, str((time.perf_counter() - started) * 1e6).encode())
        os._exit(0)
    os.wait()
    return float(os.read(ours, 64))

without = fork_us()
imported = min(import_us() for _ in range(5))
__import__(name)
print(fork_us(), imported, without)
"""


def measured(name: str) -> tuple[float, float, float]:
    """What the module adds to a fork, what importing it costs a child, and the fork without it: each in us, the smallest of the rounds."""
    rounds = []
    for _ in range(ROUNDS):
        command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(ROOT / "worker_images"), name, str(FORKS)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        rounds.append([float(word) for word in done.stdout.split()])
    with_it, imported, without = (min(row[column] for row in rounds) for column in range(3))
    return max(with_it - without, 0.0), imported, without


def main() -> None:
    """Print a line for each listed module."""
    listed = tomllib.loads((ROOT / "policies" / "preload.toml").read_text(encoding="utf-8"))["modules"]
    print(f"Python {sys.version.split()[0]}, {ROUNDS} interpreters of {FORKS} forks each, the smallest, us")
    print(f"{'module':<14}{'listed':>8}{'adds to a fork':>16}{'import in a child':>19}{'fork without':>14}")
    for name, entry in listed.items():
        added, imported, without = measured(name)
        print(f"{name:<14}{entry['fork_us']:>8}{added:>16.0f}{imported:>19.0f}{without:>14.0f}", flush=True)


if __name__ == "__main__":
    main()
