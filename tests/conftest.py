"""What all tests share: where the project lies, and an engine that must leave nothing behind."""

import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.host import Engine
from tests import kinds, kit, machine, wasm_guest


def pytest_configure(config: pytest.Config) -> None:
    """A shell ignores the interrupt for what it runs in the background, and the programs of tests would inherit that.

    The images of this machine are for the tests that name their folder.
    """
    folder = tempfile.mkdtemp(prefix="no-images-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    machine.hide(folder)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have the tests of ``kinds.BOTH`` run on every kind of worker."""
    if kinds.both(metafunc.definition.nodeid):
        metafunc.fixturenames.insert(0, "kind")
        metafunc.parametrize("kind", kinds.KINDS, indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of worker that engines of this test use."""
    if request.param == "wasm":
        kinds.require_image()
    with kit.default_kind(request.param, machine.IMAGE_DIR):
        yield request.param


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine with a state folder of its own; the test fails when anything of it is left."""
    async with kit.clean_engine(tmp_path / "state") as made:
        yield made


@pytest.fixture(scope="session")
def guest() -> wasm_guest.Guest:
    """The WebAssembly image's guest, without a jail; a skip that says *unproven* where the image cannot be built."""
    with wasm_guest.code() as code:
        return wasm_guest.Guest(code)
