"""The vault: where values come from, which ones refuse, who sees them, what happens when they are replaced."""

import copy
import dataclasses
import os
import pickle
import secrets
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.egress.vault import Vault, of_this_process, value_problem
from engine.errors import EngineBug, EngineError, PolicyError
from engine.policy.network import Attachment, Place, Profile, Rule, Transport
from engine.policy.shapes import ValueShapes
from engine.results.redact import Watch
from tests.vaults import CANARY, OTHER, policy, problem_of, secret_file

PEM = "-----BEGIN " + "PRIVATE KEY-----\n" + secrets.token_hex(32) + "\n-----END " + "PRIVATE KEY-----"
FAMILIES = {"acme": ("ACME_API_KEY", "ACME_TOKEN")}


async def test_a_value_comes_out_of_a_variable(tmp_path: Path) -> None:
    """As it stands there."""
    vault = Vault({"ORDERS": CANARY})
    await vault.hold(policy(tmp_path, {"orders": "env:ORDERS"}))
    assert (vault.secret("orders"), dict(vault.held())) == (CANARY, {"orders": CANARY})


@pytest.mark.parametrize("content", [CANARY, CANARY + "\n", CANARY + "\r\n", PEM, PEM + "\n"])
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
async def test_a_value_comes_out_of_a_file(tmp_path: Path, content: str, mode: int) -> None:
    """Without the line break that an editor left at its end."""
    vault = Vault({})
    await vault.hold(policy(tmp_path, {"orders": f"file:{secret_file(tmp_path, content.encode(), mode)}"}))
    assert vault.secret("orders") == content.rstrip("\r\n")


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (CANARY.encode(), 0o644, "its file is open to others (mode 0644); want 0400, 0600 or 0640"),
        (CANARY.encode(), 0o660, "its file is open to others (mode 0660); want 0400, 0600 or 0640"),
        (CANARY.encode(), 0o601, "its file is open to others (mode 0601); want 0400, 0600 or 0640"),
        (b"a1" * (32 << 10) + b"x", 0o600, "what it is taken from has more than 65536 bytes"),
        (b"\xff" * 20, 0o600, "the value is not UTF-8 text"),
        (b"", 0o600, "the value is empty"),
        (b"\n", 0o600, "the value is empty"),
        (b"one line of it\nanother line\n", 0o600, "the value is one printable line, or a key in PEM"),
        (b" with-a-blank-before", 0o600, "the value begins or ends with a blank"),
        (b"with-a-blank-behind \n", 0o600, "the value begins or ends with a blank"),
        (b"with\0a NUL in it", 0o600, "the value is one printable line, or a key in PEM"),
    ],
)
async def test_a_file_that_cannot_hold_a_secret_refuses(tmp_path: Path, content: bytes, mode: int, problem: str) -> None:
    """With the ID and what is wrong, without the path or what stands there."""
    held = policy(tmp_path, {"orders": f"file:{secret_file(tmp_path, content, mode)}"})
    assert await problem_of(Vault({}), held) == ("refused.secret", (f"orders: {problem}",))


@pytest.mark.parametrize(("length", "problem"), [(4096, None), (4097, "orders: a value that is attached has at most 4096 characters")])
async def test_a_value_that_is_attached_is_bounded(tmp_path: Path, length: int, problem: str | None) -> None:
    """Each call of its rule pays for its spellings; as a variable alone it may be longer."""
    value = secrets.token_hex(length)[:length]
    alone = policy(tmp_path, {"orders": "env:ORDERS"})
    to = Place(host="orders.example", port=80)
    rule = Rule(place=to, transport=Transport.UPGRADE, upstream_port=443, attach=(Attachment(secret="orders", header="X-Key"),))
    attaching = dataclasses.replace(alone, network=Profile(name="orders", rules=(rule,)))
    vault = Vault({"ORDERS": value})
    if problem is None:
        await vault.hold(attaching)
    else:
        assert await problem_of(vault, attaching) == ("refused.secret", (problem,))
        await vault.hold(alone)
    assert vault.secret("orders") == value


