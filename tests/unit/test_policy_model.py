"""The records of a policy: what each refuses."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from engine.errors import PolicyError
from engine.limits import LIMIT_NAMES, Limits
from engine.places import data_dir
from engine.policy.grants import Grants
from engine.policy.load import load_policy
from engine.policy.model import LIMIT_KEYS, Freshness, Mode, OnSecret, Policy, Pool, loosenings_of, parse_limits
from engine.policy.network import Attachment, Place, Profile, Rule, Transport
from engine.policy.protections import LOOSENINGS, NEEDED, NO_WALL, PROTECTIONS
from engine.policy.secrets import CAPABILITIES, SecretSource

REQUIRED = load_policy("required", data_dir("policies"))


def lines_of(make: Any, *args: Any, **fields: Any) -> tuple[str, ...]:
    """The lines of the PolicyError that the call must raise."""
    with pytest.raises(PolicyError) as caught:
        make(*args, **fields)
    assert caught.value.code == "refused.policy"
    return caught.value.lines


def changed(**fields: Any) -> Policy:
    """The required policy with other fields."""
    return dataclasses.replace(REQUIRED, **fields)


def lowered(**levels: int) -> Mapping[str, int]:
    """The needed protections with other levels."""
    return {**NEEDED, **levels}


PLACE = Place(host="api.example.com", port=443)
OPEN = Profile(name="own", rules=(Rule(place=PLACE, wildcard=True, upstream_port=443, private=("10.0.0.0/8",)),))


def test_every_limit_has_one_written_name() -> None:
    """No limit is out of a policy's reach."""
    assert sorted(field for field, _ in LIMIT_KEYS.values()) == sorted(LIMIT_NAMES)


def test_every_loosening_is_reached_by_some_setting() -> None:
    """The closed table holds no name without a meaning."""
    reached = loosenings_of(Mode.HOST, Freshness.WARM, NO_WALL) | loosenings_of(Mode.REQUIRED, Freshness.SNAPSHOT, NO_WALL)
    reached |= loosenings_of(Mode.REQUIRED, Freshness.FRESH, NEEDED, OPEN.loosenings)
    assert reached | {"landlock_below_6"} == LOOSENINGS.keys()


@pytest.mark.parametrize("name", [name for name, row in PROTECTIONS.items() if row.needed])
def test_a_lowered_protection_needs_its_loosening(name: str) -> None:
    """Each protection below the required level refuses with the name to write."""
    absent = PROTECTIONS[name].absent or ""
    assert lines_of(changed, protections=lowered(**{name: 0})) == (
        f"loosenings.{absent}: must be named in this file, because {LOOSENINGS[absent]}",
    )


@pytest.mark.parametrize("name", [name for name, row in PROTECTIONS.items() if row.needed])
def test_a_named_loosening_lets_a_protection_be_lowered(name: str) -> None:
    """The control: with its loosening the same policy stands, and carries the name."""
    absent = PROTECTIONS[name].absent or ""
    assert changed(protections=lowered(**{name: 0}), loosenings=(absent,)).loosenings == (absent,)


def test_another_loosening_does_not_serve() -> None:
    """A loosening covers its own protection only."""
    lines = lines_of(changed, protections=lowered(seccomp=0), loosenings=("landlock_below_6",))
    assert [line.split(":")[0] for line in lines] == ["loosenings.every_kernel_call_allowed", "loosenings.landlock_below_6"]


def test_a_loosening_that_nothing_needs_refuses() -> None:
    """Receipts must not carry alarms without a cause."""
    assert lines_of(changed, loosenings=("state_kept_warm",)) == ("loosenings.state_kept_warm: nothing in this policy needs it; remove it",)


def test_an_unknown_loosening_lists_the_known() -> None:
    """The answer to a typo is the table."""
    assert lines_of(changed, loosenings=("landlock",)) == (f"loosenings: 'landlock' is unknown; allowed: {', '.join(LOOSENINGS)}",)


