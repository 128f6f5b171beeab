"""Denied names and credential capabilities."""

import pytest

from engine.errors import PolicyError
from engine.places import data_dir
from engine.policy.load import load_denied
from engine.policy.secrets import CAPABILITIES, DeniedNames, SecretSource, name_problem

SMALL = DeniedNames(fragment=frozenset({"secret"}), word=frozenset({"pat"}), ending=frozenset({"pwd"}), whole=frozenset({"path"}))


def test_capabilities_are_the_three_families() -> None:
    """Which names a capability stands for is a closed table."""
    assert dict(CAPABILITIES) == {
        "anthropic": ("ANTHROPIC_API_KEY",),
        "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "openai": ("OPENAI_API_KEY",),
    }


@pytest.mark.parametrize("name", ["MY_SECRET", "se-cr.et", "xSeCrEt2", "ＳＥＣＲＥＴ"])
def test_a_fragment_matches_anywhere(name: str) -> None:
    """Case, separators, neighbours and full-width letters do not hide a fragment."""
    assert SMALL.matches(name)


@pytest.mark.parametrize(("name", "expected"), [("GITHUB_PAT", True), ("githubPat2", True), ("my.pat.old", True), ("DATA_PATTERN", False)])
def test_a_word_matches_as_a_word_only(name: str, expected: bool) -> None:
    """A word is bounded by separators, camel case or digits."""
    assert SMALL.matches(name) is expected


@pytest.mark.parametrize(("name", "expected"), [("MYSQLPWD", True), ("MYSQLPWD_OLD", True), ("MYSQLPWD2", True), ("PWDS_SEEN", False)])
def test_an_ending_ends_a_word(name: str, expected: bool) -> None:
    """An ending is found at the end of any word, digits behind it left out."""
    assert SMALL.matches(name) is expected


@pytest.mark.parametrize(("name", "expected"), [("PATH", True), ("path", True), ("P_A_T_H", True), ("DATA_PATH", False)])
def test_a_whole_shape_is_the_name_itself(name: str, expected: bool) -> None:
    """A whole shape leaves longer names alone."""
    assert SMALL.matches(name) is expected


@pytest.mark.parametrize("name", ["A\0B", "A=B", " A", "A ", "A\n", "", "1A", "A-B", "A.B", "А", "Ａ", "A\u200b", "A" * 129, None, 1, b"A"])
def test_malformed_names_are_denied(name: object) -> None:
    """What is not a plain variable name is denied, whatever its words are."""
    assert SMALL.denied(name)


def test_a_plain_name_is_not_denied() -> None:
    """The control of all denials above: an ordinary name of the longest length passes."""
    assert not SMALL.denied("A" * 128)


def test_the_problem_of_a_name_does_not_repeat_it() -> None:
    """A name may be a secret that was put in the wrong place."""
    assert "hunter2" not in (name_problem("hunter2 ") or "hunter2")


@pytest.mark.parametrize(
    "name", ["MYAPP_REGION", "FEATURE_FLAGS", "LOG_LEVEL", "BATCH_SIZE", "SERVICE_BASE_URL", "RANDOM_SEED", "OMP_NUM_THREADS"]
)
def test_the_shipped_list_passes_ordinary_names(name: str) -> None:
    """The shipped shapes leave names that people really use."""
    assert not load_denied(data_dir("policies")).denied(name)


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONWARNINGS"]
    + ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "BASH_ENV", "ENV", "IFS", "LOCPATH", "TMPDIR", "NODE_OPTIONS", "PATH", "HOME", "GCONV_PATH"]
    + ["PERL5LIB", "RUBYOPT", "JAVA_TOOL_OPTIONS", "OPENSSL_CONF", "SSL_CERT_FILE", "DYLD_INSERT_LIBRARIES", "GIT_SSH_COMMAND", "LD_AUDIT"],
)
def test_the_shipped_list_denies_loader_names(name: str) -> None:
    """Names that make a program load or trust something are denied in both cases of letters."""
    denied = load_denied(data_dir("policies"))
    assert (denied.denied(name), denied.denied(name.lower())) == (True, True)


@pytest.mark.parametrize("shape", ["", "*key*", "KEY", "api_key", "ключ", "ab", 3, None])
def test_a_shape_that_would_deny_nothing_or_everything_refuses(shape: str) -> None:
    """Wildcards, capitals, separators and very short fragments are mistakes, not shapes."""
    with pytest.raises(PolicyError) as caught:
        DeniedNames(fragment=frozenset({shape}), word=frozenset(), ending=frozenset(), whole=frozenset())
    assert caught.value.code == "refused.policy"


@pytest.mark.parametrize(
    ("text", "kind", "where"),
    [
        ("env:ORDERS_API_KEY", "env", "ORDERS_API_KEY"),
        ("file:/run/secrets/a key", "file", "/run/secrets/a key"),
        ("command:/usr/bin/pass show 'my orders'", "command", "/usr/bin/pass show 'my orders'"),
    ],
)
def test_a_source_of_a_secret_is_read_and_written_alike(text: str, kind: str, where: str) -> None:
    """The three kinds there are; the repr does not say where."""
    source = SecretSource.of(text)
    assert (source, source.data()) == (SecretSource(kind=kind, where=where), text)
    assert where not in repr(source)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hunter2",
        "env:",
        "env:1A",
        "env:A=B",
        "env: A",
        "ENV:A",
        "envi:A",
        "file:",
        "file:key",
        "file:./key",
        "file:/a/../b",
        "file:/a//b",
    ]
    + ["file:/", "file:/a\0b", "file:/a\nb", "command:", "command: ", "command:pass show", "command:./pass", "command:/usr/bin/../pass x"]
    + ["command:/usr/bin/pass 'x", "vault:/x", f"file:/{'a' * 4096}", None, 1, True, ["env:A"]],
)
def test_what_is_no_source_refuses_without_repeating_it(text: object) -> None:
    """Relative paths, other kinds and the secret itself put in its place."""
    with pytest.raises(PolicyError) as caught:
        SecretSource.of(text)
    assert (caught.value.code, caught.value.lines) == (
        "refused.policy",
        ("want 'env:NAME', 'file:/a/path' or 'command:/a/program its arguments'",),
    )


def test_names_that_steer_are_a_part_of_those_denied() -> None:
    """What no credential may be called is denied as a fixed value as well; the control is a name that only says secret."""
    denied = load_denied(data_dir("policies"))
    steering = denied.steering
    assert steering is not None
    assert [kind for kind in ("fragment", "word", "ending") if not getattr(steering, kind) < getattr(denied, kind)] == []
    assert steering.whole == denied.whole
    assert [(denied.denied(name), denied.steers(name)) for name in ("LD_PRELOAD", "ACME_API_KEY", "MYAPP_A", "A B")] == [
        (True, True),
        (True, False),
        (False, False),
        (True, True),
    ]


def test_without_shapes_of_their_own_credentials_are_held_to_all() -> None:
    """A record made by hand denies more, never less."""
    assert (SMALL.steers("MY_SECRET"), SMALL.steers("MYAPP_A")) == (True, False)
