"""Images that a policy names by their digests."""

import shutil
from pathlib import Path

import pytest

from engine.errors import PolicyError
from engine.places import data_dir
from engine.policy.load import load_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project's policies, to be added to."""
    return Path(shutil.copytree(data_dir("policies"), tmp_path / "policies"))


def test_images_are_named_one_by_one(folder: Path) -> None:
    """A file adds to the images of what it extends, and its own word for one counts; the control names none."""
    first, second = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    (folder / "base.toml").write_text(
        f'extends = "required"\n[images]\na = {{ value = "{first}", reason = "r" }}\nb = {{ value = "{first}", reason = "r" }}\n'
    )
    (folder / "own.toml").write_text(f'extends = "base"\n[images]\nb = {{ value = "{second}", reason = "r" }}\n')
    own, control = load_policy("own", folder), load_policy("required", folder)
    assert (dict(own.images), dict(control.images)) == ({"a": first, "b": second}, {})
    assert own.digest != load_policy("base", folder).digest


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[images]\npython_wasm = { value = "sha256:0", reason = "r" }',
            "own.toml: images.python_wasm: want the name of an image, and its digest: "
            "sha256: and 64 hexadecimal digits (`stockade image list --json`)",
        ),
        (
            "[images]\npython_wasm = 1",
            'own.toml: images.python_wasm: want { value = ..., reason = "..." } with these two keys and no other',
        ),
        (
            "[images]\nno-name = { value = 1, reason = 'r' }",
            "own.toml: images.no-name: want the name of an image, and its digest: "
            "sha256: and 64 hexadecimal digits (`stockade image list --json`)",
        ),
    ],
)
def test_what_is_no_digest_refuses(folder: Path, text: str, line: str) -> None:
    """With file and key."""
    (folder / "own.toml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_policy("own", folder)
    assert [found.rsplit("/", 1)[1] for found in caught.value.lines] == [line]
