"""The network and the secrets of a policy file: which profile it has, what is inherited, what refuses."""

import os
import re
import shutil
from pathlib import Path

import pytest

from engine.errors import PolicyError
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.model import OnSecret
from engine.policy.network import NO_NETWORK
from engine.policy.protections import LOOSENINGS
from engine.policy.secrets import SecretSource

SHIPPED = data_dir("policies")
PROFILE = 'purpose = "p"\n[[allow]]\nto = "{to}"\nreason = "r"\n[examples]\nallowed = ["x.{bare}"]\ndenied = ["other.org:1"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project's policies, to be added to."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "policies"))


def profile(folder: Path, name: str = "shop", to: str = "x.example.com:443") -> Path:
    """A profile of one rule, beside the policies of that folder."""
    (folder / "network").mkdir(exist_ok=True)
    path = folder / "network" / f"{name}.toml"
    path.write_text(PROFILE.format(to=to, bare=to.partition(".")[2]))
    return path


def naming(value: str, extends: str = "required") -> str:
    """A policy that names this profile."""
    return f'extends = "{extends}"\n[network]\nprofile = {{ value = {value}, reason = "r" }}\n'


def refusal(folder: Path, text: str) -> tuple[str, tuple[str, ...]]:
    """Code and lines, without the folder, with which a policy of this text refuses."""
    (folder / "own.toml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_policy("own", folder)
    return caught.value.code, tuple(line.replace(f"{folder}/", "") for line in caught.value.lines)


def test_no_shipped_policy_names_a_profile() -> None:
    """Nobody is granted a destination by default."""
    names = ("required", "fixture", "host", "describe")
    assert [load_policy(name, SHIPPED).network for name in names] == [NO_NETWORK] * 4


@pytest.mark.parametrize("text", ['extends = "required"', 'limits.wall = { value = "1 s", reason = "r" }'])
def test_a_policy_that_says_nothing_of_the_network_has_none(folder: Path, text: str) -> None:
    """A missing key grants nothing, with a base and without one."""
    (folder / "own.toml").write_text(text)
    assert load_policy("own", folder).network == NO_NETWORK


def test_a_named_profile_is_the_policys(folder: Path) -> None:
    """The control of all refusals."""
    profile(folder)
    (folder / "own.toml").write_text(naming('"shop"'))
    own = load_policy("own", folder)
    assert (own.network.name, [str(rule.place) for rule in own.network.rules], own.loosenings) == ("shop", ["x.example.com:443"], ())


@pytest.mark.parametrize("extends", ["required", "fixture", "host", "describe"])
def test_a_network_without_bounds_is_refused_in_every_policy(folder: Path, extends: str) -> None:
    """With a reason of its own."""
    line = "own.toml: network.profile: name a profile; a network without bounds is given to nobody"
    assert refusal(folder, naming("true", extends)) == ("refused.network_unbounded", (line,))


def test_a_network_without_bounds_is_refused_in_a_base_too(folder: Path) -> None:
    """A child that names a profile does not mend it."""
    profile(folder)
    (folder / "base.toml").write_text(naming("true"))
    code, lines = refusal(folder, naming('"shop"', "base"))
    assert (code, lines[0].split(": ")[0]) == ("refused.network_unbounded", "base.toml")


@pytest.mark.parametrize(
    "value", ["false", '""', "0", "1", "[]", '["shop"]', "{}", '"*"', '"NONE"', '"None"', '"true"', '"../shop"', '"./shop"']
)
def test_what_names_no_profile_refuses(folder: Path, value: str) -> None:
    """Nothing but true, "none" and the name of a file is understood, and no name leads out of the folders."""
    profile(folder)
    code, lines = refusal(folder, naming(value))
    assert (code, len(lines)) == ("refused.policy", 1)
    assert lines[0].startswith("own.toml: network.profile: ")


@pytest.mark.parametrize("value", ['"/etc/shop"', '"shop.toml"', '"a/b"', '"sh\\u0000op"', '"shop\\n"'])
def test_a_profile_is_never_a_path(folder: Path, value: str) -> None:
    """Odd names refuse before any file is touched."""
    profile(folder)
    line = "own.toml: network.profile: want \"none\" or the name of a profile: a-z, then up to 63 of a-z, 0-9, '_' and '-'"
    assert refusal(folder, naming(value)) == ("refused.policy", (line,))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[network]\nprofil = 1", "own.toml: network.profil: unknown key; allowed: profile"),
        ("[network]\nallow = []", "own.toml: network.allow: unknown key; allowed: profile"),
        ("network = true", "own.toml: network: want a table of entries"),
        ("network = []", "own.toml: network: want a table of entries"),
        ('[network]\nprofile = "none"', 'own.toml: network.profile: want { value = ..., reason = "..." } with these two keys and no other'),
        ('[network]\nprofile = { value = "none", reason = "" }', "own.toml: network.profile: the reason must say in words why"),
        (
            '[network]\nprofile = { value = "shops", reason = "r" }',
            "own.toml: network.profile: there is no profile shops; there are: none, example, shop",
        ),
    ],
)
def test_what_is_misspelt_opens_nothing(folder: Path, text: str, line: str) -> None:
    """Unknown keys, profiles and forms refuse with file and key."""
    profile(folder)
    assert refusal(folder, text) == ("refused.policy", (line,))


