"""Under the freshness ``snapshot`` a secret is told to the process of a call alone, never to the one that imported for all calls."""

import dataclasses
import os
import re
from pathlib import Path

import psutil
import pytest
import trio

from engine.host import Engine
from engine.policy.model import Freshness
from engine.wire import messages
from tests import kit, levels
from tests.attempts import pairs, source

CANARY = "canary-7f3a91c2e5"
AT_IMPORT = "SEEN = sorted(name for name in os.environ if name.startswith('ACME'))"
ASKED = """
return {"at import": SEEN, "in the call": {name: os.environ.get(name) for name in ("ACME_KEY", "ACME_PLACE")}}
"""


def copies(pid: int, mark: str) -> int:
    """How often that text lies in the memory of a process, in any of its mappings."""
    found = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if line.split()[1][0] != "r" or "[v" in line:  # the vvar and vdso pages are the kernel's
                continue
            memory.seek(start)
            while start < end and (data := memory.read(end - start)):
                found += len(re.findall(mark.encode(), data))
                start += len(data)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="unproven here: the kernel shows the memory of a process that forbids dumps to root alone")
@pytest.mark.parametrize("named", [True, False], ids=["as a secret", "the control"])
async def test_no_secret_is_in_the_memory_of_the_process_that_imported(engine: Engine, tmp_path: Path, *, named: bool) -> None:
    """The value lies nowhere in it, and the call's own process has it; not named as a secret, it lies in both."""
    policy = levels.policy(tmp_path / "policy", Freshness.SNAPSHOT)
    await engine.load(kit.write(tmp_path / "source", source(ASKED, AT_IMPORT)), policy=policy)
    recipe = pairs.told(pairs.recipe_of(engine, "attempt"), ACME_KEY=CANARY, ACME_PLACE="no secret")
    recipe = dataclasses.replace(recipe, secret_names=frozenset({"ACME_KEY"}) if named else frozenset())
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            (first,) = psutil.Process(jail.monitor()).children()
            for _ in range(2):
                one = pairs.Sibling(jail, recipe)
                await one.ready()
                (child,) = first.children()
                held = {pid: copies(pid, CANARY) > 0 for pid in (first.pid, child.pid)}
                answer = await one.call("attempt")
                assert isinstance(answer, messages.Result), answer
                assert answer.value == {
                    "at import": ["ACME_PLACE"] if named else ["ACME_KEY", "ACME_PLACE"],
                    "in the call": {"ACME_KEY": CANARY, "ACME_PLACE": "no secret"},
                }
                assert held == {first.pid: not named, child.pid: True}
                await one.end()
            assert (copies(first.pid, CANARY) > 0) is not named


async def test_a_tool_that_is_fresh_has_them_from_its_import_on(engine: Engine, tmp_path: Path) -> None:
    """Nobody imports for anybody there, so nothing is left out."""
    await engine.load(kit.write(tmp_path / "source", source(ASKED, AT_IMPORT)))
    recipe = pairs.told(pairs.recipe_of(engine, "attempt"), ACME_KEY=CANARY)
    recipe = dataclasses.replace(recipe, secret_names=frozenset({"ACME_KEY"}))
    with trio.fail_after(60):
        async with pairs.jail_of(engine, recipe) as jail:
            one = pairs.Sibling(jail, recipe)
            await one.ready()
            answer = await one.call("attempt")
            assert answer.value == {"at import": ["ACME_KEY"], "in the call": {"ACME_KEY": CANARY, "ACME_PLACE": None}}
            await one.end()
