"""The launchers of images and of published sources: found, started, ended with their source, few. No process is started here."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from engine import launchers
from engine.errors import EngineError, HostError
from engine.images import publishing
from engine.images.image import uncompiled
from engine.images.publishing import Source
from engine.launchers import Launchers
from engine.outcome import error_for
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


class Code:
    """An open file that stands for compiled code."""

    def __init__(self) -> None:
        self.descriptor = os.open("/dev/null", os.O_RDONLY)


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


class Built:
    """Stands for an image that was found."""

    def __init__(self, digest: str) -> None:
        self.name, self.digest, self.compiled = "tiny", digest, True

    def open_code(self) -> Any:
        """Its code, while it is there."""
        if not self.compiled:
            raise uncompiled(self.name)
        return Code()


async def test_an_image_that_is_gone_is_looked_for_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its launcher runs it serves; then it is missing, and another one that is built serves at once, beside the old one's return."""
    old: Any = Built("old")
    new: Any = Built("new")
    cache = [old]
    monkeypatch.setattr(launchers, "find", lambda *_, **__: cache[0])
    assert await found(stage) == "old"
    await stage.launchers.start(old)
    old.compiled = False
    assert await found(stage) == "old"
    stage.started[0].dead = True
    assert await found(stage) == "refused.image_missing"
    with pytest.raises(EngineError, match="not compiled"):
        await stage.launchers.of(recipe("old"))
    cache[0] = new
    assert await found(stage) == "new"
    await stage.launchers.of(recipe("new"))
    old.compiled = True  # the same bytes again: who loaded it before is served
    await stage.launchers.of(recipe("old"))
    assert len(stage.started) == 3


async def test_code_that_is_damaged_is_looked_for_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, and cannot be used: what was found is forgotten."""
    old: Any = Built("old")
    new: Any = Built("new")
    cache = [old]
    monkeypatch.setattr(launchers, "find", lambda *_, **__: cache[0])
    monkeypatch.setattr(old, "open_code", damaged)
    assert await found(stage) == "old"
    cache[0] = new
    assert await found(stage) == "old"
    with pytest.raises(EngineError, match="changed"):
        await stage.launchers.start(old)
    assert await found(stage) == "new"


async def test_an_image_that_nobody_found_is_an_error_to_read(stage: Stage) -> None:
    """And no StopIteration in the midst of a task."""
    with pytest.raises(EngineError, match="load the source again"):
        await stage.launchers.of(recipe("never"))


async def test_what_is_not_compiled_is_missing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command; once it is compiled it is found."""
    image: Any = Built("a")
    image.compiled = False
    monkeypatch.setattr(launchers, "find", lambda *_, **__: image)
    assert await found(stage) == "refused.image_missing"
    image.compiled = True
    assert await found(stage) == "a"


class Policied:
    """What a policy says of images."""

    image = "tiny"
    images: Mapping[str, str] = MappingProxyType({})


def recipe(digest: str) -> Any:
    """What a jail is made by, as far as it is asked here."""

    class Made:
        wasm = digest

    return Made()


async def found(stage: Stage) -> str:
    """The digest of the policy's image, or the code of what keeps it from running."""
    policy: Any = Policied()
    image = await stage.launchers.image(policy)
    return image.code if isinstance(image, EngineError) else image.digest


def damaged() -> Any:
    """What opening damaged code raises."""
    raise error_for("refused.image_corrupt", "the code was changed")
