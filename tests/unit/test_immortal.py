"""What a launcher has loaded stays as it is: marked once, in a process of its own here, because it is for good."""

import subprocess

import pytest

from tests.interpreters import interpreter

PROGRAM = """
import gc, os, sys, types
sys.path.insert(0, sys.argv[1])
from enter import immortal, kernel

IMMORTAL = 0xFFFF_FFFF
loaded = [os.path.join, os.path.join.__code__, os.path.join.__code__.co_consts, os.environ, kernel.Step, types]
class Place:
    there = True
    def __del__(self):
        Place.there = False

place = Place()
gc.collect()
immortal.settle([place])
del place
forgotten = not Place.there
marked = [sys.getrefcount(one) == IMMORTAL for one in loaded]
later = [object(), ["a list"], lambda: None, type("Later", (), {})]
mortal = [sys.getrefcount(one) < 1000 for one in later]

class Told:
    gone = False
    def __del__(self):
        Told.gone = True

told = Told()
told.itself = told
del told
gc.collect()
import json, string
os.environ["A"] = "b"
works = json.dumps({"a": [os.path.join("a", "b"), os.environ["A"]]})
again = len(immortal._found())
immortal.settle()
small = again < 20_000 and gc.get_freeze_count() > 1000
print(forgotten, kernel.can_be_immortal(), all(marked), any(marked), all(mortal), Told.gone, works, small)
"""


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)], ids=lambda version: ".".join(map(str, version)))
def test_what_is_loaded_is_marked_where_the_interpreter_knows_the_mark(version: tuple[int, int], project: object) -> None:
    """Loaded objects are marked from 3.12 on and untouched before; what comes later lives and dies as ever, and all of it works."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"unproven: no Python {version[0]}.{version[1]} was found")
    command = [str(python), "-I", "-S", "-c", PROGRAM, f"{project}/worker_images"]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    marked = version >= (3, 12)
    assert (done.stdout, done.stderr) == (f'True {marked} {marked} {marked} True True {{"a": ["a/b", "b"]}} True\n', "")
