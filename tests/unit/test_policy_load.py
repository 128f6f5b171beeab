"""Policy files: what is read, what refuses, and with which words."""

import os
import shutil
from pathlib import Path

import pytest

from engine.errors import PolicyError
from engine.limits import Limits
from engine.places import data_dir
from engine.policy.grants import EFFECTS, Grants
from engine.policy.load import describe_policy, load_policy, load_preload
from engine.policy.model import LIMIT_KEYS, Freshness, Mode, OnSecret, Permission, Pool
from engine.policy.network import NO_NETWORK
from engine.policy.protections import NEEDED, NO_WALL, PROTECTIONS
from engine.policy.secrets import CAPABILITIES, SecretSource

SHIPPED = data_dir("policies")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of policies that a test may add to."""
    for path in SHIPPED.glob("*.toml"):
        shutil.copy(path, tmp_path)
    shutil.copytree(SHIPPED / "network", tmp_path / "network")
    return tmp_path


def lines_of(folder: Path, text: str | bytes, name: str = "own") -> tuple[str, ...]:
    """The lines, without the file's folder, with which a policy of this text refuses."""
    (folder / f"{name}.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PolicyError) as caught:
        load_policy("own", folder)
    assert caught.value.code == "refused.policy"
    return tuple(line.removeprefix(f"{folder}/") for line in caught.value.lines)


def test_required_states_the_defaults() -> None:
    """What stands in the file is what the records default to, so neither can drift."""
    policy = load_policy("required", SHIPPED)
    assert (policy.mode, policy.permission, policy.freshness) == (Mode.REQUIRED, Permission.AUTO, Freshness.FRESH)
    assert (policy.limits, policy.pool, policy.loosenings) == (Limits(), Pool(), ())
    assert policy.protections == NEEDED
    assert policy.grants == Grants(effects=frozenset(EFFECTS))
    assert (policy.network, dict(policy.secrets), policy.families) == (NO_NETWORK, {}, CAPABILITIES)
    assert policy.on_secret is OnSecret.BY_SHAPE


def test_required_writes_every_limit_and_protection_down() -> None:
    """A reader of the file sees every amount with its reason."""
    text = (SHIPPED / "required.toml").read_text()
    assert [key for key in (*LIMIT_KEYS, *PROTECTIONS) if f"\n{key} = {{ value = " not in text] == []


def test_fixture_differs_in_mode_and_effects_only() -> None:
    """Trusted tests run behind the same wall."""
    required, fixture = load_policy("required", SHIPPED), load_policy("fixture", SHIPPED)
    expected = {
        **required.data(),
        "name": "fixture",
        "mode": "fixture",
        "grants": {**required.grants.data(), "effects": ["idempotent", "read"]},
    }
    assert fixture.data() == expected


def test_host_has_no_wall_and_says_so() -> None:
    """The mode host holds nothing and names its loosening."""
    policy = load_policy("host", SHIPPED)
    assert (policy.mode, policy.protections, policy.loosenings) == (Mode.HOST, NO_WALL, ("host_mode_without_any_wall",))


def test_describe_grants_nothing_and_never_more_than_required() -> None:
    """Reading a declaration gets no grant and no limit above the default."""
    policy = describe_policy(SHIPPED)
    assert (policy.grants, policy.protections, policy.permission) == (Grants(), NEEDED, Permission.READONLY)
    assert [key for key, (field, _) in LIMIT_KEYS.items() if getattr(policy.limits, field) > getattr(Limits(), field)] == []


def test_a_file_without_extends_starts_from_nothing(folder: Path) -> None:
    """What is absent is denied, and the wall is whole."""
    (folder / "own.toml").write_text('[limits]\nwall = { value = "1 min", reason = "a slow job" }\n')
    policy = load_policy("own", folder)
    assert (policy.limits, policy.grants, policy.permission) == (Limits(wall_ms=60_000), Grants(), Permission.READONLY)
    assert (policy.mode, policy.protections, policy.loosenings) == (Mode.REQUIRED, NEEDED, ())


def test_everything_a_file_can_say_is_read(folder: Path) -> None:
    """The control of all refusals: a file with every kind of entry."""
    (folder / "own.toml").write_text(
        """
        extends = "required"
        permission = { value = "readonly", reason = "r" }
        freshness = { value = "warm", reason = "r" }
        on_secret = { value = "redact", reason = "r" }
        [limits]
        memory = { value = "1 GiB", reason = "r" }
        [protections]
        landlock = { value = 3, reason = "r" }
        [loosenings]
        landlock_below_6 = { value = true, reason = "r" }
        state_kept_warm = { value = true, reason = "r" }
        [grants]
        layers = { value = ["numbers"], reason = "r" }
        credentials = { value = ["openai", "acme"], reason = "r" }
        secret_files = { value = ["fixtures/key.pem"], reason = "r" }
        [grants.environment]
        MYAPP_REGION = { value = "eu", reason = "r" }
        [grants.folders]
        data = { value = "/srv/data", reason = "r" }
        [network]
        profile = { value = "example", reason = "r" }
        [secrets]
        orders = { value = "env:ORDERS_API_KEY", reason = "r" }
        [credentials]
        acme = { value = ["ACME_API_KEY", "ACME_TOKEN"], reason = "r" }
        [pool]
        idle = { value = "5 s", reason = "r" }
        memory = { value = "64 MiB", reason = "r" }
        ready = { value = 2, reason = "r" }
        """
    )
    policy = load_policy("own", folder)
    assert policy.grants == Grants(
        layers=frozenset({"numbers"}),
        credentials=frozenset({"openai", "acme"}),
        secret_files=frozenset({"fixtures/key.pem"}),
        environment={"MYAPP_REGION": "eu"},
        folders={"data": "/srv/data"},
        effects=frozenset(EFFECTS),
    )
    assert (policy.limits, policy.pool, policy.protections["landlock"]) == (
        Limits(memory_bytes=1 << 30),
        Pool(idle_ms=5000, memory_bytes=64 << 20, ready=2),
        3,
    )
    assert (policy.freshness, policy.loosenings) == (Freshness.WARM, ("landlock_below_6", "state_kept_warm"))
    assert (policy.network.name, policy.on_secret) == ("example", OnSecret.REDACT)
    assert policy.secrets == {"orders": SecretSource(kind="env", where="ORDERS_API_KEY")}
    assert policy.families == {**CAPABILITIES, "acme": ("ACME_API_KEY", "ACME_TOKEN")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 'own.toml: the file says nothing; write at least extends = "required"'),
        ("# mode\n", 'own.toml: the file says nothing; write at least extends = "required"'),
        (
            "netwrok = 1",
            "own.toml: netwrok: unknown key; "
            "allowed: extends, mode, permission, freshness, worker, on_secret, image, clock, limits, protections, grants, loosenings, "
            "pool, images, network, secrets, credentials",
        ),
        (
            "[grants]\nnetwrok = 1",
            "own.toml: grants.netwrok: unknown key; allowed: layers, credentials, effects, secret_files, environment, folders",
        ),
        ("[pool]\nsize = 1", "own.toml: pool.size: unknown key; allowed: jails, total, ready, queued, idle, memory"),
        ("[limits]\nwal = 1", f"own.toml: limits.wal: unknown key; allowed: {', '.join(LIMIT_KEYS)}"),
        ("limits = 1", "own.toml: limits: want a table of entries"),
        ("grants = []", "own.toml: grants: want a table of entries"),
        ("grants.folders = 1", "own.toml: grants.folders: want a table of entries"),
        ('mode = "required"', 'own.toml: mode: want { value = ..., reason = "..." } with these two keys and no other'),
        ('mode = { value = "required" }', 'own.toml: mode: want { value = ..., reason = "..." } with these two keys and no other'),
        ('mode = { value = "required", reason = " " }', "own.toml: mode: the reason must say in words why"),
        ('mode = { value = "required", reason = 1 }', "own.toml: mode: the reason must say in words why"),
        (
            'mode = { value = "required", reason = "r", reson = "" }',
            'own.toml: mode: want { value = ..., reason = "..." } with these two keys and no other',
        ),
        ('mode = { value = "none", reason = "r" }', "own.toml: mode: 'none' is unknown; allowed: required, fixture, host"),
        ('mode = { value = "Required", reason = "r" }', "own.toml: mode: 'Required' is unknown; allowed: required, fixture, host"),
        ('permission = { value = [], reason = "r" }', "own.toml: permission: [] is unknown; allowed: auto, readonly"),
        (
            '[grants]\nlayers = { value = true, reason = "r" }',
            "own.toml: grants.layers: want a list of non-empty texts; [] grants nothing",
        ),
        ('[grants]\nlayers = { value = "", reason = "r" }', "own.toml: grants.layers: want a list of non-empty texts; [] grants nothing"),
        (
            '[grants]\nlayers = { value = [""], reason = "r" }',
            "own.toml: grants.layers: want a list of non-empty texts; [] grants nothing",
        ),
        ('on_secret = { value = "ignore", reason = "r" }', "own.toml: on_secret: 'ignore' is unknown; allowed: by_shape, refuse, redact"),
        (
            '[grants]\nnetwork = { value = ["api.example.com:443"], reason = "r" }',
            "own.toml: grants.network: unknown key; allowed: layers, credentials, effects, secret_files, environment, folders",
        ),
        ('[grants]\nlayers = { value = ["a", "a"], reason = "r" }', "own.toml: grants.layers: the same text is listed twice"),
        ('[grants.environment]\nMYAPP_A = { value = 1, reason = "r" }', "own.toml: grants.environment.MYAPP_A: want a text"),
        ('[limits]\nwall = { value = 30, reason = "r" }', "own.toml: limits.wall: 30 is not a time such as '200 ms', '30 s' or '2 min'"),
        ('[limits]\nthreads = { value = nan, reason = "r" }', "own.toml: limits.threads: nan is not a whole number"),
        ('[pool]\nidle = { value = "no", reason = "r" }', "own.toml: pool.idle: 'no' is not a time such as '200 ms', '30 s' or '2 min'"),
        (
            '[pool]\nmemory = { value = 1.5, reason = "r" }',
            "own.toml: pool.memory: 1.5 is not a size such as 4096, '64 KiB', '256 MiB' or '1 GiB'",
        ),
        ('[pool]\njails = { value = 0, reason = "r" }', "own.toml: pool.jails: want a whole number from 1 to 2^31"),
        (
            '[protections]\nseccomp = { value = true, reason = "r" }',
            "own.toml: protections.seccomp: want a whole number from 0 to 1, not True",
        ),
        (
            '[loosenings]\nstate_kept_warm = { value = false, reason = "r" }',
            "own.toml: loosenings.state_kept_warm: the value is true; to go without this loosening, remove the line",
        ),
        ('extends = ""', "own.toml: extends: want the name of a policy or the path of its .toml file"),
        ('extends = ["required"]', "own.toml: extends: want the name of a policy or the path of its .toml file"),
    ],
)
def test_what_is_not_exactly_right_refuses(folder: Path, text: str, line: str) -> None:
    """A mistake is answered with file, key and what would be right; nothing is guessed."""
    assert lines_of(folder, text) == (line,)


