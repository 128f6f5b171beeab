"""Jails of the WebAssembly launcher, with a guest written by hand: the wall around it is the native one, and it shows less."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from engine.errors import HostError
from engine.jail import plan as plans
from engine.jail import wasm
from engine.places import data_dir
from engine.worker import asking
from engine.worker.child import NativeChild
from engine.worker.launcher import Launcher, wasm_program
from engine.worker.native import Jail
from tests import handmade, hosts

SECONDS = 10.0


@contextlib.asynccontextmanager
async def launched() -> AsyncIterator[Launcher]:
    """A launcher that holds the guest's image."""
    code = os.open(handmade.compiled(), os.O_RDONLY)
    try:
        launcher = await Launcher.start(wasm_program(code))
    finally:
        os.close(code)
    try:
        yield launcher
    finally:
        await launcher.close()


def planned(launcher: Launcher, folder: Path, **layers: Path) -> plans.Plan:
    """A plan on this host for an empty source."""
    for name in ("source", "root", "empty"):
        (folder / name).mkdir(exist_ok=True)
    places = plans.Places(
        engine=data_dir("worker_images"),
        mountpoint=folder / "root",
        empty=folder / "empty",
        syscalls=data_dir("policies") / "syscalls",
        scratch=folder,
    )
    content = plans.Content(source=folder / "source", layers=tuple(layers.items()))
    return wasm.make(hosts.resolved(), launcher.facts, places, content)


@pytest.fixture
def folder() -> Any:
    """One that a jail's uid can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def framed(*payloads: bytes) -> bytes:
    """As the supervisor writes them."""
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def seen(root: Path) -> list[str]:
    """Everything below it."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


async def told(child: NativeChild, wanted: int) -> bytes:
    """So many bytes of its channel."""
    found = b""
    with trio.fail_after(SECONDS):
        while len(found) < wanted:
            await child.wait()
            data = child.read()
            if data == b"":
                break
            found += data or b""
    return found


async def ended(jail: Jail, child: NativeChild) -> int | None:
    """Its wait status."""
    end = await jail.bury(child, SECONDS)
    assert end is not None
    child.close()
    return end.status


async def test_children_come_one_after_the_other(folder: Path) -> None:
    """Each is locked, answers, ends as its guest does, and the next one is as good; two live at once."""
    async with launched() as launcher:
        jail = await Jail.start(launcher, planned(launcher, folder), seconds=SECONDS)
        try:
            parts = ("private_root", "seccomp", "rlimits", "capabilities", "pid_namespace")
            assert jail.enforced.items() >= dict.fromkeys(parts, 1).items()
            first, spare = await jail.fork(), await jail.fork()
            for child, word in ((spare, b"two"), (first, b"one")):
                await child.write(framed(handmade.ECHO + word))
                assert await told(child, 3) == word
            await first.write(framed(handmade.UNREACHABLE))
            assert await ended(jail, first) == 134 << 8
            await spare.write(framed(handmade.END))
            assert await ended(jail, spare) == 0
            third = await jail.fork()
            await third.write(framed(handmade.RANDOM))
            assert len(await told(third, 16)) == 16
            third.kill()
            assert await ended(jail, third) == 9
        finally:
            await jail.close()


async def test_the_second_jail_was_made_ahead(folder: Path) -> None:
    """And is one like the first."""
    async with launched() as launcher:
        for _ in range(3):
            jail = await Jail.start(launcher, planned(launcher, folder), seconds=SECONDS)
            child = await jail.fork()
            await child.write(framed(handmade.ECHO + b"x"))
            assert await told(child, 1) == b"x"
            child.kill()
            assert await ended(jail, child) == 9
            with trio.fail_after(SECONDS):
                while not [one for one in psutil.Process(launcher.pid).children() if one.name() == "unbound-jail"]:
                    await trio.lowlevel.checkpoint()
            await jail.close()


async def test_a_jail_shows_source_layers_and_null_alone(folder: Path) -> None:
    """No interpreter, no library, no scratch; seen from outside, as nobody inside can look."""
    if os.geteuid() != 0:
        pytest.skip("unproven here: an ordinary user cannot look into another user namespace's root")
    (folder / "numbers").mkdir()
    async with launched() as launcher:
        jail = await Jail.start(launcher, planned(launcher, folder, numbers=folder / "numbers"), seconds=SECONDS)
        try:
            child = await jail.fork()
            root = Path(f"/proc/{asking.number_of(child.pidfd)}/root")
            assert seen(root) == ["bundle", "dev", "dev/null", "layers", "layers/numbers"]
            child.kill()
            await ended(jail, child)
        finally:
            await jail.close()


async def test_a_layer_with_native_code_fails_by_its_step(folder: Path) -> None:
    """The step names the file."""
    (folder / "numbers").mkdir()
    (folder / "numbers" / "fast.so").write_bytes(b"\x7fELF")
    async with launched() as launcher:
        with pytest.raises(HostError) as caught:
            await Jail.start(launcher, planned(launcher, folder, numbers=folder / "numbers"), seconds=SECONDS)
        assert caught.value.code == "refused.start_failed"
        assert "step 'read the layers' failed: numbers/fast.so is native code" in caught.value.lines[0]


async def test_what_is_no_image_starts_no_launcher(folder: Path) -> None:
    """Its last word is the step that failed."""
    (folder / "broken").write_bytes(b"\x7fELF no")
    code = os.open(folder / "broken", os.O_RDONLY)
    try:
        with pytest.raises(HostError) as caught:
            await Launcher.start(wasm_program(code))
    finally:
        os.close(code)
    assert "step 'load the image' failed" in caught.value.lines[0]