def test_a_profile_is_inherited_and_can_be_taken_away(folder: Path) -> None:
    """A child has what its base has, names another, or says none."""
    profile(folder)
    profile(folder, "bank", "x.bank.com:443")
    (folder / "base.toml").write_text(naming('"shop"'))
    found = []
    for text in ('extends = "base"', naming('"bank"', "base"), naming('"none"', "base")):
        (folder / "own.toml").write_text(text)
        found.append(load_policy("own", folder).network.name)
    assert found == ["shop", "bank", "none"]


def test_a_profile_beside_the_policy_goes_before_the_shipped_one(folder: Path, tmp_path: Path) -> None:
    """The one beside the file that says the name; the shipped one where there is none, also from elsewhere."""
    profile(folder)
    profile(folder, "bank", "x.shipped.com:443")
    other = tmp_path / "elsewhere"
    other.mkdir()
    profile(other, "bank", "x.bank.com:443")
    found = []
    for name in ("shop", "bank"):
        (other / "own.toml").write_text(naming(f'"{name}"'))
        found.append([rule.place.host for rule in load_policy(other / "own.toml", folder).network.rules])
    assert found == [["x.example.com"], ["x.bank.com"]]


def test_an_inherited_profile_is_the_one_beside_the_base(folder: Path, tmp_path: Path) -> None:
    """A file of the same name beside the child does not take its place."""
    profile(folder)
    (folder / "base.toml").write_text(naming('"shop"'))
    other = tmp_path / "elsewhere"
    other.mkdir()
    profile(other, "shop", "x.evil.com:443")
    (other / "own.toml").write_text('extends = "base"')
    assert [rule.place.host for rule in load_policy(other / "own.toml", folder).network.rules] == ["x.example.com"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("gone"), lambda path: path.write_text("")])
def test_a_profile_that_cannot_be_read_is_not_replaced_by_the_shipped_one(folder: Path, tmp_path: Path, make: object) -> None:
    """What the operator laid beside the policy was meant."""
    profile(folder)
    other = tmp_path / "elsewhere"
    (other / "network").mkdir(parents=True)
    assert callable(make)
    make(other / "network" / "shop.toml")
    (other / "own.toml").write_text(naming('"shop"'))
    with pytest.raises(PolicyError) as caught:
        load_policy(other / "own.toml", folder)
    assert {line.split(": ")[0] for line in caught.value.lines} == {f"{other}/network/shop.toml"}


def test_a_mistake_in_a_profile_is_told_with_the_profiles_file(folder: Path) -> None:
    """Its examples are tried at every load."""
    path = profile(folder)
    path.write_text(path.read_text().replace("other.org:1", "x.example.com:443"))
    line = "network/shop.toml: examples.denied: x.example.com:443 is allowed by these rules"
    assert refusal(folder, naming('"shop"')) == ("refused.policy", (line,))


def test_a_wildcard_needs_its_loosening_in_each_policy_that_has_it(folder: Path) -> None:
    """The file that names the profile and the one that inherits it; the control names it, and loads."""
    profile(folder, to="*.example.com:443")
    line = f"own.toml: loosenings.network_wildcards: must be named in this file, because {LOOSENINGS['network_wildcards']}"
    assert refusal(folder, naming('"shop"')) == ("refused.policy", (line,))
    named = '[loosenings]\nnetwork_wildcards = { value = true, reason = "r" }\n'
    (folder / "base.toml").write_text(naming('"shop"') + named)
    assert refusal(folder, 'extends = "base"') == ("refused.policy", (line,))
    (folder / "own.toml").write_text('extends = "base"\n' + named)
    assert load_policy("own", folder).loosenings == ("network_wildcards",)