def test_all_mistakes_of_a_file_come_at_once(folder: Path) -> None:
    """One line per problem."""
    assert len(lines_of(folder, "a = 1\nmode = 1\n[limits]\nwall = 1\n[pool]\nx = 1\n")) == 4


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('extends = "required"\nextends = "host"\n', "own.toml:2: not TOML: Cannot overwrite a value"),
        ("[limits]\n[pool]\n[limits]\n", "own.toml:3: not TOML: Cannot declare ('limits',) twice"),
        ('mode = { value = "required", value = "host", reason = "r" }', "own.toml:1: not TOML: Duplicate inline table key 'value'"),
        ("mode = no\n", "own.toml:1: not TOML: Invalid value"),
        ("\n\nmode = [", "own.toml:3: not TOML: Invalid value"),
    ],
)
def test_what_is_not_toml_refuses_with_file_and_line(folder: Path, text: str, line: str) -> None:
    """Duplicate keys are the parser's to refuse; its words come with file and line."""
    assert lines_of(folder, text) == (line,)


def test_a_number_of_thousands_of_digits_refuses(folder: Path) -> None:
    """The parser's other error is mapped as well."""
    (line,) = lines_of(folder, "a = " + "9" * 5000)
    assert line.startswith("own.toml:1: not TOML: ")


