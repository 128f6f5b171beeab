"""Credential families of an operator's own: which names they may hold."""

import dataclasses

import pytest

from engine.errors import PolicyError
from engine.places import data_dir
from engine.policy.grants import BASELINE, Grants
from engine.policy.load import load_policy
from engine.policy.model import Policy
from engine.policy.secrets import CAPABILITIES

REQUIRED = load_policy("required", data_dir("policies"))
STEERS = "a variable that a loader, a resolver, a shell or a search reads is no credential (policies/denied_secrets.toml); rename it"


def with_family(*names: str, family: str = "acme", grants: Grants = REQUIRED.grants) -> Policy:
    """The required policy with this family besides the built-in ones."""
    return dataclasses.replace(REQUIRED, families={**CAPABILITIES, family: names}, grants=grants)


def lines_of(*names: str, family: str = "acme", grants: Grants = REQUIRED.grants) -> tuple[str, ...]:
    """The lines with which that policy refuses."""
    with pytest.raises(PolicyError) as caught:
        with_family(*names, family=family, grants=grants)
    assert caught.value.code == "refused.policy"
    return caught.value.lines


@pytest.mark.parametrize(
    "name",
    ["ACME_API_KEY", "ACME_TOKEN", "ACME_PASSWORD", "GITHUB_TOKEN", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "MYSQL_PWD", "ACME_REGION"],
)
def test_a_name_that_says_secret_is_a_credential(name: str) -> None:
    """What no policy may give a fixed value is just what a family is for."""
    assert with_family(name).families["acme"] == (name,)


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "ld_preload", "MYAPP_LD_PRELOAD_2", "PYTHONPATH", "PYTHONSTARTUP", "NODE_OPTIONS", "BASH_ENV", "GIT_SSH_COMMAND"]
    + ["HTTP_PROXY", "https_proxy", "NO_PROXY", "HOSTALIASES", "RES_OPTIONS", "PATH", "MANPATH", "ENV", "IFS", "EDITOR", "HOME", "TMPDIR"]
    + ["SSH_AUTH_SOCK", "GNUPGHOME", "OPENSSL_CONF", *BASELINE],
)
def test_a_name_that_steers_a_program_is_no_credential(name: str) -> None:
    """A secret's value there would load code, send connections elsewhere, or move what the jail has set."""
    assert lines_of(name) == (f"credentials.acme: {STEERS}",)


@pytest.mark.parametrize("name", ["", "A=B", "A\0B", " A", "hunter2 ", "1A", "A-B", "А", "A" * 129])
def test_a_malformed_name_is_no_credential_and_is_not_repeated(name: str) -> None:
    """A secret put in the place of a name stays out of the log."""
    assert lines_of(name) == ("credentials.acme: a variable's name is 1 to 128 of A-Z, a-z, 0-9 and '_', not beginning with a digit",)


@pytest.mark.parametrize("family", ["", "Acme", "sk-hunter2", "a b", "a" * 65, "../x"])
def test_a_family_has_a_plain_name(family: str) -> None:
    """It stands on receipts; what is no name is not repeated."""
    (line,) = lines_of("ACME_API_KEY", family=family)
    assert line.startswith("credentials: a name is a-z, ")
    assert "hunter2" not in line


def test_an_empty_family_refuses() -> None:
    """It would be granted, and give nothing."""
    assert lines_of() == ("credentials.acme: want at least one name",)


@pytest.mark.parametrize("names", [(), ("OTHER_API_KEY",), ("OPENAI_API_KEY", "OTHER_API_KEY")])
def test_a_built_in_family_is_what_it_is(names: tuple[str, ...]) -> None:
    """A tool that asks for one provider's key is not given another's."""
    assert lines_of(*names, family="openai") == ("credentials.openai: this family is built in; give yours another name",)


def test_a_built_in_family_cannot_be_taken_away() -> None:
    """A policy that lacks one is not one of ours."""
    with pytest.raises(PolicyError) as caught:
        dataclasses.replace(REQUIRED, families={"acme": ("ACME_API_KEY",)})
    assert caught.value.lines == tuple(f"credentials.{family}: a built-in family cannot be taken away" for family in sorted(CAPABILITIES))


def test_a_variable_belongs_to_one_family() -> None:
    """Else a worker with one family would hold a part of another."""
    assert lines_of("OPENAI_API_KEY", family="mine") == ("credentials.mine: a variable belongs to one family, openai has it",)


def test_a_variable_is_a_credential_or_fixed() -> None:
    """Which of both values a tool found there would be chance."""
    grants = dataclasses.replace(REQUIRED.grants, environment={"MYAPP_REGION": "eu"})
    assert lines_of("MYAPP_REGION", grants=grants) == ("credentials.acme: a variable is a credential or has a fixed value, not both",)
    assert with_family("MYAPP_STAGE", grants=grants).families["acme"] == ("MYAPP_STAGE",)
