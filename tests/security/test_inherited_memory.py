"""What a child inherits of the launcher's memory names no place of the host: neither frozen objects nor the frames below its own."""

from pathlib import Path

from engine.host import Engine
from tests import kit
from tests.attempts import given, source

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