def test_deep_nesting_refuses(folder: Path) -> None:
    """A file cannot exhaust the parser's stack."""
    assert lines_of(folder, "a = " + "[" * 100_000) == ("own.toml: is nested too deeply",)


def test_bytes_that_are_no_text_refuse(folder: Path) -> None:
    """Policies are UTF-8."""
    assert lines_of(folder, b"a = '\xff'") == ("own.toml: is not UTF-8 text (byte 5)",)


def test_a_huge_file_refuses(folder: Path) -> None:
    """A file above the bound is not parsed."""
    assert lines_of(folder, "#" * ((256 << 10) + 1)) == ("own.toml: is larger than 262144 bytes",)


def test_a_file_at_the_bound_is_read(folder: Path) -> None:
    """The control of the bound."""
    text = 'extends = "required"\n'
    (folder / "own.toml").write_text(text + "#" * ((256 << 10) - len(text)))
    assert load_policy("own", folder).limits == Limits()


def test_a_fifo_in_place_of_a_file_refuses(folder: Path) -> None:
    """A path that would never end reading is refused at once."""
    os.mkfifo(folder / "own.toml")
    with pytest.raises(PolicyError) as caught:
        load_policy(folder / "own.toml", folder)
    assert caught.value.lines == (f"{folder}/own.toml: is not a regular file",)


def test_a_missing_file_refuses(folder: Path) -> None:
    """A path that is not there is named."""
    with pytest.raises(PolicyError) as caught:
        load_policy(folder / "gone.toml", folder)
    assert caught.value.lines == (f"{folder}/gone.toml: cannot be read: No such file or directory",)