async def test_what_is_no_file_refuses_at_once(tmp_path: Path) -> None:
    """A FIFO does not hang, a folder and a missing file are named as such."""
    os.mkfifo(tmp_path / "fifo", 0o600)
    sources = {"a": f"file:{tmp_path / 'fifo'}", "b": f"file:{tmp_path}", "c": f"file:{tmp_path / 'none'}"}
    assert await problem_of(Vault({}), policy(tmp_path, sources)) == (
        "refused.secret",
        (
            "a: what it is taken from is not a regular file",
            "b: its file cannot be read: Is a directory",
            "c: its file cannot be read: No such file or directory",
        ),
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("a1b2c3d", "the value has fewer than 8 characters"),
        ("        ", "the value is empty"),
        ("zzzzzzzzzzzz", "the value is one character over and over"),
        ("31415926535", "the value is a number of fewer than 12 digits"),
        *(
            (word, "the value is one that stands in examples and that anybody would guess")
            for word in ("password", "Password123!", "ChangeMe", "example-key", "your-api-key-here", "REDACTED")
        ),
        (" a1b2c3d4", "the value begins or ends with a blank"),
        ("a1b2c3d4 ", "the value begins or ends with a blank"),
        (PEM + "\n", "the value begins or ends with a blank"),
        ("tab\there there", "the value is one printable line, or a key in PEM"),
        ("first line\nsecond line", "the value is one printable line, or a key in PEM"),
        ("314159265358", None),
        ("a1b2c3d4", None),
        ("correct horse battery staple", None),
        ("pässwörter sind länger", None),
        ("password-of-the-house", None),
        (PEM, None),
        (PEM.replace("\n", "\r\n"), None),
    ],
)
def test_a_value_that_ordinary_text_holds_refuses(value: str, problem: str | None) -> None:
    """Each rule with what just passes it."""
    assert value_problem(value) == problem


async def test_all_problems_come_at_once_and_nothing_is_taken(tmp_path: Path) -> None:
    """One line each; the good one of that policy is not held either."""
    vault = Vault({"GOOD": CANARY, "SHORT": "abc"})
    held = policy(tmp_path, {"good": "env:GOOD", "short": "env:SHORT", "unset": "env:NOWHERE"})
    lines = ("short: the value has fewer than 8 characters", "unset: the variable that it is taken from is not set")
    assert await problem_of(vault, held) == ("refused.secret", lines)
    assert dict(vault.held()) == {}
    with pytest.raises(PolicyError) as caught:
        vault.secret("good")
    assert caught.value.code == "refused.secret"


async def test_one_id_is_one_source(tmp_path: Path) -> None:
    """Two policies that mean different things by one name: the second refuses, or one call would be given the other's."""
    vault = Vault({"ONE": CANARY, "TWO": OTHER})
    await vault.hold(policy(tmp_path, {"orders": "env:ONE"}))
    await vault.hold(policy(tmp_path, {"orders": "env:ONE", "more": "env:TWO"}, name="same"))
    line = "orders: another policy takes it from elsewhere; give one of them another name"
    assert await problem_of(vault, policy(tmp_path, {"orders": "env:TWO"}, name="third")) == ("refused.secret", (line,))
    assert dict(vault.held()) == {"orders": CANARY, "more": OTHER}


async def test_a_replaced_value_stays_watched_for(tmp_path: Path) -> None:
    """The new one is handed out; each of the old ones is found under the same ID, however often it was replaced."""
    path = secret_file(tmp_path, CANARY.encode())
    vault = Vault({})
    await vault.hold(policy(tmp_path, {"orders": f"file:{path}"}))
    path.write_text(OTHER)
    await vault.reload()
    assert (vault.secret("orders"), dict(vault.held())) == (OTHER, {"orders": OTHER, "orders~1": CANARY})
    watch = Watch(vault.held(), ValueShapes())
    assert watch.text(f"{CANARY} {OTHER}")[0] == "[redacted:orders] [redacted:orders]"
    path.write_text(CANARY)
    await vault.reload()
    await vault.reload()
    assert dict(vault.held()) == {"orders": CANARY, "orders~1": OTHER}


