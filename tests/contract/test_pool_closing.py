"""The end of a pool for those who want a jail of it: they are told, and none of them waits for what will not come."""

from pathlib import Path

import pytest
import trio

from engine.call import Request
from engine.errors import RequestError
from engine.host import Engine
from tests import kit, moments
from tests.contract.test_lending import lease
from tests.contract.test_pool import in_line

BOUND = """
extends = "required"
[pool]
jails = { value = 1, reason = "the second one waits" }
"""


async def test_who_waits_and_who_comes_is_told(engine: Engine, tmp_path: Path) -> None:
    """The reading of declarations waits in line as well, and no call ends it."""
    policy = tmp_path / "policy.toml"
    policy.write_text(BOUND, encoding="utf-8")
    await engine.load(kit.write(tmp_path / "source", moments.RUN), policy=policy)
    prepared = engine.prepare("echo", Request(arguments={}))
    told: list[str] = []

    async def ask() -> None:
        with pytest.raises(RequestError) as caught:
            await lease(engine, prepared)
        told.append(caught.value.code)

    with trio.fail_after(30):
        await lease(engine, prepared)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await in_line(engine, 2)
            await engine._pool.close()
        await ask()
    assert (told, len(engine._pool._line)) == (["cancelled.shutdown"] * 3, 0)
