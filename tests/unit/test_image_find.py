"""The image that may run: found, checked and accepted, or refused with what to do."""

import os
from pathlib import Path

import pytest

from engine.images import archive
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
        archive.bring(tmp_path / "file", there.cache, Heard())
    assert refusal(found, there)[0] == "refused.image_unpinned"
    assert found(there, images.digest(images.COMPONENT)).entry.built_here is False
    project.pin(images.digest(images.COMPONENT))
    assert found(there).digest == images.digest(images.COMPONENT)
    assert refusal(found(there).open_code)[0] == "refused.image_missing"


def test_the_caller_closes_the_code(project: Tiny) -> None:
    """Each opening is a descriptor of its own."""
    image = found(project)
    first, second = image.open_code(), image.open_code()
    assert first.descriptor != second.descriptor
    os.close(first.descriptor)
    os.close(second.descriptor)
