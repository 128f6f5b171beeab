"""Images of one source each: what names them, which may run in the place of their base, how long they are kept."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.faces import images as faces
from engine.images import archive, cache, keeping, publishing
from engine.images.cache import Entry
from engine.images.image import Image, find
from engine.images.manifest import Published
from engine.images.publishing import Source
from tests import images
from tests.images import Heard, Tiny, record, spoil, tiny
from tests.kit import PROJECT
from tests.staged import refusal

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")
SOURCE = Source(bundle=ONE, entry="tools", layers={"six": TWO}, place=Path("/nowhere"), sites={"six": Path("/nowhere/six")})
# stands for the program that imports a source: it keeps what it was told beside the component
PROGRAM = """
import json, os, sys
spec = json.load(open(sys.argv[1]))
os.mkdir(os.path.dirname(spec["out"]))
{also}
open(spec["out"], "wb").write(b"\\0asm" + spec["entry"].encode())
"""
PUBLISHED = images.digest(b"\0asmtools")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny image, built and pinned, in a project that can publish."""
    images.without_installing(monkeypatch)
    made = tiny(tmp_path)
    made.write("worker_images/publish/main.py", PROGRAM.format(also=""))
    made.write("worker_images/wasm/sources.py", "")
    shutil.copytree(PROJECT / "policies" / "syscalls", made.shipped.policies / "syscalls")
    made.build()
    made.pin()
    return made


def base(project: Tiny, allowed: str | None = None) -> Image:
    """The image below."""
    return find("tiny", project.cache, project.shipped, allowed=allowed)


def publish(project: Tiny, source: Source = SOURCE, told: Heard | None = None) -> Entry:
    """Make the image of a source."""
    return publishing.publish(source, base(project), project.cache, images.MEANS, told or Heard())


def used(project: Tiny, source: Source = SOURCE) -> str | None:
    """The digest of the image that would run in the base's place."""
    found = publishing.find(source, base(project), project.cache)
    return None if found is None else found.digest


def test_a_published_image_is_used_for_its_source(project: Tiny) -> None:
    """It says what it was made for; what it offers is what its base offers; a second publishing makes nothing."""
    assert used(project) is None
    told, again = Heard(), Heard()
    made = publish(project, told=told)
    assert (made.component, made.built_here, used(project)) == (PUBLISHED, True, PUBLISHED)
    assert made.manifest.published == Published(base=project.recipe.digest, bundle=ONE, layers={"six": TWO}, entry="tools")
    below = base(project).entry.manifest
    assert (made.manifest.modules, made.manifest.python, made.manifest.packages) == (below.modules, below.python, below.packages)
    steps = ["building tiny for tools: its source is imported once, behind a wall", "compiling tiny for this machine"]
    assert (told.steps, publish(project, told=again).path, again.steps) == (steps, made.path, [])


@pytest.mark.parametrize("changed", [{"bundle": THREE}, {"entry": "other"}, {"layers": {}}, {"layers": {"six": THREE}}])
def test_another_source_is_not_served(project: Tiny, changed: dict[str, object]) -> None:
    """Whatever of it differs."""
    publish(project)
    assert used(project, dataclasses.replace(SOURCE, **changed)) is None  # type: ignore[arg-type]  # fields by name


def other_recipe(project: Tiny) -> None:
    project.write("worker_images/guest/main.py", "x = 2\n")
    project.build()
    project.pin()


def other_program(project: Tiny) -> None:
    project.write("worker_images/publish/main.py", PROGRAM.format(also="#"))


def other_reading(project: Tiny) -> None:
    project.write("worker_images/wasm/sources.py", "#")


def other_code(project: Tiny) -> None:
    project.write("worker_images/wasm/configuration.py", "x = 1\n")


def damaged(project: Tiny) -> None:
    spoil(published(project).path / "manifest.json", b"{}")


def from_elsewhere(project: Tiny) -> None:
    entry = published(project)
    spoil(entry.path / cache.RECORD, json.dumps({**record(entry), "built_here": False}).encode())


def published(project: Tiny) -> Entry:
    """The one that was published."""
    key = publishing.key_of(SOURCE.on(project.recipe.digest), project.shipped.worker_images)
    return cache.entry(project.cache, key)


@pytest.mark.parametrize("change", [other_recipe, other_program, other_reading, other_code, damaged, from_elsewhere])
def test_the_base_runs_when_anything_else_is_not_as_it_was(project: Tiny, change: Callable[[Tiny], None]) -> None:
    """Its recipe, what makes and reads it, what it is compiled for, its bytes, where it was made."""
    publish(project)
    assert used(project) == PUBLISHED
    change(project)
    assert used(project) is None