async def test_a_reload_that_fails_changes_nothing(tmp_path: Path) -> None:
    """A file that is gone, or another that is open to others: all values are as they were."""
    one, two = secret_file(tmp_path, CANARY.encode(), name="one"), secret_file(tmp_path, OTHER.encode(), name="two")
    vault = Vault({})
    await vault.hold(policy(tmp_path, {"one": f"file:{one}", "two": f"file:{two}"}))
    one.write_text(secrets.token_hex(12))
    two.unlink()
    with pytest.raises(PolicyError) as caught:
        await vault.reload()
    assert (caught.value.code, caught.value.lines) == ("refused.secret", ("two: its file cannot be read: No such file or directory",))
    assert dict(vault.held()) == {"one": CANARY, "two": OTHER}


async def test_a_reload_reads_variables_anew(tmp_path: Path) -> None:
    """Those of secrets and those of granted families; what they were before stays watched for."""
    environment = {"ORDERS": CANARY, "ACME_TOKEN": CANARY}
    vault = Vault(environment)
    held = policy(tmp_path, {"orders": "env:ORDERS"}, FAMILIES)
    await vault.hold(held)
    environment.update(ORDERS=OTHER, ACME_TOKEN=OTHER, ACME_API_KEY=OTHER)
    assert (vault.secret("orders"), dict(vault.variables(held.families, ("acme",)))) == (CANARY, {"ACME_TOKEN": CANARY})
    await vault.reload()
    assert (vault.secret("orders"), dict(vault.variables(held.families, ("acme",)))) == (
        OTHER,
        {"ACME_API_KEY": OTHER, "ACME_TOKEN": OTHER},
    )
    assert dict(vault.held()) == {"orders": OTHER, "orders~1": CANARY, "acme": OTHER, "acme~1": CANARY}


async def test_a_family_that_has_no_value_any_more(tmp_path: Path) -> None:
    """Whoever asks for it is refused; its old value is watched for, and comes back with the variable."""
    environment = {"ACME_TOKEN": CANARY}
    vault = Vault(environment)
    held = policy(tmp_path, {}, FAMILIES)
    await vault.hold(held)
    del environment["ACME_TOKEN"]
    await vault.reload()
    with pytest.raises(EngineError) as caught:
        vault.variables(held.families, ("acme",))
    assert (caught.value.code, dict(vault.held())) == ("refused.credential_missing", {"acme": CANARY})
    environment["ACME_TOKEN"] = CANARY
    await vault.reload()
    assert dict(vault.variables(held.families, ("acme",))) == {"ACME_TOKEN": CANARY}


@pytest.mark.parametrize("bad", [{"ACME_TOKEN": "short"}, {"ACME_TOKEN": OTHER + " "}, {"ORDERS": "short"}, {"MORE": ""}])
async def test_a_variable_that_cannot_be_a_secret_replaces_none(tmp_path: Path, bad: Mapping[str, str]) -> None:
    """One that is bad: no other is replaced either."""
    before = {"ORDERS": CANARY, "MORE": CANARY, "ACME_TOKEN": CANARY}
    environment = dict(before)
    vault = Vault(environment)
    held = policy(tmp_path, {"orders": "env:ORDERS", "more": "env:MORE"}, FAMILIES)
    await vault.hold(held)
    environment.update({**dict.fromkeys(before, OTHER), **bad})
    with pytest.raises(PolicyError) as caught:
        await vault.reload()
    assert (caught.value.code, dict(vault.held())) == ("refused.secret", {"orders": CANARY, "more": CANARY, "acme": CANARY})
    assert dict(vault.variables(held.families, ("acme",))) == {"ACME_TOKEN": CANARY}


async def test_the_variables_of_a_granted_family(tmp_path: Path) -> None:
    """Those that have a value, all of them the same one, watched for under the family's name; none without a capability."""
    vault = Vault({"ACME_TOKEN": CANARY, "ACME_API_KEY": CANARY, "OTHER": "x"})
    held = policy(tmp_path, {}, FAMILIES)
    await vault.hold(held)
    assert dict(vault.variables(held.families, ("acme",))) == {"ACME_API_KEY": CANARY, "ACME_TOKEN": CANARY}
    assert (dict(vault.held()), dict(vault.variables(held.families, ()))) == ({"acme": CANARY}, {})