@pytest.mark.parametrize(("freshness", "name"), [(Freshness.SNAPSHOT, "state_kept_in_snapshot"), (Freshness.WARM, "state_kept_warm")])
def test_kept_state_needs_its_loosening(freshness: Freshness, name: str) -> None:
    """State that outlives a call is named, and then allowed."""
    assert lines_of(changed, freshness=freshness)[0].startswith(f"loosenings.{name}: must be named")
    assert changed(freshness=freshness, loosenings=(name,)).loosenings == (name,)


def test_landlock_may_be_asked_for_above_what_is_required() -> None:
    """More than required needs no loosening."""
    assert changed(protections=lowered(landlock=7, memory_cgroup=1)).loosenings == ()


@pytest.mark.parametrize("level", [-1, 8, True, 1.0, "6", None])
def test_a_level_is_a_whole_number_within_bounds(level: Any) -> None:
    """A level that could be read as anything else refuses."""
    assert lines_of(changed, protections=lowered(landlock=level))[0].startswith("protections.landlock: want a whole number from 0 to 7")


def test_a_missing_protection_refuses() -> None:
    """A level left out is not a level of nothing."""
    assert lines_of(changed, protections={"seccomp": 1}) == (f"protections: each of these needs a level: {', '.join(PROTECTIONS)}",)


def test_host_mode_needs_its_loosening() -> None:
    """The mode without a wall is named as such."""
    assert lines_of(changed, mode=Mode.HOST, protections=NO_WALL)[0].startswith("loosenings.host_mode_without_any_wall: must be named")


def test_host_mode_claims_no_protection() -> None:
    """A policy must not promise what the mode cannot hold."""
    lines = lines_of(changed, mode=Mode.HOST, protections=lowered(), loosenings=("host_mode_without_any_wall",))
    assert lines == ("protections: the mode host has no wall and cannot hold any; leave them out",)


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ({"wall": "0 s"}, "limits.wall: limit wall_ms must be a whole number from 1 to 2^53, not 0"),
        ({"threads": 0}, "limits.threads: limit threads must be a whole number from 1 to 2^53, not 0"),
        ({"threads": True}, "limits.threads: True is not a whole number"),
        ({"threads": float("nan")}, "limits.threads: nan is not a whole number"),
        ({"events": 1e308}, "limits.events: 1e+308 is not a whole number"),
        ({"memory": -1}, "limits.memory: '-1' is not a size such as 4096, '64 KiB', '256 MiB' or '1 GiB'"),
        ({"memory": None}, "limits.memory: None is not a size such as 4096, '64 KiB', '256 MiB' or '1 GiB'"),
        ({"wall": "none"}, "limits.wall: 'none' is not a time such as '200 ms', '30 s' or '2 min'"),
        ({"wal": "1 s"}, f"limits.wal: unknown limit; allowed: {', '.join(LIMIT_KEYS)}"),
    ],
)
def test_a_limit_that_could_mean_no_limit_refuses(written: dict[str, object], line: str) -> None:
    """Zero, negative, NaN, huge, boolean, text and misspelt limits refuse by name."""
    assert lines_of(parse_limits, written) == (line,)


def test_limits_are_parsed_by_their_unit() -> None:
    """The control: amounts as people write them."""
    assert parse_limits({"wall": "2 s", "memory": "1 MiB", "threads": 3}) == {"wall_ms": 2000, "memory_bytes": 1 << 20, "threads": 3}


@pytest.mark.parametrize("path", ["", "/etc/key.pem", "../key.pem", "a/../b", "a//b", "a/", "./a", "*.pem", "a?", "a\\b", "a\0b", None])
def test_a_file_with_secrets_is_one_file_of_the_source(path: Any) -> None:
    """No folder, no pattern and no way out of the source."""
    assert lines_of(Grants, secret_files=frozenset({path})) == (
        "grants.secret_files: want the path of one file below the source's folder: no wildcard, no '.' or '..', and '/' between its parts",
    )


def test_a_plain_path_is_a_file_with_secrets() -> None:
    """The control."""
    assert Grants(secret_files=frozenset({"fixtures/key 1.pem"})).secret_files == {"fixtures/key 1.pem"}


