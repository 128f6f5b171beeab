"""Promise: a source that brings a secret along is refused before anything of it runs, with file and line, unless the operator lists it."""

import base64
import secrets
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.host import Engine
from tests import kit

SECRET = secrets.token_hex(16)  # a canary: nothing opens with it
KEY = (
    "-----BEGIN "
    + "RSA PRIVATE KEY-----\n"
    + f"{base64.b64encode(secrets.token_bytes(48)).decode()}\n" * 8
    + "-----END RSA PRIVATE KEY-----\n"
)
TOOL = """
import pathlib
from engine import tool
%s

@tool(effect="read", data=["fixtures/*"])
def count() -> int:
    "How much of a data file there is."
    return len(pathlib.Path(__file__).parent.joinpath("fixtures/key.pem").read_text())
"""
POLICY = """
extends = "required"
[secrets]
orders_key = { value = "env:ORDERS_KEY", reason = "what may not come in" }
"""


def source(code: str = "", data: str = "nothing", more: str = "") -> dict[str, str]:
    """The files of a tool with a module and a data file."""
    return {"tools.py": TOOL % code, "fixtures/key.pem": data, "other.py": more or "x = 1\n"}


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy whose vault has the secret."""
    monkeypatch.setenv("ORDERS_KEY", SECRET)
    place = tmp_path / "policy.toml"
    place.write_text(POLICY)
    return place


def allow(policy: Path, more: str) -> None:
    """Have the policy say that as well."""
    policy.write_text(POLICY + more)


async def refusal(engine: Engine, place: Path) -> tuple[str, tuple[str, ...]]:
    """Code and lines with which loading must refuse; the secret stands in none of them."""
    with pytest.raises(EngineError) as caught:
        await engine.load(place)
    assert SECRET not in str(caught.value)
    return caught.value.code, caught.value.lines


HELD = {
    "in code": (source(f"KEY = '{SECRET}'\n"), "tools.py:4: holds the secret orders_key"),
    "in a comment": (source(f"\n\n# {SECRET}\n"), "tools.py:6: holds the secret orders_key"),
    "in an imported module": (source("import other\n", more=f"a = 1\nb = '''\n{SECRET}'''\n"), "other.py:3: holds the secret orders_key"),
    "in a data file": (source(data=f"a\nb\nc={SECRET}\n"), "fixtures/key.pem:3: holds the secret orders_key"),
    "in hexadecimal": (source(f"KEY = '{SECRET.encode().hex()}'\n"), "tools.py:4: holds the secret orders_key"),
    "a private key": (source(data=f"text\n{KEY}"), "fixtures/key.pem:2: holds the secret shape:private_key"),
}


async def test_a_source_with_a_secret_is_refused(policy: Path, tmp_path: Path) -> None:
    """Wherever it stands, by value or by shape; the same source without it is loaded and runs."""
    ran = tmp_path / "ran"
    async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
        for number, (files, line) in enumerate(HELD.values()):
            place = kit.write(tmp_path / f"source{number}", files)
            assert await refusal(engine, place) == ("refused.secret_source", (line,))
        await engine.load(kit.write(tmp_path / "clean", source("import other\n")))
        assert (await engine.call("count", {})).value == len("nothing")
    assert not ran.exists()


async def test_nothing_of_it_ran(policy: Path, tmp_path: Path) -> None:
    """Not even its describing: the journal has no receipt of it."""
    async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
        await refusal(engine, kit.write(tmp_path / "source", source(f"KEY = '{SECRET}'\n")))
        await engine.concluded()
        assert (tmp_path / "state" / "journal" / "receipts.jsonl").read_bytes() == b""
        assert list((tmp_path / "state" / "stage").rglob("tools.py")) == []


async def test_a_file_that_the_operator_lists_may_hold_one(policy: Path, tmp_path: Path) -> None:
    """That file, and no other."""
    allow(policy, '[grants]\nsecret_files = { value = ["fixtures/key.pem"], reason = "a key made for tests" }\n')
    async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
        await engine.load(kit.write(tmp_path / "source", source(data=KEY)))
        assert (await engine.call("count", {})).value == len(KEY)
        assert (await refusal(engine, kit.write(tmp_path / "other", source(f"KEY = '{SECRET}'\n", data=KEY))))[1] == (
            "tools.py:4: holds the secret orders_key",
        )


async def test_another_policys_secret_is_looked_for_as_well(policy: Path, tmp_path: Path) -> None:
    """What the engine holds for one policy comes in under no other."""
    async with kit.clean_engine(tmp_path / "state") as engine:
        place = kit.write(tmp_path / "source", source(f"KEY = '{SECRET}'\n"))
        await engine.load(place)  # the control: nobody knows of it yet
        await engine.load(
            kit.write(tmp_path / "clean", {"tools.py": (TOOL % "").replace("count", "again"), "fixtures/key.pem": "x"}), policy=policy
        )
        assert (await refusal(engine, place))[0] == "refused.secret_source"