@pytest.mark.parametrize(
    ("environment", "capabilities", "code"),
    [
        ({"ACME_TOKEN": CANARY}, ("acme", "other"), "refused.credential_ambiguous"),
        ({"ACME_TOKEN": CANARY}, ("other",), "refused.credential_not_listed"),
        ({}, ("acme",), "refused.credential_missing"),
        ({"ACME_TOKEN": "  "}, ("acme",), "refused.credential_missing"),
        ({"ACME_TOKEN": CANARY + "\n"}, ("acme",), "refused.credential_missing"),
        ({"ACME_TOKEN": CANARY + "\udcff"}, ("acme",), "refused.credential_missing"),
        ({"ACME_TOKEN": CANARY, "ACME_API_KEY": OTHER}, ("acme",), "refused.credential_ambiguous"),
    ],
)
async def test_a_credential_that_is_not_one_value_refuses(
    tmp_path: Path, environment: Mapping[str, str], capabilities: tuple[str, ...], code: str
) -> None:
    """Two capabilities, an unknown one, no value, no printable line, two values; the line names no variable."""
    vault = Vault(environment)
    held = policy(tmp_path, {}, FAMILIES)
    await vault.hold(held)
    with pytest.raises(EngineError) as caught:
        vault.variables({"acme": FAMILIES["acme"]}, capabilities)
    assert caught.value.code == code
    assert not {"ACME", CANARY, OTHER} & set(str(caught.value).replace("_", " ").split())


async def test_a_credential_that_cannot_be_watched_for_refuses(tmp_path: Path) -> None:
    """A short value of a granted family; and what no policy was held for is never handed out."""
    held = policy(tmp_path, {}, FAMILIES)
    assert await problem_of(Vault({"ACME_TOKEN": "abc"}), held) == ("refused.secret", ("acme: the value has fewer than 8 characters",))
    with pytest.raises(EngineBug):
        Vault({"ACME_TOKEN": CANARY}).variables(FAMILIES, ("acme",))


async def test_a_family_and_a_secret_of_one_name_do_not_mix(tmp_path: Path) -> None:
    """Both are watched for; the secret is the secret's."""
    vault = Vault({"ACME_TOKEN": CANARY, "ORDERS": OTHER})
    await vault.hold(policy(tmp_path, {"acme": "env:ORDERS"}, FAMILIES))
    assert (vault.secret("acme"), sorted(vault.held().values())) == (OTHER, sorted([CANARY, OTHER]))


async def test_the_engines_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read when the vault is made, and again when it is told to."""
    monkeypatch.setenv("STOCKADE_TEST_ORDERS", CANARY)
    vault = of_this_process()
    monkeypatch.setenv("STOCKADE_TEST_ORDERS", OTHER)
    await vault.hold(policy(tmp_path, {"orders": "env:STOCKADE_TEST_ORDERS"}))
    assert vault.secret("orders") == CANARY
    await vault.reload()
    assert (vault.secret("orders"), dict(vault.held())) == (OTHER, {"orders": OTHER, "orders~1": CANARY})


async def test_nobody_is_shown_a_value(tmp_path: Path) -> None:
    """Neither by a repr, nor by a copy, nor by a traceback with the variables of its frames."""
    path = secret_file(tmp_path, b"weak" + b"\n" + CANARY.encode())
    vault = Vault({"ORDERS": CANARY, "ACME_TOKEN": CANARY, "ACME_API_KEY": OTHER})
    held = policy(tmp_path, {"orders": "env:ORDERS"}, FAMILIES)
    await vault.hold(held)
    shown = [
        repr(vault),
        str(vault),
        repr(vault.variables({"acme": ("ACME_TOKEN",)}, ("acme",))),
        repr([getattr(vault, name) for name in Vault.__slots__]),
    ]
    bad = policy(tmp_path, {"bad": f"file:{path}", "gone": "env:NOWHERE", "loud": f"command:/bin/echo {path.name}"}, name="bad")
    for refused in (bad, policy(tmp_path, {"orders": "env:ACME_TOKEN"}, name="two")):
        with pytest.raises(PolicyError) as caught:
            await vault.hold(refused)
        assert (caught.value.__cause__, caught.value.__suppress_context__ or caught.value.__context__ is None) == (None, True)
        shown.append("".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()))
    with pytest.raises(EngineError) as ambiguous:
        vault.variables(FAMILIES, ("acme",))
    shown.append("".join(traceback.TracebackException.from_exception(ambiguous.value, capture_locals=True).format()))
    assert [text for text in shown if CANARY in text or OTHER in text] == []
    for taken in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            taken(vault)
