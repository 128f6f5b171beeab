"""A builder that imports a tool is walled in before it does: what a source gains that broke out of the builder's runtime, and what without.

The runtime is a stand-in that runs the staged source in its own process, by CPython: whoever broke out of WebAssembly is no further.
Each attempt is judged by its effect, and each succeeds where only the wall is left out, in this test alone.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.images.wall import LIMITS, wall
from tests.kit import PROJECT

PROGRAM = PROJECT / "worker_images" / "publish" / "main.py"
# it imports what the attempts need, because the standard library cannot be read any more when they begin
STAND_IN = """
import json, os, resource, socket, sys, threading, time
def script():
    words = dict(zip(sys.argv, sys.argv[1:]))
    out, root = words["-o"], words["-p"]
    with open(os.path.join(root, "prepared.json")) as file:
        source = json.load(file)["files"]["tools.py"]
    def got(data):
        with open(out, "wb") as file:
            file.write(data)
    exec(source, {"got": got, "root": root, "out": out})
"""
WITHOUT = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import main
main.wall_in = lambda *_: None
place = pathlib.Path(sys.argv[2])
main.main(json.loads(place.read_bytes()), place.parent)
"""
SMALL = {**LIMITS, "CPU": 1, "DATA": 512 << 20, "FSIZE": 1 << 20}


class Place:
    """A folder with what a builder is given, and things outside of it that it must not reach."""

    def __init__(self, folder: Path) -> None:
        self.work, self.outside = folder / "work", folder / "outside"
        self.work.mkdir()
        (self.work / "tmp").mkdir()
        self.outside.mkdir()
        (self.outside / "canary").write_bytes(b"canary")
        (folder / "stand_in").mkdir()
        (folder / "stand_in" / "componentize_py.py").write_text(STAND_IN)
        (folder / "source").mkdir()
        self._folder = folder

    @property
    def evidence(self) -> bytes | None:
        """What the source got hold of."""
        out = self.work / "out" / "component.wasm"
        return out.read_bytes() if out.exists() else None

    def run(self, source: str, *, walled: bool, **changed: Any) -> subprocess.CompletedProcess[str]:
        """Have the source imported."""
        (self._folder / "source" / "tools.py").write_text(source)
        spec = {
            "out": str(self.work / "out" / "component.wasm"),
            "guest": str(PROJECT / "worker_images"),
            "engine": str(PROJECT / "engine"),
            "packages": [],
            "source": str(self._folder / "source"),
            "layers": {},
            "entry": "tools",
            "wall": {**wall(PROJECT / "policies"), "limits": SMALL, **changed},
        }
        written = self.work / "spec.json"
        written.write_text(json.dumps(spec))
        command = [str(PROGRAM), str(written)] if walled else ["-c", WITHOUT, str(PROGRAM.parent), str(written)]
        return subprocess.run(
            [sys.executable, *command],
            env={"PYTHONPATH": str(self._folder / "stand_in"), "TMPDIR": str(self.work / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """For one attempt."""
    return Place(tmp_path)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody on this host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def came(listener: socket.socket) -> bool:
    """Whether somebody connected."""
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


Effect = Callable[[Place], bool]
# what is tried -> the source, and whether it had its effect; {outside} is the folder outside
ATTEMPTS: dict[str, tuple[str, Effect]] = {
    "read a file": ("got(open('{outside}/canary', 'rb').read())", lambda place: place.evidence == b"canary"),
    "list a folder": ("import os; got(' '.join(os.listdir('{outside}')).encode())", lambda place: place.evidence == b"canary"),
    "read what other processes have": ("got(open('/proc/1/stat', 'rb').read())", lambda place: bool(place.evidence)),
    "read its own spec": (
        "import os; got(open(os.path.join(root, '../../spec.json'), 'rb').read())",
        lambda place: bool(place.evidence),
    ),
    "write a file": ("open('{outside}/made', 'w').close()", lambda place: (place.outside / "made").exists()),
    "write to what it was given": (
        "import os; open(os.path.join(root, 'made'), 'w').close()",
        lambda place: (place.work / "given" / "root" / "made").exists(),
    ),
    "cut a file": (
        "import os; os.truncate('{outside}/canary', 0)",
        lambda place: (place.outside / "canary").read_bytes() == b"",
    ),
    "remove a file": ("import os; os.unlink('{outside}/canary')", lambda place: not (place.outside / "canary").exists()),
    "change a mode": (
        "import os; os.chmod('{outside}/canary', 0o777)",
        lambda place: (place.outside / "canary").stat().st_mode & 0o777 == 0o777,
    ),
    "change a time": ("import os; os.utime('{outside}/canary', (1, 1))", lambda place: (place.outside / "canary").stat().st_mtime == 1),
    "leave a link in its place": ("import os; os.symlink('{outside}/canary', out)", lambda place: place.evidence == b"canary"),
    "start a program": (
        "import os; os.execv('/bin/sh', ['/bin/sh', '-c', ': > {outside}/made'])",
        lambda place: (place.outside / "made").exists(),
    ),
    "start a process": (
        "import os\nif os.fork() == 0:\n    got(b'child')\n    os._exit(0)\nos.wait()",
        lambda place: place.evidence == b"child",
    ),
    "make a socket pair": ("import socket; socket.socketpair(); got(b'pair')", lambda place: place.evidence == b"pair"),
    "change a limit": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))\ngot(b'set')",
        lambda place: place.evidence == b"set",
    ),
    "run for longer": (
        "import time\nwhile time.process_time() < 3:\n    pass\ngot(b'ran')",
        lambda place: place.evidence == b"ran",
    ),
    "take memory": ("taken = bytearray(600 << 20)\ngot(b'taken')", lambda place: place.evidence == b"taken"),
    "fill a disk": ("got(bytes(2 << 20))", lambda place: len(place.evidence or b"") == 2 << 20),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_fails_behind_the_wall(place: Place, name: str) -> None:
    """It has no effect."""
    source, had_effect = ATTEMPTS[name]
    place.run(source.format(outside=place.outside), walled=True)
    assert not had_effect(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTEMPTS)
def test_the_same_attempt_succeeds_without_it(place: Place, name: str) -> None:
    """The control: the same build, less the one line that makes the wall."""
    source, had_effect = ATTEMPTS[name]
    done = place.run(source.format(outside=place.outside), walled=False)
    assert had_effect(place), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("walled", [True, False])
def test_nobody_on_the_network_is_reached(place: Place, listener: socket.socket, walled: bool) -> None:
    """Neither by TCP on this host, and without the wall it is."""
    place.run(f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}))", walled=walled)
    assert came(listener) is not walled


