"""The image that may run: found, checked and accepted, or refused with what to do."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from engine.images import archive, cache
from engine.images.cache import Cache
from engine.images.image import Image, find
from tests import images
from tests.images import Heard, Tiny, spoil, tiny
from tests.staged import refusal

OTHER = f"sha256:{'1' * 64}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """A tiny image, built and pinned."""
    images.without_installing(monkeypatch)
    made = tiny(tmp_path)
    made.build()
    made.pin()
    return made


def found(project: Tiny, allowed: str | None = None) -> Image:
    """The image that may run."""
    return find("tiny", project.cache, project.shipped, allowed=allowed)


def test_the_pinned_image_is_found(project: Tiny) -> None:
    """With what a worker has to know, and its code as an open descriptor."""
    image = found(project)
    assert (image.name, image.digest, image.recipe) == ("tiny", images.digest(images.COMPONENT), project.recipe.digest)
    assert (image.python, sorted(image.modules), sorted(image.packages)) == ("3.14.0", ["json", "re"], [])
    assert image.compiled is True
    with open(image.open_code().descriptor, "rb") as file:
        assert file.read() == images.COMPONENT


def test_what_was_never_built_is_missing(tmp_path: Path) -> None:
    """The line says how to make it."""
    project = tiny(tmp_path)
    project.pin()
    code, (line,) = refusal(found, project)
    assert (code, "stockade image build tiny" in line) == ("refused.image_missing", True)


def test_what_was_never_compiled_here_is_missing(project: Tiny) -> None:
    """Other settings, other code: nothing is compiled while an image is looked for."""
    project.write("worker_images/wasm/configuration.py", "x = 1\n")
    assert found(project).compiled is False
    code, (line,) = refusal(found(project).open_code)
    assert (code, "stockade image build tiny" in line) == ("refused.image_missing", True)


@pytest.mark.parametrize("name", ["manifest.json", "record.json"])
def test_a_damaged_image_is_told_as_one(project: Tiny, name: str) -> None:
    """With the file that is wrong."""
    image = found(project)
    spoil(image.entry.path / name)
    code, (line,) = refusal(found, project)
    assert (code, name in line) == ("refused.image_corrupt", True)


def test_damaged_code_is_never_handed_out(project: Tiny) -> None:
    """The whole file is hashed when it is opened."""
    image = found(project)
    (code_file,) = image.entry.path.glob("compiled/*/code")
    spoil(code_file)
    code, (line,) = refusal(image.open_code)
    assert (code, str(code_file) in line) == ("refused.image_corrupt", True)


def test_a_recipe_that_nobody_pinned_refuses(project: Tiny) -> None:
    """A changed guest is another image: built, but not pinned; the control: named by the policy it runs."""
    project.write("worker_images/guest/main.py", "x = 2\n")
    project.build()
    assert refusal(found, project)[0] == "refused.image_unpinned"
    assert found(project, images.digest(images.COMPONENT)).digest == images.digest(images.COMPONENT)


def test_the_policy_s_word_counts_alone(project: Tiny) -> None:
    """A digest that is not there is missing, although the pinned image is."""
    code, (line,) = refusal(found, project, OTHER)
    assert (code, OTHER in line) == ("refused.image_missing", True)


def test_an_image_from_elsewhere_needs_its_bytes_pinned(project: Tiny, tmp_path: Path) -> None:
    """Its recipe alone lets it not run; the pin of its bytes does, and so does the policy."""
    archive.export(found(project).entry, tmp_path / "file")
    there = Tiny(project.shipped, Cache(folder=tmp_path / "there"))
    with there.cache.writing(lambda: None):
        archive.bring(tmp_path / "file", there.cache, project.shipped.worker_images, Heard())
    assert refusal(found, there)[0] == "refused.image_unpinned"
    assert found(there, images.digest(images.COMPONENT)).entry.built_here is False
    project.pin(images.digest(images.COMPONENT))
    assert found(there).digest == images.digest(images.COMPONENT)
    os.close(found(there).open_code().descriptor)  # compiled here when it was brought


def brought(project: Tiny, recipe: str, modules: tuple[str, ...]) -> None:
    """An image with the same bytes as the one that was built, as somebody else's file says of it."""
    manifest = dataclasses.replace(cache.entry(project.cache, project.recipe.digest).manifest, recipe=recipe, modules=modules)
    with cache.making(project.cache.images) as made:
        (made / cache.COMPONENT).write_bytes(images.COMPONENT)
        cache.write_record(made, manifest, built_here=False)
        cache.put(made, project.cache.place(recipe))


def test_what_was_built_here_counts_before_what_was_brought(project: Tiny) -> None:
    """A manifest from elsewhere can say anything of the bytes that the policy names."""
    for recipe in (f"sha256:{'0' * 64}", f"sha256:{'f' * 64}"):  # before and behind it, in the order of the folder
        brought(project, recipe, ("ssl",))
    image = found(project, images.digest(images.COMPONENT))
    assert (image.recipe, image.entry.built_here) == (project.recipe.digest, True)


@pytest.mark.parametrize(("modules", "taken"), [(("json", "re"), True), (("json", "re", "ssl"), False)])
def test_two_that_were_brought_must_say_the_same(project: Tiny, modules: tuple[str, ...], taken: bool) -> None:
    """Nothing says which of them is right; the control: where they agree, either serves."""
    brought(project, f"sha256:{'0' * 64}", ("json", "re"))
    brought(project, f"sha256:{'f' * 64}", modules)
    shutil.rmtree(project.cache.place(project.recipe.digest))
    if taken:
        assert found(project, images.digest(images.COMPONENT)).modules == {"json", "re"}
    else:
        code, (line,) = refusal(found, project, images.digest(images.COMPONENT))
        assert (code, "different things" in line) == ("refused.image_corrupt", True)


def test_the_caller_closes_the_code(project: Tiny) -> None:
    """Each opening is a descriptor of its own."""
    image = found(project)
    first, second = image.open_code(), image.open_code()
    assert first.descriptor != second.descriptor
    os.close(first.descriptor)
    os.close(second.descriptor)