def test_secrets_and_families_are_inherited_by_name(folder: Path) -> None:
    """A child adds to them, and its own word for one counts."""
    (folder / "base.toml").write_text(
        'extends = "required"\non_secret = { value = "refuse", reason = "r" }\n[secrets]\n'
        'one = { value = "env:ONE", reason = "r" }\ntwo = { value = "env:TWO", reason = "r" }\n'
        '[credentials]\nacme = { value = ["ACME_API_KEY"], reason = "r" }\n'
    )
    (folder / "own.toml").write_text('extends = "base"\n[secrets]\ntwo = { value = "file:/run/two", reason = "r" }\n')
    own = load_policy("own", folder)
    assert own.secrets == {"one": SecretSource(kind="env", where="ONE"), "two": SecretSource(kind="file", where="/run/two")}
    assert (own.families["acme"], own.on_secret) == (("ACME_API_KEY",), OnSecret.REFUSE)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[secrets]\na = { value = "hunter2", reason = "r" }',
            "own.toml: secrets.a: want 'env:NAME', 'file:/a/path' or 'command:/a/program its arguments'",
        ),
        (
            '[secrets]\n"sk-hunter" = { value = "env:A", reason = "r" }',
            "own.toml: secrets: a name is a-z, then up to 63 of a-z, 0-9 and '_'; it stands on receipts, so it is never the secret itself",
        ),
        ("[secrets]\na = 1", 'own.toml: secrets.a: want { value = ..., reason = "..." } with these two keys and no other'),
        (
            '[credentials]\nacme = { value = [], reason = "r" }',
            "own.toml: credentials.acme: want at least one name",
        ),
        (
            '[credentials]\nacme = { value = "ACME_API_KEY", reason = "r" }',
            "own.toml: credentials.acme: want a list of non-empty texts; [] grants nothing",
        ),
        (
            '[credentials]\nacme = { value = ["A_KEY", "A_KEY"], reason = "r" }',
            "own.toml: credentials.acme: the same text is listed twice",
        ),
        (
            '[credentials]\nacme = { value = ["LD_PRELOAD"], reason = "r" }',
            "own.toml: credentials.acme: a variable that a loader, a resolver, a shell or a search reads is no credential "
            "(policies/denied_secrets.toml); rename it",
        ),
        (
            '[grants]\ncredentials = { value = ["acme"], reason = "r" }',
            "own.toml: grants.credentials: an entry is unknown; allowed: anthropic, google, openai",
        ),
    ],
)
def test_secrets_and_families_that_are_none_refuse(folder: Path, text: str, line: str) -> None:
    """With file and key, and without the value."""
    assert refusal(folder, text) == ("refused.policy", (line,))


def examples(heading: str) -> list[str]:
    """The examples of one section of the page for operators."""
    text = (SHIPPED / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    return re.findall(r"```toml\n(.*?)```", section, flags=re.S)


def test_the_documented_network_loads(folder: Path) -> None:
    """What an operator copies from the page is a policy with its profile."""
    policy, rules = examples("Where tools may connect to")
    (folder / "shop.toml").write_text(policy)
    (folder / "network" / "shop.toml").write_text(rules)
    shop = load_policy("shop", folder)
    assert [str(rule.place) for rule in shop.network.rules] == ["api.example.com:443", "orders.example.com:80", "store.example.net:443"]
    assert [one.secret for rule in shop.network.rules for one in rule.attach] == [*shop.secrets] == ["orders_key"]
    assert shop.loosenings == ("network_private_destinations",)


def test_the_documented_secrets_load(folder: Path) -> None:
    """Every kind of source, a family that is granted, and what becomes of a find."""
    (text,) = examples("Secrets")
    (folder / "own.toml").write_text(text)
    own = load_policy("own", folder)
    assert [source.kind for source in own.secrets.values()] == ["env", "file", "command"]
    assert (own.families["acme"], own.grants.credentials, own.on_secret) == (("ACME_API_KEY",), frozenset({"acme"}), OnSecret.REFUSE)
    assert own.grants.secret_files == {"fixtures/key.pem"}