@pytest.mark.slow
@pytest.mark.parametrize("walled", [True, False])
def test_nobody_is_signalled(place: Place, walled: bool) -> None:
    """Not even a process of the same user, which ends without the wall."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        place.run(f"import os; os.kill({victim.pid}, 15)", walled=walled)
        victim.communicate(b"\n", timeout=60)
        assert victim.returncode == (0 if walled else -15)


@pytest.mark.slow
def test_what_a_build_needs_goes_through(place: Place) -> None:
    """Reading what it was given, threads, memory and files within bounds, its own two folders."""
    source = """
import os, threading
given = os.listdir(root)
ended = []
thread = threading.Thread(target=lambda: ended.append(bytearray(1 << 20)))
thread.start(); thread.join()
os.mkdir(os.path.join(os.environ["TMPDIR"], "made"))
os.rmdir(os.path.join(os.environ["TMPDIR"], "made"))
got(b" ".join([b"entry.py" if "entry.py" in given else b"", b"%d" % len(ended)]))
"""
    done = place.run(source, walled=True)
    assert (done.returncode, place.evidence) == (0, b"entry.py 1"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"landlock": 99}, "step 'enter the Landlock domain' failed: this kernel's Landlock is of level "),
        ({"filter": "00" * 8}, "step 'load the seccomp filter' failed: "),
        ({"limits": {**SMALL, "NOFILE": 1 << 40}}, ""),
    ],
)
def test_a_part_that_cannot_be_had_ends_the_build(place: Place, changed: dict[str, Any], said: str) -> None:
    """Nothing of the source runs then."""
    done = place.run("got(b'ran')", walled=True, **changed)
    assert (done.returncode != 0, done.stderr.startswith(said), place.evidence) == (True, True, None)


@pytest.mark.slow
def test_without_a_wall_in_the_spec_nothing_runs(place: Place) -> None:
    """Leaving it out opens nothing."""
    (place.work.parent / "source" / "tools.py").write_text("got(b'ran')")
    place.run("got(b'ran')", walled=True)
    spec = json.loads((place.work / "spec.json").read_bytes())
    assert place.evidence == b"ran"
    fresh = place.work.parent / "again"
    (fresh / "tmp").mkdir(parents=True)
    out = fresh / "out" / "component.wasm"
    (fresh / "spec.json").write_text(json.dumps({**{key: value for key, value in spec.items() if key != "wall"}, "out": str(out)}))
    variables = {"PYTHONPATH": str(place.work.parent / "stand_in")}
    done = subprocess.run([sys.executable, PROGRAM, fresh / "spec.json"], env=variables, capture_output=True, timeout=120, check=False)
    assert (done.returncode, out.exists(), os.path.exists(fresh / "given")) == (1, False, True)
