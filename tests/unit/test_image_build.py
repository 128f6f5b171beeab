"""One build: once for all who ask at the same time, whole or not at all, from the bytes that were hashed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import psutil
import pytest

from engine.images import archive, build
from engine.images.image import find
from engine.images.pins import load_pins
from tests import images, moments
from tests.images import Heard, Tiny, spoil, tiny
from tests.kit import PROJECT
from tests.staged import refusal

# a process that builds the tiny image of a folder as this one would, and tells its steps
BUILDING = """
import sys
from pathlib import Path
import pytest
from tests import images
from tests.images import Heard, tiny

class Saying(Heard):
    def step(self, text):
        print(text, flush=True)

images.without_installing(pytest.MonkeyPatch())
folder = Path(sys.argv[1])
project = images.Tiny(images.Shipped(worker_images=folder / "project/worker_images", engine=folder / "project/engine",
                                     policies=folder / "project/policies"), images.Cache(folder=folder / "cache"))
print("built", project.build(Saying()).component, flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny image that was not built yet."""
    images.without_installing(monkeypatch)
    return tiny(tmp_path)


def counting(project: Tiny, tmp_path: Path, then: str = "done()\n") -> Path:
    """A builder that leaves a line each time it runs; gives the file."""
    count = tmp_path / "count"
    project.builder(f"open({str(count)!r}, 'a').write('once\\n')\n{then}")
    return count


def test_an_image_is_built_and_compiled_once(project: Tiny, tmp_path: Path) -> None:
    """The second time it is there: nothing runs, nobody is told anything."""
    count, heard, again = counting(project, tmp_path), Heard(), Heard()
    first, second = project.build(heard), project.build(again)
    assert (heard.steps, again.steps) == (["building tiny: tiny", "compiling tiny for this machine"], [])
    assert (count.read_text(), first) == ("once\n", second)


def test_the_builder_gets_what_was_hashed(project: Tiny, tmp_path: Path) -> None:
    """A file that is changed after the recipe was read does not go in; the builder's own folder holds the inputs and nothing else."""
    said = tmp_path / "said"
    project.builder(
        "top = os.path.dirname(spec['guest'])\n"
        "places = [os.path.join(f, name) for part in ('guest', 'engine') for f, _, names in os.walk(spec[part]) for name in names]\n"
        f"json.dump({{os.path.relpath(place, top): open(place).read() for place in places}}, open({str(said)!r}, 'w'))\n"
        "done()\n"
    )
    read = project.recipe
    project.write("worker_images/guest/main.py", "y = 'too late'\n")
    build.build(read, project.cache, project.shipped.worker_images, images.MEANS, Heard())
    text = said.read_text()
    assert ("too late" in text, '"worker_images/guest/main.py": "x = 1\\n"' in text) == (False, True)
    assert text.count('": "') == len(read.inputs)


def test_the_builder_sees_nothing_of_ours(project: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables are fixed: what it makes depends on its inputs alone."""
    monkeypatch.setenv("STOCKADE_CANARY", "secret")
    said = tmp_path / "said"
    project.builder(f"open({str(said)!r}, 'w').write(' '.join(sorted(os.environ)))\ndone()\n")
    project.build()
    assert said.read_text() == "HOME LANG PATH PYTHONDONTWRITEBYTECODE PYTHONHASHSEED SOURCE_DATE_EPOCH TMPDIR"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("sys.exit('no')\n", "building tiny: no"),
        ("pass\n", "building tiny: the builder did not say what it made"),
        ("done(b'text')\n", "building tiny: what was made is no component, or too large"),
        ("done()\nos.unlink(spec['out'])\n", "building tiny: the builder made nothing"),
        ("done()\njson.dump({'python': 3}, open(spec['facts'], 'w'))\n", "building tiny: the builder did not say what it made"),
        (
            "done()\njson.dump({'python': '3', 'modules': ['\\x1b[2J']}, open(spec['facts'], 'w'))\n",
            "building tiny: what the builder says of it: modules: want a list of names",
        ),
    ],
)
def test_a_builder_that_fails_leaves_nothing(project: Tiny, text: str, line: str) -> None:
    """One error with its reason, and no trace; the control: the next one works."""
    project.builder(text)
    assert refusal(project.build) == ("refused.image_build", (line,))
    assert project.left() == []
    project.builder("done()\n")
    project.build()


def test_a_full_disk_is_told_as_one(project: Tiny) -> None:
    """By the builder's words, with the ways out."""
    project.builder("import errno\nraise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n")
    code, (line,) = refusal(project.build)
    assert (code, "No space left on device: make room" in line, project.left()) == ("refused.storage", True, [])


def test_what_fails_to_compile_stays_built(project: Tiny) -> None:
    """The component is whole: the next attempt compiles it and builds nothing."""
    project.write("worker_images/wasm/compile.py", "import sys\nsys.exit('no')\n")
    assert refusal(project.build) == ("refused.image_build", ("compiling tiny: no",))
    project.write("worker_images/wasm/compile.py", images.COMPILE)
    heard = Heard()
    project.build(heard)
    assert heard.steps == ["compiling tiny for this machine"]


@pytest.mark.parametrize("name", ["component.wasm", "manifest.json", "record.json"])
def test_a_damaged_image_is_made_again(project: Tiny, name: str) -> None:
    """Whatever file it is."""
    spoil(project.build().path / name)
    heard = Heard()
    project.build(heard)
    assert (len(heard.steps), heard.steps[0].endswith("making it again")) == (3, True)
    assert build.sound(project.cache, project.recipe.digest).built_here


@pytest.mark.parametrize("pinned", [True, False])
def test_what_was_brought_serves_when_it_is_the_pinned_one(project: Tiny, tmp_path: Path, pinned: bool) -> None:
    """Or it is made here in its place, and runs then."""
    there = tiny(tmp_path / "there")
    archive.export(there.build(), tmp_path / "file")
    with project.cache.writing(lambda: None):
        archive.bring(tmp_path / "file", project.cache, project.shipped.worker_images, Heard())
    project.pin(images.digest(images.COMPONENT) if pinned else None)
    pin, heard = load_pins(project.shipped.policies)["tiny"], Heard()
    made = build.build(project.recipe, project.cache, project.shipped.worker_images, images.MEANS, heard, pin=pin)
    assert (made.built_here, len(heard.steps)) == ((False, 0) if pinned else (True, 3))
    assert pinned or heard.steps[0].endswith("no bytes are pinned for it: making it here")
    assert find("tiny", project.cache, project.shipped, allowed=None).compiled


def test_two_at_once_build_once(project: Tiny, tmp_path: Path) -> None:
    """The second says that it waits, and has the first one's image."""
    count = counting(project, tmp_path, f"print('up', flush=True)\nopen({str(_fifo(tmp_path))!r}).read()\ndone()\n")
    with _building(tmp_path) as first, _building(tmp_path) as second:
        assert {_line(first), _line(second)} == {"building tiny: tiny", "another process is at work on the images: waiting for it"}
        (tmp_path / "fifo").write_text("go")
        ends = [process.communicate(timeout=60)[0].splitlines()[-1] for process in (first, second)]
    assert (count.read_text(), len(set(ends)), ends[0].split()[0]) == ("once\n", 1, "built")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_nothing_half(project: Tiny, tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C there is nothing at all, after a kill nothing that the next one would take for an image; the builder is gone."""
    pid = tmp_path / "pid"
    forever = f"open({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    project.builder(f"open(spec['out'], 'wb').write(b'half')\n{forever}")
    _fifo(tmp_path, "pid")
    with _building(tmp_path) as process:
        builder = psutil.Process(int(pid.read_text()))
        process.send_signal(number)
        process.communicate(timeout=60)
    moments.wait_gone_sync([builder])
    assert [name for name in project.left() if ".tmp-" not in name] == []
    assert project.left() == [] or number == signal.SIGKILL
    project.builder("done()\n")
    project.build()
    assert [name for name in project.left() if ".tmp-" in name] == []


def _fifo(folder: Path, name: str = "fifo") -> Path:
    os.mkfifo(folder / name)
    return folder / name


def _building(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDING, str(folder)], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    output: IO[str] | None = process.stdout
    assert output is not None
    return output.readline().strip()
