"""Several engines on one state folder at once, in one program and in several, on the same sources and others, and after one was killed."""

import subprocess
from pathlib import Path
from typing import Any

import trio

from engine.host import Engine
from tests import kit, programs

TOOL = (
    "from engine import tool\nimport part_{0}\n\n@tool(effect='read', description='d')\ndef say_{0}() -> str:\n    return part_{0}.WORD\n"
)
# loads and calls its tools in a shuffled order, each again and again; one source is everybody's, one its own
BUSY = """
import random
STATE, NAME, ROUNDS = Path(ARGUMENTS[0]), ARGUMENTS[1], int(ARGUMENTS[2])
TOOL = TOOL_TEXT

def written(name, word):
    place = source(f"{NAME}-{name}", TOOL.format(name))
    (place.parent / f"part_{name}.py").write_text(f"WORD = {word!r}\\n")
    return place

async def main():
    values = []
    async with Engine(state_dir=STATE) as engine:
        for number in range(ROUNDS):
            places = [written("shared", "everybody's"), written("same", f"version {number}"), written("own", f"{NAME} {number}")]
            random.shuffle(places)
            async with trio.open_nursery() as nursery:
                for place in places:
                    told("busy")
                    nursery.start_soon(engine.load, place)
            for name in ("shared", "same", "own"):
                outcome = await engine.call(f"say_{name}", {})
                values.append([outcome.reason, outcome.value])
    return values
told(within(100, main))
""".replace("TOOL_TEXT", repr(TOOL))
ROUNDS = 8


def journal(state: Path) -> list[dict[str, Any]]:
    """The receipts of a state folder; every line is a whole one."""
    return kit.call_receipts(state)


def unfinished(state: Path) -> list[Path]:
    """What was begun in the stage and never published."""
    return [place for place in (state / "stage").rglob("*") if place.name.startswith(".tmp-")]


def expected(name: str) -> list[list[str]]:
    """What a busy program of that name must be answered."""
    rounds = [[["ok.done", "everybody's"], ["ok.done", f"version {n}"], ["ok.done", f"{name} {n}"]] for n in range(ROUNDS)]
    return [pair for one in rounds for pair in one]


def source(folder: Path, name: str, word: str) -> Path:
    """A source of two files whose tool says the word."""
    return kit.write(folder / name, {"tools.py": TOOL.format(name), f"part_{name}.py": f"WORD = {word!r}\n"})


class TestOneProgram:
    """Two engines under one event loop."""

    async def test_both_load_and_call_the_same_and_their_own_at_once(self, tmp_path: Path) -> None:
        """Each is answered by its own tool, one journal holds both, and nothing half is left."""
        same = source(tmp_path, "same", "both")
        found: list[tuple[str, object]] = []

        async def use(engine: Engine, name: str) -> None:
            own = source(tmp_path, name, f"of {name}")
            for _ in range(4):
                await engine.load(same)
                await engine.load(own)
                for tool in ("say_same", f"say_{name}"):
                    found.append((tool, (await engine.call(tool, {})).value))

        state = tmp_path / "state"
        with trio.fail_after(60):
            async with Engine(state_dir=state) as one, Engine(state_dir=state) as two, trio.open_nursery() as nursery:
                nursery.start_soon(use, one, "one")
                nursery.start_soon(use, two, "two")
        assert sorted(found) == [("say_one", "of one")] * 4 + [("say_same", "both")] * 8 + [("say_two", "of two")] * 4
        assert sorted(one["tool"] for one in journal(state)) == sorted(tool for tool, _ in found)
        assert unfinished(state) == []

    async def test_one_that_ends_disturbs_the_other_in_nothing(self, tmp_path: Path) -> None:
        """Its tools are its own, its stage stays."""
        place = source(tmp_path, "same", "both")
        async with Engine(state_dir=tmp_path / "state") as staying:
            await staying.load(place)
            async with Engine(state_dir=tmp_path / "state") as leaving:
                assert (await leaving.call("say_same", {})).reason == "refused.unknown_tool"
                await leaving.load(place)
                assert (await leaving.call("say_same", {})).value == "both"
            assert (await staying.call("say_same", {})).value == "both"


class TestSeveralPrograms:
    """Engines in processes of their own."""

    async def test_three_at_once_are_each_answered_rightly(self, tmp_path: Path) -> None:
        """They load a common source, a changing one and their own, in any order; the journal has every call once."""
        state = tmp_path / "state"
        found: dict[str, Any] = {}

        async def one(name: str) -> None:
            found[name] = await trio.to_thread.run_sync(
                lambda: programs.run(tmp_path / name, BUSY, str(state), name, str(ROUNDS), seconds=150)
            )

        async with trio.open_nursery() as nursery:
            for name in ("red", "green", "blue"):
                nursery.start_soon(one, name)
        assert found == {name: expected(name) for name in ("red", "green", "blue")}
        receipts = journal(state)
        assert len({receipt["id"] for receipt in receipts}) == 3 * 3 * ROUNDS
        # equal bytes are one bundle, whoever staged them: one shared, one for each version, one for each round of each program
        assert len({receipt["digests"]["source"] for receipt in receipts}) == 1 + ROUNDS + 3 * ROUNDS
        assert unfinished(state) == []

    async def test_one_that_is_killed_leaves_a_folder_that_serves(self, tmp_path: Path) -> None:
        """In mid-load, at eight points: what it left half is never used, and the same sources load as if it had not been."""
        state = tmp_path / "state"
        words = {"shared": "everybody's", "same": "version 1", "own": "killed 1"}
        for count in range(1, 9):
            host = begun(programs.command(tmp_path / "killed", BUSY, [str(state), "killed", "1000"]))
            await trio.to_thread.run_sync(heard, host, count)
            host.kill()
            host.wait()
            async with kit.clean_engine(state) as engine:
                for name, word in words.items():
                    await engine.load(source(tmp_path / "after", name, word))
                    assert (await engine.call(f"say_{name}", {})).value == word
        assert {receipt["verdict"]["reason"] for receipt in journal(state)} == {"ok.done"}


def begun(command: list[str]) -> subprocess.Popen[bytes]:
    """A program that runs in the background, its answers on a pipe."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=programs.environment())


def heard(host: subprocess.Popen[bytes], count: int) -> None:
    """Until the program has said so many lines that it is busy."""
    assert host.stdout is not None
    with host.stdout as output:
        while count:
            line = output.readline()
            assert line
            count -= line.strip() == b'"busy"'
