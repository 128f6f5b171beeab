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
        metafunc.parametrize("worker_kind", kinds.KINDS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that the table of ``kinds`` leaves to the native kind."""
    left_out = set(kinds.left_out([item.nodeid for item in items]))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


@pytest.fixture(autouse=True)  # pytest forgets a fixture that nothing but a parametrisation names
def worker_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of worker that engines of this test use, set before any of its other fixtures makes one."""
    wanted = getattr(request, "param", "native")
    if wanted == "native":
        yield wanted
        return
    kinds.require_image()
    with kit.default_kind(wanted, machine.IMAGE_DIR):
        yield wanted


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
