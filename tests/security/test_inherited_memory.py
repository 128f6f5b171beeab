"""What a child inherits of the launcher's memory names no place of the host: neither frozen objects nor the frames below its own."""

from pathlib import Path
from typing import Any

from engine.host import Engine
from tests import kit, moments
from tests.attempts import given, pairs, source

WALK = """
import gc, sys, types
gc.unfreeze()
level, frame = list(gc.get_objects()), sys._getframe()
while frame:
    level.append(frame.f_locals)
    frame = frame.f_back
marks, found, seen = [mark[::-1] for mark in given["reversed"]], [], set()
while level:
    below = gc.get_referents(*level)
    for one in level:
        seen.add(id(one))
        if type(one) is types.CodeType:
            below += [one.co_filename, one.co_consts]
        text = one if type(one) is str else one.decode("latin-1") if type(one) is bytes else ""
        if text not in marks and any(mark in text for mark in marks):
            found.append(text[:200])
    level = [one for one in below if id(one) not in seen]
return {"found": found, "objects": len(seen)}
"""


async def test_no_frozen_object_and_no_frame_names_a_place_of_the_host(engine: Engine, tmp_path: Path, project: Path) -> None:
    """Thawed and walked from every root and frame, the heap holds the engine's folders nowhere; bare, the walk finds them."""
    arguments = given(reversed=[str(project)[::-1], str(tmp_path)[::-1]])
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(WALK), "attempt", arguments)
    assert (outcome.reason, outcome.value["found"]) == ("ok.done", [])
    assert outcome.value["objects"] > 10_000
    assert kit.bare(tmp_path / "bare", source(WALK), "attempt", arguments).value["found"] != []


async def test_neither_the_jail_that_waited_nor_one_beside_it_names_one(engine: Engine, tmp_path: Path, project: Path) -> None:
    """What was made ahead of its order, and what is made while the launcher remembers how: both walks find nothing."""
    arguments = given(reversed=[str(project)[::-1], str(tmp_path)[::-1]])
    await engine.load(kit.write(tmp_path / "jailed", source(WALK)))

    def other(order: dict[str, Any]) -> None:
        order["links"] = [*order["links"], ["python", "/other"]]

    for change in (pairs.nothing, other):
        waiting, _ = await moments.made_ahead(engine.launcher_pid)
        recipe = pairs.recipe_of(engine, "attempt", change)
        async with pairs.jail_of(engine, recipe) as jail:
            assert (jail.monitor() == waiting.pid) is (change is pairs.nothing)
            one = pairs.Sibling(jail, recipe)
            await one.ready()
            answer = await one.call("attempt", **arguments["given"])
            assert (answer.value["found"], answer.value["objects"] > 10_000) == ([], True)
            await one.end()
