"""The launchers of published sources: started with a load, ended with the source, bounded in number. No process is started here."""

import os
from pathlib import Path
from typing import Any

import pytest

from engine import launchers
from engine.errors import HostError
from engine.images import publishing
from engine.images.publishing import Source
from engine.launchers import Launchers
from engine.worker.launcher import Launcher

SOURCE = Source(bundle="", entry="", layers={}, place=Path(), sites={})
BASE: Any = None  # nobody looks at it here


class Running:
    """Stands for a launcher's process."""

    def __init__(self, fails: bool = False) -> None:
        self.pid, self.dead, self.ended, self._fails = 7, False, False, fails

    async def close(self) -> None:
        """End it."""
        self.ended = True
        if self._fails:
            raise HostError("engine_failed.not_clean", "it would not end")


class Stage:
    """What is found, and what was started."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.launchers = Launchers(Path("/nowhere"))
        self.digest = ""
        self.started: list[Running] = []
        self.problem: HostError | None = None
        patch.setattr(publishing, "find", lambda *_: self._image() if self.digest else None)
        patch.setattr(Launcher, "start", self._start)
        patch.setattr(launchers, "wasm_program", lambda code: code)

    def _image(self) -> Any:
        class Found:
            digest = self.digest

            def open_code(self) -> Any:
                class Code:
                    descriptor = os.open("/dev/null", os.O_RDONLY)

                return Code()

        return Found()

    async def _start(self, program: object) -> Running:
        if self.problem is not None:
            raise self.problem
        self.started.append(Running())
        return self.started[-1]

    async def publish(self, digest: str) -> str | None:
        """Load a source for which that image was published, "" for none."""
        self.digest = digest
        return await self.launchers.published(BASE, SOURCE)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Launchers that start nothing."""
    return Stage(monkeypatch)


async def test_its_launcher_runs_when_a_source_is_loaded(stage: Stage) -> None:
    """One for each image, and none where none was published."""
    assert [await stage.publish(digest) for digest in ("", "a", "a", "b")] == [None, "a", "a", "b"]
    assert len(stage.started) == 2


async def test_it_ends_with_its_source(stage: Stage) -> None:
    """And starts again for who still asks; the others go on."""
    await stage.publish("a")
    await stage.publish("b")
    await stage.launchers.keep({"b", ""})
    assert [one.ended for one in stage.started] == [True, False]
    assert (await stage.publish("a"), len(stage.started)) == ("a", 3)


async def test_one_that_would_not_end_is_told(stage: Stage) -> None:
    """Once: it is in nobody's way any more."""
    await stage.publish("a")
    stage.started[0].__init__(fails=True)  # type: ignore[misc]  # the same one, which will not end
    with pytest.raises(HostError, match="it would not end"):
        await stage.launchers.keep(set())
    await stage.launchers.keep(set())


async def test_there_are_so_many_at_most(stage: Stage) -> None:
    """Further sources run in the base image, until there is room again."""
    names = [str(number) for number in range(launchers._PUBLISHED)]
    for name in names:
        assert await stage.publish(name) == name
    await stage.launchers.keep(names)
    assert [await stage.publish("more"), await stage.publish(names[0])] == [None, names[0]]
    await stage.launchers.keep(names[1:])
    assert await stage.publish("more") == "more"


async def test_the_base_serves_when_its_launcher_does_not_start(stage: Stage) -> None:
    """Whatever is wrong with it is no reason to refuse the source."""
    stage.problem = HostError("refused.start_failed", "no")
    assert await stage.publish("a") is None
    stage.problem = None
    assert await stage.publish("a") == "a"
