"""Recipes: what goes in, and the digest that names it."""

from pathlib import Path

import pytest

from engine.images import recipe
from tests.images import RECIPE, tiny
from tests.staged import refusal


def test_a_recipe_names_every_file_that_goes_in(tmp_path: Path) -> None:
    """The recipe itself, the builder, its requirements, the guest and the carried part of the engine."""
    found = tiny(tmp_path).recipe
    assert (found.name, found.about, found.python, found.packages) == ("tiny", "tiny", (3, 11), ())
    assert sorted(found.inputs) == [
        "engine/errors.py",
        "worker_images/guest/main.py",
        "worker_images/tiny/build.py",
        "worker_images/tiny/recipe.toml",
        "worker_images/tiny/requirements.txt",
    ]


@pytest.mark.parametrize(
    "path",
    [
        "engine/errors.py",
        "worker_images/guest/main.py",
        "worker_images/guest/new.py",
        "worker_images/tiny/build.py",
        "worker_images/tiny/requirements.txt",
    ],
)
def test_whatever_goes_in_changes_the_digest(tmp_path: Path, path: str) -> None:
    """A changed or added file makes another image; the control: a file that does not go in changes nothing."""
    project = tiny(tmp_path)
    before = project.recipe.digest
    project.write("worker_images/other/a.py", "x = 2\n")
    assert project.recipe.digest == before
    project.write(path, "y = 3\n")
    assert project.recipe.digest != before


def test_a_comment_in_the_recipe_makes_another_image(tmp_path: Path) -> None:
    """The recipe's own bytes go in: nobody has to think about which of them matter."""
    project = tiny(tmp_path)
    before = project.recipe.digest
    project.write("worker_images/tiny/recipe.toml", RECIPE + "# more\n")
    assert project.recipe.digest != before


PACKAGES = '[[packages]]\nname = "b"\n[[packages]]\nname = "a-c"\nwithout = ["a/x.so"]\nreason = "it falls back"\n'


def test_packages_bring_their_own_recipes_and_the_step_that_collects_them(tmp_path: Path) -> None:
    """Each meta.yaml, the collector and its requirements are inputs."""
    project = tiny(tmp_path)
    for path in ("collect.py", "requirements.txt", "a-c/meta.yaml", "b/meta.yaml", "d/meta.yaml"):
        project.write(f"worker_images/packages/{path}", path)
    project.write("worker_images/tiny/recipe.toml", RECIPE + PACKAGES)
    found = project.recipe
    assert [(package.name, package.without) for package in found.packages] == [("b", ()), ("a-c", ("a/x.so",))]
    added = [path for path in found.inputs if path.startswith("worker_images/packages/")]
    assert added == [f"worker_images/packages/{path}" for path in ("a-c/meta.yaml", "b/meta.yaml", "collect.py", "requirements.txt")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (RECIPE + "x = 1\n", "x: unknown key; allowed: about, program, requirements, python, files, engine, packages"),
        (RECIPE.replace('about = "tiny"', "about = 1"), "about: want a text"),
        (RECIPE.replace('"3.11"', '"3.x"'), "python: want the least version that can run the builder, such as 3.11"),
        (RECIPE.replace('"guest/*.py"', '"../secret"'), "files: want a list of relative paths, with * in the last part alone"),
        (RECIPE.replace('"guest/*.py"', '"/etc/passwd"'), "files: want a list of relative paths, with * in the last part alone"),
        (RECIPE.replace('"tiny/build.py"', '"../build.py"'), "program: want a relative path"),
        (RECIPE.replace('"tiny/requirements.txt"', '"tiny/*.txt"'), "requirements: want a relative path"),
        (RECIPE.replace('"guest/*.py"', '"gone/*.py"'), "gone/*.py is not there"),
        ("about = ", "not TOML: Invalid value (at end of document)"),
        (RECIPE + '[[packages]]\nname = "B"\n', "packages: each has a name, and where native files are left out: without and reason"),
        (
            RECIPE + '[[packages]]\nname = "b"\nwithout = ["x"]\n',
            "packages.b: the reason must say in words why it works without these files",
        ),
        (RECIPE + '[[packages]]\nname = "b"\n[[packages]]\nname = "b"\n', "packages: a name is there twice"),
    ],
)
def test_what_is_not_exactly_right_refuses(tmp_path: Path, text: str, line: str) -> None:
    """With the file and what would be right."""
    project = tiny(tmp_path)
    project.write("worker_images/tiny/recipe.toml", text)
    assert refusal(lambda: project.recipe) == ("refused.image_build", (f"worker_images/tiny/recipe.toml: {line}",))


def test_a_link_is_no_input(tmp_path: Path) -> None:
    """What is hashed must not be a file that somebody exchanges elsewhere."""
    project = tiny(tmp_path)
    (project.shipped.worker_images / "guest" / "link.py").symlink_to("main.py")
    code, lines = refusal(lambda: project.recipe)
    assert (code, lines[0].split(": ")[0]) == ("refused.image_build", "worker_images/guest/link.py")


def test_an_unknown_name_lists_those_there_are(tmp_path: Path) -> None:
    """The caller's mistake is the caller's."""
    shipped = tiny(tmp_path).shipped
    assert refusal(recipe.read, "../tiny", shipped.worker_images, shipped.engine) == (
        "refused.request",
        ("there is no image '../tiny'; there are: tiny",),
    )