@pytest.mark.parametrize(
    "path", ["", "data", "/", "/proc/1", "/sys", "/dev/shm", "/run/x", "/a/../etc", "/a//b", "/a/", "/a/./b", "/a\0b", None]
)
def test_a_folder_is_one_plain_absolute_path(path: Any) -> None:
    """A path that could lead elsewhere, or into the kernel's own trees, refuses."""
    assert lines_of(Grants, folders={"data": path})[0].startswith("grants.folders.data: want an absolute path")


def test_a_plain_folder_is_a_grant() -> None:
    """The control."""
    assert Grants(folders={"data": "/srv/data-1"}).folders == {"data": "/srv/data-1"}


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "a" * 65])
def test_a_folder_name_is_plain(name: str) -> None:
    """The name becomes a path inside the jail."""
    assert "is not a folder's name" in lines_of(Grants, folders={name: "/srv"})[0]


@pytest.mark.parametrize("layer", ["", "../x", "-x", ".x", "a/b", "*"])
def test_a_layer_is_named_plainly(layer: str) -> None:
    """No wildcard and no path is a layer."""
    assert lines_of(Grants, layers=frozenset({layer})) == (f"grants.layers: {layer!r} is not a layer's name",)


def test_an_unknown_capability_is_not_repeated() -> None:
    """A key pasted in place of a capability stays out of the log."""
    assert lines_of(changed, grants=Grants(credentials=frozenset({"sk-hunter2"}))) == (
        "grants.credentials: an entry is unknown; allowed: anthropic, google, openai",
    )


def test_a_family_of_the_policys_own_can_be_granted() -> None:
    """The control: its name counts like a built-in one."""
    families = {**CAPABILITIES, "acme": ("ACME_API_KEY",)}
    assert changed(families=families, grants=Grants(credentials=frozenset({"acme"}))).families == families


def test_a_rule_attaches_only_what_the_policy_has() -> None:
    """A secret that no entry names is not looked for elsewhere; the control names it."""
    attach = (Attachment(secret="orders", header="Authorization"),)
    network = Profile(name="own", rules=(Rule(place=PLACE, transport=Transport.UPGRADE, upstream_port=443, attach=attach),))
    source = SecretSource(kind="env", where="ORDERS_API_KEY")
    assert lines_of(changed, network=network, secrets={"order": source}) == (
        "secrets.orders: the profile own attaches it, so it must be named",
    )
    assert changed(network=network, secrets={"orders": source}).secrets == {"orders": source}


def test_rules_that_open_more_need_their_loosenings() -> None:
    """Each by its own name; the control names both, and carries them."""
    names = ("network_private_destinations", "network_wildcards")
    lines = lines_of(changed, network=OPEN)
    assert lines == tuple(f"loosenings.{name}: must be named in this file, because {LOOSENINGS[name]}" for name in names)
    assert changed(network=OPEN, loosenings=names).loosenings == names


def test_a_network_loosening_that_no_rule_needs_refuses() -> None:
    """A profile of exact and public places carries none."""
    network = Profile(name="own", rules=(Rule(place=PLACE, upstream_port=443),))
    assert changed(network=network).loosenings == ()
    assert lines_of(changed, network=network, loosenings=("network_wildcards",)) == (
        "loosenings.network_wildcards: nothing in this policy needs it; remove it",
    )


def test_no_repr_says_where_a_secret_comes_from() -> None:
    """What stands there may be the secret itself, put in the wrong place."""
    policy = changed(secrets={"orders": SecretSource(kind="command", where="/usr/bin/pass hunter2")})
    assert "hunter2" not in repr(policy) + repr(policy.secrets["orders"])


def test_an_unknown_effect_lists_the_known() -> None:
    """The answer to a typo is the table."""
    assert lines_of(Grants, effects=frozenset({"all"})) == ("grants.effects: 'all' is unknown; allowed: external, idempotent, read, write",)


@pytest.mark.parametrize(
    "value", ["https://user:hunter2@example.com/", "redis://:hunter2@h", "a\nb", "a\0b", "\x1b[1m", "\ud800", "x" * 4097, 1]
)
def test_a_fixed_value_is_one_printable_line_without_a_login(value: Any) -> None:
    """A harmless name must not carry a login, and no value drives a terminal."""
    (line,) = lines_of(Grants, environment={"SERVICE_URL": value})
    assert line.startswith("grants.environment.SERVICE_URL: ")
    assert "hunter2" not in line


