"""``stockade image``: the tiny image in a project of the test's own, by the real commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.images.cache import Cache
from tests import images
from tests.e2e.commands import Ended, environment
from tests.images import Tiny, spoil, tiny
from tests.kit import PROJECT

pytestmark = pytest.mark.slow
# the command line as it is, in a project of the test's own, and with a builder's environment that needs no installing
PROGRAM = """
import sys
from pathlib import Path
import pytest
from engine.faces import cli, images
from engine.images.image import Shipped
from tests import images as tiny
root = Path(sys.argv[1])
tiny.without_installing(pytest.MonkeyPatch())
images.shipped = lambda: Shipped(worker_images=root / "worker_images", engine=root / "engine", policies=root / "policies")
cli.main(["image", *sys.argv[2:]])
"""


@pytest.fixture
def project(tmp_path: Path) -> Tiny:
    """A tiny image that was not built yet."""
    return tiny(tmp_path)


def image(project: Tiny, *arguments: str, **variables: str) -> Ended:
    """Run ``stockade image`` to its end; its cache is the user's, below a home of the test's own."""
    root = project.shipped.policies.parent
    home = root.parent / "home"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), *arguments],
        cwd=PROJECT,
        env={**environment(home), "XDG_CACHE_HOME": str(home / "cache"), **variables},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))


def cached(project: Tiny) -> Tiny:
    """The same with the user's cache."""
    return Tiny(project.shipped, Cache(folder=project.shipped.policies.parents[1] / "home" / "cache" / "stockade"))


def test_an_image_is_built_listed_verified_and_pruned(project: Tiny) -> None:
    """Each step is told, a second build tells none; the list says whether it is pinned; a damaged file is named; all is gone at the end."""
    built, again = image(project, "build"), image(project, "build", "tiny", "--json")
    assert (built.code, built.err) == (0, "image building tiny: tiny ...\nimage compiling tiny for this machine ...\n")
    assert (again.code, again.err, again.document["value"][0]["digest"]) == (0, "", images.digest(images.COMPONENT))
    listed = image(project, "list").out.splitlines()
    assert (listed[0].split(), listed[2].split()[3:5]) == (
        ["image", "digest", "recipe", "pinned", "compiled", "size", "age"],
        ["no", "yes"],
    )
    project.pin()
    assert image(project, "list", "--json").document["value"][0]["pinned"] is True
    assert image(project, "verify", "--json").code == 0
    spoil(cached(project).cache.place(project.recipe.digest) / "component.wasm")
    wrong = image(project, "verify", "tiny", "--json")
    assert (wrong.code, wrong.document["reason"], "component.wasm was changed" in wrong.document["lines"][0]) == (
        5,
        "refused.image_corrupt",
        True,
    )
    assert image(project, "prune").out == "nothing to remove\n"
    assert (image(project, "prune", "--all").code, cached(project).left()) == (0, [])


def test_before_it_was_built_everything_says_how_to_build_it(project: Tiny) -> None:
    """Listing and looking through everything are no errors."""
    assert (image(project, "verify").code, "not built" in image(project, "list").out) == (0, True)
    for words in (("verify", "tiny"), ("export", "tiny", "file")):
        ended = image(project, *words, "--json")
        assert (ended.code, ended.document["reason"]) == (3, "refused.image_missing")
        assert "stockade image build tiny" in ended.document["lines"][0]


@pytest.mark.parametrize("words", [("build", "none"), ("verify", "none"), ("export", "none", "file"), ("import", "none")])
def test_what_does_not_exist_is_the_caller_s_mistake(project: Tiny, words: tuple[str, ...]) -> None:
    """An unknown image, a file that is not there."""
    ended = image(project, *words, "--json")
    assert (ended.code, ended.document["reason"]) == (2, "refused.request")


def test_an_image_moves_in_a_file(project: Tiny, tmp_path: Path) -> None:
    """Exported here, brought in there, compiled there, and told that nobody pins its bytes; a pin of them changes that."""
    file, there = str(tmp_path / "file"), ("--image-dir", str(tmp_path / "there"))
    image(project, "build")
    exported = image(project, "export", "tiny", file)
    assert (exported.code, "stockade image import" in exported.out) == (0, True)
    project.pin()
    brought = image(project, "import", file, *there)
    assert (brought.code, "[images] tiny = { value =" in brought.out) == (0, True)
    assert brought.err == "image reading file ...\nimage compiling tiny for this machine ...\n"
    project.pin(images.digest(images.COMPONENT))
    (row,) = image(project, "list", *there, "--json").document["value"]
    assert (row["pinned"], row["compiled"], row["built_here"]) == (True, True, False)
    assert "tiny (brought from elsewhere)" in image(project, "list", *there).out
    assert image(project, "verify", *there).out == f"tiny {row['digest'][7:19]}: every file is as it was made\n"


def test_what_was_brought_is_made_anew_where_nobody_pins_it(project: Tiny, tmp_path: Path) -> None:
    """A build after an import ends with an image that runs; where its bytes are pinned there is nothing to build."""
    file, there = str(tmp_path / "file"), ("--image-dir", str(tmp_path / "there"))
    image(project, "build")
    image(project, "export", "tiny", file)
    image(project, "import", file, *there)
    project.pin(images.digest(images.COMPONENT))
    assert image(project, "build", *there).err == ""
    project.pin()
    assert "making it here" in image(project, "build", *there).err
    (row,) = image(project, "list", *there, "--json").document["value"]
    assert (row["pinned"], row["built_here"]) == (True, True)


def test_what_cannot_be_built_has_its_way_out(project: Tiny) -> None:
    """One error, one reason, the builder's last word, and what to do instead."""
    project.builder("sys.exit('componentize-py is not here')\n")
    ended = image(project, "build")
    assert (ended.code, ended.err.splitlines()[1]) == (5, "refused.image_build: building tiny: componentize-py is not here")
    assert "stockade image export" in ended.err.splitlines()[2]


def test_a_cache_that_cannot_be_written_has_its_way_out(project: Tiny, tmp_path: Path) -> None:
    """A file in its place; the control: another folder works."""
    (tmp_path / "file").write_text("")
    ended = image(project, "build", "--image-dir", str(tmp_path / "file" / "cache"), "--json")
    assert (ended.code, ended.document["reason"]) == (5, "refused.storage")
    assert "--image-dir" in ended.document["lines"][0]
    assert image(project, "build", "--image-dir", str(tmp_path / "other"), "--json").code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="unproven here: mounting a small disk needs root")
def test_a_full_disk_leaves_nothing_half(project: Tiny, tmp_path: Path) -> None:
    """A disk of one megabyte under the cache: an error of storage, an empty cache; the control: a small component fits."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size=1m,mode=0700 none {disk} && "$@"; find {disk} -type f ! -name lock'
    project.builder("done(b'\\0asm\\x0d\\0\\1\\0' + b'\\0' * (8 << 20))\n")
    command = [sys.executable, "-c", PROGRAM, str(project.shipped.policies.parent), "build", "--image-dir", str(disk), "--json"]

    def build() -> list[str]:
        words = ["unshare", "--mount", "sh", "-c", mounted, "sh", *command]
        done = subprocess.run(words, cwd=PROJECT, env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.splitlines()

    document, *left = build()
    assert (json.loads(document)["reason"], left) == ("refused.storage", [])
    project.builder("done()\n")
    document, *left = build()
    assert (json.loads(document)["reason"], len(left)) == ("ok.done", 5)
