"""What a source declares is looked through before anybody sees it."""

import secrets
from pathlib import Path

import pytest

from engine.errors import EngineError
from tests import kit

SECRET = "orders-" + secrets.token_hex(12)  # a canary: nothing opens with it
POLICY = """
extends = "required"

[secrets]
orders_key = { value = "env:ORDERS_KEY", reason = "what must not leave" }
"""
# made at import, so that nothing in the source itself is found
TOOL = """
from engine import tool

MADE = "%s"[::-1]


@tool(effect="read", %s)
def hello(text: str = %s) -> str:
    "A tool."
    return text
"""
CLOSED = '{"type": "object", "additionalProperties": False, "properties": {"text": {"type": "string", %s}}}'
DECLARED = {
    "a description": ("description=MADE", '"a"'),
    "a description in a schema": ("input=" + CLOSED % '"description": MADE', '"a"'),
    "an enumeration in a schema": ("input=" + CLOSED % '"enum": ["a", MADE]', '"a"'),
    "a default": ('description="A tool."', "MADE"),
}


async def refusal(folder: Path, policy: Path, source: str) -> EngineError | None:
    """What loading it ends with; None when it is loaded."""
    async with kit.clean_engine(folder / "state", policy=policy) as engine:
        try:
            await engine.load(kit.write(folder / "source", source))
        except EngineError as error:
            return error
    return None


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy that holds the secret."""
    monkeypatch.setenv("ORDERS_KEY", SECRET)
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


@pytest.mark.parametrize("where", sorted(DECLARED))
async def test_a_declaration_with_a_secret_is_refused(tmp_path: Path, policy: Path, where: str) -> None:
    """By the tool's place and the secret's ID; the same declaration with another text is loaded."""
    asked, default = DECLARED[where]
    error = await refusal(tmp_path, policy, TOOL % (SECRET[::-1], asked, default))
    assert error is not None
    assert (error.code, error.lines) == (
        "refused.secret_source",
        ("tool 1 of the source: what it declares holds the secret orders_key",),
    )
    assert await refusal(tmp_path, policy, TOOL % ("another text"[::-1], asked, default)) is None


@pytest.mark.parametrize("literal", ['data=["%s.csv"]', 'includes=["%s.*"]', 'layers=["%s"]'])
async def test_a_refusal_of_a_source_repeats_no_secret(tmp_path: Path, policy: Path, literal: str) -> None:
    """Also of one that is refused before it is looked through."""
    source = f'from engine import tool\n\n\n@tool(effect="read", {literal % SECRET})\ndef hello() -> int:\n    "A tool."\n    return 1\n'
    error = await refusal(tmp_path, policy, source)
    assert error is not None
    assert SECRET not in str(error)
    assert SECRET not in repr(error.lines)


async def test_an_error_of_a_declaration_repeats_no_secret(tmp_path: Path, policy: Path) -> None:
    """What the decorator says quotes what it was given."""
    source = TOOL % (SECRET[::-1], 'effect_of=MADE, description="A tool."', '"a"')
    for text in (source, TOOL % (SECRET[::-1], 'input={"type": MADE}', '"a"'), f'raise ValueError("{SECRET[::-1]}"[::-1])\n'):
        error = await refusal(tmp_path, policy, text)
        assert error is not None
        assert SECRET not in str(error)