def test_a_fixed_value_is_kept_and_not_printed() -> None:
    """The control, and the repr holds no value."""
    grants = Grants(environment={"SERVICE_URL": "https://example.com/a@b"})
    assert (grants.environment, "example.com" in repr(grants)) == ({"SERVICE_URL": "https://example.com/a@b"}, False)


@pytest.mark.parametrize("name", ["LANG", "LC_ALL", "PATH", "TZ"])
def test_the_baseline_cannot_be_fixed_otherwise(name: str) -> None:
    """The four names that are always there have values of our own."""
    assert lines_of(Grants, environment={name: "x"}) == (
        f"grants.environment.{name}: LANG, LC_ALL, PATH, TZ are always set, to values of our own",
    )


def test_a_policy_cannot_fix_a_denied_name() -> None:
    """The grant is refused even though the operator wrote it."""
    assert lines_of(changed, grants=Grants(environment={"MYAPP_ld_preload_2": "x"})) == (
        "grants.environment.MYAPP_ld_preload_2: a name of this shape may not be fixed (policies/denied_secrets.toml says why); rename it",
    )


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"jails": 0}, "pool.jails: want a whole number from 1 to 2^31"),
        ({"idle_ms": True}, "pool.idle: want a whole number from 1 to 2^31"),
        ({"ready": 0}, "pool.ready: want a whole number from 1 to 2^31"),
        ({"memory_bytes": 0}, "pool.memory: want a whole number from 1 to 2^50"),
        ({"queued": -1}, "pool.queued: want a whole number from 0 to 2^31"),
        ({"jails": 4, "total": 3}, "pool.total: want at least as many as pool.jails"),
    ],
)
def test_a_pool_is_bounded(fields: dict[str, int], line: str) -> None:
    """A pool without a bound cannot be written."""
    assert lines_of(Pool, **fields) == (line,)


def test_what_is_frozen_stays_so() -> None:
    """A mapping handed in and changed afterwards changes no policy."""
    environment = {"MYAPP_REGION": "eu"}
    grants = Grants(environment=environment)
    environment["LD_PRELOAD"] = "x"
    assert grants.environment == {"MYAPP_REGION": "eu"}


def test_the_digest_follows_every_part() -> None:
    """Two policies that differ anywhere have different names for their content."""
    others = [
        changed(name="x"),
        changed(limits=Limits(wall_ms=1)),
        changed(grants=Grants(environment={"MYAPP_REGION": "eu"})),
        changed(grants=Grants(environment={"MYAPP_REGION": "us"})),
        changed(pool=Pool(idle_ms=1)),
        changed(freshness=Freshness.WARM, loosenings=("state_kept_warm",)),
        changed(protections=lowered(landlock=7)),
        changed(network=Profile(name="own", rules=(Rule(place=PLACE, upstream_port=443),))),
        changed(network=Profile(name="own", trust="/etc/ca.pem", trust_digest="sha256:1")),
        changed(network=Profile(name="own", trust="/etc/ca.pem", trust_digest="sha256:2")),
        changed(secrets={"a": SecretSource(kind="env", where="A")}),
        changed(secrets={"a": SecretSource(kind="env", where="B")}),
        changed(families={**CAPABILITIES, "acme": ("ACME_API_KEY",)}),
        changed(on_secret=OnSecret.REDACT),
        changed(grants=Grants(secret_files=frozenset({"a"}))),
        changed(denied=dataclasses.replace(REQUIRED.denied, word=frozenset({"xx"}))),
    ]
    assert len({REQUIRED.digest, *(policy.digest for policy in others)}) == len(others) + 1


def test_equal_policies_share_a_digest() -> None:
    """The control: the digest is of the content."""
    assert changed().digest == REQUIRED.digest


def test_the_readme_says_what_each_loosening_means() -> None:
    """The table an operator reads is the one the receipts print."""
    text = (data_dir("policies") / "README.md").read_text()
    assert [name for name, meaning in LOOSENINGS.items() if f"\n| `{name}` | {meaning} |\n" not in text] == []
