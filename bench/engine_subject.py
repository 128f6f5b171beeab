"""The program that measures the engine: ``python -m bench.engine_subject CASE SUBJECT [--quick]`` does one subject's part of one round.

Its job: which tree the engine is taken from (this one, or the one that ``STOCKADE_BENCH_TREE`` names), then the case's own function.
Not its job: measuring (``bench_*.py``).
"""

import importlib
import os
import sys
from pathlib import Path

from bench import measurement

TREE = "STOCKADE_BENCH_TREE"


def _main() -> None:
    case = sys.argv.pop(1)
    if tree := os.environ.get(TREE):
        sys.path.insert(0, tree)  # `bench` is imported already and stays ours: only the engine is the other tree's
    import engine

    module = importlib.import_module(f"bench.bench_{case}")
    if tree and Path(engine.__file__).resolve().parents[1] != Path(tree).resolve():
        sys.exit("the engine that was imported is not the one of the tree that was named")
    measurement.main(module.CASE.subjects)


if __name__ == "__main__":
    _main()
