"""The vault as an engine has it: held before anything runs, renewed when asked, watched for to the end."""

import secrets
import shutil
import traceback
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.host import Engine
from tests import kit

SAY = """
import os
from engine import tool


@tool(effect="read")
def say(text: str) -> str:
    "The text from its end."
    return text[::-1]


@tool(effect="read", credentials=["acme"])
def use() -> list[str]:
    "Which variables there are, and how long the key is."
    return [*sorted(name for name in os.environ if "ACME" in name), str(len(os.environ["ACME_KEY"]))]


@tool(effect="read", credentials=["acme"])
def leak() -> str:
    "The key itself."
    return "here: " + os.environ["ACME_KEY"]
"""
POLICY = """
extends = "required"

[secrets]
orders_key = { value = "file:%s", reason = "what must not leave" }

[credentials]
acme = { value = ["ACME_KEY"], reason = "a provider of ours" }

[grants]
credentials = { value = ["acme"], reason = "tools may ask it" }
"""


def secret() -> str:
    """A canary: nothing opens with it."""
    return secrets.token_hex(16)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file with a secret in it, which a policy names."""
    place = tmp_path / "key"
    place.write_text(secret())
    place.chmod(0o600)
    (tmp_path / "policy.toml").write_text(POLICY % place)
    return place


def put(place: Path, text: str) -> None:
    """Have the file hold that."""
    place.write_text(text)


async def reason(engine: Engine, text: str) -> str:
    """How a call ends whose answer is that text."""
    return (await engine.call("say", {"text": text[::-1]})).reason


async def test_a_value_is_held_before_anything_runs(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the engine does not open, and says which it lacks and not where it looked."""
    monkeypatch.setenv("ACME_KEY", secret())
    put(key, "")
    with pytest.raises(EngineError) as caught:
        async with kit.plain_engine(tmp_path / "state", policy=tmp_path / "policy.toml"):
            raise AssertionError("it opened")
    assert (caught.value.code, caught.value.lines) == (
        "refused.secret",
        ("orders_key: the value is empty",),
    )


async def test_a_renewed_value_is_watched_for_and_so_is_the_old_one(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the reload on; a reload that fails changes nothing."""
    monkeypatch.setenv("ACME_KEY", secret())
    old, new, third = secret(), secret(), secret()
    put(key, old)
    async with kit.clean_engine(tmp_path / "state", policy=tmp_path / "policy.toml") as engine:
        await engine.load(kit.write(tmp_path / "source", SAY))
        assert [await reason(engine, text) for text in (old, new)] == ["refused.secret_out", "ok.done"]
        put(key, new)
        await engine.reload_secrets()
        assert [await reason(engine, text) for text in (old, new)] == ["refused.secret_out", "refused.secret_out"]
        put(key, "short")
        with pytest.raises(EngineError, match=r"refused\.secret: orders_key"):
            await engine.reload_secrets()
        assert [await reason(engine, text) for text in (old, new, third)] == ["refused.secret_out", "refused.secret_out", "ok.done"]


async def test_a_granted_variable_reaches_its_tool_and_leaves_with_no_answer(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family of the operator's own: one worker has it, no other, and its value is looked for in what that one answers."""
    value = secret()
    monkeypatch.setenv("ACME_KEY", value)
    async with kit.clean_engine(tmp_path / "state", policy=tmp_path / "policy.toml") as engine:
        await engine.load(kit.write(tmp_path / "source", SAY))
        assert (await engine.call("use", {})).value == ["ACME_KEY", "32"]
        outcome = await engine.call("leak", {})
        receipt = await outcome.concluded()
        assert (outcome.reason, outcome.lines) == ("refused.secret_out", ("what the tool answered holds acme",))
        assert (receipt["secrets"], value in str(receipt)) == ({"acme": {"result": 1}}, False)


async def test_a_variable_is_read_again(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the reload on, and not before; without a value the tools that need it are refused, and the old ones are watched for."""
    old, new = secret(), secret()
    monkeypatch.setenv("ACME_KEY", old)
    async with kit.clean_engine(tmp_path / "state", policy=tmp_path / "policy.toml") as engine:
        await engine.load(kit.write(tmp_path / "source", SAY))
        monkeypatch.setenv("ACME_KEY", new)
        assert [await reason(engine, text) for text in (old, new)] == ["refused.secret_out", "ok.done"]
        await engine.reload_secrets()
        assert [await reason(engine, text) for text in (old, new)] == ["refused.secret_out", "refused.secret_out"]
        assert (await engine.call("use", {})).value == ["ACME_KEY", "32"]
        monkeypatch.delenv("ACME_KEY")
        await engine.reload_secrets()
        assert (await engine.call("use", {})).reason == "refused.credential_missing"
        assert [await reason(engine, text) for text in (old, new)] == ["refused.secret_out", "refused.secret_out"]


BREAKS = """
import os
from engine import tool

if "ACME_KEY" in os.environ:
    raise RuntimeError("a bad key: " + os.environ["ACME_KEY"])


@tool(effect="read", credentials=["acme"])
def use() -> int:
    "Never."
    return 1
"""


async def test_a_worker_that_does_not_come_up_repeats_no_value(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its import raised is told redacted, to who calls and to who warms."""
    value = secret()
    monkeypatch.setenv("ACME_KEY", value)
    async with kit.clean_engine(tmp_path / "state", policy=tmp_path / "policy.toml") as engine:
        await engine.load(kit.write(tmp_path / "source", BREAKS))
        outcome = await engine.call("use", {})
        with pytest.raises(EngineError) as caught:
            await engine.warm("use")
        lines = caught.value.lines
        assert (caught.value.code, lines, value in shown(caught.value)) == (outcome.reason, outcome.lines, False)
        assert (caught.value.code, lines[0]) == ("tool_error.import", "RuntimeError: a bad key: [redacted:acme]")


def shown(error: BaseException) -> str:
    """What a tool that prints tracebacks with the variables of their frames prints of it; the test's own frame has the value."""
    assert error.__traceback__ is not None
    return "".join(traceback.TracebackException(type(error), error, error.__traceback__.tb_next, capture_locals=True).format())


async def test_a_refusal_after_the_variables_were_built_shows_no_value(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in any frame's variables: here the folder that a worker is to see is gone."""
    value = secret()
    monkeypatch.setenv("ACME_KEY", value)
    folder = tmp_path / "granted"
    folder.mkdir()
    policy = tmp_path / "policy.toml"
    policy.write_text(policy.read_text() + f'[grants.folders]\ndata = {{ value = "{folder}", reason = "a test" }}\n')
    async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
        await engine.load(kit.write(tmp_path / "source", SAY))
        shutil.rmtree(folder)
        with pytest.raises(EngineError) as caught:
            await engine.warm("use")
        text = shown(caught.value)
        assert ("Environ(names=" in text, value in text) == (True, False)
