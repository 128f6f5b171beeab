"""Launchers that start and end beside each other, and the end of all of them. No process is started here."""

import pytest
import trio
import trio.testing

from engine.errors import HostError, RequestError
from engine.launchers import Launchers
from engine.worker.launcher import Launcher
from tests.unit.test_launchers import BASE, SOURCE, Running, Stage

NATIVE, IMAGE = "", "a"


class Gated:
    """Launchers each of which comes up, or ends, when it is let."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        stage = Stage(patch)
        stage.digest = IMAGE
        self.launchers, self.started = stage.launchers, stage.started
        self.up = trio.Event()
        self.slow_after = 0
        patch.setattr(Launcher, "start", self._start)

    async def _start(self, program: object) -> Running:
        if len(self.started) >= self.slow_after:
            await self.up.wait()
        self.started.append(Running())
        return self.started[-1]

    async def image(self) -> None:
        """Ask for that of the image, for as long as it takes."""
        await self.launchers.published(BASE, SOURCE)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Gated:
    """Launchers, the first of which waits."""
    return Gated(monkeypatch)


async def _wait_starting(launchers: Launchers, digest: str) -> None:
    """Until somebody has the turn to start that one."""
    while digest not in launchers._turns or not launchers._turns[digest].locked():
        await trio.testing.wait_all_tasks_blocked()


async def test_one_that_starts_keeps_nobody_from_another(gated: Gated, nursery: trio.Nursery) -> None:
    """The image's takes its time; the native one that runs is there at once, and who asks for the image's as well waits for that one."""
    gated.slow_after = 1
    native = await gated.launchers.native()
    nursery.start_soon(gated.image)
    await _wait_starting(gated.launchers, IMAGE)
    got: list[Launcher] = []

    async def ask() -> None:
        got.append(await gated.launchers.native())

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    assert got == [native]
    nursery.start_soon(gated.image)
    gated.up.set()
    await trio.testing.wait_all_tasks_blocked()
    while gated.launchers._turns[IMAGE].locked():
        await trio.lowlevel.checkpoint()
    assert len(gated.started) == 2


async def test_close_ends_one_that_is_on_its_way(gated: Gated, nursery: trio.Nursery) -> None:
    """Who waits for it is told, and so is who asks afterwards; nothing is started then."""
    told: list[str] = []

    async def ask() -> None:
        with pytest.raises(RequestError) as error:
            await gated.launchers.native()
        told.append(error.value.code)

    nursery.start_soon(ask)
    nursery.start_soon(ask)
    await _wait_starting(gated.launchers, NATIVE)
    nursery.start_soon(gated.launchers.close)
    await trio.testing.wait_all_tasks_blocked()
    gated.up.set()
    await trio.testing.wait_all_tasks_blocked()
    await ask()
    assert told == ["cancelled.shutdown"] * 3
    assert ([one.ended for one in gated.started], list(gated.launchers.pids)) == ([True], [])


async def test_close_goes_on_when_one_would_not_end(gated: Gated) -> None:
    """All are ended before it is told."""
    gated.up.set()
    await gated.launchers.native()
    await gated.image()
    gated.started[0].__init__(fails=True)  # type: ignore[misc]  # the same one, which will not end
    with pytest.raises(HostError, match="it would not end"):
        await gated.launchers.close()
    assert [one.ended for one in gated.started] == [True, True]