def test_an_image_from_elsewhere_is_no_base(project: Tiny) -> None:
    """A policy that allows its bytes has not allowed the recipe that its manifest names; the pinned recipe is one to build on."""
    publish(project)
    below = base(project)
    spoil(below.entry.path / cache.RECORD, json.dumps({**record(below.entry), "built_here": False}).encode())
    project.pin(component=below.digest)
    assert used(project) == PUBLISHED
    project.write("policies/images.lock", "")
    brought = base(project, allowed=below.digest)
    assert publishing.find(SOURCE, brought, project.cache) is None
    code, (line,) = refusal(publishing.publish, SOURCE, brought, project.cache, images.MEANS, Heard())
    assert (code, "built here, or is pinned" in line) == ("refused.image_build", True)


def test_a_base_of_another_version_is_refused(project: Tiny) -> None:
    """Its files are not here any more."""
    allowed = base(project).digest
    project.write("worker_images/guest/main.py", "x = 2\n")
    brought = base(project, allowed)
    code, (line,) = refusal(publishing.publish, SOURCE, brought, project.cache, images.MEANS, Heard())
    assert (code, line.startswith(f"image tiny is made by the recipe {brought.recipe}, and this version's is ")) == (
        "refused.image_build",
        True,
    )


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ("sys.exit('boom')", "building tiny for tools: boom"),
        ("sys.exit(0)", "building tiny for tools: the builder made nothing"),
        ("open(spec['out'], 'w').write('none'); sys.exit(0)", "building tiny for tools: what was made is no component, or too large"),
        ("os.symlink('/dev/zero', spec['out']); sys.exit(0)", "building tiny for tools: what was made is no component, or too large"),
        ("os.mkdir(spec['out']); sys.exit(0)", "building tiny for tools: what was made is no component, or too large"),
    ],
)
def test_what_does_not_come_out_well_leaves_nothing(project: Tiny, also: str, said: str) -> None:
    """An import that fails, and whatever a source leaves in a component's place."""
    before = project.left()
    project.write("worker_images/publish/main.py", PROGRAM.format(also=also))
    _, lines = refusal(publish, project)
    assert (lines[0].startswith(said), project.left()) == (True, before)


def test_the_image_of_a_source_is_kept_with_its_base(project: Tiny) -> None:
    """It is listed as this version's, looked through, and goes when its base is another version's."""
    publish(project)
    row = keeping.rows(project.cache, project.shipped)[1]
    assert (row.name, row.current, row.pinned, row.compiled, row.published) == (
        "tiny",
        True,
        True,
        True,
        published(project).manifest.published,
    )
    with project.cache.writing(lambda: None):
        assert keeping.prune(project.cache, project.shipped, images.MEANS, everything=False) == []
    entry = published(project)
    spoil(entry.path / "component.wasm")
    assert list(keeping.problems(row, project.cache, project.shipped)) == [f"{entry.path / 'component.wasm'} was changed"]
    below = base(project).entry.path
    project.write("worker_images/guest/main.py", "x = 2\n")
    assert [row.current for row in keeping.rows(project.cache, project.shipped)] == [True, False, False]
    with project.cache.writing(lambda: None):
        gone = keeping.prune(project.cache, project.shipped, images.MEANS, everything=False)
    assert set(gone) == {below, entry.path}


def test_its_builder_is_given_the_wall(project: Tiny) -> None:
    """Whole, in what it is told; without profiles to make a filter of there is no build."""
    checks = "assert spec['wall']['landlock'] == 6 and len(spec['wall']['filter']) > 1000 and spec['wall']['limits']['CPU'] == 300"
    project.write("worker_images/publish/main.py", PROGRAM.format(also=checks))
    assert publish(project).component == PUBLISHED
    shutil.rmtree(project.shipped.policies / "syscalls")
    code, _ = refusal(publish, project, dataclasses.replace(SOURCE, bundle=THREE))
    assert code == "refused.policy"


def test_it_is_listed_by_its_source(project: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the entry and the bundle, beside the image below it."""
    publish(project)
    monkeypatch.setattr(faces, "shipped", lambda: project.shipped)
    shown = faces.show(str(project.cache.folder))
    assert [line.split("  ")[0] for line in shown.text.splitlines()[2:]] == ["tiny", "tiny for tools 111111111111"]
    assert [row.get("published", {}).get("bundle") for row in shown.value] == [None, ONE]


def test_it_serves_no_policy_that_names_it(project: Tiny) -> None:
    """A policy names an image for every source."""
    publish(project)
    code, _ = refusal(base, project, PUBLISHED)
    assert code == "refused.image_missing"


def test_it_is_not_brought_from_elsewhere(project: Tiny, tmp_path: Path) -> None:
    """A file that holds one refuses."""
    entry, file = publish(project), tmp_path / "file.tar"
    archive.export(entry, file)
    elsewhere = tiny(tmp_path / "elsewhere")
    with elsewhere.cache.writing(lambda: None):
        code, (line,) = refusal(archive.bring, file, elsewhere.cache, elsewhere.shipped.worker_images, Heard())
    assert (code, "the image of one source" in line) == ("refused.request", True)
