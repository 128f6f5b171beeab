"""What is the WebAssembly kind's own: how it is chosen, what it refuses, its launcher, its image. The contract itself is every kind's."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import trio

from engine.errors import EngineError, HostError
from engine.host import Engine
from engine.images.image import Image
from engine.worker.launcher import NATIVE, Launcher, Program
from tests import kinds, kit, machine

PLAIN = """
import sys
from engine import tool

@tool(effect="read", description="where it runs")
def where() -> str:
    return sys.platform
"""
ASKS = PLAIN.replace('description="where it runs"', 'description="where it runs", worker="{}"')


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine that may choose, on a machine with the image."""
    kinds.require_image()
    async with kit.clean_engine(tmp_path / "state", worker="auto", image_dir=machine.IMAGE_DIR) as engine:
        yield engine


async def _fails(program: Program = NATIVE) -> Launcher:
    raise HostError("refused.start_failed", "step 'try the image' failed: no room")


class TestChoice:
    """Which kind runs a source, and what the receipt says of it."""

    async def test_the_strongest_is_taken(self, both: Engine, tmp_path: Path) -> None:
        """Wasm, when it can serve."""
        outcome = await kit.jailed(both, tmp_path / "source", PLAIN, "where")
        worker = (await outcome.concluded())["worker"]
        assert (outcome.value, worker["kind"], worker["why"], worker["python"]) == ("wasi", "wasm", "the strongest there is", "3.14.0")

    async def test_what_it_lacks_is_on_the_receipt(self, both: Engine, tmp_path: Path) -> None:
        """Native, with the reason."""
        outcome = await kit.jailed(both, tmp_path / "source", "import ssl\n" + PLAIN, "where")
        worker = (await outcome.concluded())["worker"]
        why = "wasm, which is stronger, cannot serve: its image python_wasm has no module ssl"
        assert (outcome.value, worker["kind"], worker["why"]) == ("linux", "native", why)

    async def test_without_an_image_native_serves_and_says_so(self, tmp_path: Path) -> None:
        """Nothing is built while somebody waits for a load."""
        async with kit.clean_engine(tmp_path / "state", worker="auto", image_dir=tmp_path / "nothing") as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", PLAIN, "where")
            worker = (await outcome.concluded())["worker"]
        assert (outcome.value, worker["kind"]) == ("linux", "native")
        assert "image python_wasm is not there" in worker["why"]

    @pytest.mark.parametrize("place", ["Image.compiled", "Launcher.start"])
    async def test_what_cannot_start_here_leaves_it_to_native(
        self, both: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        """No code for this machine, or a host whose limits let no guest start: native, and why; asked for, it refuses with that."""
        if place == "Image.compiled":
            monkeypatch.setattr(Image, "compiled", False)
            code, line = "refused.image_missing", "image python_wasm is not compiled for this machine: `stockade image build python_wasm`"
        else:
            monkeypatch.setattr(Launcher, "start", _fails)
            code, line = "refused.start_failed", "step 'try the image' failed: no room"
        outcome = await kit.jailed(both, tmp_path / "source", PLAIN, "where")
        worker = (await outcome.concluded())["worker"]
        why = f"wasm, which is stronger, cannot serve: {line}"
        assert (outcome.value, worker["kind"], worker["why"]) == ("linux", "native", why)
        with pytest.raises(EngineError) as caught:
            await both.load(tmp_path / "source" / "tools.py", worker="wasm")
        assert (caught.value.code, caught.value.lines) == (code, (line,))

    @pytest.mark.parametrize(("kind", "platform"), [("native", "linux"), ("wasm", "wasi")])
    async def test_a_declaration_may_ask(self, both: Engine, tmp_path: Path, kind: str, platform: str) -> None:
        """Whatever would have been chosen."""
        outcome = await kit.jailed(both, tmp_path / "source", ASKS.format(kind), "where")
        worker = (await outcome.concluded())["worker"]
        assert (outcome.value, worker["kind"]) == (platform, kind)

    @pytest.mark.parametrize(("kind", "platform"), [("native", "linux"), ("wasm", "wasi")])
    async def test_a_policy_may_ask(self, tmp_path: Path, kind: str, platform: str) -> None:
        """Whatever would have been chosen."""
        kinds.require_image()
        policy = tmp_path / "own.toml"
        policy.write_text(f'extends = "required"\nworker = {{ value = "{kind}", reason = "a test" }}\n')
        options = {"policy": policy, "worker": "auto", "image_dir": machine.IMAGE_DIR}
        async with kit.clean_engine(tmp_path / "state", **options) as engine:
            outcome = await kit.jailed(engine, tmp_path / "source", PLAIN, "where")
            assert (outcome.value, (await outcome.concluded())["worker"]["why"]) == (platform, "asked for by the policy")

    async def test_two_that_ask_for_different_kinds(self, both: Engine, tmp_path: Path) -> None:
        """Nobody's word counts for more."""
        with pytest.raises(EngineError) as caught:
            await both.load(kit.write(tmp_path / "source", ASKS.format("native")), worker="wasm")
        assert (caught.value.code, caught.value.lines) == (
            "refused.worker_kind",
            ("the caller asks for wasm; the declaration asks for native",),
        )


class TestRefused:
    """Whoever asks for wasm gets it, or hears what is missing."""

    @pytest.mark.parametrize("module", ["ssl", "ctypes", "mmap", "fcntl"])
    async def test_a_module_that_its_image_has_not(self, both: Engine, tmp_path: Path, module: str) -> None:
        """Before anything runs. The control is the same source on the native kind."""
        place = kit.write(tmp_path / "source", f"import {module}\n" + PLAIN)
        with pytest.raises(EngineError) as caught:
            await both.load(place, worker="wasm")
        line = f"wasm cannot serve this source: its image python_wasm has no module {module}"
        assert (caught.value.code, caught.value.lines) == ("refused.worker_kind", (line,))
        assert len(await both.load(place, worker="native")) == 1

    async def test_a_module_that_nobody_has(self, both: Engine, tmp_path: Path) -> None:
        """Neither the source, nor its layers, nor the image: every kind names the line that imports it."""
        place = kit.write(tmp_path / "source", "import nowhere\n" + PLAIN)
        line = "tools.py:1: nowhere is neither in the source, nor standard, nor in a granted layer"
        for kind in ("auto", "wasm", "native"):
            with pytest.raises(EngineError) as caught:
                await both.load(place, worker=kind)
            assert (caught.value.code, caught.value.lines) == ("refused.source_import", (line,))

    async def test_a_policy_without_a_wall(self, both: Engine, tmp_path: Path) -> None:
        """Nobody asked for a kind: native, and why. Asked for, it is refused, as it always has the wall."""
        place = kit.write(tmp_path / "source", PLAIN)
        await both.load(place, policy="host")
        worker = (await (await both.call("where", {})).concluded())["worker"]
        why = "wasm, which is stronger, cannot serve: the mode host has no wall, and it always has one"
        assert (worker["kind"], worker["why"], worker["walls"]) == ("native", why, False)
        with pytest.raises(EngineError) as caught:
            await both.load(place, policy="host", worker="wasm")
        assert caught.value.code == "refused.worker_kind"

    async def test_an_image_that_is_not_there(self, tmp_path: Path) -> None:
        """With the command that makes it."""
        async with kit.clean_engine(tmp_path / "state", worker="wasm", image_dir=tmp_path / "nothing") as engine:
            with pytest.raises(EngineError) as caught:
                await engine.load(kit.write(tmp_path / "source", PLAIN))
        assert caught.value.code == "refused.image_missing"
        assert "stockade image build" in caught.value.lines[0]


STEPS = """
import time
from engine import tool

@tool(effect="read", description="readings of two clocks")
def read() -> list[int]:
    return [clock() for clock in (time.monotonic_ns, time.time_ns) for _ in range(500)]
"""


@pytest.mark.parametrize(("clock", "coarse"), [('clock = { value = "5 ms", reason = "a test" }', True), ("", False)])
async def test_clocks_are_as_coarse_as_the_policy_has_them(tmp_path: Path, clock: str, coarse: bool) -> None:
    """Both clocks go in whole steps; without the key, which is the control, they do not."""
    kinds.require_image()
    policy = tmp_path / "own.toml"
    policy.write_text(f'extends = "required"\n{clock}\n')
    options = {"policy": policy, "worker": "auto", "image_dir": machine.IMAGE_DIR}
    async with kit.clean_engine(tmp_path / "state", **options) as engine:
        outcome = await kit.jailed(engine, tmp_path / "source", STEPS, "read")
    assert outcome.reason == "ok.done"
    assert all(reading % 5_000_000 == 0 for reading in outcome.value) is coarse


class TestLauncher:
    """The second launcher: one for each image."""

    async def test_one_that_was_killed_is_replaced(self, both: Engine, tmp_path: Path) -> None:
        """Its jails die with it; the next call has another."""
        outcome = await kit.jailed(both, tmp_path / "source", PLAIN, "where")
        await outcome.concluded()
        (launcher,) = set(both.launcher_pids) - {both.launcher_pid}
        below = psutil.Process(launcher).children(recursive=True)
        os.kill(launcher, signal.SIGKILL)
        await trio.to_thread.run_sync(lambda: psutil.wait_procs(below, timeout=10))
        again = await both.call("where", {})
        assert (again.reason, again.value) == ("ok.done", "wasi")
        assert launcher not in both.launcher_pids

    async def test_none_is_started_before_a_source_needs_it(self, both: Engine, tmp_path: Path) -> None:
        """An engine that runs native tools alone pays nothing for the other kind."""
        await both.load(kit.write(tmp_path / "source", PLAIN), worker="native")
        assert both.launcher_pids == (both.launcher_pid,)

    async def test_what_is_loaded_is_what_was_hashed(self, both: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The file is opened once, hashed by that descriptor, and handed on as that descriptor: no path is looked up twice."""
        opened: list[int] = []
        real = Image.open_code

        def noted(image: Image) -> object:
            code = real(image)
            opened.append(os.fstat(code.descriptor).st_ino)
            return code

        monkeypatch.setattr(Image, "open_code", noted)
        await kit.jailed(both, tmp_path / "source", PLAIN, "where")
        (launcher,) = set(both.launcher_pids) - {both.launcher_pid}
        held = {os.stat(f"/proc/{launcher}/fd/{name}").st_ino for name in os.listdir(f"/proc/{launcher}/fd")}
        assert len(opened) == 1
        assert opened[0] in held
