"""The pins of the images are those of the recipes in the tree."""

from pathlib import Path

from engine.images import pins
from engine.images.cache import Cache
from engine.images.pins import Pin
from tests import images
from tests.house.image_lock import rewrite, wanted
from tests.house.reading import PROJECT


def test_the_lock_file_is_that_of_the_recipes() -> None:
    """Whoever changes what goes into an image says so: `make image-lock` writes the file."""
    now = pins.load_pins(PROJECT / "policies")
    assert wanted(PROJECT, now) == now
    assert (PROJECT / "policies" / pins.LOCK).read_text(encoding="utf-8") == pins.text_of(now)


def test_a_changed_recipe_loses_its_pinned_bytes(tmp_path: Path) -> None:
    """They were those of another recipe; the control: an unchanged one keeps them. An image without recipe loses its pin."""
    project = images.tiny(tmp_path)
    root, digest = tmp_path / "project", project.recipe.digest
    old = {"tiny": Pin(recipe=digest, component=images.digest(b"x"), reason="r"), "gone": Pin(recipe=digest, component=None, reason="r")}
    assert wanted(root, old) == {"tiny": old["tiny"]}
    project.write("worker_images/guest/main.py", "x = 2\n")
    assert wanted(root, old) == {"tiny": Pin(recipe=project.recipe.digest, component=None, reason="r")}


def test_the_file_is_written_again_from_nothing(tmp_path: Path) -> None:
    """With a reason for each."""
    project = images.tiny(tmp_path)
    rewrite(tmp_path / "project", build_them=False, cache=Cache(folder=tmp_path / "cache"))
    (pin,) = pins.load_pins(project.shipped.policies).values()
    assert (pin.recipe, pin.component, bool(pin.reason)) == (project.recipe.digest, None, True)