def test_a_loop_of_links_refuses(folder: Path) -> None:
    """A path that leads nowhere is a readable error."""
    (folder / "own.toml").symlink_to(folder / "own.toml")
    with pytest.raises(PolicyError) as caught:
        load_policy(folder / "own.toml", folder)
    assert caught.value.lines == (f"{folder}/own.toml: cannot be read: Too many levels of symbolic links",)


def test_a_path_with_nul_refuses(folder: Path) -> None:
    """And so does one that the kernel would cut short."""
    assert lines_of(folder, 'extends = "./required.toml\\u0000"') == ("a policy's path has no NUL in it",)


def test_an_unknown_name_lists_the_policies(folder: Path) -> None:
    """The answer to a typo is the list; data files that are no policies are not in it."""
    with pytest.raises(PolicyError) as caught:
        load_policy("requierd", folder)
    assert caught.value.lines == ("there is no policy requierd; there are: describe, fixture, host, required",)


@pytest.mark.parametrize("name", ["", "..", "Required", "a b", "required\n", "x" * 65])
def test_a_name_is_never_a_path(folder: Path, name: str) -> None:
    """Odd names refuse before any file is touched."""
    with pytest.raises(PolicyError) as caught:
        load_policy(name, folder)
    assert caught.value.lines == ("a policy is named by a-z, 0-9, '_' and '-', or by the path of its .toml file",)


def test_a_lowered_protection_without_its_loosening_refuses(folder: Path) -> None:
    """Below the required level the file must say so in words that sound like it."""
    (line,) = lines_of(folder, 'extends = "required"\n[protections]\nlandlock = { value = 5, reason = "an old kernel" }\n')
    assert line.startswith("own.toml: loosenings.landlock_below_6: must be named in this file, because ")


def test_lowering_required_itself_does_not_move_the_floor(folder: Path) -> None:
    """The floor is in the program: a changed required.toml without the loosening refuses, and so does all that extends it."""
    path = folder / "required.toml"
    path.write_text(path.read_text().replace("seccomp = { value = 1", "seccomp = { value = 0"))
    (line,) = lines_of(folder, 'extends = "required"')
    assert line.startswith("required.toml: loosenings.every_kernel_call_allowed: must be named in this file")


@pytest.mark.parametrize(
    "name", ["PYTHONPATH", "ld_preload", "MyAppApiKey", "SSH_AUTH_SOCK", "COSIGN_PASSWORD_2", "DATABASE_URL", "AWS_PROFILE"]
)
def test_a_policy_that_fixes_a_denied_name_refuses_at_load(folder: Path, name: str) -> None:
    """The operator's own file cannot hand such a name over."""
    (line,) = lines_of(folder, f'[grants.environment]\n{name} = {{ value = "hunter2", reason = "r" }}\n')
    assert line.startswith(f"own.toml: grants.environment.{name}: a name of this shape may not be fixed")
    assert "hunter2" not in line


@pytest.mark.parametrize("name", ['"A=B"', '"A\\u0000B"', '" A"', '"Ａ"', '"A-B"', '""'])
def test_a_policy_that_fixes_a_malformed_name_refuses_at_load(folder: Path, name: str) -> None:
    """A name that the kernel or the C library would read otherwise is refused without repeating it."""
    lines = lines_of(folder, f'[grants.environment]\n{name} = {{ value = "x", reason = "r" }}\n')
    assert lines == ("own.toml: grants.environment: a variable's name is 1 to 128 of A-Z, a-z, 0-9 and '_', not beginning with a digit",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[modules\n", "preload.toml:1: not TOML: Expected ']' at the end of a table declaration"),
        ("json = 1\n", "preload.toml: modules: want a table of module names"),
        ("[modules]\njson = 1\n", 'preload.toml: modules.json: want { fork_us = ..., reason = "..." } with these two keys and no other'),
    ],
)
def test_a_bad_list_of_modules_to_preload_refuses(folder: Path, text: str, line: str) -> None:
    """It is the operator's file like the others: broken, of another shape or with an entry of another shape, it is told with its key."""
    (folder / "preload.toml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_preload(folder)
    assert caught.value.lines == (f"{folder}/{line}",)


def test_the_list_of_modules_to_preload_is_read_in_its_order(folder: Path) -> None:
    """The control."""
    (folder / "preload.toml").write_text('[modules]\nre = { fork_us = 1, reason = "r" }\njson = { fork_us = 1, reason = "r" }\n')
    assert load_preload(folder) == ("re", "json")


def test_the_environment_changes_no_policy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable overrides a file."""
    before = load_policy("required", folder).digest
    for name in ("STOCKADE_MODE", "STOCKADE_POLICY", "MODE", "WALL"):
        monkeypatch.setenv(name, "host")
    assert load_policy("required", folder).digest == before
