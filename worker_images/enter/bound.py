"""Becomes another program that dies with who started it: ``python -I -S bound.py STARTER PROGRAM ARGUMENT...``; used while images are made.

Its job: ask the kernel for the end of this process with its starter's, then be the program.
Not its job: what is run (``engine/images/running.py``), jails (``enter.py``).
Laws:
1. When the starter is killed so is the program: nothing goes on building for nobody (tests/unit/test_image_running.py).
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from enter import kernel


def main(starter: int, program: list[str]) -> None:
    """Be that program."""
    kernel.prctl("die with the starter", kernel.PR_SET_PDEATHSIG, 9)
    if os.getppid() != starter:  # it died before we asked, and nobody would tell us
        sys.exit("the starter is gone")
    try:
        os.execv(program[0], program)  # noqa: S606 - no shell, on purpose: the words are the engine's own
    except OSError as error:
        sys.exit(f"{program[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
