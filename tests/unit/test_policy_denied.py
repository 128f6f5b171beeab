"""The list of denied names as a file: what stops every policy from loading."""

import re
import shutil
from pathlib import Path

import pytest

from engine.errors import PolicyError
from engine.places import data_dir
from engine.policy.load import load_denied, load_policy

SHIPPED = data_dir("policies")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of policies that a test may change."""
    for path in SHIPPED.glob("*.toml"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('value = ["dsn"]', 'value = ["dsn", "dsn"]', "ending.addresses: the same text is listed twice"),
        ('value = ["dsn"]', 'value = ["pass"]', "ending: 'pass' is listed twice"),
        (
            'value = ["dsn"]',
            'value = ["DSN"]',
            "ending.addresses: 'DSN' is not a shape: lower-case ASCII letters and digits only, no wildcard and no separator",
        ),
        (
            'value = ["dsn"]',
            'value = ["*dsn"]',
            "ending.addresses: '*dsn' is not a shape: lower-case ASCII letters and digits only, no wildcard and no separator",
        ),
        ('value = ["dsn"]', "value = []", "ending.addresses: an empty list denies nothing; remove the entry"),
        ('value = ["dsn"]', 'value = "dsn"', "ending.addresses: want a list of non-empty texts; [] grants nothing"),
        ("[ending]", "[endings]", "endings: unknown table; allowed: fragment, word, ending, whole, value"),
    ],
)
def test_a_list_of_denied_names_that_could_fail_open_refuses(folder: Path, old: str, new: str, line: str) -> None:
    """Repeated, misspelt, capital, wildcard, empty and mistyped entries stop every policy from loading."""
    path = folder / "denied_secrets.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(PolicyError) as caught:
        load_policy("required", folder)
    assert caught.value.lines[0] == f"{path}: {line}"


def test_a_list_whose_groups_were_renamed_refuses(folder: Path) -> None:
    """Which shapes hold for credentials too is known by the names of their groups: without any the list would let all of them pass."""
    path, groups = folder / "denied_secrets.toml", ("loaders", "resolvers", "search_paths", "shells", "places", "ambient")
    path.write_text(re.sub(rf"^({'|'.join(groups)}) =", r"own_\1 =", path.read_text(), flags=re.M))
    with pytest.raises(PolicyError) as caught:
        load_policy("required", folder)
    assert caught.value.lines == (f"{path}: none of the groups {', '.join(groups)} is there",)


def test_without_a_list_of_denied_names_nothing_loads(folder: Path) -> None:
    """A folder that lost the list has no policy."""
    (folder / "denied_secrets.toml").unlink()
    with pytest.raises(PolicyError) as caught:
        load_policy("required", folder)
    assert caught.value.lines == (f"{folder}/denied_secrets.toml: cannot be read: No such file or directory",)


def test_an_operators_own_list_is_the_one_that_counts(folder: Path) -> None:
    """A shape added to the folder's list is honoured, and moves the policy's digest."""
    before = load_policy("required", folder)
    path = folder / "denied_secrets.toml"
    path.write_text(path.read_text().replace('value = ["dsn"]', 'value = ["dsn", "region"]'))
    after = load_policy("required", folder)
    assert (before.denied.denied("MYAPP_REGION"), after.denied.denied("MYAPP_REGION")) == (False, True)
    assert before.digest != after.digest


def test_the_list_of_denied_names_has_every_kind() -> None:
    """The shipped list is whole."""
    assert all(load_denied(SHIPPED).data().values())
