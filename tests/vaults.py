"""What tests of the vault share: canaries, policies that name them, files and pipes."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from engine.egress.vault import Vault
from engine.errors import PolicyError
from engine.policy.load import load_policy
from engine.policy.model import Policy

CANARY = secrets.token_hex(12)
OTHER = secrets.token_hex(12)


def policy(folder: Path, sources: Mapping[str, str], families: Mapping[str, tuple[str, ...]] | None = None, name: str = "mine") -> Policy:
    """A policy with these secrets, which also grants these families."""
    lines = ['extends = "required"', "[secrets]"]
    lines += [f"{key} = {{ value = '{source}', reason = 'a test' }}" for key, source in sources.items()]
    if families:
        lines += ["[credentials]", *(f"{key} = {{ value = {list(names)}, reason = 'a test' }}" for key, names in families.items())]
        lines += ["[grants]", f"credentials = {{ value = {list(families)}, reason = 'a test' }}"]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines))
    return load_policy(path, Path("policies"))


def secret_file(folder: Path, content: bytes, mode: int = 0o600, name: str = "key") -> Path:
    """A file with that content, which no other user can read."""
    path = folder / name
    path.write_bytes(content)
    path.chmod(mode)
    return path


async def read(end: int) -> bytes:
    """The next byte of a pipe, nothing when all who wrote to it are gone."""
    await trio.lowlevel.wait_readable(end)
    return os.read(end, 1)


async def problem_of(vault: Vault, held: Policy) -> tuple[str, tuple[str, ...]]:
    """Code and lines with which the vault refuses a policy."""
    with pytest.raises(PolicyError) as caught:
        await vault.hold(held)
    return caught.value.code, caught.value.lines
