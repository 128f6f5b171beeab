"""The launcher plays a child's life before there is one; played in a process of its own here, because it empties its environment."""

import json
import subprocess
import sys
from pathlib import Path

import msgpack

PROGRAM = """
import json, os, sys
carried, packages = sys.argv[1:]
sys.path.insert(0, carried + "/worker_images")
from enter.runtime import Runtime

def state():
    return {
        "modules": sorted(sys.modules),
        "path": list(sys.path),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "finders": sorted(sys.path_importer_cache),
    }

runtime = Runtime(carried, packages)
before = state()
runtime.rehearse()
after = state()
new = {key: [one for one in after[key] if one not in before[key]] for key in after}
ran = bool({"_sha2", "_sha256"} & set(sys.modules))
print(json.dumps({"new": new, "gone": before["path"] != after["path"], "environment": dict(os.environ), "ran": ran}))
"""


def test_a_rehearsal_leaves_nothing_behind(project: Path) -> None:
    """Modules that the interpreter itself needed are all that is new; the sample, its folder and its channels are gone."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(project), str(Path(msgpack.__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, check=True, env={"A": "b"}, text=True)
    told = json.loads(done.stdout)
    assert told["environment"] == {}
    assert not told["gone"]
    assert [name for name in told["new"]["modules"] if name not in sys.stdlib_module_names | {"_sha2"}] == []
    assert (told["new"]["path"], told["new"]["descriptors"]) == ([], [])
    assert [path for path in told["new"]["finders"] if "rehearsal" in path] == []
    assert told["ran"]
