"""What is free between objects is taken, in a process of its own here, because it is never given back."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import ctypes, sys
sys.path.insert(0, sys.argv[1] + "/worker_images")
from enter import kernel

FOUND = b"left by somebody " + b"who is gone" * 20
malloc, free = ctypes.pythonapi.PyObject_Malloc, ctypes.pythonapi.PyObject_Free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
kept = [malloc(320) for _ in range(400)]
holes = kept[::2]
for at in holes:
    ctypes.memmove(at, FOUND, len(FOUND))
    free(at)
seen = sum(ctypes.string_at(at, 320).count(b"who is gone") > 0 for at in holes)
kernel.fill_holes()
still = sum(ctypes.string_at(at, 320).count(b"who is gone") > 0 for at in holes)
made = [malloc(320) for _ in range(20)]
reused = len(set(made) & set(holes))
span = max(made) - min(made)
print(seen, still, reused, span)
"""


def test_holes_are_taken_and_hold_nothing(project: Path) -> None:
    """What was freed is not given out again, nor readable; what is made next lies together."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM, str(project)], capture_output=True, check=True, text=True)
    seen, still, reused, span = map(int, done.stdout.split())
    assert seen > 150
    assert (still, reused) == (0, 0)
    assert span < 20 * 320
